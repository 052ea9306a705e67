"""All families of a tree are refilled at once: H-families, H-words, and what is false of a flat gate.

H-families is about the shipped `refilled`, for any number of nodes and families: its words are said of each family at
once, and here by what they say to one family, whatever they say to others.  H-words is about the interpretation that
says them in production, `SiblingAlgebra`, as `NUMPY` does for one family: in every small forest.

F-HIER-1 is what a client gains that comes as many: under the deficit gate k clients get k shares, whatever they are.
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
from fairsched.verify import logic
from fairsched.verify.proofs.gates import hierarchical as hierarchical_proofs
from fairsched.verify.proofs.gates.deficit_witnesses import (
    CHARGE_MAX,
    GAP,
    GAP_BOUND,
    QUANTUM,
    RANGE_BOUND,
    REFILL,
    TOKENS,
    WEIGHTED,
    WEIGHTED_QUANTA,
    F,
    G,
    Script,
)
from fairsched.verify.proofs.kernels import deficit, hierarchical

# --- any number of nodes and families -------------------------------------------------------------------------------


class _Families:
    """The words of `o` said of every family at once, as the members of one hear them; what others hear is not known."""

    def __init__(self, o: Algebra, w: logic.World) -> None:
        self._o = o
        self._family = w.family
        self._flags = iter((w.others_any, w.others_none))
        self._numbers = iter((w.others_rounds,))

    def __getattr__(self, word: str) -> Any:
        return getattr(self._o, word)

    def any(self, m: logic.Term) -> logic.Term:
        """A truth value of the family, held by its members."""
        return self._o.where(self._family, self._o.any(m & self._family), next(self._flags))

    def none(self, m: logic.Term) -> logic.Term:
        """The same."""
        return self._o.where(self._family, self._o.none(m & self._family), next(self._flags))

    def argmin(self, v: logic.Term, m: logic.Term) -> logic.Term:
        """The member of smallest v."""
        return self._o.argmin(v, m & self._family)

    def pick(self, v: logic.Term, p: logic.Term, default: int) -> logic.Term:
        """What v is at the family's point."""
        return self._o.where(self._family, self._o.pick(v, p, default), next(self._numbers))


_TREE = {"q_now": logic.VECTOR, "Q_now": logic.VECTOR, **dict.fromkeys(("waits", "known", "family"), logic.MASK)}
_OTHERS = {"others_any": logic.MASK, "others_none": logic.MASK, "others_rounds": logic.VECTOR}


