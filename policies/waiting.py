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

import msgspec
import numpy as np
from immutables import Map

from fairsched.model.algebra import NO_SCORE, NUMPY, Ints
from fairsched.model.cache import PrefixCache
from fairsched.model.prefix_draft import Eviction
from fairsched.model.prefix_tree import Insertion
from fairsched.model.request import KEY_BYTES, Prompt, Request
from fairsched.model.sorted_tuple import SortedTuple
from fairsched.policies import bypass
from fairsched.policies.bypass import NO_PLACE, NOBODY_CAME, Line
from fairsched.policies.columns import Columns
from fairsched.policies.order import Order
from fairsched.policies.turns import ROUND_OVER, Turn, picked
from fairsched.policies.vectors import grown

AGE_BITS = 40
AGE_MASK = (1 << AGE_BITS) - 1
_NO_HEADS = np.zeros(0, dtype=np.int64)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A request as the queue knows it: `age` counts arrivals, `generated_tokens` is what a preemption left to redo, and
    `place` is its place in its group's line where there is a bypass budget; the KV of the first `kv_tokens` of its
    context came with it.  Where waits are counted in steps it waits `since` that step, and may be `promoted`."""

    request: Request
    age: int
    generated_tokens: int
    place: int = NO_PLACE
    kv_tokens: int = 0
    since: int = 0
    promoted: bool = False

    @property
    def context_tokens(self) -> int:
        """Tokens to be in the KV cache before the next token can be produced."""
        return self.request.prompt.tokens + self.generated_tokens

    @property
    def output_tokens_left(self) -> int:
        """Most output tokens that it may still produce."""
        return self.request.max_output_tokens - self.generated_tokens


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """The index.  `entries` by request id, `ids` by age, `scores` by request id, `queues` of scores by group.

    `heads[g]` is the score of who is next in group g, NO_SCORE when nothing of it waits.  `stops` says where each
    waiting prompt stops matching (node, blocks); `stopped` lists them by node and next key.  `lines` are kept with a
    bypass budget only, `turns` with priority groups only, and both outlast the queues; `columns` with an order that
    follows the queue only.  With an order that promotes, `steps` counts those that produced output, and `patient` lists
    those that are not promoted, by the step since which they wait.  `grouped` arrivals had come
    when those who wait were last ranked together (`policies.regroup`).
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
    steps: int = 0
    patient: SortedTuple[tuple[int, int]] = SortedTuple()
    grouped: int = 0

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


def rank_of(order: Order, entry: Entry, cached_tokens: int) -> int:
    """The order's rank of an entry."""
    if order.follows_output:
        return order.rank_after(entry.request, entry.generated_tokens, entry.promoted)
    return order.rank(entry.request, cached_tokens)


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
    patient = waiting.patient
    if order.promote_steps is not None:
        entry = msgspec.structs.replace(entry, since=waiting.steps, promoted=False)
        patient = patient.add((entry.since, request.id))
    stops, stopped = waiting.stops, waiting.stopped
    cached_tokens = 0
    if order.follows_cache and request.prompt.keys:
        match = cache.tree.match(request.prompt)
        cached_tokens = _usable(request.prompt, match.blocks)
        stops = stops.set(request.id, (match.node, match.blocks))
        stopped = _stop(stopped, request, match.node, match.blocks)
    score = score_of(rank_of(order, entry, cached_tokens), entry.age)
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
        waiting.steps,
        patient,
        waiting.grouped,
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
        waiting.steps,
        waiting.patient if order.promote_steps is None else waiting.patient.discard((entry.since, request_id)),
        waiting.grouped,
    )


def after_steps(waiting: Waiting, order: Order, steps: int, grouped: bool) -> Waiting:
    """The index after so many more steps with output: whoever has waited too long is promoted.

    O(1), and for each who is promoted O(groups + log n + sqrt n).
    """
    assert order.promote_steps is not None
    waiting = msgspec.structs.replace(waiting, steps=waiting.steps + steps)
    while waiting.patient.size and waiting.patient.first()[0] + order.promote_steps <= waiting.steps:
        first = waiting.patient.first()
        entry = msgspec.structs.replace(waiting.entries[first[1]], promoted=True)
        group, score = entry.request.client if grouped else 0, score_of(rank_of(order, entry, 0), entry.age)
        queue = waiting.queues[group].remove(waiting.scores[first[1]]).add(score)
        waiting = msgspec.structs.replace(
            waiting,
            entries=waiting.entries.set(first[1], entry),
            scores=waiting.scores.set(first[1], score),
            queues=waiting.queues.set(group, queue),
            heads=_with_head(waiting.heads, group, queue.last()),
            patient=waiting.patient.remove(first),
        )
    return waiting


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
        rank = rank_of(order, entry, _usable(request.prompt, match.blocks))
        rank = order.renewed(scores[request_id] >> AGE_BITS, rank)
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


def own_rank(waiting: Waiting, order: Order, entry: Entry) -> int:
    """The rank of a waiting request for what is cached now, whatever others wait.  O(1)."""
    stop = waiting.stops.get(entry.request.id)
    return rank_of(order, entry, 0 if stop is None else _usable(entry.request.prompt, stop[1]))


def with_heads(waiting: Waiting, order: Order) -> Waiting:
    """The index of queues or lines that were kept by another rule, with their heads found anew.  O(groups)."""
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
