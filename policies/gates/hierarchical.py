"""The hierarchical gate: an organisation shares as one client would, and so do its users, and their keys.

Under the deficit gate shares are per client: a user that comes as k clients gets k shares.  Here clients are the leaves
of a tree, organisation > user > key, every node has a deficit of its own, and what is charged to a client is charged to
the groups that it is in.  A waiting client may go if it and its groups have credit.  Among siblings the rules are those
of the deficit gate, and its kernels: when no waiting member of a family has credit, the family is refilled.

Sources: deficits are DRR's (Shreedhar and Varghese, 1995); sharing by the nodes of a tree is H-PFQ's (Bennett and
Zhang, 1997), whose theorems bound delays of packets; ours bounds service that is charged after the fact.
Theorem: siblings that both wait, keys, users or organisations, differ in charged service by at most 2(Q + U - 1), as
clients do under the deficit gate (H-siblings).  So splitting oneself into many gains nothing beyond that (H-split).

State: a deficit a node, and how many clients wait at or below it.  A client in no group is a child of the root beside
the organisations: without groups this is the deficit gate.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import attrs
import msgspec
import numpy as np
from immutables import Map

from fairsched.model import theorem as th
from fairsched.model.algebra import (
    NO_GROUP,
    NUMPY,
    NUMPY_OWNED,
    Algebra,
    Bools,
    ExactVector,
    Ints,
    Mask,
    Point,
    Scalar,
    SiblingAlgebra,
    Vector,
)
from fairsched.model.pricing import Rates, price
from fairsched.model.request import Client, Groups
from fairsched.model.serialization import Derived
from fairsched.policies import validators
from fairsched.policies.base import ChargeRule, Limits
from fairsched.policies.gates.authoring import COUNTER_MAX, Kernel, common, in_queue
from fairsched.policies.gates.base import AdmissionTransaction, BoundedGate, BoundTerms, Returns
from fairsched.policies.gates.deficit import (
    DeficitGate,
    credit_lasts,
    decode,
    gap_theorem,
    reconfigure,
    refill_due,
    refill_rounds,
    under_cap,
    weighted_gap_cost,
)
from fairsched.policies.gates.interpreters import GateInterpreter, Part, interpreter, refilled_in_rounds
from fairsched.policies.validators import positive
from fairsched.policies.vectors import column, least, with_room

# --- statements -------------------------------------------------------------------------------------------------------
# A *node* is a client or a group, U_i is the most that may be charged to node i after a client at or below it was
# admitted.  All clients of a node share one worker's memory, so its U is that of one client.

_BASE = (th.MEM_RESERVE, th.GATE_RESPECTED, th.QUANTUM_POSITIVE)
_AT_ONCE = ("H-families",)
"""What theorems about rounds of refill rest on: production refills all families at once."""
_SOURCE = "this library; D-4.1 among the children of every node of a tree"

H_RANGE = th.Theorem(
    "H-range",
    "1 - U_i <= q_i - R_i and q_i <= Q_i + B_i for every node i, so q_i stays in [1 - U_i, Q_i + B_i]",
    "this library; D-range at every node",
    _BASE,
    bound="[1 - U_i, Q_i + B_i]",
    rests_on=_AT_ONCE,
)
H_SIBLINGS = gap_theorem(
    "H-siblings",
    "f and g of one family, below each of which a client waits all over [t1, t2): "
    "|W_f - W_g| <= 2(Q + U - 1) + B_f + B_g, whatever is below them",
    _SOURCE,
    (*_BASE, th.EQUAL_QUANTA, th.BACKLOGGED_DURING),
    rests_on=_AT_ONCE,
)
H_WEIGHTED = th.Theorem(
    "H-weighted",
    "f and g of one family, below each of which a client waits: "
    "|Q_g W_f - Q_f W_g| <= Q_g (Q_f + U_f - 1 + B_f) + Q_f (Q_g + U_g - 1 + B_g)",
    "this library; D-weighted among the children of every node of a tree",
    (*_BASE, th.BACKLOGGED_DURING),
    bound="Q_g (Q_f + U_f - 1 + B_f) + Q_f (Q_g + U_g - 1 + B_g)",
    bound_cost=weighted_gap_cost,
    per_quantum=True,
    rests_on=_AT_ONCE,
)
H_SPLIT = gap_theorem(
    "H-split",
    "f waits over [t1, t2), g is an organisation beside it: all clients of g together, however many and whenever they "
    "come and go, are served at most W_f + 2(Q + U - 1) + B_f + B_g",
    "this library; in the flat gate k clients get k shares, and no such bound holds (F-HIER-1)",
    (*_BASE, th.EQUAL_QUANTA, th.BACKLOGGED_DURING),
    rests_on=_AT_ONCE,
)
H_GATE = th.Theorem(
    "H-gate",
    "the gate admits only a client that waits, is ready and has credit, as its groups have, the best score among "
    "them, and one if there is one",
    "theorems of the kernel itself: what GateRespected means",
)
H_FIRST = th.Theorem(
    "H-first",
    "a client of the best score of all that wait, if it is ready and it and its groups have credit, is one that the "
    "gate chooses",
    "this library: why a decision need not look at the other clients",
)
H_ROUNDS = th.Theorem(
    "H-rounds",
    "in a family in which a client waits, at most floor((U_i - 1) / Q_i) + 1 rounds of refill, for every i that waits, "
    "give a waiting client credit, whatever other families do",
    "this library; D-wc in every family",
    _BASE,
    bound="floor((U_i - 1) / Q_i) + 1",
    rests_on=_AT_ONCE,
)
H_PROGRESS = th.Theorem(
    "H-progress",
    "in a family whose groups have credit, in which a client waits, none is passed over and no refill is due, "
    "one is let in; so, from the root down, a client is let in whenever one waits",
    "this library; the step from a node to its children, which is taken as often as the tree is deep",
)
H_REFUND = th.Theorem(
    "H-refund",
    "a client and its groups are each given back what was asked, and no other deficit changes",
    "this library; so a group's service is the sum of its clients'",
)
H_CHANGE = th.Theorem(
    "H-change",
    "whatever weights of clients and groups do: 1 - U_i <= q_i <= Q_i(now) + B_i for every node, and over any interval "
    "in which i's quantum was at most Q, |credit refilled - credit cut - W_i| <= Q + U_i - 1 + B_i",
    "this library; D-change at every node",
    _BASE,
    bound="Q_max + U_i - 1 + B_i, beside the credit that was cut",
    rests_on=_AT_ONCE,
)
H_FAMILIES = th.Theorem(
    "H-families",
    "all families refilled at once have the deficits that each has when the deficit gate refills it alone",
    "this library; the shipped text of `refilled`, whose words are said of every family at once",
    rests_on=("D-refill",),
)
H_WORDS = th.Theorem(
    "H-words",
    "the interpretation whose words are said of families gives each family of a forest what the deficit gate's rounds "
    "give it alone: for all families of up to 3 members, in one forest, in whatever order its nodes are",
    "this library; SiblingAlgebra, the running interpretation of the words that H-families is about",
    scope=th.Scope.BOUNDED,
)

THEOREMS = (
    *(H_RANGE, H_SIBLINGS, H_WEIGHTED, H_SPLIT, H_GATE, H_FIRST, H_ROUNDS, H_PROGRESS, H_REFUND, H_CHANGE),
    *(H_FAMILIES, H_WORDS),
)


# --- kernel ---------------------------------------------------------------------------------------------------------
# Beside the deficit gate's, which are about the nodes of a family.  A client is in `inner`, and that in `outer`: none
# where there is none.  In `choose`, vectors are over clients: q their own deficits, inner and outer those of the groups
# that each is in (positive where there is none).


def choose(o: Algebra, q: Vector, inner: Vector, outer: Vector, queued: Mask, ready: Mask, score: Vector) -> Point:
    """The client of best score among those who wait and are ready, and who have credit as their groups have."""
    return o.argmax(score, queued & ready & (q > 0) & (inner > 0) & (outer > 0))


def along(o: Algebra, v: Vector, p: Point, inner: Point, outer: Point, amount: Scalar) -> Vector:
    """An amount added at a client and at its groups."""
    v = o.bump(v, p, amount)
    v = o.bump(v, inner, amount)
    return o.bump(v, outer, amount)


def admit(o: Algebra, q: Vector, p: Point, inner: Point, outer: Point, charge: Scalar) -> Vector:
    """The chosen client pays for the extend tokens of its request, and its groups pay the same."""
    return along(o, q, p, inner, outer, -charge)


def refund(o: Algebra, q: Vector, p: Point, inner: Point, outer: Point, amount: Scalar) -> Vector:
    """What was charged and never computed is given back to the client and to its groups."""
    return along(o, q, p, inner, outer, amount)


# --- closed form beside the kernel ----------------------------------------------------------------------------------


def goes_first(o: Algebra, ready: Mask, p: Point, own: Scalar, inner: Scalar, outer: Scalar) -> Scalar:
    """Whether p, the client of best score of all that wait, may go at once: it is ready, and it and its groups have
    credit.  Then it is the one that `choose` names, which `verify` proves."""
    return o.pick(ready, p, False) & (own > 0) & (inner > 0) & (outer > 0)


# --- gate -----------------------------------------------------------------------------------------------------------

ROOT = 0
"""The node above organisations and above clients in no group: it is never charged and always has credit."""

_Path = tuple[int, int, int]
"""A client's node, the group that it is in and the group that that is in; NO_GROUP where there is none."""


