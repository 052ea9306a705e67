"""What waits, in the order in which it would be served: an index that events keep up to date.

`decide` never walks the queue.  For each group (a client under a gate, everybody without one) the index holds the
scores of its waiting requests in order, and in one vector the best score of each group, which is all that a gate's
kernel sees.  A score packs the order's rank and the age of the request into one integer, so that scores are distinct
and the larger goes first.  With a bypass budget the vector has the oldest's score in place of the best one
where that is due (`policies.bypass`); where ranks are priority groups, the oldest's of the
group whose turn it is (`policies.turns`).

When the order follows the cache, the index also knows where in the cache each waiting prompt stops matching.  New
blocks can lengthen only the matches that stopped exactly where they begin and go on with their first key; an eviction
can shorten only those that stopped in the node it cut.  So the work is proportional to what changed.
"""

from collections.abc import Iterator
from operator import lt

import msgspec
import numpy as np
from immutables import Map

from fairsched.model.algebra import EXACT, NO_SCORE, NUMPY, ExactVector, Ints
from fairsched.model.cache import PrefixCache
from fairsched.model.prefix_draft import Eviction
from fairsched.model.prefix_tree import Insertion
from fairsched.model.request import KEY_BYTES, Prompt, Request
from fairsched.model.sorted_tuple import SortedTuple
from fairsched.policies import bypass
from fairsched.policies.bypass import NO_PLACE, NOBODY_CAME, Line
from fairsched.policies.columns import Columns
from fairsched.policies.order import Order
from fairsched.policies.turns import ROUND_OVER, Turn, chosen, picked
from fairsched.policies.vectors import grown

AGE_BITS = 40
AGE_MASK = (1 << AGE_BITS) - 1
_NO_HEADS = np.zeros(0, dtype=np.int64)


class Entry(msgspec.Struct, frozen=True):
    """A request as the queue knows it: `age` counts arrivals, `generated_tokens` is what a preemption left to redo, and
    `place` is its place in its group's line where there is a bypass budget; the KV of the first `kv_tokens` of its
    context came with it."""

    request: Request
    age: int
    generated_tokens: int
    place: int = NO_PLACE
    kv_tokens: int = 0

    @property
    def context_tokens(self) -> int:
        """Tokens to be in the KV cache before the next token can be produced."""
        return self.request.prompt.tokens + self.generated_tokens

    @property
    def output_tokens_left(self) -> int:
        """Most output tokens that it may still produce."""
        return self.request.max_output_tokens - self.generated_tokens


class Waiting(msgspec.Struct, frozen=True):
    """The index.  `entries` by request id, `ids` by age, `scores` by request id, `queues` of scores by group.

    `heads[g]` is the score of who is next in group g, NO_SCORE when nothing of it waits.  `stops` says where each
    waiting prompt stops matching (node, blocks); `stopped` lists them by node and next key.  `lines` are kept with a
    bypass budget only, `turns` with priority groups only, and both outlast the queues; `columns` with an order that
    follows the queue only.
    """

    entries: Map[int, Entry] = Map()
    ids: Map[int, int] = Map()
    scores: Map[int, int] = Map()
    queues: Map[int, SortedTuple[int]] = Map()
    heads: Ints = msgspec.field(default_factory=lambda: _NO_HEADS)
    arrivals: int = 0
    stops: Map[int, tuple[int, int]] = Map()
    stopped: Map[int, Map[bytes, SortedTuple[int]]] = Map()
    lines: Map[int, Line] = Map()
    turns: Map[int, Turn] = Map()
    columns: Columns = Columns()

    def best(self, group: int) -> Entry:
        """Who is next in a group in which somebody waits: its best entry, or its oldest if that is due.  O(1)."""
        return self.entries[self.ids[AGE_MASK - (int(self.heads[group]) & AGE_MASK)]]

    def due(self, order: Order, group: int) -> bool:
        """Whether the oldest of such a group has used up the order's bypass budget.  O(1)."""
        line = self.lines.get(group)
        return line is not None and _due(order, line, self.entries[self.ids[line.ages.first()]])

    def ranked(self, group: int) -> Iterator[Entry]:
        """The group's entries from the best score down."""
        queue = self.queues.get(group)
        for score in reversed(queue) if queue is not None else ():
            yield self.entries[self.ids[AGE_MASK - (score & AGE_MASK)]]


def score_of(rank: int, age: int) -> int:
    """One integer that orders by rank, then by age, the older first."""
    return (rank << AGE_BITS) + (AGE_MASK - age)


_NO_QUEUE: SortedTuple[int] = SortedTuple()
_NO_KEYS: Map[bytes, SortedTuple[int]] = Map()


