"""Orders that rank all waiting requests together: in each decision (`RanksQueue`), or from time to time (`Regroups`).

An order of one fixed integer a request is kept in a sorted sequence (`policies.local.queue`).  One whose integers all
change with every arrival would have to sort everything again; instead it computes them all at once, by numpy, in the
one decision that needs them, from columns of numbers.  At 10,000 waiting a change of the columns copies 0.3 MB, and
ranking reads as much.

Of most requests it is known that another of their group goes first, whatever comes: one that is older and needs no more
memory, say.  An order that can tell (`RanksQueue.trailing`) is asked to rank only the others until a request enters.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import msgspec
import numpy as np
from immutables import Map

from fairsched.model.algebra import NO_SCORE, Bools, Ints
from fairsched.model.prefix_cache import PrefixCache, PrefixTree
from fairsched.model.request import Request
from fairsched.model.serialization import Derived
from fairsched.policies.orders.base import Order, QueuedRequest, QueueExtension, RankError

_NONE = np.zeros(0, dtype=np.int64)
_LAST = np.iinfo(np.int64).max
_ARRAYS = ("ages", "memory", "arrivals_ns", "groups", "own")
AHEAD = 64
"""How many are put in order at a time: about as many as a decision admits."""
EXACT_MAX = 2**62
"""Keys from here on would leave 64 bits, and are computed as Python integers (`row_keys`)."""
OWN_MAX = 2**62
"""The largest number that an order may keep of a request (`RanksQueue.column`): a key of it alone fits into 64 bits."""


class Matches(msgspec.Struct, frozen=True):
    """Where in a cache the waiting prompts stop matching: (node, blocks) by request id, for prompts with keys; and the
    requests' ids by age."""

    ids: Map[int, int] = Map()
    stops: Map[int, tuple[int, int]] = Map()
    tree: PrefixTree = msgspec.field(default_factory=PrefixTree.empty)


NO_MATCHES = Matches()


class RanksQueue(Order):
    """An order by which each decision ranks all waiting requests anew: ranks depend on how many wait, or on where."""

    def rank(self, request: Request, cached_tokens: int) -> int:
        """Nothing: where a queue is kept in order without a decision, the oldest request is first."""
        return 0

    def ranking(
        self, columns: "Columns", groups: int, kv_capacity_tokens: int, matches: Matches = NO_MATCHES
    ) -> "Ranking":
        """All waiting requests in this decision's order, the least `column` first unless the order says otherwise;
        `matches` for an order that also follows the cache.  O(n) for n waiting."""
        there = columns.settled()
        return Ranking(there, there.own, groups)

    def trailing(self, columns: "Columns") -> Ints | None:
        """A number of each request such that another of its group which is older, came no later and has no larger
        number always goes before it, however many wait; None: there is no such number.  O(n).

        `ranking` is then given columns of those alone that may be first, of which `waiting` counts all.
        """
        return None

    def column(self, queued: QueuedRequest) -> int:
        """A number of the order's own for a request, which stays as it is while that waits: at most `OWN_MAX` either
        way.  O(1)."""
        return 0

    def extensions(self) -> tuple[QueueExtension[Any], ...]:
        return (*super().extensions(), Columns())


class Front(Derived, frozen=True, eq=False, gc=False):
    """The ages, ascending, among which the first of each group is (None: not known), but for the groups in `stale`,
    of which one left that is still among them; `more` of them came since others were left out."""

    ages: Ints | None = None
    stale: frozenset[int] = frozenset()
    more: int = 0


UNKNOWN = Front()


