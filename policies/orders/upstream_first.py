"""Upstream first: among the clients with credit, calls that others wait for go before calls that end a program.

Source: the DLPM paper leaves dependencies between calls open; this order is ours.  It knows what the caller declares,
`Request.downstream_levels`, and nothing of calls that were not sent yet.
Assumptions and theorems: those of the deficit gate (`policies.gates.deficit.gate`), which hold for any order.  About
one program nothing: under overload calls that no other call needs wait longest.  With a bypass budget: D-request.
Composition: downstream levels, then longest prefix x deficit gate x chunked prefill.  With `first="downstream"` the
levels count the other way round: programs that are nearly done are finished first.
"""

from typing import ClassVar, Literal

import attrs

from fairsched.model.request import TOKENS_MAX, Request
from fairsched.policies.orders.abilities import FollowsCache, LimitsBypass, bypass_budget_field
from fairsched.policies.validators import one_of

LEVELS_MAX = 31
"""Calls with more levels downstream count as having so many."""
LEVEL = TOKENS_MAX // (LEVELS_MAX + 1)
"""Ranks between two levels: cached prefixes are told apart in steps of `TOKENS_MAX // LEVEL` tokens."""
STEP = TOKENS_MAX // LEVEL


@attrs.frozen
class DownstreamLevels(FollowsCache, LimitsBypass):
    """Most levels downstream first (or fewest), then the longest cached prefix, to within `STEP` tokens."""

    name: ClassVar[str] = "downstream-levels"
    waits_for_prefix: ClassVar[bool] = True

    first: Literal["upstream", "downstream"] = attrs.field(
        default="upstream", validator=one_of("upstream", "downstream")
    )
    """Whether calls with most or with fewest calls behind them go first."""
    bypass_budget: int | None = bypass_budget_field()

    def rank(self, request: Request, cached_tokens: int) -> int:
        levels = min(request.downstream_levels, LEVELS_MAX)
        if self.first == "downstream":
            levels = LEVELS_MAX - levels
        return levels * LEVEL + min(cached_tokens // STEP, LEVEL - 1)
