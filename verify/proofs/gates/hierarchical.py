"""The hierarchical gate's theorems for any tree of any number of nodes: H-range, H-siblings, H-weighted, H-split.

Vectors are over nodes, clients and groups alike.  A *family* is any mask: a refill of a family runs the deficit gate's
kernel on which clients wait and are known in it, and the theorems hold for whatever families there are, as long as f
and g are in the same ones.  (Production refills all families at once: `fairsched.model.algebra` runs the same text on
masks cut to each family, which tests hold it to.)  An admission is the gate's own choice of a client, whose groups are
two other nodes or none, and what the kernel saw of these is what they have.  Which groups those are is left open from
one event to the next, so the range and the gaps hold for trees that change, too; H-split speaks of the clients `mine`
of g.

The clauses are those of the deficit gate's theorems (`fairsched.verify.proofs.gates.deficit`), now said of
nodes.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np

from fairsched.model.algebra import EXACT, NUMPY, Algebra, Bools, ExactVector, Ints, SiblingAlgebra
from fairsched.model.pricing import charge_max_reserved
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies import gates
from fairsched.verify import events
from fairsched.verify import logic as v
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from fairsched.verify.proofs.gates import deficit_runs
from fairsched.verify.proofs.gates.deficit_steps import SEEN, chosen_claim, first_claim, in_credit
from fairsched.verify.proofs.kernels import deficit, hierarchical

# --- what may happen ------------------------------------------------------------------------------------------------

ON_PATH = ("p", "inner", "outer")
PATH = dict.fromkeys(ON_PATH, v.POINT)


def is_other(o: Algebra, like: v.Term, one: v.Term, two: v.Term) -> v.Term:
    """Whether two points are not one client."""
    return o.where(o.pick(v.only(o, like, one), two, False), False, True)


def _a_path(o: Algebra, w: v.World) -> v.Term:
    """A client and its groups are different nodes, and no other groups are asked for."""
    apart = is_other(o, w.Q, w.p, w.inner) & is_other(o, w.Q, w.p, w.outer) & is_other(o, w.Q, w.inner, w.outer)
    return o.exists(w.p) & apart


def _seen(o: Algebra, w: v.World) -> v.Term:
    """What the gate saw of the client's groups is what they have, and 1 where there is none."""
    inner = v.same(o.pick(w.inner_q, w.p, 1), o.pick(w.q, w.inner, 1))
    return inner & v.same(o.pick(w.outer_q, w.p, 1), o.pick(w.q, w.outer, 1))


IS_PATH = v.Need(_a_path)


def refill_event(flat: v.Functions, *needs: v.Need) -> v.Event:
    """One round of credit in one family, of which f and g both are, or neither."""

    def refill(o: Algebra, w: v.World) -> v.Written:
        q = flat.refill(o, w.q, w.queued & w.family, w.known & w.family, w.Q)
        return {"q": q, "P": w.P + (q - w.q)}

    def siblings(o: Algebra, w: v.World) -> v.Term:
        here, there = o.pick(w.family, w.f, True), o.pick(w.family, w.g, True)
        return o.where(here, there, True) & o.where(there, here, True)

    return v.Event(
        "refill a family",
        refill,
        {"family": v.MASK},
        (siblings, *needs),
        (flat.refill_due, flat.refill),
        happens=lambda o, w: flat.refill_due(o, w.q, w.queued & w.family),
    )


