"""Fewest tokens to prefill first, where waiting counts: highest response ratio next, and ageing by tokens.

Sources: highest response ratio next (Brinch Hansen, 1971), as SGLang has it (`hrrn`, pull request 32911): a request's
size is what of its prompt is not cached, and its wait is measured in tokens to prefill that were let in since it came,
so that no clock is in it.  Ageing takes a share of that wait from the size (SGLang's pull request 30806, whose clock is
time).  Both compare a request of u tokens that waited for w others to be let in:

    ratio       the largest w / u goes first
    difference  the least u - a w / 100 goes first, with a = `ageing_percent`

of equals the older one.  Sizes follow the cache.  Under a gate sizes and waits count within a client.

Under the ratio a stream of shorter requests may hold back a longer one for ever, where more come than are let in
(F-HRRN-1).  Under the difference, with any ageing, none does: only requests that come within 100 (u - 1) / a tokens may
go before (P-SPF-1).

What differs from SGLang: no fallback to arrival for more than 128 requests; a preempted request keeps its wait.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import attrs
import msgspec
from immutables import Map

from fairsched.model.prefix_cache import PrefixCache, SortedTuple
from fairsched.model.request import Request
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.orders.base import AGE_BITS, AGE_MASK, Entries, Numbers, QueuedRequest, QueueExtension
from fairsched.policies.orders.queue import FollowsCache
from fairsched.policies.validators import not_negative

P_HRRN_1 = Theorem(
    "P-HRRN-1",
    "a request goes before an older one only if it has fewer tokens to prefill",
    "highest response ratio next; SGLang's clock",
)
P_HRRN_2 = Theorem(
    "P-HRRN-2",
    "before a request of u tokens at most u (n + sigma) tokens are let in, where n waited when it came and at most "
    "sigma more come than are let in",
    "this library",
    bound="u (n + sigma)",
    scope=Scope.TESTED,
    rests_on=("P-HRRN-1",),
)
P_SPF_1 = Theorem(
    "P-SPF-1",
    "a request that comes when 100 (u - 1) / a tokens have been let in since one of u tokens came is not before it",
    "shortest job first with ageing; this library",
    bound="100 (u - 1) / a",
)


class CountsWaits(FollowsCache):
    """An order by tokens to prefill and by the tokens that were let in while a request waited."""

    def rank(self, request: Request, cached_tokens: int) -> int:
        return cached_tokens - request.prompt.tokens

    @abstractmethod
    def goes_before(self, waited: Any, tokens: Any, other_waited: Any, other_tokens: Any) -> Any:
        """Return whether a request of so many tokens that waited so long goes before another, which is older."""

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (TokensAdmitted(), *super().extensions())


@attrs.frozen
class ShortestPrefill(CountsWaits):
    """Fewest tokens to prefill first, less a share of the tokens that were let in while a request waited."""

    name: ClassVar[str] = "shortest-prefill"

    ageing_percent: int = attrs.field(default=10, validator=not_negative)
    """How many per cent of the tokens that were let in while a request waited its size counts less."""

    def goes_before(self, waited: Any, tokens: Any, other_waited: Any, other_tokens: Any) -> Any:
        share = self.ageing_percent
        return 100 * tokens - share * waited < 100 * other_tokens - share * other_waited

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """Return who may go before; nothing without ageing."""
        return (P_SPF_1,) if self.ageing_percent else ()


@attrs.frozen
class HighestResponseRatio(CountsWaits):
    """Most tokens let in while it waited, for each token to prefill, first."""

    name: ClassVar[str] = "hrrn"

    def goes_before(self, waited: Any, tokens: Any, other_waited: Any, other_tokens: Any) -> Any:
        return waited * other_tokens > other_waited * tokens

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        return (P_HRRN_1, P_HRRN_2)


class TokensAdmitted(QueueExtension[CountsWaits], frozen=True, gc=False):
    """The tokens to prefill that were let in of each group; a request's `tag` is what they were when it came."""

    picks_head: ClassVar[bool] = True

    admitted: Map[int, int] = Map()

    def joined(
        self, order: CountsWaits, queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple["TokensAdmitted", QueuedRequest]:
        if queued.preemptions:
            return self, queued
        return self, msgspec.structs.replace(queued, tag=self.admitted.get(group, 0))

    def left(
        self, order: CountsWaits, queued: QueuedRequest, score: int, group: int, admitted: bool
    ) -> "TokensAdmitted":
        if not admitted:
            return self
        return TokensAdmitted(self.admitted.set(group, self.admitted.get(group, 0) - (score >> AGE_BITS)))

    def head(
        self,
        order: CountsWaits,
        group: int,
        queue: SortedTuple[int],
        entries: Entries,
        ids: Numbers,
        scores: Numbers,
    ) -> int:
        """Return the best by size and wait.  Of one size that is the oldest.  O(sizes that do not alone put a request
        behind it, log n each)."""
        now = self.admitted.get(group, 0)
        best, waited, tokens, age = 0, 0, 0, -1
        score: int | None = queue.last()
        while score is not None:
            size = -(score >> AGE_BITS)
            if age >= 0 and order.goes_before(waited, tokens, now, size):
                break
            queued = entries[ids[AGE_MASK - (score & AGE_MASK)]]
            wait = now - queued.tag
            if queued.age < age:
                better = not order.goes_before(waited, tokens, wait, size)
            else:
                better = age < 0 or order.goes_before(wait, size, waited, tokens)
            if better:
                best, waited, tokens, age = score, wait, size, queued.age
            score = queue.below(-size << AGE_BITS)
        return best
