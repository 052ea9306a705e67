"""Orders whose keys rise with how late a request came and with a number of its own: larry, ageing, deadlines, shares.

Of two requests of a group the older one, if it came no later and its number is no larger, always goes before the other,
however many wait.  So only those can be next whose number is lower than all before them: the *front* of the group,
which is about the logarithm of the group where numbers have nothing to do with ages, and all of it at most.  A decision
looks at fronts alone.

Requests mostly come in order of arrival.  One that comes from another worker may be the youngest here, and have come
before others: a group's requests are kept in *runs*, in each of which a younger one came no earlier, and each run has a
front.  When a request of a front leaves, those behind it that it kept back come forward.  They are found by chunks of a
run, about the square root of it, each of which knows its own front.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from immutables import Map

from fairsched.model.algebra import NO_SCORE, Ints
from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.request import Request
from fairsched.model.serialization import Derived
from fairsched.policies.orders.base import Order, QueuedRequest, QueueExtension

EXACT_MAX = 2**62
"""Keys beyond this might leave 64 bits, and are put in order as Python integers."""
OWN_MAX = 2**62
"""The largest number that an order may keep of a request (`RanksByKey.number`): a key of it alone fits into 64 bits."""
ANY = OWN_MAX + 1
"""A limit that every number is below."""
FEW = 4
"""The fronts of up to so many groups are gone through one by one; those of more by numpy, all together."""
CHUNK_MIN = 32
"""A chunk may always hold so many requests."""

Row = tuple[int, int, int]
"""A request: its age, its number, and when it arrived in nanoseconds."""
Key = Callable[[Any, Any], Any]
"""The key of a request that came so many microseconds after the first, and has that number; or of columns of such."""


# --- runs -------------------------------------------------------------------------------------------------------------


class Chunk(NamedTuple):
    """Some requests in order of age, and those of them with a lower number than all before in the chunk; and the age of
    the first, by which chunks are found."""

    begins: int
    rows: tuple[Row, ...]
    lowest: tuple[Row, ...]


class Run(msgspec.Struct, frozen=True, gc=False):
    """Requests in order of age, of which a younger one came no earlier, and those with a lower number than all before.

    It is not empty.  `least` are the least numbers of the chunks.
    """

    chunks: tuple[Chunk, ...]
    least: tuple[int, ...]
    front: tuple[Row, ...]

    @classmethod
    def of(cls, row: Row) -> "Run":
        return cls((_chunk((row,)),), (row[1],), (row,))

    def takes(self, row: Row) -> bool:
        """Return whether the request came in order among those of the run.  O(log n)."""
        last = self.chunks[-1].rows[-1]
        if last[0] < row[0]:
            return last[2] <= row[2]
        i = self._chunk_of(row[0])
        rows = self.chunks[i].rows
        j = bisect_left(rows, row)
        after = rows[j] if j < len(rows) else self.chunks[i + 1].rows[0]
        return (not j or rows[j - 1][2] <= row[2]) and row[2] <= after[2]

    def has(self, age: int) -> bool:
        """Return whether the request of this age is in the run.  O(log n)."""
        rows = self.chunks[self._chunk_of(age)].rows
        j = bisect_left(rows, (age,))
        return j < len(rows) and rows[j][0] == age

    def _chunk_of(self, age: int) -> int:
        return max(bisect_left(self.chunks, (age + 1,)) - 1, 0)

    def added(self, row: Row) -> "Run":
        """Return the run with a request that it takes.  O(log n + sqrt n), and O(front) where that changes."""
        chunks, front = self.chunks, self.front
        last, limit = chunks[-1], CHUNK_MIN + len(chunks)
        if last.rows[-1][0] < row[0]:
            number = row[1]
            front = front + (row,) if number < front[-1][1] else front
            if len(last.rows) == limit:
                return Run(chunks + (_chunk((row,)),), self.least + (number,), front)
            least = self.least
            lowest = last.lowest
            if number < least[-1]:
                least, lowest = least[:-1] + (number,), lowest + (row,)
            return Run(chunks[:-1] + (Chunk(last.begins, last.rows + (row,), lowest),), least, front)
        i = self._chunk_of(row[0])
        rows = chunks[i].rows
        j = bisect_left(rows, row)
        rows = rows[:j] + (row,) + rows[j:]
        f = bisect_left(front, row)
        if not f or row[1] < front[f - 1][1]:
            front = front[:f] + (row, *_falling(front[f:], row[1]))
        parts = (rows,) if len(rows) <= limit else (rows[: limit // 2], rows[limit // 2 :])
        return self._with(i, i + 1, tuple([_chunk(part) for part in parts]), front)

    def removed(self, age: int) -> "Run | None":
        """Return the run without the request of this age, which is in it; None: nothing is left.

        O(log n + sqrt n), and O(front) where that changes.
        """
        chunks, front = self.chunks, self.front
        i = self._chunk_of(age)
        _, rows, lowest = chunks[i]
        j = bisect_left(rows, (age,))
        row, rows = rows[j], rows[:j] + rows[j + 1 :]
        if not rows and len(chunks) == 1:
            return None
        k = bisect_left(lowest, row)
        if k < len(lowest) and lowest[k] == row:
            lowest = lowest[:k] + tuple(_falling(rows[j:], lowest[k - 1][1] if k else ANY))
            f = bisect_left(front, row)
            if f < len(front) and front[f] == row:
                front = front[:f] + tuple(self._forward(i, lowest[k:], f)) + front[f + 1 :]
        if not rows:
            return self._with(i, i + 1, (), front)
        if i + 1 < len(chunks) and len(rows) + len(chunks[i + 1].rows) <= (CHUNK_MIN + len(chunks)) // 2:
            return self._with(i, i + 2, (_chunk(rows + chunks[i + 1].rows),), front)
        return self._with(i, i + 1, (Chunk(rows[0][0], rows, lowest),), front)

    def _with(self, i: int, j: int, new: tuple[Chunk, ...], front: tuple[Row, ...]) -> "Run":
        """Return the run with other chunks in place of those from i to j."""
        least = tuple([chunk.lowest[-1][1] for chunk in new])
        return Run(self.chunks[:i] + new + self.chunks[j:], self.least[:i] + least + self.least[j:], front)

    def _forward(self, i: int, rest: tuple[Row, ...], f: int) -> list[Row]:
        """Return what takes the place of the f-th of the front, which is in chunk i: those behind it with a number
        lower than all before, up to the next of the front.  `rest` are those of the same chunk.  O(sqrt n + these)."""
        front, chunks, least = self.front, self.chunks, self.least
        limit = front[f - 1][1] if f else ANY
        # None behind is lower than the next of the front, which is lower than all before.
        ends = front[f + 1][1] if f + 1 < len(front) else min(least[i + 1 :], default=ANY)
        found: list[Row] = []
        for row in rest:
            if row[1] < limit:
                limit = row[1]
                if limit <= ends and f + 1 < len(front):
                    return found
                found.append(row)
        while limit > ends:
            i += 1
            if least[i] < limit:
                for row in chunks[i].lowest:
                    if row[1] < limit:
                        limit = row[1]
                        if limit <= ends and f + 1 < len(front):
                            return found
                        found.append(row)
        return found

    def check(self) -> None:
        """Raise `AssertionError` unless every representation invariant holds.  O(n)."""
        rows = [row for chunk in self.chunks for row in chunk.rows]
        # It is not empty, and a younger one came no earlier.
        assert rows
        assert all(one[0] < other[0] and one[2] <= other[2] for one, other in pairwise(rows))
        # The front is that of the whole, and what is known of a chunk is so.
        assert self.front == tuple(_falling(rows))
        assert all(chunk == _chunk(chunk.rows) for chunk in self.chunks)
        assert self.least == tuple(min(number for _, number, _ in chunk.rows) for chunk in self.chunks)


def _chunk(rows: tuple[Row, ...]) -> Chunk:
    return Chunk(rows[0][0], rows, tuple(_falling(rows)))


def _falling(rows: Iterable[Row], limit: int = ANY) -> list[Row]:
    """Return those with a number lower than the limit and than all before."""
    found = []
    for row in rows:
        if row[1] < limit:
            limit = row[1]
            found.append(row)
    return found


Line = tuple[Run, ...]
"""The runs of a group."""


def joined_line(line: Line, row: Row) -> Line:
    """Return the runs with one more request, in the first that takes it or in a run of its own."""
    for i, run in enumerate(line):
        if run.takes(row):
            return line[:i] + (run.added(row),) + line[i + 1 :]
    return line + (Run.of(row),)


def left_line(line: Line, age: int) -> Line:
    """Return the runs without the request of this age."""
    for i, run in enumerate(line):
        if len(line) == 1 or run.has(age):
            less = run.removed(age)
            return line[:i] + (() if less is None else (less,)) + line[i + 1 :]
    raise AssertionError(f"no request of age {age} waits there")


# --- beside the queue -------------------------------------------------------------------------------------------------


class Columns(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The fronts of all groups side by side, each group's together: of each request its group, its number, when it
    arrived, and how long after the first it did in whole microseconds."""

    groups: Ints
    numbers: Ints
    arrivals_ns: Ints
    waits_us: Ints
    starts: Ints
    """Where each group begins, and which one it is."""
    named: Ints
    since_ns: int
    largest: tuple[int, int]
    """The largest wait, and the largest number of either sign."""

    @classmethod
    def of(cls, rows: Ints) -> "Columns":
        groups, numbers, arrivals_ns = rows
        since_ns = int(arrivals_ns.min())
        waits_us = (arrivals_ns - since_ns) // 1_000
        largest = int(waits_us.max()), max(int(numbers.max()), -int(numbers.min()))
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        return cls(groups, numbers, arrivals_ns, waits_us, starts, groups[starts], since_ns, largest)

    def without(self, stale: frozenset[int]) -> Ints:
        """Return the rows of all groups but these."""
        among = np.ones(int(self.groups.max()) + 1, np.bool_)
        among[[group for group in stale if group < len(among)]] = False
        kept = among[self.groups]
        return np.stack((self.groups[kept], self.numbers[kept], self.arrivals_ns[kept]))


