"""Orders by arrival, by prompt length and by cached prefix."""

from typing import ClassVar

import attrs

from fairsched.model.request import Request
from fairsched.policies.orders.abilities import FollowsCache, LimitsBypass, bypass_budget_field
from fairsched.policies.orders.base import Order


@attrs.frozen
class Arrival(Order):
    """First come, first served."""

    name: ClassVar[str] = "arrival"

    def rank(self, request: Request, cached_tokens: int) -> int:
        return 0


@attrs.frozen
class ShortestPrompt(LimitsBypass):
    """Fewest prompt tokens first."""

    name: ClassVar[str] = "shortest-prompt"
    bypass_budget: int | None = bypass_budget_field()

    def rank(self, request: Request, cached_tokens: int) -> int:
        return -request.prompt.tokens


@attrs.frozen
class LongestPrefix(FollowsCache, LimitsBypass):
    """Longest cached prefix first (SGLang's LPM).

    Of several cold requests with one prefix the first computes it and the others wait for it.
    """

    name: ClassVar[str] = "longest-prefix"
    waits_for_prefix: ClassVar[bool] = True
    bypass_budget: int | None = bypass_budget_field()

    def rank(self, request: Request, cached_tokens: int) -> int:
        return cached_tokens
