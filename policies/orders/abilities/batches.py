"""Batches of the queue: an order takes so many requests in order of arrival, and the next ones when all of them went.

Source: TetriInfer's prefill scheduler.  In a batch the order's rank decides; between batches it is arrival, whatever
the ranks.  A batch is taken when its first request is let in: until then later requests still join it, if there is
room.  Requests that come back preempted wait in the batch under way, since theirs is over.
"""

from itertools import islice
from typing import Any, ClassVar

import attrs
import msgspec
from immutables import Map

from fairsched.model.prefix_cache import PrefixCache, SortedTuple
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.orders.base import Entries, Numbers, Order, QueuedRequest, QueueExtension, score_of
from fairsched.policies.validators import positive

P_TI_2 = Theorem(
    "P-TI-2",
    "with batches of B requests, at most B - 1 later ones are let in before a request, and it moves back by at most "
    "B - 1 places of its order of arrival",
    "TetriInfer's prefill scheduler, of which the paper says nothing; this library, in drawn worlds",
    bound="B - 1",
    scope=Scope.TESTED,
)


class TakesBatches(Order):
    """An order that ranks within batches of `batch_requests` requests, taken in order of arrival."""

    batch_requests: int

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (*super().extensions(), TakenBatches())

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """A bound of how far a request falls behind, whatever the ranks are."""
        return (P_TI_2,)


def batch_requests_field() -> int:
    """Return the field of an order that takes requests in batches."""
    field: int = attrs.field(
        default=16,
        validator=positive,
        metadata={"meaning": "How many requests are taken from the queue and ordered together."},
    )
    return field


class Taken(msgspec.Struct, frozen=True):
    """A group's batch under way: all with an age below `end` that wait, by score, and the others as (age, score)."""

    end: int = 0
    batch: SortedTuple[int] = SortedTuple()
    later: SortedTuple[tuple[int, int]] = SortedTuple()


NOTHING_TAKEN = Taken()
"""The batch of a group in which no request has waited."""


class TakenBatches(QueueExtension[TakesBatches], frozen=True, gc=False):
    """The batch under way of each group; where it ended outlasts the queue."""

    picks_head: ClassVar[bool] = True

    taken: Map[int, Taken] = Map()

    def begins(self, group: int) -> bool:
        """Return whether the next request that is let in of a group takes a batch."""
        return not self.taken[group].batch.size

    def joined(
        self, order: TakesBatches, queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple["TakenBatches", QueuedRequest]:
        taken, score = self.taken.get(group, NOTHING_TAKEN), score_of(order, order.rank_queued(queued, 0), queued.age)
        if queued.age < taken.end:
            taken = Taken(taken.end, taken.batch.add(score), taken.later)
        else:
            taken = Taken(taken.end, taken.batch, taken.later.add((queued.age, score)))
        return TakenBatches(self.taken.set(group, taken)), queued

    def left(
        self, order: TakesBatches, queued: QueuedRequest, score: int, group: int, admitted: bool
    ) -> "TakenBatches":
        """O(batch) for the first of a batch, else O(log n + sqrt n)."""
        taken = self.taken[group]
        if queued.age < taken.end:
            taken = Taken(taken.end, taken.batch.remove(score), taken.later)
        else:
            if admitted and not taken.batch.size:
                taken = _next(taken, order.batch_requests)
            if queued.age < taken.end:
                taken = Taken(taken.end, taken.batch.remove(score), taken.later)
            else:
                taken = Taken(taken.end, taken.batch, taken.later.remove((queued.age, score)))
        return TakenBatches(self.taken.set(group, taken))

    def head(
        self, order: TakesBatches, group: int, queue: SortedTuple[int], entries: Entries, ids: Numbers, scores: Numbers
    ) -> int:
        """Return the best of the batch under way, or of the one that would be taken now.  O(batch)."""
        taken = self.taken[group]
        if taken.batch.size:
            return taken.batch.last()
        return max(score for _, score in islice(taken.later, order.batch_requests))

    def check(self, order: TakesBatches, waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        batches: dict[int, list[int]] = {}
        later: dict[int, list[tuple[int, int]]] = {}
        for queued, group, score in waiting:
            if queued.age < self.taken[group].end:
                batches.setdefault(group, []).append(score)
            else:
                later.setdefault(group, []).append((queued.age, score))
        # Each request that waits is in the batch or comes later, by its age.
        for group, taken in self.taken.items():
            assert list(taken.batch) == sorted(batches.get(group, []))
            assert list(taken.later) == sorted(later.get(group, []))


def _next(taken: Taken, count: int) -> Taken:
    """Return the next batch of so many requests, in order of arrival.  O(count (log n + sqrt n))."""
    chosen, later = list(islice(taken.later, count)), taken.later
    for pair in chosen:
        later = later.remove(pair)
    return Taken(chosen[-1][0] + 1, SortedTuple.from_sorted(sorted(score for _, score in chosen)), later)
