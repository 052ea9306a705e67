"""What must be true of the index of those who wait, whatever happened to it: for tests, and slow."""

from operator import lt

from fairsched.model.algebra import EXACT, NO_SCORE, ExactVector
from fairsched.model.cache import PrefixCache
from fairsched.policies.columns import PRIORITY_MAX
from fairsched.policies.order import Order
from fairsched.policies.turns import ROUND_OVER, Turn, chosen
from fairsched.policies.waiting import AGE_BITS, AGE_MASK, Entry, Waiting, rank_of, score_of


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
        rank = rank_of(order, entry, cached_tokens)
        # One that only rises, or was found together with others, may be another.
        rank = order.renewed(waiting.scores[i] >> AGE_BITS, rank)
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
    # Whoever has not waited too long is not promoted, and nobody who has is left.
    patient = sorted((e.since, i) for i, e in entries.items() if not e.promoted) if order.promote_steps else []
    assert list(waiting.patient) == patient
    assert not patient or patient[0][0] <= waiting.steps < patient[0][0] + (order.promote_steps or 0)
    # The columns have everybody, if the order needs them, in order of age.
    wanted = []
    for entry in sorted(entries.values(), key=lambda entry: entry.age) if order.follows_queue else ():
        request = entry.request
        priority = max(-PRIORITY_MAX, min(request.priority, PRIORITY_MAX))
        group = request.client if grouped else 0
        wanted.append((entry.age, entry.context_tokens, request.arrival_ns, group, priority))
    columns = waiting.columns.settled()
    kept = (columns.ages, columns.memory, columns.arrivals_ns, columns.groups, columns.priorities)
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
