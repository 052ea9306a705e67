"""Orders that follow the cache: where in it each waiting prompt stops matching, kept up to date by events.

New blocks can lengthen only the matches that stopped exactly where they begin and go on with their first key; an
eviction can shorten only those that stopped in the node it cut.  So the work is proportional to what changed.

Some also group waiting requests that share a prefix, from time to time (`Regroups`).
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from immutables import Map

from fairsched.model.algebra import Ints
from fairsched.model.prefix_cache import Eviction, Insertion, PrefixCache, SortedTuple
from fairsched.model.request import KEY_BYTES, Prompt, Request
from fairsched.policies.orders.base import Order, QueuedRequest, QueueExtension

Stopped = Map[int, Map[bytes, SortedTuple[int]]]

_NO_KEYS: Map[bytes, SortedTuple[int]] = Map()
_NO_REQUESTS: SortedTuple[int] = SortedTuple()


class FollowsCache(Order):
    """An order whose rank depends on how much of a prompt is cached.

    With `waits_for_prefix`, a request whose next missing block is being computed for another request waits for it
    rather than computing it a second time.
    """

    waits_for_prefix: ClassVar[bool] = False

    def renewed(self, before: int, rank: int) -> int:
        """Return the rank of a request that waits with the rank `before`, when the cache now gives it `rank`.  O(1)."""
        return rank

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (CacheMatches(), *super().extensions())


class CacheMatches(QueueExtension[FollowsCache], frozen=True, gc=False):
    """Where each waiting prompt with keys stops matching (node, blocks), and which stop at a node before a key."""

    stops: Map[int, tuple[int, int]] = Map()
    stopped: Stopped = Map()

    def joined(
        self, order: FollowsCache, queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple["CacheMatches", QueuedRequest]:
        request = queued.request
        if not request.prompt.keys:
            return self, queued
        match = cache.tree.match(request.prompt)
        stops = self.stops.set(request.id, (match.node, match.blocks))
        return CacheMatches(stops, _stop(self.stopped, request, match.node, match.blocks)), queued

    def left(
        self, order: FollowsCache, queued: QueuedRequest, score: int, group: int, admitted: bool
    ) -> "CacheMatches":
        stop = self.stops.get(queued.request.id)
        if stop is None:
            return self
        return CacheMatches(self.stops.delete(queued.request.id), _unstop(self.stopped, queued.request, *stop))

    def cached_tokens(self, request: Request) -> int:
        """Return the tokens of a waiting request's prompt that it need not compute."""
        stop = self.stops.get(request.id)
        return 0 if stop is None else min(stop[1], request.prompt.reusable_blocks) * request.prompt.block_tokens

    def lengthened(self, insertion: Insertion, prompt: Prompt) -> list[int]:
        """Return the requests that may match more after blocks of `prompt` were cached."""
        if not self.stopped:
            return []
        moved: list[int] = []
        if insertion.split is not None:
            at_lower = self.stopped.get(insertion.split[1], _NO_KEYS)
            for ids in at_lower.values():
                moved.extend(i for i in ids if self.stops[i][1] <= insertion.matched_blocks)
        if insertion.new_blocks:
            start = insertion.matched_blocks * KEY_BYTES
            ids_there = self.stopped.get(insertion.base, _NO_KEYS).get(prompt.keys[start : start + KEY_BYTES])
            if ids_there is not None:
                moved.extend(i for i in ids_there if self.stops[i][1] == insertion.matched_blocks)
        return moved

    def shortened(self, evictions: tuple[Eviction, ...]) -> list[int]:
        """Return the requests that match less after blocks left the cache."""
        moved: list[int] = []
        for eviction in evictions:
            for ids in self.stopped.get(eviction.node, _NO_KEYS).values():
                moved.extend(i for i in ids if self.stops[i][1] > eviction.keep_blocks)
        return moved

    def matched_again(self, requests: Iterable[Request], cache: PrefixCache) -> "CacheMatches":
        """Return the same with these requests matched anew."""
        stops, stopped = self.stops.mutate(), self.stopped
        for request in requests:
            match = cache.tree.match(request.prompt)
            stopped = _stop(_unstop(stopped, request, *stops[request.id]), request, match.node, match.blocks)
            stops[request.id] = (match.node, match.blocks)
        return CacheMatches(stops.finish(), stopped)

    def check(self, order: FollowsCache, waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        stops = {}
        for queued, _, _ in waiting:
            if queued.request.prompt.keys:
                match = cache.tree.match(queued.request.prompt)
                stops[queued.request.id] = match.node, match.blocks
        # Each prompt that can be cached stops where the cache says, and is listed there.
        assert dict(self.stops.items()) == stops
        assert sorted(i for by_key in self.stopped.values() for ids in by_key.values() for i in ids) == sorted(stops)


def _stop(stopped: Stopped, request: Request, node: int, blocks: int) -> Stopped:
    key = request.prompt.keys[blocks * KEY_BYTES : (blocks + 1) * KEY_BYTES]
    by_key = stopped.get(node, _NO_KEYS)
    return stopped.set(node, by_key.set(key, by_key.get(key, _NO_REQUESTS).add(request.id)))


def _unstop(stopped: Stopped, request: Request, node: int, blocks: int) -> Stopped:
    key = request.prompt.keys[blocks * KEY_BYTES : (blocks + 1) * KEY_BYTES]
    by_key = stopped[node]
    ids = by_key[key].remove(request.id)
    by_key = by_key.set(key, ids) if ids.size else by_key.delete(key)
    return stopped.set(node, by_key) if by_key else stopped.delete(node)


def waits_for_prefix(order: Order) -> bool:
    """Return whether the order lets a request wait for a prefix that is being computed for another one."""
    return isinstance(order, FollowsCache) and order.waits_for_prefix


# --- groups of waiting requests ---------------------------------------------------------------------------------------


class Regroups(Order):
    """An order that groups waiting requests that share a prefix, from time to time, and ranks groups.

    It happens before the first admission of a decision, and only if the order says that it is due.  A decision that
    admits no request groups none, so no decision of a stretch of decode steps can change by it.
    """

    @abstractmethod
    def regroups(self, waiting: int, joined: int) -> bool:
        """Return whether `waiting` requests are to be grouped now, `joined` requests having come since.  O(1)."""

    @abstractmethod
    def groups_together(self, requests: Sequence[Request]) -> tuple[Ints, Ints] | None:
        """Return the place of each request's group, and how many tokens that shares; None: no groups are to be made."""

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (*super().extensions(), Grouped())


class Grouped(QueueExtension[Regroups], frozen=True, gc=False):
    """How many requests had come when those that wait were last grouped, and how many were admitted since one joined.

    An admission must not make it time to group: the next one of the same decision would find other groups.  So those
    that were `admitted` count as if they waited until another request joins.
    """

    grouped: int = 0
    admitted: int = 0

    def joined(
        self, order: Regroups, queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple["Grouped", QueuedRequest]:
        return (Grouped(self.grouped) if self.admitted else self), queued

    def left(self, order: Regroups, queued: QueuedRequest, score: int, group: int, admitted: bool) -> "Grouped":
        return Grouped(self.grouped, self.admitted + 1) if admitted else self