def _families_claim(kernel: logic.Functions, flat: logic.Functions) -> logic.Claim:
    """`q` are the deficits after all families were refilled at once, `alone` what the flat gate makes of the family."""

    def at_once(o: Algebra, w: logic.World, *, some_due: bool) -> logic.Term:
        names = {"refill_due": flat.refill_due, "refill_rounds": flat.refill_rounds, "common": lambda quanta: quanta}
        words = {"SiblingAlgebra": lambda _: _Families(o, w), "NUMPY": SimpleNamespace(any=lambda _: some_due)}
        state = SimpleNamespace(up=None, known=w.known, quantum=w.Q_now)
        return logic.with_names(kernel.refilled, **words, **names)(w.q_now, w.waits, state)

    def alone(o: Algebra, w: logic.World) -> logic.Term:
        waits = w.waits & w.family
        topped = flat.refill_rounds(o, w.q_now, waits, w.known & w.family, w.Q_now)
        return o.where(logic.spread(flat.refill_due(o, w.q_now, waits), w.q_now), topped, w.q_now)

    def due(o: Algebra, w: logic.World) -> logic.Term:
        return o.any(flat.refill_due(_Families(o, w), w.q_now, w.waits) & w.waits)

    def event(name: str, some_due: bool) -> logic.Event:
        def refilled(o: Algebra, w: logic.World) -> logic.Written:
            return {"q": at_once(o, w, some_due=some_due), "alone": alone(o, w), "ours": w.family}

        asked = logic.Need(lambda o, w: due(o, w) if some_due else o.where(due(o, w), False, True))
        return logic.Event(name, refilled, {**_TREE, **_OTHERS}, (lambda o, w: w.Q_now >= 1, asked))

    clause = logic.Clause(
        "in each family as if it were alone", lambda o, w: logic.implies(o, w.ours, logic.same(w.q, w.alone))
    )
    one = logic.one_step(
        gates.H_FAMILIES,
        "hierarchical gate, all its families",
        {"q": logic.VECTOR, "alone": logic.VECTOR, "ours": logic.MASK},
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
    member = [(q, known, waits, quantum) for q in DEFICITS for known, waits in _SEEN for quantum in QUANTA]
    families = [family for size in range(1, MEMBERS_MAX + 1) for family in product(member, repeat=size)]
    first = 1 + len(families)
    up = [gates.ROOT] * first + [1 + i for i, family in enumerate(families) for _ in family]
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


_SEEN = ((0, 0), (1, 0), (1, 1))


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
        charged[client] += logic.RATES.input + logic.RATES.output
    return sum(charged[:keys]), charged[keys]


def split_bound() -> int:
    """2(Q + U - 1) for these requests, which a worker of 2 tokens takes one at a time."""
    charge_max = charge_max_reserved(logic.RATES, 2, 1)
    return gates.deficit.gap_cost(QUANTUM, charge_max, QUANTUM, charge_max)


Refilled = Callable[[Ints, Bools, Any], Ints]


@logic.sampled(gates.H_WORDS, forests)
def _words(w: SimpleNamespace, refilled: Refilled = hierarchical.refilled) -> logic.Shown:
    state: Any = SimpleNamespace(
        up=np.array(w.up), known=np.array(w.known, dtype=np.bool_), quantum=np.array(w.quantum)
    )
    found = refilled(np.array(w.q), np.array(w.waits, dtype=np.bool_), state).tolist()
    alone = refilled_alone(w)
    return {
        f"the children of node {above} are as if they were alone": [found[node] for node in children] == as_alone
        for above, (children, as_alone) in alone.items()
    } | {"the root is left alone": found[0] == w.q[0]}


def claims(
    kernel: logic.Functions = hierarchical, flat: logic.Functions = deficit
) -> tuple[logic.Claim | logic.SampledClaim, ...]:
    """The claims about the refill that ships."""
    return (_families_claim(kernel, flat), _words())


def bugs() -> tuple[logic.Bug, ...]:
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
        logic.Bug("no family is refilled while any client has credit", _words(as_one_family)),
        logic.Bug("one round, however deep the debt", _words(one_round)),
    )


# --- what is false --------------------------------------------------------------------------------------------------

KEYS_MAX, REQUESTS_MAX = 6, 120


def splits(gate: gates.AnyGate, name: str) -> logic.SampledClaim:
    """That splitting up gains nothing, of a gate: for up to so many clients of an organisation and so many requests."""
    statement = "an organisation gets at most 2(Q + U - 1) more than a client beside it, however many clients it is"

    def shows(w: SimpleNamespace) -> logic.Shown:
        together, other = split_up(gate, w.keys, w.requests)
        return {statement: together - other <= split_bound()}

    def worlds() -> Iterator[Mapping[str, int]]:
        return ({"keys": k, "requests": n} for k in range(1, KEYS_MAX + 1) for n in range(1, REQUESTS_MAX + 1))

    theorem = Theorem(name, statement, "what one would expect of shares", (), scope=Scope.BOUNDED)
    return logic.SampledClaim(theorem, worlds, shows)


def refutations() -> tuple[logic.RefutedClaim, ...]:
    """What sounds right of shares among clients and is not."""
    return (
        logic.RefutedClaim(
            splits(gates.DeficitGate(logic.RATES, QUANTUM), "F-HIER-1"),
            "the deficit gate, whose shares are per client",
            gates.H_SPLIT.id,
            "120 requests of 3 units: as 3 clients an organisation gets 270 units, and a client beside it 90",
            {"keys": 3, "requests": 120},
        ),
    )