_NONE: Ints = np.zeros(0, np.int64)


class InCredit(Derived, frozen=True, eq=False, gc=False):
    """Of deficits `q`, and how many clients wait `below` each node: how many children of each node wait in credit
    (`able`), how many clients wait at all, and the nodes above families in which a refill is due."""

    q: Ints | None = None
    below: Ints | None = None
    able: Ints = msgspec.field(default_factory=lambda: _NONE)
    waiting: int = 0
    due: frozenset[int] = frozenset()

    def moved(self, up: Ints, nodes: list[int], were: list[bool], q: Ints, below: Ints, waiting: int) -> "InCredit":
        """The same of other vectors, in which only these nodes have other numbers: `were` says which waited in credit.
        O(1) for each, and a copy where one began or ended to."""
        able, due = self.able, self.due
        for node, was in zip(nodes, were, strict=True):
            if (change := int(_in_credit(q, below, node)) - was) != 0:
                able = able.copy() if able is self.able else able
                able[up[node]] += change
        for node in nodes:
            family = int(up[node])
            waits = waiting if family == ROOT else below[family]
            if waits > 0 and not able[family]:
                due |= {family}
            elif family in due:
                due -= {family}
        return InCredit(q, below, able, waiting, due)


def _in_credit(q: Ints, below: Ints, node: int) -> bool:
    """Whether a client waits at the node or below, and it has credit."""
    return bool(below[node] > 0 and q[node] > 0)


