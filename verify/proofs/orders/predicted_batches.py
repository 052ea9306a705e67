"""How often S3 and PiA let a request in, in all worlds of a size; and that PiA's long requests may wait for ever."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from fairsched.model import worker as transitions
from fairsched.model.events import Admitted, Event, Preempted
from fairsched.model.request import Prompt, Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.model.worker_state import WorkerState
from fairsched.policies.batching import RequestLevel
from fairsched.policies.local_state import Flight
from fairsched.policies.predicted_batches import P_S3_1, S3, PiA, PredictedBatches, SimilarLength
from fairsched.verify.false_claim import Bug, FalseClaim
from fairsched.verify.tested import TestedClaim

DECLARED_MAX = 12
"""Declared outputs up to this are tried, with every prediction and every length."""


class _Run:
    """A policy on one worker; a step takes a nanosecond."""

    def __init__(self, policy: PredictedBatches) -> None:
        self.policy = policy
        self.state = policy.init()
        self.worker = WorkerState(0, 2 * DECLARED_MAX)
        self.now_ns = 0
        self.admitted: list[int] = []

    def arrive(self, request_id: int, declared: int, predicted: int, output: int) -> None:
        request = Request(request_id, 0, self.now_ns, Prompt(1), declared, predicted_output_tokens=predicted)
        self.worker, events = transitions.arrive(self.worker, request, output, self.now_ns)
        self._tell(events)

    def step(self) -> None:
        plan, self.state = self.policy.decide(self.state, self.worker.view(self.now_ns))
        self.admitted += [admission.request_id for admission in plan.admit]
        self.worker, begun = transitions.begin(self.worker, plan, self.now_ns)
        self._tell([event for event in begun if not isinstance(event, Admitted | Preempted)])
        self.now_ns += 1
        self.worker, ended = transitions.finish(self.worker, plan, 1, self.now_ns)
        self._tell(ended)

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            self.state = self.policy.observe(self.state, event)


def _let_in(w: SimpleNamespace, policy: PredictedBatches) -> int:
    run = _Run(policy)
    run.arrive(0, w.declared, w.predicted, w.output)
    for _ in range(8 * DECLARED_MAX):
        run.step()
    return len(run.admitted)


def _doublings(declared: int, predicted: int) -> int:
    """ceil(log2(declared / predicted))."""
    return max((-(-declared // predicted) - 1).bit_length(), 0)


def let_in(policy: PredictedBatches | None = None) -> TestedClaim:
    """Every declared output up to a size, with every prediction and every output."""
    used = S3() if policy is None else policy

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        return {"as often as it doubles": _let_in(w, used) <= 1 + _doublings(w.declared, w.predicted)}

    sizes = range(1, DECLARED_MAX + 1)
    worlds = [
        {"declared": declared, "predicted": predicted, "output": output}
        for declared in sizes
        for predicted in range(1, declared + 1)
        for output in range(1, declared + 1)
    ]
    return TestedClaim(P_S3_1, lambda: worlds, shows, attained=_attained)


def _attained() -> tuple[int, int]:
    """One predicted to produce a token that produces all twelve."""
    world = SimpleNamespace(declared=DECLARED_MAX, predicted=1, output=DECLARED_MAX)
    return _let_in(world, S3()), 1 + _doublings(DECLARED_MAX, 1)


def _never_starves() -> TestedClaim:
    """F-PIA-1: a long one, and a short one in each step."""
    theorem = Theorem("F-PIA-1", "nobody waits for ever", "PiA, as it is hoped", (), scope=Scope.BOUNDED)

    def shows(w: SimpleNamespace) -> Mapping[str, Any]:
        run = _Run(PiA(order=SimilarLength(1), batching=RequestLevel(max_running=1, reserve="optimistic")))
        run.arrive(0, DECLARED_MAX, DECLARED_MAX, DECLARED_MAX)
        for step in range(w.steps):
            run.arrive(1 + step, 1, 1, 1)
            run.step()
        return {"not for ever": 0 in run.admitted}

    return TestedClaim(theorem, lambda: [{"steps": 30}], shows)


def claims() -> tuple[TestedClaim, ...]:
    """About what ships."""
    return (let_in(),)


class _Hasty(S3):
    """S3 that takes everybody out after each token."""

    @staticmethod
    def _left(flight: Flight, decoded_tokens: int) -> int:
        return 1 - decoded_tokens


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    return (Bug("everybody leaves after each token", let_in(_Hasty())),)


def refutations() -> tuple[FalseClaim, ...]:
    """What is hoped of PiA."""
    return (
        FalseClaim(
            _never_starves(),
            "PiA as it ships, the shortest bin first",
            P_S3_1.id,
            "a short one comes in every step, and one is served: the long one waits",
            {"steps": 30},
        ),
    )
