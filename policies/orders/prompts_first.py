"""New prompts first, token work behind them, and a cap on how often token work yields: a mixed machine of Splitwise.

Source: Patel et al., "Splitwise" (ISCA'24), section on the machine-level scheduler, and its released code for the cap.

Rule.  A request whose prompt was not computed yet goes before requests that have tokens, and takes the place of running
ones where memory or a place in the batch is short.  Token work gains priority with age: what was preempted more often
goes first and yields last, of equals the older one.  A request that was preempted `preemptions_max` times goes before
everything, takes its place back from requests that have their first token, and is displaced no more.  On a machine that
gets prompts only, or token work only, this is first come first served.

The paper gives neither the cap nor what age is; the cap of 4 is the code's, age is the number of preemptions and then
arrival.  There a preempted request keeps its KV and misses steps; here it is displaced (`policies.local.preemption`),
and what it computed is computed again, since only memory and places in the batch make it yield: prompts are computed
beside decodes, whatever they take.
"""

from typing import ClassVar

import attrs

from fairsched.model.request import Request
from fairsched.model.theorem import RESERVES, Scope, Theorem
from fairsched.policies.orders.abilities import P_DISPLACED, Preempts
from fairsched.policies.orders.base import QueuedRequest
from fairsched.policies.validators import positive

P_SW_2 = Theorem(
    "P-SW-2",
    "a request is displaced at most as often as the cap says",
    "Splitwise (ISCA'24) and its released code; in drawn worlds",
    (RESERVES,),
    bound="preemptions_max",
    scope=Scope.TESTED,
)


@attrs.frozen
class PromptsFirst(Preempts):
    """New prompts first; of token work what was preempted most often, at most `preemptions_max` times."""

    name: ClassVar[str] = "prompts-first"

    preemptions_max: int = attrs.field(default=4, validator=positive)
    """A request that was preempted so often goes first, and is displaced no more."""

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """About how often a request is displaced."""
        return (P_SW_2, P_DISPLACED)

    def rank(self, request: Request, cached_tokens: int) -> int:
        return 2 * self.preemptions_max

    def rank_queued(self, queued: QueuedRequest, cached_tokens: int) -> int:
        """Return three bands: token work by its preemptions, new prompts at twice the cap, the capped at three
        times."""
        cap = self.preemptions_max
        if queued.preemptions >= cap:
            return 3 * cap
        return queued.preemptions if queued.preemptions or queued.kv_tokens else 2 * cap

    def preemption_rank(self, request: Request, generated_tokens: int, promoted_steps: int | None) -> int | None:
        return self.preemptions_max

    def preemption_rank_queued(
        self, queued: QueuedRequest, generated_tokens: int, promoted_steps: int | None
    ) -> int | None:
        """Return a rank between token work that waits and new prompts, which alone displace; the capped too."""
        cap = self.preemptions_max
        return None if queued.preemptions >= cap else cap + queued.preemptions