def hierarchical_system(
    kernel: v.Functions = hierarchical, flat: v.Functions = deficit, *, backlogged: tuple[str, ...] = ()
) -> v.System:
    """The gate over an interval in which a client waits at or below each of `backlogged` ("f", "g"): what happens to
    the deficit gate's clients, counted along a client's path, and refills of families."""
    of = events.declared(gates.DeficitGate, flat)
    kernels = {**of.kernels, "admit": {"q": kernel.admit}, "refund": {"q": kernel.refund}, "refill": {}}
    tree = attrs.evolve(
        of,
        choose=kernel.choose,
        kernels=kernels,
        names={**of.names, "inner": "inner", "outer": "outer"},
        choosing={"inner": "inner_q", "outer": "outer_q"},
    )
    part = events.part_comes_back(*ON_PATH)
    every = events.gate_events(
        tree,
        (events.NOT_NEGATIVE, *part, events.MORE, events.fits_at(*ON_PATH)),
        settled=part,
        reserved=events.reserved_at(*ON_PATH),
        nodes=ON_PATH,
        exists=IS_PATH,
    )
    seen = (event.with_needs(_seen) if event.name == "admit" else event for event in every)
    refill = refill_event(flat, *map(events.waits, backlogged))
    return v.System(
        "hierarchical gate", deficit_proofs.PARAMETERS, deficit_proofs.LAWS, deficit_proofs.FIELDS, (*seen, refill)
    )


# --- an organisation and its clients --------------------------------------------------------------------------------


def _of_g(o: Algebra, w: v.World) -> v.Term:
    """g is one of the client's groups exactly if the client is one of `mine`."""
    above = o.where(is_other(o, w.Q, w.g, w.inner), o.where(is_other(o, w.Q, w.g, w.outer), False, True), True)
    mine = o.pick(w.mine, w.p, False)
    return o.where(mine, above, o.where(above, False, True)) & is_other(o, w.Q, w.g, w.p)


def _not_mine(o: Algebra, w: v.World) -> v.Term:
    """Groups are no clients."""
    return o.where(o.pick(w.mine, w.inner, False) | o.pick(w.mine, w.outer, False), False, True)


def _sum_of_mine(o: Algebra, w: v.World, vector: v.Term) -> v.Term:
    return v.total(o, o.where(w.mine, vector, 0))


def _split_system(kernel: v.Functions, flat: v.Functions) -> v.System:
    """The gate in which g is charged whatever its clients are, and nothing else."""
    one = hierarchical_system(kernel, flat, backlogged=("f",))
    decoded = v.Need(lambda o, w: v.same(o.pick(w.d, w.g, 0), _sum_of_mine(o, w, w.d)))

    def of_clients(event: v.Event) -> v.Event:
        if "inner" in event.facts:
            return event.with_needs(_of_g, _not_mine)
        return event.with_needs(decoded) if event.name == "decode" else event

    return attrs.evolve(
        one,
        parameters={**one.parameters, "mine": v.MASK},
        laws=(*one.laws, deficit_proofs.EQUAL, lambda o, w: o.where(o.pick(w.mine, w.g, True), False, True)),
        events=tuple(map(of_clients, one.events)),
        derived={"clients_of_g": lambda o, w: _sum_of_mine(o, w, w.W)},
    )


def _no_more_than_f(o: Algebra, w: v.World) -> v.Term:
    (quantum_f, quantum_g), (charge_f, charge_g) = deficit_proofs.both(o, w, "Q"), deficit_proofs.both(o, w, "U")
    most = (quantum_f + charge_f - 1) + (quantum_g + charge_g - 1) + deficit_proofs.both_backs(o, w)
    return w.clients_of_g - o.pick(w.W, w.f, 0) <= most


# --- claims ---------------------------------------------------------------------------------------------------------

_FLAT = {claim.theorem.id: claim for claim in deficit_proofs.claims()}


def _as_of_clients(theorem: Theorem, of: v.System, flat: str) -> v.Claim:
    """The deficit gate's claim about clients as one about the nodes of a tree."""
    return attrs.evolve(_FLAT[flat], theorem=theorem, system=of)


def _change_claim(kernel: v.Functions, flat: v.Functions) -> v.Claim:
    """The deficit gate's claim about quanta that change; the event in which they do is its own."""
    of = {claim.theorem.id: claim for claim in deficit_proofs.claims(flat)}["D-change"]
    events = (
        *hierarchical_system(kernel, flat).events,
        *(event for event in of.system.events if event.name == "configured"),
    )
    changing = attrs.evolve(of.system, name="hierarchical gate, quanta change", events=events)
    return attrs.evolve(of, theorem=hierarchical.H_CHANGE, system=changing)


