"""Runs that attain the hierarchical gate's bounds, on the worker of `fairsched.verify.witness_deficit`, where U = 5.

The tree: node 0 is an organisation with the clients 2 and 3, node 1 a client in no group; each request of the
organisation comes from whichever of its two clients has credit.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from fairsched.policies.deficit_progress import gap_cost, weighted_gap_cost
from fairsched.verify import hierarchical_kernel_proofs, hierarchical_proofs
from fairsched.verify.concrete import Values
from fairsched.verify.system import Claim, World
from fairsched.verify.witness_deficit import CHARGE_MAX, QUANTUM
from fairsched.verify.witness_run import INTERVAL_STARTS, Step, Witness, one, served

NODES, ORGANISATION, CLIENT = 4, 0, 1
ROOTS, CLIENTS = (1, 1, 0, 0), (0, 0, 1, 1)
_TOKENS = {3: (1, 1), 4: (2, 1), 5: (1, 2)}
"""Input and output tokens of a request of each cost."""


class _Run:
    """A run under way: its steps so far and the deficits after them."""

    def __init__(self, quanta: tuple[int, ...]) -> None:
        self.quanta = quanta
        self.q = [0] * NODES
        self.steps: list[Step] = [("arrive", {"p": node}) for node in range(NODES)]

    def refill(self, family: tuple[int, ...]) -> None:
        """A round of credit for a family in which nobody has any."""
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
        self.steps.append((INTERVAL_STARTS, {}))


def _request(p: int, inner: int, cost: int, groups: Mapping[str, Any]) -> Iterator[Step]:
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
    steps = tuple(step for step in _siblings().steps if step[0] != INTERVAL_STARTS)
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
    claim = _claim(hierarchical_kernel_proofs.claims(), "H-rounds")
    parameters = {**_parameters(run.quanta), "ours": ROOTS}
    return Witness(claim, NODES, parameters, steps, (CHARGE_MAX - 1) // QUANTUM + 1, measure=rounds)


def _of_two_kinds(step: Step) -> Step:
    """A refill of the root's family is another event than that of any other."""
    return ("refill", {}) if step == ("refill a family", {"family": ROOTS}) else step


def witnesses() -> tuple[Witness, ...]:
    """One run a bound of the hierarchical gate."""
    return (_range(), _siblings(), _weighted(), _split(), _rounds())
