"""Learning to rank: shorter predicted outputs first; a request that has waited long is promoted for a while.

Source: "Efficient LLM Scheduling by Learning to Rank" (NeurIPS'24).  Its starvation control is in its code: a request
that was not scheduled in `starve_steps` consecutive steps goes before all that were, until it has been scheduled in
`period_steps` of them.  Promoted ones are ordered by their predictions, too.

The first request displaces the last, as in the code, which puts the batch together anew in each step.

Steps count here if they produce output: a policy learns of time by what is decoded, and only so does a run of decode
steps come to the same as single ones.  A promotion ends when a request has run for its period or is taken out.  The
defaults are ours, about 20 s each: with 2 s each, where memory is short, promoted requests displace each other until
the worker does little but compute again (docs/policies/queues/orders.md).

It bounds no wait (F-LTR-1): a promoted request waits behind promoted ones with shorter predictions, and if more
work comes than is served all are promoted.  A request that is not promoted is not let in before a promoted one of its
group, nor displaces it (P-LTR-1).
"""

from typing import ClassVar

import attrs

from fairsched.model.request import TOKENS_MAX, Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.orders.abilities import P_DISPLACED, Preempts, Promotes
from fairsched.policies.orders.trail import predicted
from fairsched.policies.validators import positive

P_LTR_1 = Theorem(
    "P-LTR-1",
    "while a request waits that has waited through `starve_steps` steps with output, no request of its group is let "
    "in that has waited through fewer",
    "this library; in drawn worlds",
    (),
    scope=Scope.TESTED,
)


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
        """About promotions and displacing."""
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
