"""What ships of the hierarchical gate beside its kernels, in worlds: H-families, and what is false of a flat gate.

F-HIER-1 is what a client gains that comes as many: under the deficit gate k clients get k shares, whatever they are.
"""

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

from fairsched.model.algebra import NUMPY, Bools, Ints, SiblingAlgebra
from fairsched.model.pricing import charge_max_reserved
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies import gates
from fairsched.verify.logic import (
    BEGIN,
    RATES,
    Bug,
    RefutedClaim,
    RunStep,
    SampledClaim,
    Shown,
    Values,
    Witness,
    one,
    served,
)
from fairsched.verify.proofs import gate_claim, sampled
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
from fairsched.verify.proofs.kernels import hierarchical

NODES_MAX = 9


@st.composite
def trees(draw: st.DrawFn) -> Mapping[str, Any]:
    """A tree whose node 0 is the root, with a deficit a node, the clients seen and waiting, and quanta."""
    size = draw(st.integers(2, NODES_MAX))

    def each(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=size - 1, max_size=size - 1))

    known = [0, *each(st.integers(0, 1))]
    return {
        "up": [gates.ROOT, *(draw(st.integers(0, node - 1)) for node in range(1, size))],
        "q": [1, *each(st.integers(-9, 4))],
        "known": known,
        "waits": [seen and waits for seen, waits in zip(known, [0, *each(st.integers(0, 1))], strict=True)],
        "quantum": [1, *each(st.integers(1, 5))],
    }


def refilled_alone(w: Any) -> dict[int, list[int]]:
    """For each node that has children what the deficit gate makes of them, were they all there is."""
    up = np.array(w.up)
    found = {}
    for above in sorted(set(w.up)):
        family = np.array([node for node in range(1, len(up)) if up[node] == above], dtype=np.int64)
        q, quantum = np.array(w.q)[family], np.array(w.quantum)[family]
        known, waits = np.array(w.known, dtype=bool)[family], np.array(w.waits, dtype=bool)[family]
        while gates.deficit.refill_due(NUMPY, q, waits):
            q = gates.deficit.refill(NUMPY, q, waits, known, quantum)
        found[above] = q.tolist()
    return found


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
        charged[client] += RATES.input + RATES.output
    return sum(charged[:keys]), charged[keys]


def split_bound() -> int:
    """2(Q + U - 1) for these requests, which a worker of 2 tokens takes one at a time."""
    charge_max = charge_max_reserved(RATES, 2, 1)
    return gates.deficit.gap_cost(QUANTUM, charge_max, QUANTUM, charge_max)


Refilled = Callable[[Ints, Bools, Any], Ints]


@sampled(gates.H_FAMILIES, trees())
def _families(w: SimpleNamespace, refilled: Refilled = hierarchical.refilled) -> Shown:
    state: Any = SimpleNamespace(
        up=np.array(w.up), known=np.array(w.known, dtype=np.bool_), quantum=np.array(w.quantum)
    )
    found = refilled(np.array(w.q), np.array(w.waits, dtype=np.bool_), state).tolist()
    alone = refilled_alone(w)
    return {
        f"the children of node {above} are as if they were alone": [
            q for node, q in enumerate(found) if node and w.up[node] == above
        ]
        == children
        for above, children in alone.items()
    } | {"the root is left alone": found[0] == w.q[0]}


def claims() -> tuple[SampledClaim, ...]:
    """The claim about the refill that ships."""
    return (_families(),)


def bugs() -> tuple[Bug, ...]:
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
        Bug("no family is refilled while any client has credit", _families(as_one_family)),
        Bug("one round, however deep the debt", _families(one_round)),
    )


# --- what is false --------------------------------------------------------------------------------------------------

KEYS_MAX, REQUESTS_MAX = 6, 120