class Lines(Derived, frozen=True, eq=False, gc=False):
    """The runs of each group in which a request waits, and how many wait; with more groups than a few their fronts as
    columns, but for groups in `stale`, whose fronts are others since."""

    lines: Map[int, Line] = Map()
    waiting: int = 0
    columns: Columns | None = None
    stale: frozenset[int] = frozenset()

    def changed(self, group: int, line: Line, more: int) -> "Lines":
        """Return a copy with another line of a group, of so many more requests.  O(1)."""
        before = self.lines.get(group, ())
        same = len(line) == len(before) and all(new.front is old.front for new, old in zip(line, before, strict=True))
        lines = self.lines.set(group, line) if line else self.lines.delete(group)
        return Lines(lines, self.waiting + more, self.columns, self.stale if same else self.stale | {group})

    def refreshed(self) -> "Lines":
        """Return a copy with columns of all fronts where there are more groups than a few.  O(fronts) if one is
        stale."""
        if len(self.lines) <= FEW:
            return Lines(self.lines, self.waiting) if self.stale or self.columns is not None else self
        if self.columns is not None and not self.stale:
            return self
        groups = self.lines if self.columns is None else self.stale
        found = [
            (group, number, arrival_ns)
            for group in groups
            for run in self.lines.get(group, ())
            for _, number, arrival_ns in run.front
        ]
        rows = np.array(found, dtype=np.int64).reshape(-1, 3).T
        if self.columns is not None:
            rows = np.concatenate((self.columns.without(self.stale), rows), axis=1)
        return Lines(self.lines, self.waiting, Columns.of(rows))


