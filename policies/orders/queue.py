"""The queue in the order in which it would be served: an index that events keep up to date.

`decide` never walks the queue.  For each group (a client under a gate, all clients without one) the queue holds the
scores of its requests in order, and in one vector the best score of each group, which is all that a gate's kernel
sees.  A score packs the order's rank and the age of the request into one integer, so that scores are distinct and the
larger goes first.

What an order's abilities keep beside that is in `extensions`: they are told of each request that joins, leaves or ends,
and may choose another head of a group than its best request.  One ability stands here: orders that follow the cache
(`FollowsCache`).  New blocks can lengthen only the matches that stopped exactly where they begin and go on with their
first key; an eviction can shorten only those that stopped in the node it cut.  So the work is proportional to what
changed.  Some also group waiting requests that share a prefix, from time to time (`Regroups`).
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np
from immutables import Map
from msgspec.structs import replace

from fairsched.model.algebra import NO_SCORE, Ints
from fairsched.model.prefix_cache import Eviction, Insertion, PrefixCache, SortedTuple
from fairsched.model.request import KEY_BYTES, Prompt, Request
from fairsched.policies.orders import abilities as able
from fairsched.policies.orders.base import AGE_BITS, AGE_MASK, NO_PLACE, Order, QueuedRequest, QueueExtension, score_of
from fairsched.policies.vectors import grown

Extension = TypeVar("Extension", bound=QueueExtension[Any])
Stopped = Map[int, Map[bytes, SortedTuple[int]]]

_NO_HEADS = np.zeros(0, dtype=np.int64)
_NO_QUEUE: SortedTuple[int] = SortedTuple()
_NO_KEYS: Map[bytes, SortedTuple[int]] = Map()


# --- orders that follow the cache ------------------------------------------------------------------------------------


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
    return stopped.set(node, by_key.set(key, by_key.get(key, _NO_QUEUE).add(request.id)))


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


# --- the queue --------------------------------------------------------------------------------------------------------


class Queue(msgspec.Struct, frozen=True, gc=False):
    """The requests that wait.

    `entries` are by request id, `ids` by age, `scores` by request id, `queues` of scores by group.  `heads[g]` is the
    score of the next request of group g, NO_SCORE when none of it waits.  `arrivals` counts the requests that came.
    """

    entries: Map[int, QueuedRequest] = Map()
    ids: Map[int, int] = Map()
    scores: Map[int, int] = Map()
    queues: Map[int, SortedTuple[int]] = Map()
    heads: Ints = msgspec.field(default_factory=lambda: _NO_HEADS)
    arrivals: int = 0
    extensions: tuple[QueueExtension[Any], ...] = ()

    def best(self, group: int) -> QueuedRequest:
        """Return the next request of a group that is not empty: its best one, unless an extension says otherwise.
        O(1)."""
        return self.entries[self.ids[AGE_MASK - (int(self.heads[group]) & AGE_MASK)]]

    def ranked(self, group: int) -> Iterator[QueuedRequest]:
        """Yield the requests of a group that is not empty, from the best score down, and one for each prefix that is
        shared.

        O(log n) each: of requests that share a prefix which is not cached only the oldest can be next.
        """
        queue = self.queues[group]
        score: int | None = queue.last()
        while score is not None:
            queued = self.entries[self.ids[AGE_MASK - (score & AGE_MASK)]]
            yield queued
            score = queue.below(score if queued.place == NO_PLACE else score >> AGE_BITS << AGE_BITS)

    def extension(self, kind: type[Extension]) -> Extension | None:
        """Return what the ability of that kind keeps; None if the order has no such ability."""
        for kept in self.extensions:
            if type(kept) is kind:
                return kept
        return None

    def extended(self, extension: QueueExtension[Any]) -> tuple[QueueExtension[Any], ...]:
        """Return the extensions with this one in place of the one of its kind."""
        return tuple([extension if type(kept) is type(extension) else kept for kept in self.extensions])


def join(queue: Queue, order: Order, cache: PrefixCache, queued: QueuedRequest, group: int) -> Queue:
    """Return the queue with one more request.  O(log n + sqrt n), and a match of the prompt if the order follows the
    cache."""
    extensions, cached_tokens, request_id = queue.extensions, 0, queued.request.id
    if extensions:
        joined = []
        for kept in extensions:
            extension, queued = kept.joined(order, queued, group, cache)
            if type(extension) is CacheMatches:
                cached_tokens = extension.cached_tokens(queued.request)
            joined.append(extension)
        extensions = tuple(joined)
    score = score_of(order, order.rank_queued(queued, cached_tokens), queued.age)
    scores_of_group = queue.queues.get(group, _NO_QUEUE).add(score)
    entries = queue.entries.set(request_id, queued)
    ids = queue.ids.set(queued.age, request_id)
    scores = queue.scores.set(request_id, score)
    head = _head(order, extensions, group, scores_of_group, entries, ids, scores)
    return Queue(
        entries,
        ids,
        scores,
        queue.queues.set(group, scores_of_group),
        _with_head(queue.heads, group, head),
        max(queue.arrivals, queued.age + 1),
        extensions,
    )


def leave(queue: Queue, order: Order, request_id: int, group: int, admitted: bool) -> Queue:
    """Return the queue without a request, which must be in it and is admitted or gives up.  O(log n + sqrt n)."""
    queued, score = queue.entries[request_id], queue.scores[request_id]
    scores_of_group = queue.queues[group].remove(score)
    extensions = queue.extensions
    if len(extensions) == 1:
        extensions = (extensions[0].left(order, queued, score, group, admitted),)
    elif extensions:
        extensions = tuple([kept.left(order, queued, score, group, admitted) for kept in extensions])
    entries = queue.entries.delete(request_id)
    ids = queue.ids.delete(queued.age)
    scores = queue.scores.delete(request_id)
    head, heads = _head(order, extensions, group, scores_of_group, entries, ids, scores), queue.heads
    if heads[group] != head:
        heads = heads.copy()
        heads[group] = head
    return Queue(
        entries,
        ids,
        scores,
        queue.queues.set(group, scores_of_group) if scores_of_group.size else queue.queues.delete(group),
        heads,
        queue.arrivals,
        extensions,
    )


# --- what changes ranks -----------------------------------------------------------------------------------------------


def after_steps(queue: Queue, order: able.Promotes, steps: int, grouped: bool) -> Queue:
    """Return the queue after so many more steps with output: a request that has waited too long is promoted.

    O(1), and for each that is promoted O(groups + log n + sqrt n).
    """
    promotions = queue.extension(able.Promotions)
    assert promotions is not None
    promotions, promoted = promotions.after(order, steps)
    for request_id in promoted:
        queued = replace(queue.entries[request_id], promoted=True)
        group, score = (
            queued.request.client if grouped else 0,
            score_of(order, order.rank_queued(queued, 0), queued.age),
        )
        scores = queue.queues[group].remove(queue.scores[request_id]).add(score)
        queue = replace(
            queue,
            entries=queue.entries.set(request_id, queued),
            scores=queue.scores.set(request_id, score),
            queues=queue.queues.set(group, scores),
            heads=_with_head(queue.heads, group, scores.last()),
        )
    extensions = queue.extended(promotions)
    return Queue(queue.entries, queue.ids, queue.scores, queue.queues, queue.heads, queue.arrivals, extensions)


def after_end(queue: Queue, order: Order, request: Request, output_tokens: int, time_ns: int) -> Queue:
    """Return the queue after a request ended.  O(1), and O(groups) heads if an ability counts what requests got."""
    extensions = tuple([kept.finished(order, request, output_tokens, time_ns) for kept in queue.extensions])
    if all(new is old for new, old in zip(extensions, queue.extensions, strict=True)):
        return queue
    return _with_heads(replace(queue, extensions=extensions), order, queue.queues)


def with_programs(queue: Queue, change: Callable[[able.ProgramsHeld], able.ProgramsHeld]) -> Queue:
    """Return the queue after what programs hold changed, where its order keeps that."""
    held = queue.extension(able.ProgramsHeld)
    return queue if held is None else replace(queue, extensions=queue.extended(change(held)))


def after_insertion(
    queue: Queue, order: Order, cache: PrefixCache, insertion: Insertion, prompt: Prompt, grouped: bool
) -> Queue:
    """Return the queue after blocks of `prompt` were cached: the matches that they lengthen get new scores."""
    matches = queue.extension(CacheMatches)
    moved = matches.lengthened(insertion, prompt) if matches is not None else []
    return _rescored(queue, order, cache, moved, grouped) if moved else queue


def after_eviction(
    queue: Queue, order: Order, cache: PrefixCache, evictions: tuple[Eviction, ...], grouped: bool
) -> Queue:
    """Return the queue after blocks left the cache: the matches that stopped beyond what is kept get new scores."""
    matches = queue.extension(CacheMatches)
    moved = matches.shortened(evictions) if matches is not None else []
    return _rescored(queue, order, cache, moved, grouped) if moved else queue


def _rescored(queue: Queue, order: Order, cache: PrefixCache, moved: list[int], grouped: bool) -> Queue:
    """Match the moved prompts again and update their scores.  O(moved x (match + log n + sqrt n))."""
    matches, ids = queue.extension(CacheMatches), sorted(set(moved))
    assert matches is not None
    assert isinstance(order, FollowsCache)
    matches = matches.matched_again([queue.entries[i].request for i in ids], cache)
    scores, queues = queue.scores.mutate(), queue.queues.mutate()
    touched: set[int] = set()
    for request_id in ids:
        queued = queue.entries[request_id]
        rank = order.rank_queued(queued, matches.cached_tokens(queued.request))
        score = score_of(order, order.renewed(scores[request_id] >> AGE_BITS, rank), queued.age)
        if score != scores[request_id]:
            group = queued.request.client if grouped else 0
            queues[group] = queues[group].remove(scores[request_id]).add(score)
            scores[request_id] = score
            touched.add(group)
    queue = replace(queue, scores=scores.finish(), queues=queues.finish(), extensions=queue.extended(matches))
    return _with_heads(queue, order, touched)


def groups_due(queue: Queue, order: Order) -> bool:
    """Return whether the order groups waiting requests, and says that it is time.  O(1)."""
    if not isinstance(order, Regroups):
        return False
    kept = queue.extension(Grouped)
    return kept is not None and order.regroups(len(queue.entries) + kept.admitted, queue.arrivals - kept.grouped)


def regrouped(queue: Queue, order: Regroups, grouped: bool, computed: Callable[[QueuedRequest], bool]) -> Queue:
    """Return the queue with waiting requests in new groups, but for those in a group whose prefix is cached or
    `computed` now.

    O(n log n) for n waiting, and what the order itself takes.
    """
    matches = queue.extension(CacheMatches)
    waiting = sorted(queue.entries.values(), key=lambda queued: queued.age)
    cached = {each.request.id: 0 if matches is None else matches.cached_tokens(each.request) for each in waiting}
    loose = [
        each
        for each in waiting
        if each.place == NO_PLACE or not (each.prefix_is_cached(cached[each.request.id]) or computed(each))
    ]
    together = order.groups_together([each.request for each in loose])
    alone = [NO_PLACE] * len(loose), [0] * len(loose)
    places, prefixes = alone if together is None else (together[0].tolist(), together[1].tolist())
    entries = queue.entries.mutate()
    for each, place, prefix_tokens in zip(loose, places, prefixes, strict=True):
        if place != NO_PLACE and not prefix_tokens:
            # Alone in its group, it shares what is cached with requests that came before.
            prefix_tokens = cached[each.request.id]
        entries[each.request.id] = replace(each, place=place, prefix_tokens=prefix_tokens)
    queue = replace(queue, entries=entries.finish(), extensions=queue.extended(Grouped(queue.arrivals)))
    return _ranked_anew(queue, order, grouped, cached)


def _ranked_anew(queue: Queue, order: Order, grouped: bool, cached: Mapping[int, int]) -> Queue:
    """Return the queue with the score that the order gives to each request now.  O(n log n) for n waiting."""
    scores: dict[int, int] = {}
    queues: dict[int, list[int]] = {}
    for request_id, each in queue.entries.items():
        score = score_of(order, order.rank_queued(each, cached[request_id]), each.age)
        scores[request_id] = score
        queues.setdefault(each.request.client if grouped else 0, []).append(score)
    anew = replace(
        queue,
        scores=Map(scores),
        queues=Map({group: SortedTuple.from_sorted(sorted(line)) for group, line in queues.items()}),
    )
    return _with_heads(anew, order, queues)


def refreshed(queue: Queue) -> Queue:
    """Return the queue after admissions of a decision that ranked it."""
    index = queue.extension(able.Fronts)
    assert index is not None
    again = index.refreshed()
    return queue if again is index else replace(queue, extensions=queue.extended(again))


# --- heads ------------------------------------------------------------------------------------------------------------


def with_groups(queue: Queue, size: int) -> Queue:
    """Return the queue with a head for each of at least `size` groups, so that it and a gate's vectors have one
    length."""
    return replace(queue, heads=grown(queue.heads, size, NO_SCORE))


def _with_heads(queue: Queue, order: Order, groups: Iterable[int]) -> Queue:
    """Return the queue with the heads of these groups found anew.  O(groups)."""
    heads = queue.heads.copy()
    for group in groups:
        heads[group] = _head(
            order, queue.extensions, group, queue.queues[group], queue.entries, queue.ids, queue.scores
        )
    return replace(queue, heads=heads)


def _head(
    order: Order,
    extensions: tuple[QueueExtension[Any], ...],
    group: int,
    queue: SortedTuple[int],
    entries: Map[int, QueuedRequest],
    ids: Map[int, int],
    scores: Map[int, int],
) -> int:
    """Return the score of the next request of a group, NO_SCORE when none of it waits.  O(1); O(log n) with turns."""
    if not queue.size:
        return NO_SCORE
    for extension in extensions:
        if extension.picks_head:
            return extension.head(order, group, queue, entries, ids, scores)
    return queue.chunks[-1][-1]


def _with_head(heads: Ints, group: int, head: int) -> Ints:
    """Return the vector of heads after one group's queue changed.  O(groups), or O(1) if the head is the same."""
    if group < len(heads):
        if heads[group] == head:
            return heads
        heads = heads.copy()
    else:
        heads = grown(heads, group + 1, NO_SCORE)
    heads[group] = head
    return heads