# --- runs that attain the bounds --------------------------------------------------------------------------------------

NODES, ORGANISATION, CLIENT = 4, F, G
ROOTS, CLIENTS = (1, 1, 0, 0), (0, 0, 1, 1)


class _Run:
    """A run under way: its steps so far and the deficits after them."""

    def __init__(self, quanta: tuple[int, ...], script: Script) -> None:
        """The deficit gate's run, in which the organisation is f, and the client beside it g."""
        self.quanta = quanta
        self.q = [0] * NODES
        self.steps: list[logic.RunStep] = [("arrive", {"p": node}) for node in range(NODES)]
        for word in script:
            if word == REFILL:
                self.refill(ROOTS)
            elif word == logic.BEGIN:
                self.steps.append((logic.BEGIN, {}))
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
        groups = {"inner": inner, "outer": -1, "inner_q": logic.one(NODES, p, seen), "outer_q": logic.one(NODES, p, 1)}
        self.steps += _request(p, inner, cost, groups)
        for charged in {p, node}:
            self.q[charged] -= cost


def _request(p: int, inner: int, cost: int, groups: Mapping[str, Any]) -> Iterator[logic.RunStep]:
    """Admitted by the gate's choice, and every node of the path pays for its output."""
    admission, (name, facts) = logic.served(
        NODES, p, *TOKENS[cost], ready=(1,) * NODES, score=logic.one(NODES, p, 1), **groups
    )
    yield admission
    output = facts["d"][p]
    yield name, {"d": tuple(output if node in (p, inner) else 0 for node in range(NODES))}


def _claim(theorem: str) -> logic.Claim:
    return logic.claim_named(theorem, (*hierarchical_proofs.claims(), *claims()))


def _witness(theorem: str, quanta: tuple[int, ...], script: Script, bound: int, **more: Any) -> logic.Witness:
    parameters: logic.Values = {"Q": quanta, "U": (CHARGE_MAX,) * NODES, "f": ORGANISATION, "g": CLIENT}
    steps = tuple(_Run(quanta, script).steps)
    return attrs.evolve(logic.Witness(_claim(theorem), NODES, parameters, steps, bound, {"q0": "q"}), **more)


def _rounds() -> logic.Witness:
    """H-rounds: a debt of U - 1 = 4 with Q = 4 takes two rounds of the root's family."""
    script = (REFILL, (CLIENT, 3, 5), (ORGANISATION, 3, 5), REFILL, REFILL)
    plain = _witness("H-rounds", (QUANTUM,) * NODES, script, (CHARGE_MAX - 1) // QUANTUM + 1)
    return attrs.evolve(
        plain,
        steps=tuple(map(_of_two_kinds, plain.steps)),
        parameters={**plain.parameters, "ours": ROOTS},
        measure=lambda w: int(w.G[ORGANISATION]) // QUANTUM,
    )


def _of_two_kinds(step: logic.RunStep) -> logic.RunStep:
    """A refill of the root's family is another event than that of any other."""
    return ("refill", {}) if step == ("refill a family", {"family": ROOTS}) else step


def witnesses() -> tuple[logic.Witness, ...]:
    """One run a bound of the hierarchical gate: the deficit gate's, among the root's children."""
    siblings = _witness("H-siblings", (QUANTUM,) * NODES, GAP, GAP_BOUND)
    both_ends = attrs.evolve(
        siblings,
        claim=_claim("H-range"),
        steps=tuple(step for step in siblings.steps if step[0] != logic.BEGIN),
        bound_cost=RANGE_BOUND,
        measure=lambda w: int(w.q[CLIENT]) - int(w.q[ORGANISATION]),
    )
    weighted = _witness(
        "H-weighted",
        (*WEIGHTED_QUANTA, 4, 4),
        WEIGHTED,
        gates.deficit.weighted_gap_cost(4, CHARGE_MAX, 2, CHARGE_MAX),
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