def join(waiting: Waiting, order: Order, cache: PrefixCache, entry: Entry, group: int) -> Waiting:
    """The index with one more entry.  O(log n + sqrt n), and a match of the prompt if the order follows the cache."""
    request, lines, turns = entry.request, waiting.lines, waiting.turns
    if order.bypass_budget is not None:
        line = lines.get(group, NOBODY_CAME)
        if entry.place == NO_PLACE:
            entry = msgspec.structs.replace(entry, place=bypass.place(NUMPY, line.left, line.ages.size))
        lines = lines.set(group, Line(line.ages.add(entry.age), line.left))
    stops, stopped = waiting.stops, waiting.stopped
    cached_tokens = 0
    if order.follows_cache and request.prompt.keys:
        match = cache.tree.match(request.prompt)
        cached_tokens = _usable(request.prompt, match.blocks)
        stops = stops.set(request.id, (match.node, match.blocks))
        stopped = _stop(stopped, request, match.node, match.blocks)
    score = score_of(order.rank(request, cached_tokens), entry.age)
    queue = waiting.queues.get(group, _NO_QUEUE).add(score)
    entries = waiting.entries.set(request.id, entry)
    ids = waiting.ids.set(entry.age, request.id)
    scores = waiting.scores.set(request.id, score)
    head = _head(order, queue, lines.get(group), turns.get(group, ROUND_OVER), entries, ids, scores)
    columns = waiting.columns
    if order.follows_queue:
        columns = columns.joined(entry.age, entry.context_tokens, request.arrival_ns, group, request.priority)
    return Waiting(
        entries,
        ids,
        scores,
        waiting.queues.set(group, queue),
        _with_head(waiting.heads, group, head),
        max(waiting.arrivals, entry.age + 1),
        stops,
        stopped,
        lines,
        turns,
        columns,
    )


def leave(waiting: Waiting, order: Order, request_id: int, group: int, admitted: bool) -> Waiting:
    """The index without an entry, which must be in it and is let in or gives up.  O(log n + sqrt n)."""
    entry, score = waiting.entries[request_id], waiting.scores[request_id]
    queue, turns = waiting.queues[group].remove(score), waiting.turns
    if order.takes_turns and admitted:
        turns = turns.set(group, picked(turns.get(group, ROUND_OVER), score >> AGE_BITS))
    stops, stopped = waiting.stops, waiting.stopped
    stop = stops.get(request_id)
    if stop is not None:
        stops = stops.delete(request_id)
        stopped = _unstop(stopped, entry.request, *stop)
    lines = waiting.lines
    if order.bypass_budget is not None:
        line = lines[group]
        lines = lines.set(group, Line(line.ages.remove(entry.age), bypass.gone(NUMPY, line.left)))
    entries = waiting.entries.delete(request_id)
    ids = waiting.ids.delete(entry.age)
    scores = waiting.scores.delete(request_id)
    head = _head(order, queue, lines.get(group), turns.get(group, ROUND_OVER), entries, ids, scores)
    return Waiting(
        entries,
        ids,
        scores,
        waiting.queues.set(group, queue) if queue.size else waiting.queues.delete(group),
        _with_head(waiting.heads, group, head),
        waiting.arrivals,
        stops,
        stopped,
        lines,
        turns,
        waiting.columns.left(entry.age) if order.follows_queue else waiting.columns,
    )


def after_insertion(
    waiting: Waiting, order: Order, cache: PrefixCache, insertion: Insertion, prompt: Prompt, grouped: bool
) -> Waiting:
    """The index after blocks of `prompt` were cached: the matches that they lengthen get new scores."""
    stopped = waiting.stopped
    if not stopped:
        return waiting
    moved: list[int] = []
    if insertion.split is not None:
        at_lower = stopped.get(insertion.split[1], _NO_KEYS)
        for ids in at_lower.values():
            moved.extend(i for i in ids if waiting.stops[i][1] <= insertion.matched_blocks)
    if insertion.new_blocks:
        start = insertion.matched_blocks * KEY_BYTES
        key = prompt.keys[start : start + KEY_BYTES]
        ids_there = stopped.get(insertion.base, _NO_KEYS).get(key)
        if ids_there is not None:
            moved.extend(i for i in ids_there if waiting.stops[i][1] == insertion.matched_blocks)
    return _rescore(waiting, order, cache, moved, grouped) if moved else waiting