# --- one step of the kernels ------------------------------------------------------------------------------------------

_SEEN = {**SEEN, **v.vectors("inner_q", "outer_q")}


def _may_go(w: v.World) -> v.Term:
    """Who waits, is ready, and has credit as its groups have."""
    return in_credit(w) & (w.inner_q > 0) & (w.outer_q > 0)


def _gate_claim(kernel: v.Functions) -> v.Claim:
    def choose(o: Algebra, w: v.World) -> v.Term:
        return kernel.choose(o, w.q, w.inner_q, w.outer_q, w.queued, w.ready, w.score)

    return chosen_claim(hierarchical.H_GATE, "hierarchical gate, its choice", _SEEN, choose, _may_go, (kernel.choose,))


def _first_claim(kernel: v.Functions) -> v.Claim:
    def goes(o: Algebra, w: v.World, first: v.Term) -> v.Term:
        return kernel.goes_first(o, w.ready, first, *(o.pick(q, first, 0) for q in (w.q, w.inner_q, w.outer_q)))

    name = "hierarchical gate, the first in line"
    return first_claim(hierarchical.H_FIRST, name, _SEEN, goes, _may_go, (kernel.goes_first,))


def _rounds_claim(kernel: v.Functions, flat: v.Functions) -> v.Claim:
    """Rounds of the family `ours` in a row, counted in quanta as `G`: others are refilled meanwhile, and whatever else
    happens starts the count again."""
    tree = hierarchical_system(kernel, flat)

    def counted(event: v.Event) -> v.Event:
        if event.name == "refill a family":
            elsewhere = v.Need(lambda o, w: v.implies(o, w.ours & w.family, False))
            return event.with_needs(elsewhere)
        return v.and_also(event, G=lambda o, w, _: w.G - w.G)

    def refill(o: Algebra, w: v.World) -> v.Written:
        q = flat.refill(o, w.q, w.queued & w.ours, w.known & w.ours, w.Q)
        return {"q": q, "P": w.P + (q - w.q), "G": w.G + w.Q}

    due = v.Need(lambda o, w: w.due)
    ours = v.Event("refill", refill, {}, (due,), (flat.refill_due, flat.refill))
    of = attrs.evolve(
        tree,
        parameters={**tree.parameters, "ours": v.MASK},
        fields={**tree.fields, "G": v.VECTOR},
        events=(ours, *map(counted, tree.events)),
        derived={"due": lambda o, w: flat.refill_due(o, w.q, w.queued & w.ours)},
    )
    raised = v.Clause(
        "the rounds so far raised waiting clients by G",
        lambda o, w: v.implies(o, w.queued & w.ours, w.q - w.G >= 1 - w.U),
    )
    return v.Claim(
        hierarchical.H_ROUNDS,
        of,
        (*deficit_proofs.NOTHING_YET, v.Clause("G = 0", lambda o, w: v.same(w.G, 0))),
        (*deficit_proofs.RANGE, raised),
        (
            v.Clause(
                "a round more is due only if G_i <= U_i - 1",
                lambda o, w: v.implies(o, w.queued & w.ours & w.due, w.G <= w.U - 1),
            ),
        ),
    )