class Columns(QueueExtension[RanksQueue], frozen=True, gc=False):
    """The waiting requests in order of age: their ages, the tokens each must have in memory, when each arrived, the
    group in which it waits, and the order's own number of it.  Arrays of int64, one item a request, never written to.

    Of them, those in `absent` (ages) have left; they are taken out together, a copy for many.
    """

    ages: Ints = msgspec.field(default_factory=lambda: _NONE)
    memory: Ints = msgspec.field(default_factory=lambda: _NONE)
    arrivals_ns: Ints = msgspec.field(default_factory=lambda: _NONE)
    groups: Ints = msgspec.field(default_factory=lambda: _NONE)
    own: Ints = msgspec.field(default_factory=lambda: _NONE)
    absent: tuple[int, ...] = ()
    front: Front = UNKNOWN

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self.ages) - len(self.absent)

    def joined(
        self, order: RanksQueue, queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple[Self, QueuedRequest]:
        request = queued.request
        own = order.column(queued)
        if type(own) is not int or not -OWN_MAX <= own <= OWN_MAX:
            raise RankError(f"order {order.name} keeps {own!r} of a request: a whole number of at most {OWN_MAX:,}")
        joined = self.added(queued.age, queued.context_tokens, request.arrival_ns, group, own)
        return joined._with_front(order, queued.age), queued

    def left(self, order: RanksQueue, queued: QueuedRequest, score: int, group: int, admitted: bool) -> Self:
        less, front = self.removed(queued.age), self.front
        if front.ages is None:
            return less
        if admitted:
            # Those that may be first are looked for once, when the decision is made.
            return msgspec.structs.replace(less, front=Front(front.ages, front.stale | {group}, front.more))
        i = int(np.searchsorted(front.ages, queued.age))
        if i == len(front.ages) or front.ages[i] != queued.age:
            return less
        return msgspec.structs.replace(less, front=Front(front.ages, front.stale | {group}, front.more)).refreshed(
            order
        )

    def _with_front(self, order: RanksQueue, age: int) -> Self:
        """The columns with the one that joined last among those that may be first.  O(front), O(n log n) once in
        `AHEAD` times."""
        front, ages = self.front, self.front.ages
        if ages is None or front.more >= AHEAD:
            numbers = order.trailing(self) if self.waiting >= AHEAD else None
            if numbers is None or (self.arrivals_ns[1:] < self.arrivals_ns[:-1]).any():
                return self if ages is None else msgspec.structs.replace(self, front=UNKNOWN)
            return msgspec.structs.replace(self, front=Front(self.ages[_foremost(self.groups, numbers)]))
        row = int(np.searchsorted(self.ages, age))
        if (np.diff(self.arrivals_ns[max(row - 1, 0) : row + 2]) < 0).any():
            # An older one came later, and goes before none for that: nothing is known until the next look at all.
            return msgspec.structs.replace(self, front=UNKNOWN)
        i = int(np.searchsorted(ages, age))
        ages = np.concatenate((ages[:i], (age,), ages[i:]))
        return msgspec.structs.replace(self, front=Front(ages, front.stale, front.more + 1)).refreshed(order)

    def refreshed(self, order: RanksQueue) -> Self:
        """The columns with those that may be first in groups that lost one such.

        O(n), and O(m log m) for m in these groups.
        """
        front, ages = self.front, self.front.ages
        if ages is None or not front.stale:
            return self
        numbers = order.trailing(self)
        assert numbers is not None
        lost = np.zeros(int(self.groups.max(initial=0)) + 1, np.bool_)
        lost[[group for group in front.stale if group < len(lost)]] = True
        places = np.minimum(np.searchsorted(self.ages, ages), len(self.ages) - 1)
        kept = ages[(self.ages[places] == ages) & ~lost[self.groups[places]]] if len(self.ages) else ages[:0]
        asked = lost[self.groups]
        asked[np.searchsorted(self.ages, np.array(self.absent, dtype=np.int64))] = False
        rows = np.flatnonzero(asked)
        if len(rows):
            rows = rows[_foremost(self.groups[rows], numbers[rows])]
        found = np.sort(np.concatenate((kept, self.ages[rows])))
        return msgspec.structs.replace(self, front=Front(found, more=front.more))

    def foremost(self, order: RanksQueue) -> "Columns":
        """Those that may be first of their groups, and maybe others.  O(such); O(n) where that is not known."""
        known = self.refreshed(order)
        if known.front.ages is None:
            return self.settled()
        return known._taken(np.searchsorted(known.ages, known.front.ages))

    def _taken(self, places: Ints) -> "Columns":
        columns = (getattr(self, name).take(places) for name in _ARRAYS)
        return _Some(**dict(zip(_ARRAYS, columns, strict=True)), count=self.waiting)

    def added(self, age: int, memory: int, arrival_ns: int, group: int, own: int = 0) -> Self:
        """With one more, whose age none has.  O(n), a copy."""
        there = self.settled()
        i = int(np.searchsorted(there.ages, age))
        row = zip(_ARRAYS, (age, memory, arrival_ns, group, own), strict=True)
        return msgspec.structs.replace(there, **{name: _put_in(getattr(there, name), i, value) for name, value in row})

    def removed(self, age: int) -> Self:
        """Without the one of that age, which must be there.  O(1), and a copy for every `AHEAD`."""
        less = msgspec.structs.replace(self, absent=(*self.absent, age))
        return less if len(less.absent) < AHEAD else less.settled()

    def settled(self) -> Self:
        """The same, without those that have left.  O(n) if any have."""
        if not self.absent:
            return self
        places = np.searchsorted(self.ages, self.absent)
        kept = {name: np.delete(getattr(self, name), places) for name in _ARRAYS}
        return msgspec.structs.replace(self, **kept, absent=())

    def check(self, order: RanksQueue, waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        empty: Columns = Columns()
        for queued, group, _ in waiting:
            empty, _ = empty.joined(order, queued, group, cache)
        # The columns have each waiting request, in order of age.
        there = self.settled()
        for name in (*_ARRAYS, "absent"):
            assert list(getattr(there, name)) == list(getattr(empty, name))
        if self.front.ages is not None and len(there.ages):
            # The first of each group is among those that may be.
            groups = int(there.groups.max()) + 1
            whole, foremost = (order.ranking(columns, groups, 1 << 20) for columns in (there, self.foremost(order)))
            for group in np.flatnonzero(whole.heads != NO_SCORE).tolist():
                assert whole.best(group) == foremost.best(group)

    @property
    def waits_us(self) -> Ints:
        """How long after the one that came first each of them came, in whole microseconds.  O(n)."""
        since_ns: Ints = self.arrivals_ns - self.arrivals_ns.min(initial=_LAST)
        return since_ns // 1_000


class _Some(Columns, frozen=True, gc=False):
    """Some of `count` that wait."""

    count: int = 0

    @property
    def waiting(self) -> int:
        return self.count


def _put_in(column: Ints, i: int, value: int) -> Ints:
    """The column with a value at this place.  O(n)."""
    more = np.empty(len(column) + 1, dtype=np.int64)
    more[:i], more[i], more[i + 1 :] = column[:i], value, column[i:]
    return more


def _lowest_so_far(numbers: Ints) -> Bools:
    """Which numbers are lower than all before.  O(n)."""
    lower = np.ones(len(numbers), np.bool_)
    lower[1:] = numbers[1:] < np.minimum.accumulate(numbers)[:-1]
    return lower


def _foremost(groups: Ints, numbers: Ints) -> Ints:
    """The rows with a lower number than all before of their group, ascending.  O(n log n)."""
    if (groups == groups[0]).all():
        return np.flatnonzero(_lowest_so_far(numbers))
    places = np.argsort(groups, kind="stable")
    numbers, begins = numbers[places], np.flatnonzero(np.diff(groups[places], prepend=-1))
    count, lowest = len(begins), int(numbers.min())
    if (int(numbers.max()) - lowest + 1) * count >= EXACT_MAX:
        numbers, lowest = np.unique(numbers, return_inverse=True)[1], 0
    # Each group's numbers are put below those of the group before, so that the lowest so far begins anew.
    span = int(numbers.max()) - lowest + 1
    down = np.repeat(np.arange(count)[::-1] * span, np.diff(begins, append=len(groups)))
    return np.sort(places[_lowest_so_far(numbers - lowest + down)])


class Regroups(Order):
    """An order that groups waiting requests that share a prefix, from time to time, and ranks groups.

    It happens before the first admission of a decision, and only if the order says that it is due.  A decision that
    admits no request groups none, so no decision of a stretch of decode steps can change by it.
    """

    @abstractmethod
    def regroups(self, waiting: int, joined: int) -> bool:
        """Whether `waiting` requests are to be grouped now, `joined` requests having come since.  O(1)."""

    @abstractmethod
    def groups_together(self, requests: Sequence[Request]) -> tuple[Ints, Ints] | None:
        """The place of each request's group, and how many tokens that shares; None: no groups are to be made."""

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


def row_keys(key: Callable[..., Any], largest: int, *columns: Ints) -> Ints:
    """Return `key` of each row of some columns.  O(n).

    Where `largest`, a bound of the keys, would leave 64 bits, they are integers in the same order.  O(n log n).
    """
    if largest < EXACT_MAX:
        return np.asarray(key(*columns))
    keys = [key(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    rank = {key: i for i, key in enumerate(sorted(set(keys)))}
    return np.array([rank[key] for key in keys], dtype=np.int64)


def _check_keys(columns: Columns, keys: Any) -> None:
    """Raise `RankError` for keys that are no whole numbers of 64 bits, one for each waiting request.  O(n)."""
    kind, count = getattr(keys, "dtype", type(keys).__name__), len(columns.ages)
    if kind != np.int64 or len(keys) != count:
        raise RankError(f"an order ranked {count} requests by {len(keys)} keys of {kind}: each has one, an int64")
    if count and (keys.max() >= _LAST or keys.min() < -_LAST):
        raise RankError(f"an order ranked a request by a key of {_LAST} or more, or of less than {-_LAST}")


class Ranking:
    """One decision's order of the waiting requests, by the keys that they have now, the least first.

    `keys[k]` is of the k-th of `columns`, of which none has left; of equal keys of a group the oldest goes first.
    `heads[g]` is the best of group g as a score (the larger the better), NO_SCORE where none waits.  Mutable, and
    never outlives the decision.
    """

    def __init__(self, columns: Columns, keys: Ints, groups: int) -> None:
        _check_keys(columns, keys)
        self._columns = columns
        self._keys = keys
        self._gone: set[int] = set()
        self._orders: dict[int, Iterator[int]] = {}
        self._next: dict[int, int | None] = {}
        least = np.full(groups, _LAST, dtype=np.int64)
        np.minimum.at(least, columns.groups, keys)
        self.heads = np.where(least == _LAST, NO_SCORE, -least)

    def best(self, group: int) -> int:
        """Age of the best of a group that is not empty.  O(n) the first time, then O(1) for most."""
        if group not in self._next:
            self._orders[group] = self._ordered(group)
            self._next[group] = next(self._orders[group], None)
        place = self._next[group]
        assert place is not None
        return int(self._columns.ages[place])

    def leave(self, age: int, group: int) -> None:
        """A member of the group was admitted."""
        self._gone.add(int(np.searchsorted(self._columns.ages, age)))
        self.best(group)
        place = self._next[group]
        while place is not None and place in self._gone:
            place = next(self._orders[group], None)
        self._next[group] = place
        self.heads[group] = NO_SCORE if place is None else -self._keys[place]

    def _ordered(self, group: int) -> Iterator[int]:
        """Places of the group's members in the columns, the best first.  O(n) for each `AHEAD` of them."""
        members = np.flatnonzero(self._columns.groups == group)
        while len(members):
            keys = self._keys[members]
            # All that are as good as the last of those in front go with them, so that age decides among them.
            limit = np.partition(keys, AHEAD - 1)[AHEAD - 1] if len(members) > AHEAD else _LAST
            front = members[keys < limit]
            yield from front[np.argsort(self._keys[front], kind="stable")].tolist()
            yield from map(int, members[keys == limit])
            members = members[keys > limit]
