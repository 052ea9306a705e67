"""The hierarchical gate: an organisation shares as one client would, and so do its users, and their keys.

Under the deficit gate shares are per client: whoever comes as k clients gets k shares.  Here clients are the leaves of
a tree, organisation > user > key, every node has a deficit of its own, and what is charged to a client is charged to
the groups that it is in.  Who waits may go if it and its groups have credit.  Among siblings the rules are those of the
deficit gate, and its kernels: when nobody of a family who waits has credit, the family is refilled.

Sources: deficits are DRR's (Shreedhar and Varghese, 1995); sharing by the nodes of a tree is H-PFQ's (Bennett and
Zhang, 1997), whose theorems bound delays of packets; ours bounds service that is charged after the fact.
Assumptions: those of the deficit gate.  Theorem: two siblings that both wait, keys, users or organisations, differ in
charged service by at most 2(Q + U - 1), whatever is below them, where U is the most that one *client* can be charged
after it was let in (H-siblings).  So splitting oneself into many gains nothing beyond that constant (H-split).

State: a deficit a node, and how many clients wait at or below it.  A client in no group is a child of the root beside
the organisations: without groups this is the deficit gate.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import attrs
import msgspec
import numpy as np
from immutables import Map

from fairsched.model.algebra import (
    NO_SCORE,
    NOBODY,
    NUMPY,
    NUMPY_OWNED,
    Algebra,
    Bools,
    Ints,
    Mask,
    Point,
    Scalar,
    Vector,
)
from fairsched.model.pricing import Rates, price
from fairsched.model.request import Client, Groups
from fairsched.model.siblings import SiblingAlgebra
from fairsched.model.theorem import CAPPED, Assumption, Theorem
from fairsched.policies.base import ChargeRule, Limits
from fairsched.policies.deficit import DeficitGate, decode, reconfigure, refill_due, refill_rounds, under_cap
from fairsched.policies.gate import Gate, Stake, Turn
from fairsched.policies.hierarchical_theorems import THEOREMS
from fairsched.policies.validators import positive
from fairsched.policies.vectors import grown

# --- kernel ---------------------------------------------------------------------------------------------------------
# Beside the deficit gate's, which are about the nodes of a family.  A client is in `inner`, and that in `outer`: nobody
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


def room(o: Algebra, q: Vector, p: Point, amount: Scalar, quantum: Vector) -> Scalar:
    """How much may be given back to a node without more than one quantum of credit; the amount where there is none."""
    return o.pick(quantum, p, amount) - o.pick(q, p, 0)


def takes_back(o: Algebra, q: Vector, p: Point, inner: Point, outer: Point, amount: Scalar, quantum: Vector) -> Scalar:
    """How much of an amount may be given back to a client and to each of its groups alike."""
    groups = o.minimum(room(o, q, inner, amount, quantum), room(o, q, outer, amount, quantum))
    return o.minimum(o.minimum(amount, room(o, q, p, amount, quantum)), groups)


def refund(o: Algebra, q: Vector, p: Point, inner: Point, outer: Point, amount: Scalar, quantum: Vector) -> Vector:
    """What was charged and never computed is given back, up to one quantum of credit for the client and each group."""
    return along(o, q, p, inner, outer, takes_back(o, q, p, inner, outer, amount, quantum))


# --- gate -----------------------------------------------------------------------------------------------------------

ROOT = 0
"""The node above organisations and above clients in no group: it is never charged and always has credit."""

_Path = tuple[int, int, int]
"""A client's node, the group that it is in and the group that that is in; NOBODY where there is none."""


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

    def path(self, client: int) -> _Path:
        """The client's node and those of its groups."""
        inner, outer = int(self.inner[client]), int(self.outer[client])
        return int(self.node[client]), inner or NOBODY, outer or NOBODY