def _progress_claim(kernel: v.Functions, flat: v.Functions) -> v.Claim:
    """`served` is what the gate would let in of `family`, whose groups have credit, with every client ready."""

    def choose(o: Algebra, w: v.World) -> v.Written:
        waiting = w.queued & w.family
        return {"served": kernel.choose(o, w.q, w.inner_q, w.outer_q, waiting, waiting, w.score)}

    def nothing_due(o: Algebra, w: v.World) -> v.Term:
        return o.where(flat.refill_due(o, w.q, w.queued & w.family), False, True)

    in_credit = v.Need(lambda o, w: v.implies(o, w.family, (w.inner_q > 0) & (w.outer_q > 0)))
    served = v.Clause(
        "if a client of it waits, one of it is let in",
        lambda o, w: v.implies(o, w.queued & w.family, v.spread(o.exists(w.served), w.q)),
    )
    return v.one_step(
        hierarchical.H_PROGRESS,
        "hierarchical gate, a family",
        {"served": v.POINT},
        v.Event("choose", choose, kernels=(kernel.choose, flat.refill_due)),
        (served,),
        parameters={**v.vectors("q", "inner_q", "outer_q", "score"), "queued": v.MASK, "family": v.MASK},
        laws=(nothing_due, in_credit),
    )


def _refund_claim(kernel: v.Functions) -> v.Claim:
    """`was` are the deficits before the client p and its groups were given back `x`."""

    def refund(o: Algebra, w: v.World) -> v.Written:
        return {"q": kernel.refund(o, w.was, w.p, w.inner, w.outer, w.x)}

    def given(o: Algebra, w: v.World) -> v.Term:
        on_path = o.put(o.put(o.put(v.spread(False, w.q), w.p, True), w.inner, True), w.outer, True)
        return o.where(on_path, v.same(w.q, w.was + w.x), v.same(w.q, w.was))

    return v.one_step(
        hierarchical.H_REFUND,
        "hierarchical gate, a refund",
        v.vectors("q"),
        v.Event("refund", refund, kernels=(kernel.refund,)),
        (v.Clause("each gets what was asked, others nothing", given),),
        parameters={**v.vectors("Q", "was"), **PATH, "x": v.SCALAR},
        laws=(lambda o, w: w.Q >= 1, IS_PATH, lambda o, w: w.x >= 0),
    )


# --- all families at once ---------------------------------------------------------------------------------------------
# H-families is about the shipped `refilled`, for any number of nodes and families: its words are said of each family at
# once, and here by what they say to one family, whatever they say to others.  H-words is about the interpretation that
# says them in production, `SiblingAlgebra`, as `NUMPY` does for one family: in every small forest.
#
# F-HIER-1 is what a client gains that comes as many: under the deficit gate k clients get k shares, whatever they are.

# --- any number of nodes and families -------------------------------------------------------------------------------


class _Families:
    """The words of `o` said of every family at once, as the members of one hear them; what others hear is not known."""

    def __init__(self, o: Algebra, w: v.World) -> None:
        self._o = o
        self._family = w.family
        self._flags = iter((w.others_any, w.others_none))
        self._numbers = iter((w.others_rounds,))

    def __getattr__(self, word: str) -> Any:
        return getattr(self._o, word)

    def any(self, m: v.Term) -> v.Term:
        """A truth value of the family, held by its members."""
        return self._o.where(self._family, self._o.any(m & self._family), next(self._flags))

    def none(self, m: v.Term) -> v.Term:
        """The same."""
        return self._o.where(self._family, self._o.none(m & self._family), next(self._flags))

    def argmin(self, vector: v.Term, m: v.Term) -> v.Term:
        """The member of smallest v."""
        return self._o.argmin(vector, m & self._family)

    def pick(self, vector: v.Term, p: v.Term, default: int) -> v.Term:
        """What v is at the family's point."""
        return self._o.where(self._family, self._o.pick(vector, p, default), next(self._numbers))


_TREE = {"q_now": v.VECTOR, "Q_now": v.VECTOR, **dict.fromkeys(("waits", "known", "family"), v.MASK)}
_OTHERS = {"others_any": v.MASK, "others_none": v.MASK, "others_rounds": v.VECTOR}


