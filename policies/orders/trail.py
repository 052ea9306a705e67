"""TRAIL: shortest predicted remaining output first, and a request that has produced little may be displaced.

Source: "Don't Stop Me Now: Embedding Based Scheduling for LLMs" (TRAIL, ICLR'25): shortest predicted remaining
processing time, with a limit on preemption since what is preempted late has much to compute again.

Rule.  A request of predicted output p that has produced g has p - g left, and the least goes first.  One that runs may
be displaced only while 100 g < c p, with p the prediction that came with it.  c = 0, as evaluated, never displaces.
TRAIL+ is the same with an oracle's predictions.  Without a prediction p is what the client declared as its most.

What has outlived its prediction has 0 left: it goes first, and is not displaced.  The paper also corrects predictions
while a request decodes; a prediction here is what came with the request.

Decoding shortens what is left and makes no request easier to displace, so a decision stands until a request comes or
goes, and decode steps may be leapt over (P-TRAIL).  Nothing bounds the wait of a request with a long prediction.
"""

from typing import ClassVar

import attrs

from fairsched.model.request import Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.orders.abilities import P_DISPLACED, FollowsOutput, Preempts
from fairsched.policies.validators import percent

P_TRAIL = Theorem(
    "P-TRAIL",
    "whom a running request withstands now it withstands after any number of further tokens",
    "this library; for predictions and outputs up to the size that was tried",
    (),
    scope=Scope.BOUNDED,
)


def predicted(request: Request) -> int:
    """Predicted output tokens; what the client declared as its most where nothing was predicted."""
    declared = request.max_output_tokens
    return declared if request.predicted_output_tokens is None else min(request.predicted_output_tokens, declared)


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
        """About displacing."""
        return (P_TRAIL, P_DISPLACED)

    def rank_after(self, request: Request, generated_tokens: int, promoted: bool) -> int:
        return -max(predicted(request) - generated_tokens, 0)

    def preemption_rank(self, request: Request, generated_tokens: int, promoted_steps: int | None) -> int | None:
        if 100 * generated_tokens >= self.preempt_percent * predicted(request):
            return None
        return self.rank_after(request, generated_tokens, False)