class Fronts(QueueExtension["RanksByKey"], frozen=True, gc=False):
    """The fronts of waiting requests: what an order keeps in order to rank the queue in each decision."""

    derived: ClassVar[bool] = True

    kept: Lines = Lines()

    def joined(
        self, order: "RanksByKey", queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple["Fronts", QueuedRequest]:
        number, kept = order.number(queued), self.kept
        if type(number) is not int or not -OWN_MAX <= number <= OWN_MAX:
            raise ValueError(f"order {order.name} keeps {number!r} of a request: a whole number of at most {OWN_MAX:,}")
        line = joined_line(kept.lines.get(group, ()), (queued.age, number, queued.request.arrival_ns))
        return Fronts(kept.changed(group, line, 1).refreshed()), queued

    def left(self, order: "RanksByKey", queued: QueuedRequest, score: int, group: int, admitted: bool) -> "Fronts":
        kept = self.kept.changed(group, left_line(self.kept.lines[group], queued.age), -1)
        # Columns are made once for all admissions of a decision.
        return Fronts(kept if admitted else kept.refreshed())

    def refreshed(self) -> "Fronts":
        kept = self.kept.refreshed()
        return self if kept is self.kept else Fronts(kept)

    def ranking(self, order: "RanksByKey", groups: int, kv_capacity_tokens: int) -> "KeyRanking":
        """Return the order in which a decision takes what waits now, in so many groups."""
        return KeyRanking(order, self.kept.refreshed(), groups, kv_capacity_tokens)

    def check(self, order: "RanksByKey", waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        kept, rows = self.kept, dict[int, list[Row]]()
        for queued, group, _ in waiting:
            rows.setdefault(group, []).append((queued.age, order.number(queued), queued.request.arrival_ns))
        # Each waiting request is in one run of its group.
        assert kept.waiting == len(waiting)
        assert set(kept.lines) == set(rows)
        key, ranking = order.keys(kept.waiting, 1 << 20), self.ranking(order, max(rows, default=-1) + 1, 1 << 20)
        since_ns = min((at for each in rows.values() for *_, at in each), default=0)
        for group, expected in rows.items():
            there = [row for run in kept.lines[group] for chunk in run.chunks for row in chunk.rows]
            assert sorted(there) == expected
            for run in kept.lines[group]:
                run.check()
            # The first of all is the first of the front.
            keys = [(key((at - since_ns) // 1_000, number), age) for age, number, at in expected]
            assert ranking.best(group) == min(keys)[1]


class KeyRanking:
    """One decision's order of the waiting requests: as many wait, and the first of them came, as when it began.

    Mutable, and never outlives the decision.  `heads[g]` is the best of group g as a score, the larger the better,
    NO_SCORE where none waits; scores are compared with each other and nothing else.
    """

    def __init__(self, order: "RanksByKey", kept: Lines, groups: int, kv_capacity_tokens: int) -> None:
        self._name = order.name
        self._key = key = order.keys(kept.waiting, kv_capacity_tokens)
        self._lines = kept.lines
        self._bests: dict[int, tuple[int, int]] = {}
        self._large = False
        self.heads = np.empty(groups, dtype=np.int64)
        columns = kept.columns
        if columns is None:
            firsts = [run.front[0][2] for line in kept.lines.values() for run in line]
            self._since_ns = min(firsts, default=0)
            self._one_by_one()
            return
        self._since_ns = columns.since_ns
        wait_us, number = columns.largest
        if max(key(wait_us, number), -key(0, -number)) > EXACT_MAX:
            self._one_by_one()
            return
        keys = key(columns.waits_us, columns.numbers)
        kind, count = getattr(keys, "dtype", type(keys).__name__), len(columns.numbers)
        if kind != np.int64 or len(keys) != count:
            raise ValueError(
                f"order {self._name} ranked {count} requests by {len(keys)} keys of {kind}: each has an int64"
            )
        self.heads.fill(NO_SCORE)
        self.heads[columns.named] = -np.minimum.reduceat(keys, columns.starts)

    def best(self, group: int) -> int:
        """Return the age of the best of a group that is not empty.  O(front)."""
        if group not in self._bests:
            self._bests[group] = self._least(group)
        return self._bests[group][1]

    def leave(self, index: Fronts, age: int, group: int) -> None:
        """Tell that a member of the group was admitted, which left this index.  O(front)."""
        self._lines = index.kept.lines
        self._bests.pop(group, None)
        if group not in self._lines:
            self.heads[group] = NO_SCORE
            return
        key, _ = self._bests[group] = self._least(group)
        if self._large or not -EXACT_MAX <= key <= EXACT_MAX:
            self._one_by_one()
        else:
            self.heads[group] = -key

    def _least(self, group: int) -> tuple[int, int]:
        """Key and age of the best of a group that is not empty."""
        key, since_ns, line = self._key, self._since_ns, self._lines[group]
        if key is _number_alone:
            return min([(run.front[-1][1], run.front[-1][0]) for run in line])
        least: tuple[int, int] = min(
            [(key((at - since_ns) // 1_000, number), age) for run in line for age, number, at in run.front]
        )
        if type(least[0]) is not int:
            raise ValueError(f"order {self._name} ranked a request by {least[0]!r}: a key is a whole number")
        return least

    def _one_by_one(self) -> None:
        """Find the best of each group; keys beyond 64 bits are replaced by their places.  O(fronts)."""
        bests, heads = self._bests, self.heads
        heads.fill(NO_SCORE)
        for group in self._lines:
            if group not in bests:
                bests[group] = self._least(group)
        keys = [key for key, _ in bests.values()]
        self._large = bool(keys) and (max(keys) > EXACT_MAX or min(keys) < -EXACT_MAX)
        if self._large:
            place = {key: i for i, key in enumerate(sorted(set(keys)))}
            keys = [place[key] for key in keys]
        for group, key in zip(bests, keys, strict=True):
            heads[group] = -key


# --- ability of an order ----------------------------------------------------------------------------------------------


class RanksByKey(Order):
    """An order by which the least key goes first; of equal keys of a group the oldest.

    Each decision ranks the waiting requests anew, since ranks depend on how many wait.
    """

    def rank(self, request: Request, cached_tokens: int) -> int:
        """Return 0: where a queue is kept in order without a decision, the oldest request is first."""
        return 0

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (*super().extensions(), Fronts())

    def number(self, queued: QueuedRequest) -> int:
        """Return a number of the order's own for a request, which stays as it is while that waits: at most `OWN_MAX`
        either way.  O(1)."""
        return 0

    def keys(self, waiting: int, kv_capacity_tokens: int) -> Key:
        """Return how a decision finds keys while so many wait: from a request's wait and its number, none of which may
        rise without the key staying or rising.  By the number alone, unless the order says otherwise."""
        return _number_alone


def _number_alone(wait_us: Any, number: Any) -> Any:
    return number
