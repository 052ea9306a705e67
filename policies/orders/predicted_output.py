"""Orders by predicted output, the least first: TRAIL's of what remains, and learning to rank's, which promotes.

Without a prediction the length is what the client declared as its most.

TRAIL.  Source: "Don't Stop Me Now: Embedding Based Scheduling for LLMs" (TRAIL, ICLR'25): shortest predicted remaining
processing time, with a limit on preemption since what is preempted late has much to compute again.  Rule: a request of
predicted output p that has produced g has p - g left, and the least goes first.  One that runs may be displaced only
while 100 g < c p, with p the prediction that came with it.  c = 0, as evaluated, never displaces.  TRAIL+ is the same
with an oracle's predictions.  What has outlived its prediction has 0 left: it goes first, and is not displaced.  The
paper also corrects predictions while a request decodes; a prediction here is what came with the request.  Decoding
shortens what is left and makes no request easier to displace, so a decision stands until a request comes or goes, and
decode steps may be leapt over (P-TRAIL).  Nothing bounds the wait of a request with a long prediction.

Learning to rank.  Source: "Efficient LLM Scheduling by Learning to Rank" (NeurIPS'24).  Its starvation control is in
its code: a request that was not scheduled in `starve_steps` consecutive steps goes before all that were, until it has
been scheduled in `period_steps` of them.  Promoted ones are ordered by their predictions, too.  The first request
displaces the last, as in the code, which puts the batch together anew in each step.  Steps count here if they produce
output: a policy learns of time by what is decoded, and only so does a run of decode steps come to the same as single
ones.  A promotion ends when a request has run for its period or is taken out.  The defaults are ours, about 20 s each:
with 2 s each, where memory is short, promoted requests displace each other until the worker does little but compute
again (docs/policies/queues/orders.md).  It bounds no wait (F-LTR-1): a promoted request waits behind promoted ones with
shorter predictions, and if more work comes than is served all are promoted.
"""

from typing import ClassVar

import attrs

from fairsched.model.request import TOKENS_MAX, Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.orders.abilities import P_DISPLACED, FollowsOutput, Preempts, Promotes
from fairsched.policies.orders.base import Order, QueuedRequest
from fairsched.policies.validators import not_negative, percent, positive

P_TRAIL = Theorem(
    "P-TRAIL",
    "whom a running request withstands now it withstands after any number of further tokens",
    "this library; for predictions and outputs up to the size that was tried",
    scope=Scope.BOUNDED,
)
P_LTR_1 = Theorem(
    "P-LTR-1",
    "while a request waits that has waited through `starve_steps` steps with output, no request of its group is let "
    "in that has waited through fewer",
    "this library; in drawn worlds",
    scope=Scope.TESTED,
)


def predicted(request: Request) -> int:
    """Predicted output tokens; what the client declared as its most where nothing was predicted."""
    declared = request.max_output_tokens
    return declared if request.predicted_output_tokens is None else min(request.predicted_output_tokens, declared)


def predicted_left(queued: QueuedRequest) -> int:
    """Predicted output tokens that a request did not produce before it came to the queue; at least 0."""
    return max(predicted(queued.request) - queued.generated_tokens, 0)


@attrs.frozen
class PredictedTimes(Order):
    """An order by how long requests are predicted to take."""

    prompt_token_ns: int = attrs.field(default=100_000, validator=not_negative)
    """How long a token of a prompt takes, in nanoseconds."""
    output_token_ns: int = attrs.field(default=20_000_000, validator=not_negative)
    """How long an output token takes, in nanoseconds: about a decode step."""

    def work_ns(self, queued: QueuedRequest) -> tuple[int, int]:
        """Return how long the prompt takes, and what is predicted of the output and was not produced yet from then
        on."""
        left = predicted_left(queued)
        return self.prompt_token_ns * queued.context_tokens, self.output_token_ns * max(left - 1, 0)


@attrs.frozen
class ShortestRemaining(FollowsOutput, Preempts):
    """The least predicted remaining output first; `preempt_percent` is c in per cent."""

    name: ClassVar[str] = "shortest-remaining"

    preempt_percent: int = attrs.field(default=0, validator=percent)
    """A running request may be displaced while it has produced less than this share of its prediction; 0: never."""

    @property
    def preempts(self) -> bool:
        return self.preempt_percent > 0

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        return (P_TRAIL, P_DISPLACED)

    def rank_after(self, request: Request, generated_tokens: int, promoted: bool) -> int:
        return -max(predicted(request) - generated_tokens, 0)

    def preemption_rank(self, request: Request, generated_tokens: int, promoted_steps: int | None) -> int | None:
        if 100 * generated_tokens >= self.preempt_percent * predicted(request):
            return None
        return self.rank_after(request, generated_tokens, False)


@attrs.frozen
class ShortestPredicted(Promotes, Preempts):
    """The least predicted output first, those promoted before all others."""

    name: ClassVar[str] = "shortest-predicted"

    starve_steps: int = attrs.field(default=1_000, validator=positive)
    """A request that waits through so many steps with output is promoted."""
    period_steps: int = attrs.field(default=1_000, validator=positive)
    """For so many steps with output an admitted promoted request is preempted by promoted ones only."""

    @property
    def promote_steps(self) -> int:
        return self.starve_steps

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        return (P_LTR_1, P_DISPLACED)

    def rank_after(self, request: Request, generated_tokens: int, promoted: bool) -> int:
        return (TOKENS_MAX if promoted else 0) - predicted(request)

    def preemption_rank(self, request: Request, generated_tokens: int, promoted_steps: int | None) -> int | None:
        promoted = promoted_steps is not None and promoted_steps < self.period_steps
        return self.rank_after(request, generated_tokens, promoted)

    def preemption_rank_steps(self, request: Request, generated_tokens: int, promoted_steps: int | None) -> int | None:
        if promoted_steps is None or promoted_steps >= self.period_steps:
            return None
        return self.period_steps - promoted_steps
