"""What waits as columns of numbers, for orders that rank everybody anew when the length of the queue changes.

An order of one fixed integer a request is kept in a sorted sequence (`policies.waiting`).  One whose integers all
change with every arrival would have to sort everything again; instead it computes them all at once, by numpy, in the
one decision that needs them.  At 10,000 waiting a change of the columns copies 0.3 MB, and ranking reads as much.
"""

from collections.abc import Iterator

import msgspec
import numpy as np
from immutables import Map

from fairsched.model.algebra import NO_SCORE, Ints
from fairsched.model.prefix_tree import PrefixTree

_NONE = np.zeros(0, dtype=np.int64)
_LAST = np.iinfo(np.int64).max
AHEAD = 64
"""How many are put in order at a time: about as many as a decision admits."""
EXACT_MAX = 2**62
"""Keys from here on would leave 64 bits, and are computed as Python integers (`compacted`)."""
PRIORITY_MAX = 2**31
"""Priorities beyond this count as this."""


class Columns(msgspec.Struct, frozen=True, gc=False):
    """Those who wait, in order of age: their ages, the tokens each must have in memory, when each arrived, the
    group in which it waits, and its priority.  Arrays of int64, one item a request; they are never written to.

    Of them, those in `absent` (ages) have left; they are taken out together, a copy for many.
    """

    ages: Ints = msgspec.field(default_factory=lambda: _NONE)
    memory: Ints = msgspec.field(default_factory=lambda: _NONE)
    arrivals_ns: Ints = msgspec.field(default_factory=lambda: _NONE)
    groups: Ints = msgspec.field(default_factory=lambda: _NONE)
    priorities: Ints = msgspec.field(default_factory=lambda: _NONE)
    absent: tuple[int, ...] = ()

    def joined(self, age: int, memory: int, arrival_ns: int, group: int, priority: int = 0) -> "Columns":
        """With one more, whose age none has.  O(n), a copy."""
        there = self.settled()
        i = int(np.searchsorted(there.ages, age))
        return Columns(
            np.insert(there.ages, i, age),
            np.insert(there.memory, i, memory),
            np.insert(there.arrivals_ns, i, arrival_ns),
            np.insert(there.groups, i, group),
            np.insert(there.priorities, i, max(-PRIORITY_MAX, min(priority, PRIORITY_MAX))),
        )

    def left(self, age: int) -> "Columns":
        """Without the one of that age, which must be there.  O(1), and a copy for every `AHEAD`."""
        less = msgspec.structs.replace(self, absent=(*self.absent, age))
        return less if len(less.absent) < AHEAD else less.settled()

    def settled(self) -> "Columns":
        """The same, with nobody in it who has left.  O(n) if somebody has."""
        if not self.absent:
            return self
        places = np.searchsorted(self.ages, self.absent)
        return Columns(
            np.delete(self.ages, places),
            np.delete(self.memory, places),
            np.delete(self.arrivals_ns, places),
            np.delete(self.groups, places),
            np.delete(self.priorities, places),
        )

    @property
    def waits_us(self) -> Ints:
        """How long after the one that came first each of them came, in whole microseconds.  O(n)."""
        since_ns: Ints = self.arrivals_ns - self.arrivals_ns.min(initial=_LAST)
        return since_ns // 1_000


class Matches(msgspec.Struct, frozen=True):
    """Where in a cache the prompts of those who wait stop matching: (node, blocks) by request id, for prompts with keys
    and orders that follow the cache; and the requests' ids by age."""

    ids: Map[int, int] = Map()
    stops: Map[int, tuple[int, int]] = Map()
    tree: PrefixTree = msgspec.field(default_factory=PrefixTree.empty)


NO_MATCHES = Matches()


def compacted(keys: list[int]) -> Ints:
    """Integers of 64 bits in the same order as any integers, equal where they are equal.  O(n log n)."""
    rank = {key: i for i, key in enumerate(sorted(set(keys)))}
    return np.array([rank[key] for key in keys], dtype=np.int64)


class Ranking:
    """One decision's order of those who wait, by the keys that they have now, the least first.

    `keys[k]` is of the k-th of `columns`, of whom nobody has left; of equal keys of a group the oldest goes first.
    `heads[g]` is the best of group g as a score (the larger the better), NO_SCORE where nobody waits.  Mutable, and
    never outlives the decision.
    """

    def __init__(self, columns: Columns, keys: Ints, groups: int) -> None:
        self._columns = columns
        self._keys = keys
        self._gone: set[int] = set()
        self._orders: dict[int, Iterator[int]] = {}
        self._next: dict[int, int | None] = {}
        least = np.full(groups, _LAST, dtype=np.int64)
        np.minimum.at(least, columns.groups, keys)
        self.heads = np.where(least == _LAST, NO_SCORE, -least)

    def best(self, group: int) -> int:
        """Age of the best of a group in which somebody waits.  O(n) the first time, then O(1) for most."""
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
            # All that are as good as the last of those in front are in front too, so that age decides among them.
            limit = np.partition(keys, AHEAD - 1)[AHEAD - 1] if len(members) > AHEAD else _LAST
            front = members[keys <= limit]
            yield from front[np.argsort(self._keys[front], kind="stable")].tolist()
            members = members[keys > limit]