def splits(gate: gates.AnyGate, name: str) -> SampledClaim:
    """That splitting up gains nothing, of a gate: for up to so many clients of an organisation and so many requests."""
    statement = "an organisation gets at most 2(Q + U - 1) more than a client beside it, however many clients it is"

    def shows(w: SimpleNamespace) -> Shown:
        together, other = split_up(gate, w.keys, w.requests)
        return {statement: together - other <= split_bound()}

    def worlds() -> Iterator[Mapping[str, int]]:
        return ({"keys": k, "requests": n} for k in range(1, KEYS_MAX + 1) for n in range(1, REQUESTS_MAX + 1))

    theorem = Theorem(name, statement, "what one would expect of shares", (), scope=Scope.BOUNDED)
    return SampledClaim(theorem, worlds, shows)


def refutations() -> tuple[RefutedClaim, ...]:
    """What sounds right of shares among clients and is not."""
    return (
        RefutedClaim(
            splits(gates.DeficitGate(RATES, QUANTUM), "F-HIER-1"),
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
        self.steps: list[RunStep] = [("arrive", {"p": node}) for node in range(NODES)]
        for word in script:
            if word == REFILL:
                self.refill(ROOTS)
            elif word == BEGIN:
                self.steps.append((BEGIN, {}))
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
        groups = {"inner": inner, "outer": -1, "inner_q": one(NODES, p, seen), "outer_q": one(NODES, p, 1)}
        self.steps += _request(p, inner, cost, groups)
        for charged in {p, node}:
            self.q[charged] -= cost


def _request(p: int, inner: int, cost: int, groups: Mapping[str, Any]) -> Iterator[RunStep]:
    """Admitted by the gate's choice, and every node of the path pays for its output."""
    admission, (name, facts) = served(NODES, p, *TOKENS[cost], ready=(1,) * NODES, score=one(NODES, p, 1), **groups)
    yield admission
    output = facts["d"][p]
    yield name, {"d": tuple(output if node in (p, inner) else 0 for node in range(NODES))}


def _witness(theorem: str, quanta: tuple[int, ...], script: Script, bound: int, **more: Any) -> Witness:
    parameters: Values = {"Q": quanta, "U": (CHARGE_MAX,) * NODES, "f": ORGANISATION, "g": CLIENT}
    steps = tuple(_Run(quanta, script).steps)
    return attrs.evolve(Witness(gate_claim(theorem), NODES, parameters, steps, bound, {"q0": "q"}), **more)


def _rounds() -> Witness:
    """H-rounds: a debt of U - 1 = 4 with Q = 4 takes two rounds of the root's family."""
    script = (REFILL, (CLIENT, 3, 5), (ORGANISATION, 3, 5), REFILL, REFILL)
    plain = _witness("H-rounds", (QUANTUM,) * NODES, script, (CHARGE_MAX - 1) // QUANTUM + 1)
    return attrs.evolve(
        plain,
        steps=tuple(map(_of_two_kinds, plain.steps)),
        parameters={**plain.parameters, "ours": ROOTS},
        measure=lambda w: int(w.G[ORGANISATION]) // QUANTUM,
    )


def _of_two_kinds(step: RunStep) -> RunStep:
    """A refill of the root's family is another event than that of any other."""
    return ("refill", {}) if step == ("refill a family", {"family": ROOTS}) else step


def witnesses() -> tuple[Witness, ...]:
    """One run a bound of the hierarchical gate: the deficit gate's, among the root's children."""
    siblings = _witness("H-siblings", (QUANTUM,) * NODES, GAP, GAP_BOUND)
    both_ends = attrs.evolve(
        siblings,
        claim=gate_claim("H-range"),
        steps=tuple(step for step in siblings.steps if step[0] != BEGIN),
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
        claim=gate_claim("H-split"),
        parameters={**siblings.parameters, "f": CLIENT, "g": ORGANISATION, "mine": CLIENTS},
        measure=lambda w: int(w.clients_of_g) - int(w.W[CLIENT]),
    )
    return (both_ends, siblings, weighted, split, _rounds())