class HierarchicalState(msgspec.Struct, frozen=True):
    """Vectors over clients: the client's `node`, and the nodes of its `inner` and `outer` group, the root where there
    is none.  Vectors over nodes: the node `up` above each, the deficit `q`, `known` (seen before), `quantum`,
    `in_flight` (KV tokens promised to running requests, kept only under a cap), `below` (how many clients wait there or
    below).  `groups` are the nodes of groups by the names on their paths."""

    node: Ints
    inner: Ints
    outer: Ints
    up: Ints
    q: Ints
    known: Bools
    quantum: Ints
    in_flight: Ints
    below: Ints
    groups: Map[tuple[str, ...], int]
    credit: InCredit = InCredit()

    def in_credit(self) -> InCredit:
        """Which families have credit.  O(1) where it is known, else O(nodes)."""
        known = self.credit
        return known if known.q is self.q and known.below is self.below else self.counted(self.q, self.below)

    def counted(self, q: Ints, below: Ints) -> InCredit:
        """The same of these vectors, found anew.  O(nodes)."""
        able = np.bincount(self.up[(below > 0) & (q > 0)], minlength=len(self.up))
        waiting, above = int(np.count_nonzero(below[self.node])), np.array([ROOT, *self.groups.values()])
        waits = np.where(above == ROOT, waiting, below[above])
        return InCredit(q, below, able, waiting, frozenset(above[(waits > 0) & (able[above] == 0)].tolist()))

    def moved(self, path: _Path, q: Ints, below: Ints, more: int = 0) -> InCredit:
        """What becomes of it when only nodes of a client's path get other numbers, and so many more clients wait."""
        known, nodes = self.in_credit(), [node for node in path if node != NO_GROUP]
        were = [_in_credit(self.q, self.below, node) for node in nodes]
        return known.moved(self.up, nodes, were, q, below, known.waiting + more)

    def on_paths(self, clients: Sequence[int], amounts: Sequence[int]) -> tuple[Ints, Ints]:
        """The nodes of the clients and of their groups (the root where there is none), and the amount of each."""
        who, each = column(clients), column(amounts)
        if not self.groups:
            return self.node[who], each
        return np.concatenate([nodes[who] for nodes in (self.node, self.inner, self.outer)]), np.concatenate([each] * 3)

    def path(self, client: int) -> _Path:
        """The client's node and those of its groups."""
        inner, outer = int(self.inner[client]), int(self.outer[client])
        return int(self.node[client]), inner or NO_GROUP, outer or NO_GROUP


