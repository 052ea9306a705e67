"""Upstream first: among the clients with credit, calls that others wait for go before those that end a program.

Source: the DLPM paper leaves dependencies between calls open; this order is ours.  It knows what the caller declares,
`Request.downstream_levels`, and nothing of calls that were not sent yet.
Assumptions and theorems: those of the deficit gate (`policies.deficit`), which hold for any order.  About one program
nothing: under overload calls that nobody waits for wait longest.  With a bypass budget: D-request (`policies.bypass`).
Composition: downstream levels, then longest prefix x deficit gate x chunked prefill.  With `first="downstream"` the
levels count the other way round: programs that are nearly done are finished first.
"""

from typing import Any, ClassVar, Literal

import attrs

from fairsched.model.request import TOKENS_MAX, Request
from fairsched.policies.batching import Batching, Chunked
from fairsched.policies.deficit import DeficitGate
from fairsched.policies.gate import Gate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.order import Order, bypass_budget_field
from fairsched.policies.validators import one_of

LEVELS_MAX = 31
"""Calls with more levels downstream count as having so many."""
LEVEL = TOKENS_MAX // (LEVELS_MAX + 1)
"""Ranks between two levels: cached prefixes are told apart in steps of `TOKENS_MAX // LEVEL` tokens."""
STEP = TOKENS_MAX // LEVEL


@attrs.frozen
class DownstreamLevels(Order):
    """Most levels downstream first (or fewest), then the longest cached prefix, to within `STEP` tokens."""

    name: ClassVar[str] = "downstream-levels"
    follows_cache: ClassVar[bool] = True
    waits_for_prefix: ClassVar[bool] = True

    first: Literal["upstream", "downstream"] = attrs.field(
        default="upstream", validator=one_of("upstream", "downstream")
    )
    bypass_budget: int | None = bypass_budget_field()

    def rank(self, request: Request, cached_tokens: int) -> int:
        levels = min(request.downstream_levels, LEVELS_MAX)
        if self.first == "downstream":
            levels = LEVELS_MAX - levels
        return levels * LEVEL + min(cached_tokens // STEP, LEVEL - 1)


@attrs.frozen
class UpstreamFirst(ComposedPolicy):
    """Calls that others wait for first, among the clients that have credit."""

    name: str = "upstream-first"
    order: Order = attrs.field(factory=DownstreamLevels)
    gate: Gate[Any] = attrs.field(factory=DeficitGate)
    batching: Batching = attrs.field(factory=Chunked)