def after_eviction(
    waiting: Waiting, order: Order, cache: PrefixCache, evictions: tuple[Eviction, ...], grouped: bool
) -> Waiting:
    """The index after blocks left the cache: the matches that stopped beyond what is kept get new scores."""
    moved: list[int] = []
    for eviction in evictions:
        for ids in waiting.stopped.get(eviction.node, _NO_KEYS).values():
            moved.extend(i for i in ids if waiting.stops[i][1] > eviction.keep_blocks)
    return _rescore(waiting, order, cache, moved, grouped) if moved else waiting


def _rescore(waiting: Waiting, order: Order, cache: PrefixCache, moved: list[int], grouped: bool) -> Waiting:
    """Match the moved prompts again and update their scores.  O(moved x (match + log n + sqrt n))."""
    entries, stopped = waiting.entries, waiting.stopped
    stops, scores, queues = waiting.stops.mutate(), waiting.scores.mutate(), waiting.queues.mutate()
    touched: set[int] = set()
    for request_id in sorted(set(moved)):
        entry = entries[request_id]
        request = entry.request
        match = cache.tree.match(request.prompt)
        stopped = _stop(_unstop(stopped, request, *stops[request_id]), request, match.node, match.blocks)
        stops[request_id] = (match.node, match.blocks)
        rank = order.rank(request, _usable(request.prompt, match.blocks))
        if order.only_rises:
            rank = max(rank, scores[request_id] >> AGE_BITS)
        score = score_of(rank, entry.age)
        if score != scores[request_id]:
            group = request.client if grouped else 0
            queues[group] = queues[group].remove(scores[request_id]).add(score)
            scores[request_id] = score
            touched.add(group)
    new_scores, new_queues = scores.finish(), queues.finish()
    heads = waiting.heads.copy()
    for group in touched:
        line, turn = waiting.lines.get(group), waiting.turns.get(group, ROUND_OVER)
        heads[group] = _head(order, new_queues[group], line, turn, entries, waiting.ids, new_scores)
    return msgspec.structs.replace(
        waiting, stops=stops.finish(), stopped=stopped, scores=new_scores, queues=new_queues, heads=heads
    )


def _usable(prompt: Prompt, blocks: int) -> int:
    return min(blocks, prompt.reusable_blocks) * prompt.block_tokens


def _stop(
    stopped: Map[int, Map[bytes, SortedTuple[int]]], request: Request, node: int, blocks: int
) -> Map[int, Map[bytes, SortedTuple[int]]]:
    key = request.prompt.keys[blocks * KEY_BYTES : (blocks + 1) * KEY_BYTES]
    by_key = stopped.get(node, _NO_KEYS)
    return stopped.set(node, by_key.set(key, by_key.get(key, _NO_QUEUE).add(request.id)))


def _unstop(
    stopped: Map[int, Map[bytes, SortedTuple[int]]], request: Request, node: int, blocks: int
) -> Map[int, Map[bytes, SortedTuple[int]]]:
    key = request.prompt.keys[blocks * KEY_BYTES : (blocks + 1) * KEY_BYTES]
    by_key = stopped[node]
    ids = by_key[key].remove(request.id)
    by_key = by_key.set(key, ids) if ids.size else by_key.delete(key)
    return stopped.set(node, by_key) if by_key else stopped.delete(node)


def with_groups(waiting: Waiting, size: int) -> Waiting:
    """The index with a head for each of at least `size` groups, so that it and a gate's vectors have one length."""
    return msgspec.structs.replace(waiting, heads=grown(waiting.heads, size, NO_SCORE))


def with_budget(waiting: Waiting, order: Order) -> Waiting:
    """The index of lines that were kept under another bypass budget.  O(groups)."""
    heads = waiting.heads.copy()
    for group, queue in waiting.queues.items():
        line, turn = waiting.lines.get(group), waiting.turns.get(group, ROUND_OVER)
        heads[group] = _head(order, queue, line, turn, waiting.entries, waiting.ids, waiting.scores)
    return msgspec.structs.replace(waiting, heads=heads)


def _head(
    order: Order,
    queue: SortedTuple[int],
    line: Line | None,
    turn: Turn,
    entries: Map[int, Entry],
    ids: Map[int, int],
    scores: Map[int, int],
) -> int:
    """The score of who is next in a group, NO_SCORE when nothing of it waits.  O(1); O(log n) with turns."""
    if not queue.size:
        return NO_SCORE
    if order.takes_turns:
        return _at_turn(queue, turn)
    if line is None:
        return queue.last()
    oldest = ids[line.ages.first()]
    return int(bypass.head(NUMPY, queue.last(), scores[oldest], _due(order, line, entries[oldest])))


def _at_turn(queue: SortedTuple[int], turn: Turn) -> int:
    """The oldest of the priority group that `turns.chosen` gives, found by its score (`check_waiting` compares)."""
    score = queue.below((turn.turn + 1) << AGE_BITS)
    return queue.last() if score is None or score < 1 << AGE_BITS else score