class HierarchicalAdmissions(AdmissionTransaction):
    """`q` and `below` are the state's vectors until an admission, then copies of our own."""

    def __init__(self, gate: "HierarchicalGate", state: HierarchicalState, heads: Ints) -> None:
        self.gate = gate
        self.state = state
        self.q = state.q
        self.in_flight = state.in_flight
        self.below = state.below
        self.owned = False
        self.queued = in_queue(heads)
        self.ready = self.queued
        self.credit = state.in_credit()
        self._refilled: Ints | None = None
        self._withdrawn: Ints | None = None

    @property
    def refilled(self) -> Ints:
        """The deficits from which the gate chooses.  O(1) where no refill is due."""
        if self._refilled is None:
            top, due, away = self.gate.refills_top, self.credit.due, self._withdrawn
            if away is not None or (due if top else due - {ROOT}):
                waiting = self.below > (0 if away is None else away)
                self._refilled = refilled(self.q, waiting if top else waiting & (self.state.up != ROOT), self.state)
            else:
                self._refilled = self.q
        return self._refilled

    def choose(self, heads: Ints) -> int:
        state, q = self.state, self.refilled
        if len(heads):
            first = int(heads.argmax())
            own, inner, outer = (q[nodes[first]] for nodes in (state.node, state.inner, state.outer))
            if goes_first(NUMPY, self.ready, first, own, inner, outer):
                return first
        own, inner, outer = (q.take(nodes) for nodes in (state.node, state.inner, state.outer))
        return int(choose(NUMPY, own, inner, outer, self.queued, self.ready, heads))

    def skip(self, group: int) -> None:
        if self.ready is self.queued:
            self.ready = self.queued.copy()
        self.ready[group] = False

    def withdraw(self, group: int) -> None:
        self.skip(group)
        away = np.zeros_like(self.below) if self._withdrawn is None else self._withdrawn
        self._withdrawn = along(NUMPY, away, *self.state.path(group), 1)
        self._refilled = None

    def admit(self, group: int, input_tokens: int, kv_tokens: int, emptied: bool) -> None:
        q = self.refilled
        known = self.credit if q is self.q else self.state.counted(q, self.below)
        if not self.owned:
            q = q.copy() if q is self.state.q else q
            self.below = self.below.copy()
            if self.gate.in_flight_cap_tokens is not None:
                self.in_flight = self.in_flight.copy()
            self.owned = True
        path = self.state.path(group)
        nodes = [node for node in path if node != NO_GROUP]
        were = [_in_credit(q, self.below, node) for node in nodes]
        self.q = admit(NUMPY_OWNED, q, *path, price(input_tokens, self.gate.rates.input))
        if self.gate.in_flight_cap_tokens is not None:
            self.in_flight = along(NUMPY_OWNED, self.in_flight, *path, kv_tokens)
        if emptied:
            self.queued[group] = self.ready[group] = False
            self.below = along(NUMPY_OWNED, self.below, *path, -1)
        self.credit = known.moved(self.state.up, nodes, were, self.q, self.below, known.waiting - emptied)
        self._refilled = None

    def capped(self, client: int, kv_tokens: int) -> bool:
        """Whether it would pass the in-flight cap of the client's organisation."""
        cap = self.gate.in_flight_cap_tokens
        if cap is None:
            return False
        top = next(node for node in reversed(self.state.path(client)) if node != NO_GROUP)
        return not under_cap(NUMPY, self.in_flight, top, kv_tokens, cap)

    def lacks_credit(self, client: int) -> bool:
        return any(self.refilled[node] <= 0 for node in self.state.path(client) if node != NO_GROUP)

    def stays(self, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
        """Nothing changes as long as no node where a client waits runs out of its credit: the chosen client may go on
        being chosen, and no family is refilled that was not.  Where all clients are one family, none is as long as the
        chosen one has credit."""
        if not clients:
            return None
        state, refilled = self.state, self.refilled
        if group != NO_GROUP and not state.groups:
            if group not in clients:
                return None
            charge = self.gate.rates.output * counts[clients.index(group)]
            return int(credit_lasts(NUMPY, refilled[state.node[group]], charge))
        return self._credit_lasts(clients, counts, self.below > 0)

    def in_credit(self, clients: int) -> Bools:
        own, inner, outer = (
            self.refilled.take(n[:clients]) for n in (self.state.node, self.state.inner, self.state.outer)
        )
        has: Bools = (own > 0) & (inner > 0) & (outer > 0)
        return has

    def credit_lasts(self, clients: Sequence[int], counts: Sequence[int]) -> int:
        nodes = np.arange(len(self.below)) != ROOT
        return (self._credit_lasts(clients, counts, nodes) if clients else None) or COUNTER_MAX

    def _credit_lasts(self, clients: Sequence[int], counts: Sequence[int], of: Bools) -> int | None:
        """Return after how many steps the first of these nodes gets out of credit; None if none does."""
        state, refilled = self.state, self.refilled
        nodes, decoding = state.on_paths(clients, counts)
        if state.groups:
            # Clients of one group add up at its node; without groups each has a node of its own.
            sums = np.zeros(len(refilled), dtype=np.int64)
            np.add.at(sums, nodes, decoding)
            decoding = sums.take(nodes)
        q = refilled.take(nodes)
        # None waits at the root.
        last = (of.take(nodes) & (decoding > 0) & (q > 0)).nonzero()[0]
        if not len(last):
            return None
        spans = (q.take(last) - 1) // (self.gate.rates.output * decoding.take(last)) + 1
        return least(spans)


def refilled(q: Ints, waiting: Bools, state: HierarchicalState) -> Ints:
    """The deficits after every family in which a refill is due was refilled, as often as it takes."""
    families = SiblingAlgebra(state.up)
    due = refill_due(families, q, waiting)
    if not NUMPY.any(due & waiting):
        return q
    topped: Ints = refill_rounds(families, q, waiting & due, state.known & due, common(state.quantum))
    return topped


@attrs.frozen
class HierarchicalGate(BoundedGate[HierarchicalState]):
    """Serve only clients that have credit, as their groups have; refill a family when no waiting member of it has
    any."""

    name: ClassVar[str] = "hierarchical"
    withdraws: ClassVar[bool] = True
    charge_rule: ClassVar[ChargeRule] = "extend"
    state_type: ClassVar[Any] = HierarchicalState
    theorems: ClassVar[tuple[th.Theorem, ...]] = THEOREMS
    progress: ClassVar[tuple[str, ...]] = ("H-rounds", "H-progress")
    gap_theorems: ClassVar[tuple[str, ...]] = (H_WEIGHTED.id,)
    returns: ClassVar[Returns] = {
        "return-debt": (H_CHANGE.id,),
        "return-credit": (H_CHANGE.id,),
        "return-lead": (H_SPLIT.id,),
    }
    refills_top: ClassVar[bool] = True
    """Whether the family below the root has its credit from here."""

    rates: Rates = attrs.field(factory=Rates)
    quantum: int = attrs.field(default=4096, validator=validators.quantum)
    """Credit of one refill for weight 1, at every level, in cost units."""
    in_flight_cap_tokens: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive))
    """Most KV tokens reserved for the running requests of an organisation, or of a client in none."""

    @property
    def flat(self) -> DeficitGate:
        """The gate that works among siblings."""
        return DeficitGate(self.rates, self.quantum, self.in_flight_cap_tokens)

    def init(self) -> HierarchicalState:
        no_clients, root = np.zeros(0, np.int64), np.zeros(1, np.int64)
        return HierarchicalState(
            no_clients, no_clients, no_clients, root, root + 1, np.zeros(1, np.bool_), root + 1, root, root, Map()
        )

    def begin(self, state: HierarchicalState, heads: Ints) -> AdmissionTransaction:
        return HierarchicalAdmissions(self, state, heads)

    def after(self, state: HierarchicalState, admissions: AdmissionTransaction) -> HierarchicalState:
        assert isinstance(admissions, HierarchicalAdmissions)
        if not admissions.owned:
            return state
        credit = admissions.credit
        return msgspec.structs.replace(
            state, q=admissions.q, in_flight=admissions.in_flight, below=admissions.below, credit=credit
        )

    def joined(self, state: HierarchicalState, client: int, heads: Ints, waited: bool) -> HierarchicalState:
        state = self._grown(state, client + 1)
        if waited:
            return state
        path = state.path(client)
        below = along(NUMPY, state.below, *path, 1)
        known = state.known
        if not known[path[0]]:
            known = known.copy()
            known[[node for node in path if node != NO_GROUP]] = True
        credit = state.moved(path, state.q, below, 1)
        return msgspec.structs.replace(state, below=below, known=known, credit=credit)

    def left(self, state: HierarchicalState, client: int) -> HierarchicalState:
        path = state.path(client)
        below = along(NUMPY, state.below, *path, -1)
        return msgspec.structs.replace(state, below=below, credit=state.moved(path, state.q, below, -1))

    def decoded(self, state: HierarchicalState, clients: tuple[int, ...], tokens: tuple[int, ...]) -> HierarchicalState:
        nodes, amounts = state.on_paths(clients, tokens)
        charge = np.zeros(len(state.q), dtype=np.int64)
        np.add.at(charge, nodes, amounts * self.rates.output)
        charge[ROOT] = 0
        q, below, known = decode(NUMPY, state.q, charge), state.below, state.in_credit()
        fell = nodes[(state.q[nodes] > 0) & (q[nodes] <= 0) & (below[nodes] > 0)]
        those = sorted(set(fell.tolist()))
        credit = known.moved(state.up, those, [True] * len(those), q, below, known.waiting)
        return msgspec.structs.replace(state, q=q, credit=credit)

    def settled(self, state: HierarchicalState, client: int, input_tokens: int, heads: Ints) -> HierarchicalState:
        charge, path = price(abs(input_tokens), self.rates.input), state.path(client)
        changed = admit if input_tokens >= 0 else refund
        q = changed(NUMPY, state.q, *path, charge)
        return msgspec.structs.replace(state, q=q, credit=state.moved(path, q, state.below))

    def released(
        self, state: HierarchicalState, client: int, kv_tokens: int, output_tokens: int | None = None
    ) -> HierarchicalState:
        if self.in_flight_cap_tokens is None:
            return state
        in_flight = along(NUMPY, state.in_flight, *state.path(client), -kv_tokens)
        return msgspec.structs.replace(state, in_flight=in_flight)

    def configured(self, state: HierarchicalState, client: int, weight: int, groups: Groups = ()) -> HierarchicalState:
        """The client belongs to these groups, which have these weights from now on.  O(nodes) for each group."""
        state = self._grown(state, client + 1)
        state = self._placed(state, client, groups) if groups else state
        return self._weighed(state, int(state.node[client]), weight)

    def _placed(self, state: HierarchicalState, client: int, groups: Groups) -> HierarchicalState:
        nodes, names = [ROOT], tuple(name for name, _ in groups)
        for depth, (_, weight) in enumerate(groups, 1):
            if names[:depth] not in state.groups:
                group = len(state.up)
                state = self._with_nodes(state, 1)
                up, named = NUMPY.put(state.up, group, nodes[-1]), state.groups.set(names[:depth], group)
                state = msgspec.structs.replace(state, up=up, groups=named)
            nodes.append(state.groups[names[:depth]])
            state = self._weighed(state, nodes[-1], weight)
        own = int(state.node[client])
        if state.up[own] == nodes[-1]:
            return state
        if state.known[own]:
            raise ValueError(f"client {client} was served before it was said to be in {'/'.join(names)}")
        inner, outer = nodes[-1], nodes[-2]
        return msgspec.structs.replace(
            state,
            up=NUMPY.put(state.up, own, inner),
            inner=NUMPY.put(state.inner, client, inner),
            outer=NUMPY.put(state.outer, client, outer),
        )

    def _weighed(self, state: HierarchicalState, node: int, weight: int) -> HierarchicalState:
        if state.quantum[node] == weight * self.quantum:
            return state
        quanta = NUMPY.put(state.quantum, node, weight * self.quantum)
        return msgspec.structs.replace(state, quantum=quanta, q=reconfigure(NUMPY, state.q, quanta))

    def _grown(self, state: HierarchicalState, size: int) -> HierarchicalState:
        """The state with room for `size` clients: new ones are in no group, and not known yet."""
        missing = size - len(state.node)
        if missing <= 0:
            return state
        first = len(state.up)
        node = np.concatenate([state.node, np.arange(first, first + missing)])
        state = msgspec.structs.replace(self._with_nodes(state, missing), node=node)
        return with_room(state, size, inner=ROOT, outer=ROOT)

    def _with_nodes(self, state: HierarchicalState, more: int) -> HierarchicalState:
        """The state with so many nodes more: children of the root of weight 1, without credit."""
        size = len(state.up) + more
        return with_room(state, size, up=ROOT, q=0, known=False, quantum=self.quantum, in_flight=0, below=0)

    def owners(self, state: HierarchicalState, clients: int) -> tuple[Ints, Ints]:
        top = np.where(state.outer > ROOT, state.outer, np.where(state.inner > ROOT, state.inner, state.node))[:clients]
        return top, state.quantum[top]

    def refuses(self, kv_tokens: int) -> str | None:
        return self.flat.refuses(kv_tokens)

    def cautions(self, kv_capacity_tokens: int, needs: Sequence[int] = ()) -> tuple[str, ...]:
        return self.flat.cautions(kv_capacity_tokens, needs)

    def charge_max(self, limits: Limits) -> int:
        """U: most that one node can be charged after a client below it was let in, in cost units."""
        return self.flat.charge_max(limits)

    def service_gap_bound(self, clients: tuple[Client, ...], limits: Limits) -> int | None:
        """H-weighted for clients that are siblings, None for others."""
        families = {tuple(name for name, _ in client.place) for client in clients}
        return self.flat.service_gap_bound(clients, limits) if len(families) == 1 else None

    def group_gap_bound(self, groups: tuple[Client, ...], limits: Limits) -> int | None:
        return self.flat.service_gap_bound(groups, limits)

    @property
    def broken_assumptions(self) -> frozenset[th.Assumption]:
        return frozenset({th.CAPPED} if self.in_flight_cap_tokens is None else ())

    def bound_terms(self, clients: tuple[Client, ...], limits: Limits) -> tuple[BoundTerms, ...]:
        return self.flat.bound_terms(clients, limits)

    def check(self, state: HierarchicalState) -> None:
        # Vectors over clients speak of the same clients, those over nodes of the same nodes.
        assert len(state.node) == len(state.inner) == len(state.outer)
        vectors = (state.q, state.known, state.quantum, state.in_flight, state.below)
        assert all(len(vector) == len(state.up) for vector in vectors)
        # Every client is a node of its own, every group another one, and the rest is the root.
        nodes = [ROOT, *state.node.tolist(), *state.groups.values()]
        assert sorted(nodes) == list(range(len(state.up)))
        # A client's groups are what is above it, and a group is where its names say.
        assert (state.up[state.node] == state.inner).all()
        assert (state.up[state.inner] == state.outer).all()
        assert not state.up[state.outer].any()
        for names, node in state.groups.items():
            assert state.up[node] == (state.groups[names[:-1]] if len(names) > 1 else ROOT)
        # The root always has credit; no other node has anything before it was seen.
        assert state.q[ROOT] == 1
        assert not state.known[ROOT]
        assert not state.q[1:][~state.known[1:]].any()
        # Weights are positive; what is promised to a group, and how many wait in it, is the sum over what it holds.
        assert bool((state.quantum >= 1).all())
        held = np.setdiff1d(np.arange(len(state.up)), state.node)
        for vector in (state.in_flight, state.below):
            assert bool((vector >= 0).all())
            sums = np.bincount(state.up[1:], vector[1:], len(state.up)).astype(np.int64)
            assert (sums[held[1:]] == vector[held[1:]]).all()
        assert bool((state.below[state.node] <= 1).all())
        assert bool(state.known[state.below > 0].all())
        # What is counted of the vectors is what they say.
        known, counted = state.in_credit(), state.counted(state.q, state.below)
        assert known.able.tolist() == counted.able.tolist()
        assert (known.waiting, known.due) == (counted.waiting, counted.due)