def families_claim(kernel: v.Functions, flat: v.Functions) -> v.Claim:
    """`q` are the deficits after all families were refilled at once, `alone` what the flat gate makes of the family."""

    def at_once(o: Algebra, w: v.World, *, some_due: bool) -> v.Term:
        names = {"refill_due": flat.refill_due, "refill_rounds": flat.refill_rounds, "common": lambda quanta: quanta}
        words = {"SiblingAlgebra": lambda _: _Families(o, w), "NUMPY": SimpleNamespace(any=lambda _: some_due)}
        state = SimpleNamespace(up=None, known=w.known, quantum=w.Q_now)
        return v.with_names(kernel.refilled, **words, **names)(w.q_now, w.waits, state)

    def alone(o: Algebra, w: v.World) -> v.Term:
        waits = w.waits & w.family
        topped = flat.refill_rounds(o, w.q_now, waits, w.known & w.family, w.Q_now)
        return o.where(v.spread(flat.refill_due(o, w.q_now, waits), w.q_now), topped, w.q_now)

    def due(o: Algebra, w: v.World) -> v.Term:
        return o.any(flat.refill_due(_Families(o, w), w.q_now, w.waits) & w.waits)

    def event(name: str, some_due: bool) -> v.Event:
        def refilled(o: Algebra, w: v.World) -> v.Written:
            return {"q": at_once(o, w, some_due=some_due), "alone": alone(o, w), "ours": w.family}

        asked = v.Need(lambda o, w: due(o, w) if some_due else o.where(due(o, w), False, True))
        return v.Event(name, refilled, {**_TREE, **_OTHERS}, (lambda o, w: w.Q_now >= 1, asked))

    clause = v.Clause("in each family as if it were alone", lambda o, w: v.implies(o, w.ours, v.same(w.q, w.alone)))
    one = v.one_step(
        hierarchical.H_FAMILIES,
        "hierarchical gate, all its families",
        {"q": v.VECTOR, "alone": v.VECTOR, "ours": v.MASK},
        event("some are refilled", True),
        (clause,),
        closed_forms=True,
    )
    return attrs.evolve(one, system=attrs.evolve(one.system, events=(*one.system.events, event("none is due", False))))


# --- the words that ship, in every small forest ---------------------------------------------------------------------


MEMBERS_MAX = 3
"""Most members of a family in the forest of all small families."""
DEFICITS, QUANTA = (-2, 0, 1), (1, 2)


def forests() -> Iterator[Mapping[str, Any]]:
    """All families of up to three members, in one forest: first grouped by family, then mixed up in two ways.

    A member is known or not, waits or not if it is known, and has one of a few deficits and quanta.  The parents are
    nodes that are no family's members, but for the root, which has them all.
    """
    member = [(q, known, waits, quantum) for q in DEFICITS for known, waits in _MEMBERS for quantum in QUANTA]
    families = [family for size in range(1, MEMBERS_MAX + 1) for family in product(member, repeat=size)]
    first = 1 + len(families)
    up = [hierarchical.ROOT] * first + [1 + i for i, family in enumerate(families) for _ in family]
    nodes = [(1, 0, 0, 1)] * first + [each for family in families for each in family]
    for order in (range(len(up)), _mixed(len(up), 7), _mixed(len(up), 11)):
        placed = sorted(range(1, len(up)), key=lambda node: order[node])
        name = {0: 0, **{node: i + 1 for i, node in enumerate(placed)}}
        q, known, waits, quantum = zip(nodes[0], *(nodes[node] for node in placed), strict=True)
        yield {
            "up": [0, *(name[up[node]] for node in placed)],
            "q": list(q),
            "known": list(known),
            "waits": list(waits),
            "quantum": list(quantum),
        }


_MEMBERS = ((0, 0), (1, 0), (1, 1))


def _mixed(size: int, step: int) -> list[int]:
    """Places that keep no family together."""
    return [node * step * 7919 % (size + 1) for node in range(size)]


def refilled_alone(w: Any) -> dict[int, tuple[list[int], list[int]]]:
    """For each node that has children these, and what the deficit gate makes of them, were they all there is.

    Round by round, in Python's own integers.
    """
    families: dict[int, list[int]] = {}
    for node, above in enumerate(w.up):
        if node:
            families.setdefault(above, []).append(node)
    return {above: (family, _rounds_of(w, family)) for above, family in families.items()}


