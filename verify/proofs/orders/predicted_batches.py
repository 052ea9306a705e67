"""How often S3 and PiA let a request in, in all worlds of a size; and that PiA's long requests may wait for ever."""

from collections.abc import Iterator, Mapping
from itertools import product
from types import SimpleNamespace

from fairsched.model.decision import WorkerView
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import RequestLevel
from fairsched.policies.catalog import S3, PiA
from fairsched.policies.local import P_S3_1, AnyLocalState, PredictedBatches, SimilarLength
from fairsched.verify.conformance import WorkerPlay, admitted
from fairsched.verify.logic import Bug, RefutedClaim, SampledClaim, Shown, refuted, sampled
from fairsched.verify.proofs.orders.scenarios import overtakers

DECLARED_MAX = 12
"""Declared outputs up to this are tried, with every prediction and every length."""


def _request(request_id: int, now_ns: int, declared: int, predicted: int) -> Request:
    return Request(request_id, 0, now_ns, Prompt(1), declared, predicted_output_tokens=predicted)


def _let_in(w: SimpleNamespace, policy: PredictedBatches) -> int:
    """Return how often the request is admitted; a step takes a nanosecond."""
    play = WorkerPlay(policy, WorkerState(0, 2 * DECLARED_MAX))
    play.arrive(_request(0, 0, w.declared, w.predicted), w.output, 0)
    return sum(len(admitted(play.step(now_ns, took_ns=1))) for now_ns in range(8 * DECLARED_MAX))


def _doublings(declared: int, predicted: int) -> int:
    """ceil(log2(declared / predicted))."""
    return max((-(-declared // predicted) - 1).bit_length(), 0)


def _attained() -> tuple[int, int]:
    """Return one predicted to produce a token that produces all twelve."""
    world = SimpleNamespace(declared=DECLARED_MAX, predicted=1, output=DECLARED_MAX)
    return _let_in(world, S3()), 1 + _doublings(DECLARED_MAX, 1)


def _worlds() -> Iterator[Mapping[str, int]]:
    """Yield every declared output up to a size, with every prediction and every output."""
    for declared in range(1, DECLARED_MAX + 1):
        for predicted, output in product(range(1, declared + 1), repeat=2):
            yield {"declared": declared, "predicted": predicted, "output": output}


@sampled(P_S3_1, _worlds, attained=_attained)
def let_in(w: SimpleNamespace, policy: type[S3] = S3) -> Shown:
    """As S3 ships, or a variant of it."""
    return {"as often as it doubles": _let_in(w, policy()) <= 1 + _doublings(w.declared, w.predicted)}


def claims() -> tuple[SampledClaim, ...]:
    """About what ships."""
    return (let_in(),)


class _Hasty(S3):
    """S3 that takes every request out after each token."""

    @staticmethod
    def _left(state: AnyLocalState, view: WorkerView, request_id: int) -> int:
        return 1 - view.decoded_tokens(request_id)


def bugs() -> tuple[Bug, ...]:
    """Small errors that have to be found."""
    return (Bug("every request leaves after each token", let_in(_Hasty)),)


def _never_starves(w: SimpleNamespace) -> Shown:
    """Return a long request, and a short one in each step."""
    policy = PiA(order=SimilarLength(1), batching=RequestLevel(max_running=1, reserve="optimistic"))

    def request(number: int, now_ns: int) -> Request:
        tokens = 1 if number else DECLARED_MAX
        return _request(number, now_ns, tokens, tokens)

    return {"not for ever": overtakers(policy, 2 * DECLARED_MAX, [1] * w.steps, request)[0] < w.steps}


def refutations() -> tuple[RefutedClaim, ...]:
    """Return what is hoped of PiA."""
    return (
        refuted(
            "F-PIA-1",
            "no request waits for ever",
            "PiA, as it is hoped",
            _never_starves,
            {"steps": 30},
            variant="PiA as it ships, the shortest bin first",
            instead=P_S3_1.id,
            text="a short one comes in every step, and one is served: the long one waits",
        ),
    )