# --- the rule on exact integers, for monitors -------------------------------------------------------------------------

_Node = int | tuple[str, ...]
"""A client, or the names on the path to a group; () is the root."""


class TreeOfDeficits(GateInterpreter):
    """The hierarchical gate: the deficit gate's rules among the children of every node, one family after the other.

    `above` names the node over each, `q` its deficit, `below` how many clients wait there or below.
    """

    def __init__(self, gate: HierarchicalGate) -> None:
        self.gate = gate
        self.above: dict[_Node, _Node] = {}
        self.q: dict[_Node, int] = {}
        self.quantum: dict[_Node, int] = {}
        self.below: dict[_Node, int] = {}
        self.known: set[_Node] = set()

    def _meet(self, node: _Node, above: _Node) -> None:
        if node not in self.above:
            self.above[node] = above
            self.q[node], self.quantum[node], self.below[node] = 0, self.gate.quantum, 0

    def _path(self, client: int) -> list[_Node]:
        """The client and its groups, the innermost first."""
        self._meet(client, ())
        path: list[_Node] = [client]
        while self.above[path[-1]]:
            path.append(self.above[path[-1]])
        return path

    def _add(self, client: int, change: int) -> None:
        for node in self._path(client):
            self.below[node] += change

    def joined(self, client: int, waiting: Collection[int]) -> None:
        if client not in waiting:
            self._add(client, 1)
            self.known.update(self._path(client))

    def left(self, client: int) -> None:
        self._add(client, -1)

    def choose(self, client: int, waiting: Collection[int], skips: bool) -> int:
        families: dict[_Node, list[_Node]] = {}
        below = Counter(node for each in waiting for node in self._path(each))
        for node, above in self.above.items():
            if above or self.gate.refills_top:
                families.setdefault(above, []).append(node)
        for family in families.values():
            queued = ExactVector([below[node] > 0 for node in family])
            known = ExactVector([node in self.known for node in family])
            quantum = ExactVector([self.quantum[node] for node in family])
            q = refilled_in_rounds(ExactVector([self.q[node] for node in family]), queued, known, quantum)
            self.q.update(zip(family, q, strict=True))
        clients = sorted(waiting)
        owned = [[self.q[node] for node in self._path(each)] + [1, 1] for each in clients]
        own, inner, outer = (ExactVector([credit[depth] for credit in owned]) for depth in range(3))
        queued = ExactVector([True] * len(clients))
        score = ExactVector([each == client for each in clients])
        seen = {"q": own, "inner": inner, "outer": outer, "queued": queued, "ready": queued, "score": score}
        chosen = self.call(choose, **seen)
        return clients[chosen] if chosen != NO_GROUP else NO_GROUP

    def _on_path(self, kernel: Kernel, client: int, **seen: int) -> None:
        """Let a kernel change the deficits of a client and its groups."""
        path = self._path(client)
        inner, outer = (place if place < len(path) else NO_GROUP for place in (1, 2))
        q, quantum = (ExactVector([kept[node] for node in path]) for kept in (self.q, self.quantum))
        q = self.call(kernel, q=q, p=0, inner=inner, outer=outer, quantum=quantum, **seen)
        self.q.update(zip(path, q, strict=True))

    def admitted(self, client: int, tokens: int, waiting: Collection[int], emptied: bool, kv_tokens: int) -> None:
        self._on_path(admit, client, charge=price(tokens, self.gate.rates.input))
        if emptied:
            self._add(client, -1)

    def decoded(self, clients: Iterable[int], tokens: Iterable[int]) -> None:
        amounts: dict[_Node, int] = {}
        for client, count in zip(clients, tokens, strict=True):
            for node in self._path(client):
                amounts[node] = amounts.get(node, 0) + price(count, self.gate.rates.output)
        charge = ExactVector(amounts.values())
        q = self.call(decode, q=ExactVector([self.q[node] for node in amounts]), charge=charge)
        self.q.update(zip(amounts, q, strict=True))

    def settled(self, client: int, tokens: int, waiting: Collection[int]) -> None:
        amount = price(abs(tokens), self.gate.rates.input)
        if tokens > 0:
            self._on_path(admit, client, charge=amount)
        else:
            self._on_path(refund, client, amount=amount)

    def configured(self, client: int, weight: int, groups: Groups) -> None:
        self._meet(client, ())
        names: tuple[str, ...] = ()
        for name, share in groups:
            group = (*names, name)
            self._meet(group, names)
            self._weigh(group, share)
            names = group
        if groups:
            self.above[client] = names
        self._weigh(client, weight)

    def _weigh(self, node: _Node, weight: int) -> None:
        self.quantum[node] = quantum = weight * self.gate.quantum
        [self.q[node]] = self.call(reconfigure, q=ExactVector([self.q[node]]), quantum=ExactVector([quantum]))

    def parts(self, state: Any) -> Iterator[Part]:
        names = {node: group for group, node in state.groups.items()}
        nodes: list[int] = state.node.tolist()
        # Clients first, by number; groups after them, in the order of the gate's nodes.
        keys = [*range(len(nodes)), *(names[node] for node in sorted(names))]
        places = [*nodes, *sorted(names)]
        for client in range(len(nodes)):
            self._path(client)
        for name, kept, made in (
            ("the deficit", state.q, self.q),
            ("the quantum", state.quantum, self.quantum),
            ("the number of clients that wait there or below", state.below, self.below),
        ):
            yield name, kept[places].tolist(), [made[key] for key in keys], 0
        yield "whether it came", state.known[places].tolist(), [key in self.known for key in keys], False


interpreter.register(HierarchicalGate, TreeOfDeficits)