def _rounds_of(w: Any, family: list[int]) -> list[int]:
    q = ExactVector(w.q[node] for node in family)
    quantum = ExactVector(w.quantum[node] for node in family)
    known, waits = (ExactVector(bool(mask[node]) for node in family) for mask in (w.known, w.waits))
    while gates.deficit.refill_due(EXACT, q, waits):
        q = gates.deficit.refill(EXACT, q, waits, known, quantum)
    return list(q)


def split_up(gate: gates.AnyGate, keys: int, requests: int) -> tuple[int, int]:
    """What an organisation of so many clients and one client in none were charged after so many requests of 3 units.

    All of them always have another request waiting, and the organisation's are preferred.
    """
    clients = range(keys + 1)
    heads = np.array([1] * keys + [0], dtype=np.int64)
    state = gate.init()
    for client in range(keys):
        state = gate.configured(state, client, 1, (("organisation", 1),))
    for client in clients:
        state = gate.joined(state, client, heads[: client + 1], False)
    charged = [0] * (keys + 1)
    for _ in range(requests):
        turn = gate.begin(state, heads)
        client = turn.choose(heads)
        turn.admit(client, 1, 2, False)
        state = gate.released(gate.decoded(gate.after(state, turn), (client,), (1,)), client, 2)
        charged[client] += v.RATES.input + v.RATES.output
    return sum(charged[:keys]), charged[keys]


def split_bound() -> int:
    """2(Q + U - 1) for these requests, which a worker of 2 tokens takes one at a time."""
    charge_max = charge_max_reserved(v.RATES, 2, 1)
    return gates.deficit.gap_cost(deficit_runs.QUANTUM, charge_max, deficit_runs.QUANTUM, charge_max)


Refilled = Callable[[Ints, Bools, Any], Ints]


@v.sampled(hierarchical.H_WORDS, forests)
def _words(w: SimpleNamespace, refilled: Refilled = hierarchical.refilled) -> v.Shown:
    state: Any = SimpleNamespace(
        up=np.array(w.up), known=np.array(w.known, dtype=np.bool_), quantum=np.array(w.quantum)
    )
    found = refilled(np.array(w.q), np.array(w.waits, dtype=np.bool_), state).tolist()
    alone = refilled_alone(w)
    return {
        f"the children of node {above} are as if they were alone": [found[node] for node in children] == as_alone
        for above, (children, as_alone) in alone.items()
    } | {"the root is left alone": found[0] == w.q[0]}


def claims(kernel: v.Functions = hierarchical, flat: v.Functions = deficit) -> tuple[v.Claim | v.SampledClaim, ...]:
    """The theorems about the gate whose kernel functions are `kernel`'s and, in families, `flat`'s."""
    pair = hierarchical_system(kernel, flat, backlogged=("f", "g"))
    split = _as_of_clients(hierarchical.H_SPLIT, _split_system(kernel, flat), "D-4.2")
    of_g = v.Clause("W_g is the sum over g's clients", lambda o, w: v.same(o.pick(w.W, w.g, 0), w.clients_of_g))
    return (
        _as_of_clients(hierarchical.H_RANGE, hierarchical_system(kernel, flat), "D-range"),
        _as_of_clients(hierarchical.H_SIBLINGS, pair.with_laws(deficit_proofs.EQUAL), "D-4.1"),
        _as_of_clients(hierarchical.H_WEIGHTED, pair, "D-weighted"),
        attrs.evolve(
            split,
            invariants=(*split.invariants, of_g),
            conclusions=(v.Clause("sum over g's clients - W_f <= 2(Q + U - 1) + B_f + B_g", _no_more_than_f),),
        ),
        _change_claim(kernel, flat),
        _gate_claim(kernel),
        _first_claim(kernel),
        _rounds_claim(kernel, flat),
        _progress_claim(kernel, flat),
        _refund_claim(kernel),
        families_claim(kernel, flat),
        _words(),
    )


