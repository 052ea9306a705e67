"""Orders that follow output: the rank depends on the output so far, and a long wait may promote a request."""

from abc import abstractmethod
from typing import Any

import msgspec

from fairsched.model.prefix_cache import PrefixCache, SortedTuple
from fairsched.model.request import Request
from fairsched.policies.orders.base import Order, QueuedRequest, QueueExtension


class FollowsOutput(Order):
    """An order that ranks by what a request has produced."""

    @abstractmethod
    def rank_after(self, request: Request, generated_tokens: int, promoted: bool) -> int:
        """Return the rank of a waiting request with so many output tokens behind it.  O(1)."""

    def rank(self, request: Request, cached_tokens: int) -> int:
        return self.rank_after(request, 0, False)

    def rank_queued(self, queued: QueuedRequest, cached_tokens: int) -> int:
        return self.rank_after(queued.request, queued.generated_tokens, queued.promoted)


class Promotes(FollowsOutput):
    """An order that promotes a request once it has waited through `promote_steps` steps that produced output."""

    @property
    @abstractmethod
    def promote_steps(self) -> int:
        """After so many steps with output a waiting request is promoted, 1 at least."""

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (Promotions(), *super().extensions())


class Promotions(QueueExtension[Promotes], frozen=True, gc=False):
    """How many steps produced output, and the waiting requests that are not promoted by the step since they wait."""

    steps: int = 0
    unpromoted: SortedTuple[tuple[int, int]] = SortedTuple()

    def joined(
        self, order: Promotes, queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple["Promotions", QueuedRequest]:
        queued = msgspec.structs.replace(queued, since=self.steps, promoted=False)
        return Promotions(self.steps, self.unpromoted.add((self.steps, queued.request.id))), queued

    def left(self, order: Promotes, queued: QueuedRequest, score: int, group: int, admitted: bool) -> "Promotions":
        return Promotions(self.steps, self.unpromoted.discard((queued.since, queued.request.id)))

    def after(self, order: Promotes, steps: int) -> tuple["Promotions", list[int]]:
        """Return the same after so many more steps with output, and the requests that are promoted by then."""
        steps, unpromoted, promoted = self.steps + steps, self.unpromoted, []
        latest = steps - order.promote_steps
        while unpromoted.size and (first := unpromoted.first())[0] <= latest:
            unpromoted = unpromoted.remove(first)
            promoted.append(first[1])
        return Promotions(steps, unpromoted), promoted

    def steps_left(self, order: Promotes) -> int | None:
        """Return after how many steps the next request is promoted; None: there is none to promote."""
        return self.unpromoted.first()[0] + order.promote_steps - self.steps if self.unpromoted.size else None

    def check(self, order: Promotes, waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        # Each request that has not waited long enough is not promoted, and all others are.
        unpromoted = sorted((queued.since, queued.request.id) for queued, _, _ in waiting if not queued.promoted)
        assert list(self.unpromoted) == unpromoted
        assert not unpromoted or unpromoted[0][0] <= self.steps < unpromoted[0][0] + order.promote_steps
