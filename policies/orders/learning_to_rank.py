"""Learning to rank: shorter predicted outputs first, and who has waited long is promoted for a while.

Source: "Efficient LLM Scheduling by Learning to Rank" (NeurIPS'24).  Its starvation control is in its code: a request
that was not scheduled in `starve_steps` consecutive steps goes before all that were, until it has been scheduled in
`period_steps` of them.  Promoted ones are ordered by their predictions, too.

Who is first displaces who is last, as in the code, which puts the batch together anew in each step.

Steps count here if they produce output: a policy learns of time by what is decoded, and only so does a run of decode
steps come to the same as single ones.  A promotion ends when a request has run for its period or is taken out.  The
defaults are ours, about 20 s each: with 2 s each, where memory is short, promoted requests displace each other until
the worker does little but compute again (docs/queues.md).

It bounds no wait (F-LTR-1): whoever is promoted waits behind promoted ones with shorter predictions, and if more work
comes than is served all are promoted.  What is true is that nobody who is not promoted is let in before a promoted one
of its group, nor displaces it (P-LTR-1).
"""

from typing import Any, ClassVar

import attrs

from fairsched.model.request import TOKENS_MAX, Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.batching import Batching
from fairsched.policies.displacement import P_DISPLACED
from fairsched.policies.gate import Gate, OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.order import Order
from fairsched.policies.trail import optimistic, predicted
from fairsched.policies.validators import positive

P_LTR_1 = Theorem(
    "P-LTR-1",
    "while a request waits that has waited through `starve_steps` steps with output, nobody of its group is let in who "
    "has waited through fewer",
    "this library; in drawn worlds",
    (),
    scope=Scope.TESTED,
)


@attrs.frozen
class ShortestPredicted(Order):
    """The least predicted output first, those promoted before all others."""

    name: ClassVar[str] = "shortest-predicted"
    follows_output: ClassVar[bool] = True

    starve_steps: int = attrs.field(default=1_000, validator=positive)
    """Who waits through so many steps with output is promoted."""
    period_steps: int = attrs.field(default=1_000, validator=positive)
    """For so many steps with output who was let in promoted is displaced by other promoted ones only."""

    @property
    def promote_steps(self) -> int:
        return self.starve_steps

    @property
    def displaces(self) -> bool:
        return True

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """About promotions and displacing."""
        return (P_LTR_1, P_DISPLACED)

    def rank(self, request: Request, cached_tokens: int) -> int:
        return self.rank_after(request, 0, False)

    def rank_after(self, request: Request, generated_tokens: int, promoted: bool) -> int:
        return (TOKENS_MAX if promoted else 0) - predicted(request)

    def standing(self, request: Request, generated_tokens: int, promoted_steps: int | None) -> int | None:
        promoted = promoted_steps is not None and promoted_steps < self.period_steps
        return self.rank_after(request, generated_tokens, promoted)

    def standing_steps(self, request: Request, generated_tokens: int, promoted_steps: int | None) -> int | None:
        if promoted_steps is None or promoted_steps >= self.period_steps:
            return None
        return self.period_steps - promoted_steps


@attrs.frozen
class LearningToRank(ComposedPolicy):
    """Shorter predicted outputs first; promises nothing to anybody."""

    name: str = "learning-to-rank"
    order: Order = attrs.field(factory=ShortestPredicted)
    gate: Gate[Any] = attrs.field(factory=OpenGate)
    batching: Batching = attrs.field(factory=optimistic)