def bugs() -> tuple[v.Bug, ...]:
    """Refills that are wrong in one way each."""

    def as_one_family(q: Ints, waits: Bools, state: Any) -> Ints:
        if not gates.deficit.refill_due(NUMPY, q, waits):
            return q
        topped: Ints = gates.deficit.refill_rounds(NUMPY, q, waits, state.known, state.quantum)
        return topped

    def one_round(q: Ints, waits: Bools, state: Any) -> Ints:
        families = SiblingAlgebra(state.up)
        topped: Ints = gates.deficit.refill(families, q, waits, state.known, state.quantum)
        return topped

    return (
        v.Bug("no family is refilled while any client has credit", _words(as_one_family)),
        v.Bug("one round, however deep the debt", _words(one_round)),
    )


# --- what is false --------------------------------------------------------------------------------------------------

KEYS_MAX, REQUESTS_MAX = 6, 120


def splits(gate: gates.AnyGate, name: str) -> v.SampledClaim:
    """That splitting up gains nothing, of a gate: for up to so many clients of an organisation and so many requests."""
    statement = "an organisation gets at most 2(Q + U - 1) more than a client beside it, however many clients it is"

    def shows(w: SimpleNamespace) -> v.Shown:
        together, other = split_up(gate, w.keys, w.requests)
        return {statement: together - other <= split_bound()}

    def worlds() -> Iterator[Mapping[str, int]]:
        return ({"keys": k, "requests": n} for k in range(1, KEYS_MAX + 1) for n in range(1, REQUESTS_MAX + 1))

    theorem = Theorem(name, statement, "what one would expect of shares", (), scope=Scope.BOUNDED)
    return v.SampledClaim(theorem, worlds, shows)


def refutations() -> tuple[v.RefutedClaim, ...]:
    """What sounds right of shares among clients and is not."""
    return (
        v.RefutedClaim(
            splits(gates.DeficitGate(v.RATES, deficit_runs.QUANTUM), "F-HIER-1"),
            "the deficit gate, whose shares are per client",
            hierarchical.H_SPLIT.id,
            "120 requests of 3 units: as 3 clients an organisation gets 270 units, and a client beside it 90",
            {"keys": 3, "requests": 120},
        ),
    )


# --- runs that attain the bounds --------------------------------------------------------------------------------------

NODES, ORGANISATION, CLIENT = 4, deficit_runs.F, deficit_runs.G
ROOTS, CLIENTS = (1, 1, 0, 0), (0, 0, 1, 1)


class _Run:
    """A run under way: its steps so far and the deficits after them."""

    def __init__(self, quanta: tuple[int, ...], script: deficit_runs.Script) -> None:
        """The deficit gate's run, in which the organisation is f, and the client beside it g."""
        self.quanta = quanta
        self.q = [0] * NODES
        self.steps: list[v.RunStep] = [("arrive", {"p": node}) for node in range(NODES)]
        for word in script:
            if word == deficit_runs.REFILL:
                self.refill(ROOTS)
            elif word == v.BEGIN:
                self.steps.append((v.BEGIN, {}))
            else:
                node, *costs = word
                for cost in costs:
                    self.request(node, cost)

    def refill(self, family: tuple[int, ...]) -> None:
        """A round of credit for a family in which no client has any."""
        assert not any(held and q > 0 for held, q in zip(family, self.q, strict=True))
        self.q = [q + quantum * held for q, quantum, held in zip(self.q, self.quanta, family, strict=True)]
        self.steps.append(("refill a family", {"family": family}))

    def request(self, node: int, cost: int) -> None:
        """A request of the client, or of one of the organisation's."""
        p, inner = node, -1
        if node == ORGANISATION:
            while max(self.q[2:]) <= 0:
                self.refill(CLIENTS)
            p, inner = (2 if self.q[2] > 0 else 3), ORGANISATION
        seen = 1 if inner < 0 else self.q[inner]
        groups = {"inner": inner, "outer": -1, "inner_q": v.one(NODES, p, seen), "outer_q": v.one(NODES, p, 1)}
        self.steps += _request(p, inner, cost, groups)
        for charged in {p, node}:
            self.q[charged] -= cost


