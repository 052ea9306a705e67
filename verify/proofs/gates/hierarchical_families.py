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
from fairsched.model.pricing import Rates, charge_max_reserved
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.gates import (
    H_FAMILIES,
    H_SPLIT,
    ROOT,
    AnyGate,
    DeficitGate,
    HierarchicalGate,
    deficit,
)
from fairsched.policies.gates.deficit import gap_cost, weighted_gap_cost
from fairsched.verify.logic import (
    BEGIN,
    Bug,
    Claim,
    RefutedClaim,
    RunStep,
    SampledClaim,
    Shown,
    Values,
    Witness,
    World,
    one,
    served,
)
from fairsched.verify.proofs.gates import hierarchical as hierarchical_proofs
from fairsched.verify.proofs.gates.deficit_witnesses import CHARGE_MAX
from fairsched.verify.proofs.kernels import hierarchical

RATES = Rates(1, 2)
QUANTUM = 4
NODES_MAX = 9


@st.composite
def trees(draw: st.DrawFn) -> Mapping[str, Any]:
    """A tree whose node 0 is the root, with a deficit a node, the clients seen and waiting, and quanta."""
    size = draw(st.integers(2, NODES_MAX))

    def each(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=size - 1, max_size=size - 1))

    known = [0, *each(st.integers(0, 1))]
    return {
        "up": [ROOT, *(draw(st.integers(0, node - 1)) for node in range(1, size))],
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
        while deficit.refill_due(NUMPY, q, waits):
            q = deficit.refill(NUMPY, q, waits, known, quantum)
        found[above] = q.tolist()
    return found


def split_up(gate: AnyGate, keys: int, requests: int) -> tuple[int, int]:
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
    return gap_cost(QUANTUM, charge_max, QUANTUM, charge_max)


Refilled = Callable[[Ints, Bools, Any], Ints]


def _families(refilled: Refilled = hierarchical.refilled) -> SampledClaim:
    def shows(w: SimpleNamespace) -> Shown:
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

    return SampledClaim(H_FAMILIES, trees(), shows)


def claims() -> tuple[SampledClaim, ...]:
    """The claim about the refill that ships."""
    return (_families(),)


def bugs() -> tuple[Bug, ...]:
    """Refills that are wrong in one way each."""

    def as_one_family(q: Ints, waits: Bools, state: Any) -> Ints:
        if not deficit.refill_due(NUMPY, q, waits):
            return q
        topped: Ints = deficit.refill_rounds(NUMPY, q, waits, state.known, state.quantum)
        return topped

    def one_round(q: Ints, waits: Bools, state: Any) -> Ints:
        families = SiblingAlgebra(state.up)
        topped: Ints = deficit.refill(families, q, waits, state.known, state.quantum)
        return topped

    return (
        Bug("no family is refilled while any client has credit", _families(as_one_family)),
        Bug("one round, however deep the debt", _families(one_round)),
    )


# --- what is false --------------------------------------------------------------------------------------------------

KEYS_MAX, REQUESTS_MAX = 6, 120


def splits(gate: AnyGate, name: str) -> SampledClaim:
    """That splitting up gains nothing, of a gate: for up to so many clients of an organisation and so many requests."""
    statement = "an organisation gets at most 2(Q + U - 1) more than a client beside it, however many clients it is"

    def shows(w: SimpleNamespace) -> Shown:
        together, other = split_up(gate, w.keys, w.requests)
        return {statement: together - other <= split_bound()}

    def worlds() -> Iterator[Mapping[str, int]]:
        return ({"keys": k, "requests": n} for k in range(1, KEYS_MAX + 1) for n in range(1, REQUESTS_MAX + 1))

    theorem = Theorem(name, statement, "what one would expect of shares", (), scope=Scope.BOUNDED)
    return SampledClaim(theorem, worlds, shows)


GATES: dict[str, AnyGate] = {
    "flat": DeficitGate(RATES, QUANTUM),
    "hierarchical": HierarchicalGate(RATES, QUANTUM),
}
"""The two gates of the comparison."""


def refutations() -> tuple[RefutedClaim, ...]:
    """What sounds right of shares among clients and is not."""
    return (
        RefutedClaim(
            splits(GATES["flat"], "F-HIER-1"),
            "the deficit gate, whose shares are per client",
            H_SPLIT.id,
            "120 requests of 3 units: as 3 clients an organisation gets 270 units, and a client beside it 90",
            {"keys": 3, "requests": 120},
        ),
    )


# --- runs that attain the bounds --------------------------------------------------------------------------------------

NODES, ORGANISATION, CLIENT = 4, 0, 1
ROOTS, CLIENTS = (1, 1, 0, 0), (0, 0, 1, 1)
_TOKENS = {3: (1, 1), 4: (2, 1), 5: (1, 2)}
"""Input and output tokens of a request of each cost."""


class _Run:
    """A run under way: its steps so far and the deficits after them."""

    def __init__(self, quanta: tuple[int, ...]) -> None:
        self.quanta = quanta
        self.q = [0] * NODES
        self.steps: list[RunStep] = [("arrive", {"p": node}) for node in range(NODES)]

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

    def costs(self, node: int, *costs: int) -> None:
        """Requests one after the other."""
        for cost in costs:
            self.request(node, cost)

    def starts(self) -> None:
        """The interval starts here."""
        self.steps.append((BEGIN, {}))


def _request(p: int, inner: int, cost: int, groups: Mapping[str, Any]) -> Iterator[RunStep]:
    """Admitted by the gate's choice, and every node of the path pays for its output."""
    admission, (name, facts) = served(NODES, p, *_TOKENS[cost], ready=(1,) * NODES, score=one(NODES, p, 1), **groups)
    yield admission
    output = facts["d"][p]
    yield name, {"d": tuple(output if node in (p, inner) else 0 for node in range(NODES))}


def _claim(of: tuple[Claim, ...], name: str) -> Claim:
    return next(claim for claim in of if claim.theorem.id == name)


def _parameters(quanta: tuple[int, ...], f: int = ORGANISATION, g: int = CLIENT) -> Values:
    return {"Q": quanta, "U": (CHARGE_MAX,) * NODES, "f": f, "g": g}


def _siblings() -> Witness:
    """H-siblings: from q = (4, -4) to (-4, 4), where the organisation was served 16 and the client nothing."""
    run = _Run((QUANTUM,) * NODES)
    run.refill(ROOTS)
    run.costs(CLIENT, 3, 5)
    run.starts()
    run.costs(ORGANISATION, 3, 5)
    run.refill(ROOTS)
    run.refill(ROOTS)
    run.costs(ORGANISATION, 3, 5)
    claim = _claim(hierarchical_proofs.claims(), "H-siblings")
    bound = gap_cost(QUANTUM, CHARGE_MAX, QUANTUM, CHARGE_MAX)
    return Witness(claim, NODES, _parameters(run.quanta), tuple(run.steps), bound, {"q0": "q"})


def _split() -> Witness:
    """H-split: the same run, in which the organisation's two clients got 16 together."""

    def lead(w: World) -> int:
        return int(w.clients_of_g) - int(w.W[CLIENT])

    claim = _claim(hierarchical_proofs.claims(), "H-split")
    parameters = {**_parameters((QUANTUM,) * NODES, CLIENT, ORGANISATION), "mine": CLIENTS}
    return attrs.evolve(_siblings(), claim=claim, parameters=parameters, measure=lead)


def _range() -> Witness:
    """H-range: both ends at once, among the root's children."""

    def width(w: World) -> int:
        return int(w.q[CLIENT]) - int(w.q[ORGANISATION])

    claim = _claim(hierarchical_proofs.claims(), "H-range")
    steps = tuple(step for step in _siblings().steps if step[0] != BEGIN)
    parameters = _parameters((QUANTUM,) * NODES)
    return Witness(claim, NODES, parameters, steps, QUANTUM + CHARGE_MAX - 1, measure=width)


def _weighted() -> Witness:
    """H-weighted: Q = (4, 2) at the root; the organisation is served 20, the client nothing."""
    quanta = (4, 2, 4, 4)

    def gap(w: World) -> int:
        return quanta[1] * int(w.W[ORGANISATION]) - quanta[0] * int(w.W[CLIENT])

    run = _Run(quanta)
    run.refill(ROOTS)
    run.costs(CLIENT, 3)
    run.costs(ORGANISATION, 4)
    run.refill(ROOTS)
    run.costs(CLIENT, 5)
    run.starts()
    run.costs(ORGANISATION, 3, 5)
    run.refill(ROOTS)
    run.refill(ROOTS)
    run.costs(ORGANISATION, 3, 4)
    run.refill(ROOTS)
    run.costs(ORGANISATION, 5)
    claim = _claim(hierarchical_proofs.claims(), "H-weighted")
    bound = weighted_gap_cost(quanta[0], CHARGE_MAX, quanta[1], CHARGE_MAX)
    return Witness(claim, NODES, _parameters(quanta), tuple(run.steps), bound, {"q0": "q"}, gap)


def _rounds() -> Witness:
    """H-rounds: a debt of U - 1 = 4 with Q = 4 takes two rounds of the root's family."""

    def rounds(w: World) -> int:
        return int(w.G[ORGANISATION]) // QUANTUM

    run = _Run((QUANTUM,) * NODES)
    run.refill(ROOTS)
    run.costs(CLIENT, 3, 5)
    run.costs(ORGANISATION, 3, 5)
    run.refill(ROOTS)
    run.refill(ROOTS)
    steps = tuple(map(_of_two_kinds, run.steps))
    claim = _claim(hierarchical_proofs.claims(), "H-rounds")
    parameters = {**_parameters(run.quanta), "ours": ROOTS}
    return Witness(claim, NODES, parameters, steps, (CHARGE_MAX - 1) // QUANTUM + 1, measure=rounds)


def _of_two_kinds(step: RunStep) -> RunStep:
    """A refill of the root's family is another event than that of any other."""
    return ("refill", {}) if step == ("refill a family", {"family": ROOTS}) else step


def witnesses() -> tuple[Witness, ...]:
    """One run a bound of the hierarchical gate."""
    return (_range(), _siblings(), _weighted(), _split(), _rounds())
