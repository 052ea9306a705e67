"""Runs that attain what is proved of D2LPM: a client's spread over two workers, and the sums over two workers."""

from collections.abc import Iterator

from fairsched.verify import d2lpm_proofs
from fairsched.verify.concrete import Values
from fairsched.verify.system import Claim, World
from fairsched.verify.witness_deficit import deficit_witness
from fairsched.verify.witness_run import INTERVAL_STARTS, Step, Witness

QUANTUM = 4


def _claim(name: str) -> Claim:
    return next(claim for claim in d2lpm_proofs.claims() if claim.theorem.id == name)


def _send(worker: int, charge: int) -> Step:
    shortest = (0, 1) if worker == 0 else (1, 0)
    return ("send", {"x": charge, "here": (1, 1), "holds": (0, 0), "queue": shortest})


def spread_witness() -> Witness:
    """D2-spread: a debt of 4 at worker 1 is refilled to a whole quantum, while worker 0 is used up and 4 beyond: 16."""
    top_up: Step = ("top up", {"here": (1, 1)})
    steps = [top_up, _send(1, 8), (INTERVAL_STARTS, {}), _send(0, 8), top_up, top_up, _send(0, 8)]
    parameters: Values = {"Q": (QUANTUM, QUANTUM), "f": 0, "g": 1}
    return Witness(_claim("D2-spread"), 2, parameters, tuple(steps), 2 * QUANTUM + 4 + 4, {"d0": "d"})


def _sum(w: World) -> int:
    return sum(map(int, w.G))


def _summed(name: str) -> Witness:
    """At each of two workers g is ahead by what D-4.1's own witness attains."""
    each = deficit_witness().bound_cost
    steps: tuple[Step, ...] = ((INTERVAL_STARTS, {}), ("workers serve f and g", {"now": (each, each)}))
    return Witness(_claim(name), 2, {"B": (each, each)}, steps, 2 * each, measure=_sum)


def witnesses() -> Iterator[Witness]:
    """One run a bound."""
    yield from (spread_witness(), _summed("D2-5.1"), _summed("D2-5.2"))