# --- invariants -------------------------------------------------------------------------------------------------------


def check_queue(queue: Queue, order: Order, cache: PrefixCache, grouped: bool) -> None:
    """Raise `AssertionError` unless every representation invariant holds.  O(n log n + bytes of prompts)."""
    entries = queue.entries
    # Ages identify requests, and no age is in the future.
    assert {queued.age: i for i, queued in entries.items()} == dict(queue.ids.items())
    assert all(queued.age < queue.arrivals for queued in entries.values())
    assert [type(kept) for kept in queue.extensions] == [type(kept) for kept in order.extensions()]
    groups: dict[int, list[int]] = {}
    waiting = []
    for queued in sorted(entries.values(), key=lambda queued: queued.age):
        request, score = queued.request, queue.scores[queued.request.id]
        # Every score is the one that the order gives for what is cached now.
        if isinstance(order, FollowsCache):
            rank = order.rank_queued(queued, cache.cached_tokens(request.prompt))
            # One that only rises, or was found together with others, may be another.
            rank = order.renewed(score >> AGE_BITS, rank)
        else:
            rank = order.rank_queued(queued, 0)
        assert score == score_of(order, rank, queued.age)
        group = request.client if grouped else 0
        groups.setdefault(group, []).append(score)
        waiting.append((queued, group, score))
    # Each group's queue holds exactly its scores, in order.
    assert {group: list(scores) for group, scores in queue.queues.items()} == {g: sorted(s) for g, s in groups.items()}
    # Each head is the one that the rules give now; extensions check the rules themselves.
    for group, head in enumerate(queue.heads.tolist()):
        scores = queue.queues.get(group, _NO_QUEUE)
        assert head == _head(order, queue.extensions, group, scores, entries, queue.ids, queue.scores)
    for kept in queue.extensions:
        kept.check(order, waiting, cache)