def _request(p: int, inner: int, cost: int, groups: Mapping[str, Any]) -> Iterator[v.RunStep]:
    """Admitted by the gate's choice, and every node of the path pays for its output."""
    admission, (name, facts) = v.served(
        NODES, p, *deficit_runs.TOKENS[cost], ready=(1,) * NODES, score=v.one(NODES, p, 1), **groups
    )
    yield admission
    output = facts["d"][p]
    yield name, {"d": tuple(output if node in (p, inner) else 0 for node in range(NODES))}


def _claim(theorem: str) -> v.Claim:
    return v.claim_named(theorem, claims())


def _witness(theorem: str, quanta: tuple[int, ...], script: deficit_runs.Script, bound: int, **more: Any) -> v.Witness:
    parameters: v.Values = {"Q": quanta, "U": (deficit_runs.CHARGE_MAX,) * NODES, "f": ORGANISATION, "g": CLIENT}
    steps = tuple(_Run(quanta, script).steps)
    return attrs.evolve(v.Witness(_claim(theorem), NODES, parameters, steps, bound, {"q0": "q"}), **more)


def _rounds() -> v.Witness:
    """H-rounds: a debt of U - 1 = 4 with Q = 4 takes two rounds of the root's family."""
    script = (deficit_runs.REFILL, (CLIENT, 3, 5), (ORGANISATION, 3, 5), deficit_runs.REFILL, deficit_runs.REFILL)
    plain = _witness(
        "H-rounds", (deficit_runs.QUANTUM,) * NODES, script, (deficit_runs.CHARGE_MAX - 1) // deficit_runs.QUANTUM + 1
    )
    return attrs.evolve(
        plain,
        steps=tuple(map(_of_two_kinds, plain.steps)),
        parameters={**plain.parameters, "ours": ROOTS},
        measure=lambda w: int(w.G[ORGANISATION]) // deficit_runs.QUANTUM,
    )


def _of_two_kinds(step: v.RunStep) -> v.RunStep:
    """A refill of the root's family is another event than that of any other."""
    return ("refill", {}) if step == ("refill a family", {"family": ROOTS}) else step


def witnesses() -> tuple[v.Witness, ...]:
    """One run a bound of the hierarchical gate: the deficit gate's, among the root's children."""
    siblings = _witness("H-siblings", (deficit_runs.QUANTUM,) * NODES, deficit_runs.GAP, deficit_runs.GAP_BOUND)
    both_ends = attrs.evolve(
        siblings,
        claim=_claim("H-range"),
        steps=tuple(step for step in siblings.steps if step[0] != v.BEGIN),
        bound_cost=deficit_runs.RANGE_BOUND,
        measure=lambda w: int(w.q[CLIENT]) - int(w.q[ORGANISATION]),
    )
    weighted = _witness(
        "H-weighted",
        (*deficit_runs.WEIGHTED_QUANTA, 4, 4),
        deficit_runs.WEIGHTED,
        gates.deficit.weighted_gap_cost(4, deficit_runs.CHARGE_MAX, 2, deficit_runs.CHARGE_MAX),
        measure=lambda w: 2 * int(w.W[ORGANISATION]) - 4 * int(w.W[CLIENT]),
    )
    # The organisation's two clients got 16 together.
    split = attrs.evolve(
        siblings,
        claim=_claim("H-split"),
        parameters={**siblings.parameters, "f": CLIENT, "g": ORGANISATION, "mine": CLIENTS},
        measure=lambda w: int(w.clients_of_g) - int(w.W[CLIENT]),
    )
    return (both_ends, siblings, weighted, split, _rounds())