class HierarchicalTurn(Turn):
    """`q` and `below` are the state's vectors until an admission, then copies of our own; `refilled` is what `choose`
    saw."""

    def __init__(self, gate: "HierarchicalGate", state: HierarchicalState, heads: Ints) -> None:
        self.gate = gate
        self.state = state
        self.q = self.refilled = state.q
        self.in_flight = state.in_flight
        self.below = state.below
        self.owned = self.none_due = False
        self.queued = heads != NO_SCORE
        self.ready = self.queued
        self.waiting = self.below > 0

    def choose(self, heads: Ints) -> int:
        state = self.state
        self.refilled = q = self.q if self.none_due else refilled(self.q, self.waiting, state)
        own, inner, outer = (q.take(nodes) for nodes in (state.node, state.inner, state.outer))
        return int(choose(NUMPY, own, inner, outer, self.queued, self.ready, heads))

    def skip(self, group: int) -> None:
        if self.ready is self.queued:
            self.ready = self.queued.copy()
        self.ready[group] = False

    def admit(self, group: int, input_tokens: int, kv_tokens: int, emptied: bool) -> None:
        q = self.refilled
        if not self.owned:
            q = q.copy() if q is self.state.q else q
            self.below = self.below.copy()
            if self.gate.in_flight_cap_tokens is not None:
                self.in_flight = self.in_flight.copy()
            self.owned = True
        path = self.state.path(group)
        self.q = admit(NUMPY_OWNED, q, *path, price(input_tokens, self.gate.rates.input))
        if self.gate.in_flight_cap_tokens is not None:
            self.in_flight = along(NUMPY_OWNED, self.in_flight, *path, kv_tokens)
        if emptied:
            self.queued[group] = False
            self.below = along(NUMPY_OWNED, self.below, *path, -1)
            for node in path:
                if node != NOBODY:
                    self.waiting[node] = self.below[node] > 0
        # None was due before, and of these families each still has a member that waits in credit.
        self.none_due = all(self.waiting[node] and self.q[node] > 0 for node in path if node != NOBODY)

    def stays(self, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
        """Nothing changes as long as no node where somebody waits runs out of its credit: the chosen client may go on
        being chosen, and no family is refilled that was not."""
        decoding: dict[int, int] = {}
        for client, count in zip(clients, counts, strict=True):
            for node in self.state.path(client):
                decoding[node] = decoding.get(node, 0) + count
        out = self.gate.rates.output
        spans = [
            (int(self.refilled[node]) - 1) // (out * count) + 1
            for node, count in decoding.items()
            if node != NOBODY and self.waiting[node] and self.refilled[node] > 0
        ]
        return min(spans) if spans else None


def refilled(q: Ints, waiting: Bools, state: HierarchicalState) -> Ints:
    """The deficits after every family in which a refill is due was refilled, as often as it takes."""
    families = SiblingAlgebra(state.up)
    due = refill_due(families, q, waiting)
    if not NUMPY.any(due & waiting):
        return q
    topped: Ints = refill_rounds(families, q, waiting & due, state.known & due, state.quantum)
    return topped


@attrs.frozen
class HierarchicalGate(Gate[HierarchicalState]):
    """Serve only who has credit, and whose groups have; refill a family when nobody of it who waits has any.

    `quantum` is the credit of a round for weight 1, in cost units (weights multiply it), at every level of the tree.
    `in_flight_cap_tokens` limits the KV promised to the running requests of one organisation, or of one client in none,
    which shrinks U to the cap.
    """

    name: ClassVar[str] = "hierarchical"
    charge_rule: ClassVar[ChargeRule] = "extend"
    state_type: ClassVar[Any] = HierarchicalState
    theorems: ClassVar[tuple[Theorem, ...]] = THEOREMS

    rates: Rates = attrs.field(factory=Rates)
    quantum: int = attrs.field(default=4096, validator=positive)
    in_flight_cap_tokens: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive))

    @property
    def flat(self) -> DeficitGate:
        """The gate that works among siblings."""
        return DeficitGate(self.rates, self.quantum, self.in_flight_cap_tokens)

    def init(self) -> HierarchicalState:
        nobody, root = np.zeros(0, np.int64), np.zeros(1, np.int64)
        return HierarchicalState(
            nobody, nobody, nobody, root, root + 1, np.zeros(1, np.bool_), root + 1, root, root, Map()
        )

    def turn(self, state: HierarchicalState, heads: Ints) -> Turn:
        return HierarchicalTurn(self, state, heads)

    def after(self, state: HierarchicalState, turn: Turn) -> HierarchicalState:
        assert isinstance(turn, HierarchicalTurn)
        if not turn.owned:
            return state
        return msgspec.structs.replace(state, q=turn.q, in_flight=turn.in_flight, below=turn.below)

    def joined(self, state: HierarchicalState, client: int, heads: Ints, waited: bool) -> HierarchicalState:
        state = self._grown(state, client + 1)
        if waited:
            return state
        path = state.path(client)
        below = along(NUMPY, state.below, *path, 1)
        known = state.known
        if not known[path[0]]:
            known = known.copy()
            known[[node for node in path if node != NOBODY]] = True
        return msgspec.structs.replace(state, below=below, known=known)

    def left(self, state: HierarchicalState, client: int) -> HierarchicalState:
        return msgspec.structs.replace(state, below=along(NUMPY, state.below, *state.path(client), -1))

    def decoded(self, state: HierarchicalState, clients: tuple[int, ...], tokens: tuple[int, ...]) -> HierarchicalState:
        who = np.array(clients, dtype=np.int64)
        amounts = np.array(tokens, dtype=np.int64) * self.rates.output
        charge = np.zeros(len(state.q), dtype=np.int64)
        for nodes in (state.node, state.inner, state.outer):
            np.add.at(charge, nodes[who], amounts)
        charge[ROOT] = 0
        return msgspec.structs.replace(state, q=decode(NUMPY, state.q, charge))

    def settled(self, state: HierarchicalState, client: int, input_tokens: int, heads: Ints) -> HierarchicalState:
        charge, path = price(abs(input_tokens), self.rates.input), state.path(client)
        if input_tokens >= 0:
            return msgspec.structs.replace(state, q=admit(NUMPY, state.q, *path, charge))
        return msgspec.structs.replace(state, q=refund(NUMPY, state.q, *path, charge, state.quantum))

    def released(self, state: HierarchicalState, client: int, kv_tokens: int) -> HierarchicalState:
        if self.in_flight_cap_tokens is None:
            return state
        in_flight = along(NUMPY, state.in_flight, *state.path(client), -kv_tokens)
        return msgspec.structs.replace(state, in_flight=in_flight)

    def configured(self, state: HierarchicalState, client: int, weight: int) -> HierarchicalState:
        state = self._grown(state, client + 1)
        return self._weighed(state, int(state.node[client]), weight)

    def placed(self, state: HierarchicalState, client: int, groups: Groups) -> HierarchicalState:
        """The client belongs to these groups, which have these weights from now on.  O(nodes) for each group."""
        state = self._grown(state, client + 1)
        nodes, names = [ROOT], tuple(name for name, _ in groups)
        for depth, (_, weight) in enumerate(groups, 1):
            if names[:depth] not in state.groups:
                state = self._with_group(state, names[:depth], nodes[-1])
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

    def _with_group(self, state: HierarchicalState, names: tuple[str, ...], above: int) -> HierarchicalState:
        node = len(state.up)
        state = self._with_nodes(state, 1)
        return msgspec.structs.replace(state, up=NUMPY.put(state.up, node, above), groups=state.groups.set(names, node))

    def _grown(self, state: HierarchicalState, size: int) -> HierarchicalState:
        """The state with room for `size` clients: new ones are in no group, and not known yet."""
        missing = size - len(state.node)
        if missing <= 0:
            return state
        first = len(state.up)
        return msgspec.structs.replace(
            self._with_nodes(state, missing),
            node=np.concatenate([state.node, np.arange(first, first + missing)]),
            inner=grown(state.inner, size, ROOT),
            outer=grown(state.outer, size, ROOT),
        )

    def _with_nodes(self, state: HierarchicalState, more: int) -> HierarchicalState:
        """The state with so many nodes more: children of the root of weight 1, without credit."""
        size = len(state.up) + more
        return msgspec.structs.replace(
            state,
            up=grown(state.up, size, ROOT),
            q=grown(state.q, size, 0),
            known=grown(state.known, size, False),
            quantum=grown(state.quantum, size, self.quantum),
            in_flight=grown(state.in_flight, size, 0),
            below=grown(state.below, size, 0),
        )

    def refuses(self, kv_tokens: int) -> str | None:
        return self.flat.refuses(kv_tokens)

    def capped(self, turn: Turn, client: int, kv_tokens: int) -> bool:
        """Whether letting the client's head in would pass the in-flight cap of its organisation."""
        assert isinstance(turn, HierarchicalTurn)
        cap = self.in_flight_cap_tokens
        if cap is None:
            return False
        top = next(node for node in reversed(turn.state.path(client)) if node != NOBODY)
        return not under_cap(NUMPY, turn.in_flight, top, kv_tokens, cap)

    def credit_shortage(self, turn: Turn, client: int) -> bool:
        assert isinstance(turn, HierarchicalTurn)
        return any(turn.refilled[node] <= 0 for node in turn.state.path(client) if node != NOBODY)

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
    def broken_assumptions(self) -> frozenset[Assumption]:
        return frozenset({CAPPED} if self.in_flight_cap_tokens is None else ())

    def stakes(self, clients: tuple[Client, ...], limits: Limits) -> tuple[Stake, ...]:
        return self.flat.stakes(clients, limits)

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
        # The root always has credit; nobody else has more than one quantum, or anything before it was seen.
        assert state.q[ROOT] == 1
        assert not state.known[ROOT]
        assert bool((state.q <= state.quantum).all())
        assert not state.q[1:][~state.known[1:]].any()
        # Weights are positive; what is promised to a group, and who waits in it, is the sum over what it holds.
        assert bool((state.quantum >= 1).all())
        held = np.setdiff1d(np.arange(len(state.up)), state.node)
        for vector in (state.in_flight, state.below):
            assert bool((vector >= 0).all())
            sums = np.bincount(state.up[1:], vector[1:], len(state.up)).astype(np.int64)
            assert (sums[held[1:]] == vector[held[1:]]).all()
        assert bool((state.below[state.node] <= 1).all())
        assert bool(state.known[state.below > 0].all())