def _due(order: Order, line: Line, oldest: Entry) -> bool:
    budget = order.bypass_budget
    return budget is not None and bool(bypass.due(NUMPY, line.left, oldest.place, budget))


def _with_head(heads: Ints, group: int, head: int) -> Ints:
    """The vector of heads after one group's queue changed.  O(groups), or O(1) if the head is the same."""
    if group < len(heads):
        if heads[group] == head:
            return heads
        heads = heads.copy()
    else:
        heads = grown(heads, group + 1, NO_SCORE)
    heads[group] = head
    return heads


def check_waiting(waiting: Waiting, order: Order, cache: PrefixCache, grouped: bool) -> None:
    """Raise `AssertionError` unless every representation invariant holds.  O(n log n + bytes of prompts)."""
    entries = waiting.entries
    # Ages identify requests, and no age is in the future.
    assert {entry.age: i for i, entry in entries.items()} == dict(waiting.ids.items())
    assert all(entry.age < waiting.arrivals for entry in entries.values())
    groups: dict[int, list[int]] = {}
    for i, entry in entries.items():
        request = entry.request
        # Every score is the one that the order gives for what is cached now.
        cached_tokens = cache.cached_tokens(request.prompt) if order.follows_cache else 0
        rank = order.rank(request, cached_tokens)
        # One that only rises may be higher.
        rank = max(rank, waiting.scores[i] >> AGE_BITS) if order.only_rises else rank
        assert waiting.scores[i] == score_of(rank, entry.age)
        groups.setdefault(request.client if grouped else 0, []).append(waiting.scores[i])
        # A prompt stops where the cache says it does.
        if i in waiting.stops:
            match = cache.tree.match(request.prompt)
            assert waiting.stops[i] == (match.node, match.blocks)
    # Each group's queue holds exactly its scores, in order, and its head is the best of them or a due oldest.
    assert {group: list(queue) for group, queue in waiting.queues.items()} == {g: sorted(s) for g, s in groups.items()}
    for group, head in enumerate(waiting.heads.tolist()):
        if group in groups and order.takes_turns:
            assert head == _turn_head(groups[group], waiting.turns.get(group, ROUND_OVER))
            continue
        due = group in groups and waiting.due(order, group)
        assert head == max(groups.get(group, [NO_SCORE]), key=(lambda score: score & AGE_MASK) if due else None)
    _check_lines(waiting, order, grouped)
    # The columns have everybody, if the order needs them, in order of age.
    rows = sorted((e.age, e.context_tokens, e.request.arrival_ns, e.request.client) for e in entries.values())
    wanted = [row if grouped else (*row[:3], 0) for row in rows] if order.follows_queue else []
    columns = waiting.columns.settled()
    kept = (columns.ages, columns.memory, columns.arrivals_ns, columns.groups)
    assert list(zip(*(column.tolist() for column in kept), strict=True)) == wanted
    # The prompts listed where they stop are exactly those that wait and can be cached.
    listed = sorted(i for by_key in waiting.stopped.values() for ids in by_key.values() for i in ids)
    assert listed == sorted(waiting.stops)


def _turn_head(scores: list[int], turn: Turn) -> int:
    """The best score of the priority group that the kernel chooses."""
    quota = ExactVector(sorted({score >> AGE_BITS for score in scores}))
    group = quota[chosen(EXACT, quota, ExactVector([True] * len(quota)), turn.turn)]
    return max(score for score in scores if score >> AGE_BITS == group)


def _check_lines(waiting: Waiting, order: Order, grouped: bool) -> None:
    if order.bypass_budget is None:
        # Without a budget nobody counts.
        assert not waiting.lines
        return
    groups: dict[int, list[Entry]] = {}
    for _, request_id in sorted(waiting.ids.items()):
        entry = waiting.entries[request_id]
        groups.setdefault(entry.request.client if grouped else 0, []).append(entry)
    # Each line has the ages of those who wait.
    assert {g: list(line.ages) for g, line in waiting.lines.items() if line.ages.size} == {
        g: [entry.age for entry in entries] for g, entries in groups.items()
    }
    for group, entries in groups.items():
        line = waiting.lines[group]
        places = [entry.place for entry in entries]
        # Places ascend with age, nobody's lies before that of whoever comes next, and nobody was passed over less than
        # not at all.
        assert all(map(lt, places, places[1:]))
        assert places[0] >= 0
        assert places[-1] < line.left + line.ages.size
        assert all(line.left - place + older >= 0 for older, place in enumerate(places))
