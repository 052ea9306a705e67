"""SGLang's dfs-weight: the prefix tree is walked depth first, at each fork first to where more requests wait.

Source: SGLang, `SchedulePolicy` ("dfs-weight"); the order is known to us from its public code.  Requests below
one node are served together, so that its prefix is used up before something else needs its memory; longest prefix match
follows the longest match instead, wherever in the tree it is.

Rule: a waiting request stands in the tree of what is cached, where its prompt stops matching.  A node's weight is how
many stand at it or below.  From each node the walk goes down to the heaviest child first, and takes the requests at the
node itself when it has been everywhere below.  Requests that match nothing come last, the oldest first.
Departs from SGLang: of equal weights the child below which the oldest request waits is first, not the one that was
cached first; and requests are let in one by one as in every composition, so the first that does not fit ends it.

Theorem: P-DFS-1.  Of waits there is none: a request that matches nothing waits as long as others match something
(F-DFS-1).  A bypass budget bounds every request's wait in requests let in before it (D-request).
Cost: weights are kept beside the queue (`Walk`): an arrival, an admission, or a match that becomes another one changes
those of the nodes above it.  A decision walks no farther than to the requests that it looks at.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar

import attrs
import msgspec
import numpy as np
from immutables import Map, MapMutation

from fairsched.model.algebra import NO_SCORE
from fairsched.model.prefix_cache import NO_NODE, ROOT, PrefixCache, SortedTuple
from fairsched.model.serialization import Derived
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.orders.abilities import (
    FollowsCache,
    LimitsBypass,
    QueueIndex,
    Ranking,
    RanksQueue,
    Stop,
    bypass_budget_field,
)
from fairsched.policies.orders.base import QueuedRequest

P_DFS_1 = Theorem(
    "P-DFS-1",
    "requests below one node of the tree are served together: no request from elsewhere is in between, and of two "
    "children of a node the one below which more wait is first",
    "SGLang's dfs-weight; this library",
    scope=Scope.TESTED,
)

# --- the nodes above what waits ---------------------------------------------------------------------------------------

Child = tuple[int, int, int]
"""A node below another: how many wait there with the sign turned, the age of the oldest of them, and the node."""
At = tuple[int, int]
"""A request at a node: its blocks with the sign turned, since in a node a longer match is lower; and its age."""
First = tuple[int, int, int]
"""The first request of a group at a node, and the group."""

_NO_AGES: SortedTuple[int] = SortedTuple()
_NO_CHILDREN: SortedTuple[Child] = SortedTuple()
_NOT_AT: SortedTuple[At] = SortedTuple()
_NO_FIRSTS: SortedTuple[First] = SortedTuple()


class Fork(msgspec.Struct, frozen=True, gc=False):
    """A node at or below which requests wait: the node above it, how many wait, and how many of each group.

    `children`, what is `at` the node by group, and the `firsts` of these are in the order of the walk.  `ages` are of
    the requests at the node and of the oldest below each child; the root has none, since no node knows it.
    """

    parent: int
    weight: int = 0
    groups: Map[int, int] = Map()
    children: SortedTuple[Child] = _NO_CHILDREN
    at: Map[int, SortedTuple[At]] = Map()
    firsts: SortedTuple[First] = _NO_FIRSTS
    ages: SortedTuple[int] = _NO_AGES

    def with_at(self, group: int, at: SortedTuple[At]) -> tuple[Map[int, SortedTuple[At]], SortedTuple[First]]:
        """What is at the node, with other requests of a group."""
        before, firsts = self.at.get(group, _NOT_AT), self.firsts
        if not at.size:
            return self.at.delete(group), firsts.remove((*before.first(), group))
        if not before.size:
            firsts = firsts.add((*at.first(), group))
        elif before.first() != at.first():
            firsts = firsts.remove((*before.first(), group)).add((*at.first(), group))
        return self.at.set(group, at), firsts

    def known(self, node: int) -> Child:
        """This node as the one above knows it."""
        return -self.weight, self.ages.first(), node


Leaving = tuple[int, int]
"""Age and group of a request that goes."""


class Weights(Derived, frozen=True, eq=False, gc=False):
    """The forks by node, the root among them; where each request stands, by age; and the ages of those that match
    nothing, by group.  Those in `leaving` wait no more: they go together, once for all admissions of a decision."""

    forks: Map[int, Fork] = Map({ROOT: Fork(NO_NODE)})
    stops: Map[int, Stop] = Map()
    cold: Map[int, SortedTuple[int]] = Map()
    leaving: tuple[Leaving, ...] = ()


def _stands(forks: MapMutation[int, Fork], cache: PrefixCache, stop: Stop, age: int, group: int) -> None:
    """A request stands there now.  For each node above: O(log c + sqrt c) for c children."""
    node, blocks = stop
    fork = forks.get(node) or Fork(cache.tree.nodes[node].parent)
    before = fork.known(node) if fork.weight else None
    ages, children = fork.ages.add(age), fork.children
    at, first = fork.with_at(group, fork.at.get(group, _NOT_AT).add((-blocks, age)))
    while True:
        groups = fork.groups.set(group, fork.groups.get(group, 0) + 1)
        forks[node] = fork = Fork(fork.parent, fork.weight + 1, groups, children, at, first, ages)
        if node == ROOT:
            return
        after, node = fork.known(node), fork.parent
        fork = forks.get(node) or Fork(cache.tree.nodes[node].parent)
        above = fork.known(node) if fork.ages.size else None
        ages, children, at, first = fork.ages, fork.children, fork.at, fork.firsts
        if before is not None:
            children = children.remove(before)
        if node != ROOT and (before is None or before[1] != after[1]):
            ages = (ages if before is None else ages.remove(before[1])).add(after[1])
        children, before = children.add(after), above


def _go(forks: MapMutation[int, Fork], stops: Map[int, Stop], leaving: Iterable[Leaving]) -> None:
    """These requests stand there no more.  For each O(log n + sqrt n), and for each node above one of them
    O(log c + sqrt c) for c children."""
    known: dict[int, Child] = {}
    gone: dict[int, Counter[int]] = {}
    for age, group in leaving:
        node, blocks = stops[age]
        fork = forks[node]
        if node not in known:
            known[node], gone[node] = fork.known(node), Counter()
        gone[node][group] += 1
        at, first = fork.with_at(group, fork.at[group].remove((-blocks, age)))
        forks[node] = msgspec.structs.replace(fork, at=at, firsts=first, ages=fork.ages.remove(age))
    lowest = [(-_depth(forks, node), node) for node in gone]
    heapify(lowest)
    while lowest:
        depth, node = heappop(lowest)
        counts = gone.pop(node)
        fork = forks[node]
        groups = fork.groups
        for group, count in counts.items():
            left = groups[group] - count
            groups = groups.set(group, left) if left else groups.delete(group)
        forks[node] = fork = msgspec.structs.replace(fork, weight=fork.weight - counts.total(), groups=groups)
        if node == ROOT:
            return
        parent, before, after = fork.parent, known[node], fork.known(node) if fork.weight else None
        above = forks[parent]
        if parent not in gone:
            gone[parent] = Counter()
            heappush(lowest, (depth + 1, parent))
            if parent != ROOT:
                known[parent] = above.known(parent)
        gone[parent] += counts
        children, ages = above.children.remove(before), above.ages
        if after is None:
            del forks[node]
        else:
            children = children.add(after)
        if parent != ROOT and (after is None or after[1] != before[1]):
            ages = ages.remove(before[1])
            ages = ages if after is None else ages.add(after[1])
        forks[parent] = msgspec.structs.replace(above, children=children, ages=ages)


def _depth(forks: MapMutation[int, Fork], node: int) -> int:
    """How many nodes are above it."""
    count = 0
    while node != ROOT:
        node, count = forks[node].parent, count + 1
    return count


def _cut(forks: MapMutation[int, Fork], upper: int, lower: int) -> None:
    """A node was cut: another one is above it now."""
    fork = forks[lower]
    known = fork.known(lower)
    forks[lower] = msgspec.structs.replace(fork, parent=upper)
    only, oldest = _NO_CHILDREN.add(known), _NO_AGES.add(known[1])
    forks[upper] = Fork(fork.parent, fork.weight, fork.groups, only, ages=oldest)
    above = forks[fork.parent]
    children = above.children.remove(known).add((*known[:2], upper))
    forks[fork.parent] = msgspec.structs.replace(above, children=children)


# --- the walk ---------------------------------------------------------------------------------------------------------

Path = tuple[tuple[int, ...], ...]
"""Where the walk comes to a request: what it takes at each node.  Of two paths the lesser is walked first."""
_BELOW, _AT, _NOWHERE = 0, 1, 2
GAP = 1 << 40
"""How far scores are apart at first: there is room for others between them."""
LOWEST = 1 << 62
"""No score of a group that was found is below this, with the sign turned."""


def _nodes(forks: Map[int, Fork], leads: Any) -> Iterator[tuple[Path, Fork]]:
    """The nodes in the order of the walk, each after those below it, but for those to which no way `leads`."""
    path: list[tuple[int, ...]] = []
    root = forks[ROOT]
    ways = [(root, iter(root.children))]
    while ways:
        fork, children = ways[-1]
        for weight, oldest, node in children:
            below = forks[node]
            if leads(below.groups):
                path.append((_BELOW, weight, oldest))
                ways.append((below, iter(below.children)))
                break
        else:
            ways.pop()
            if ways:
                yield tuple(path), fork
                path.pop()


def members(weights: Weights, group: int) -> Iterator[tuple[Path, int]]:
    """The requests of a group in the order of the walk: the path and the age of each.  O(1) each for most, and O(c) at
    a node with c children."""
    for path, fork in _nodes(weights.forks, lambda groups: group in groups):
        for at in fork.at.get(group, ()):
            yield (*path, (_AT, *at)), at[1]
    for age in weights.cold.get(group, ()):
        yield ((_NOWHERE, age),), age


def firsts(weights: Weights, known: Collection[int]) -> Iterator[tuple[Path, int, int]]:
    """The first request of each group in the order of the walk: path, age and group.

    Groups are `known` once the next one is asked for.
    """

    def leads(groups: Map[int, int]) -> bool:
        return any(group not in known for group in groups)

    for path, fork in _nodes(weights.forks, leads):
        for blocks, age, group in fork.firsts:
            if group not in known:
                yield (*path, (_AT, blocks, age)), age, group
    for age, group in sorted((ages.first(), group) for group, ages in weights.cold.items() if group not in known):
        yield ((_NOWHERE, age),), age, group


def walked(walk: "Walk") -> list[int]:
    """Return the ages of matching requests, whatever their group, in the order of the walk.  O(n)."""
    forks = walk.kept.forks
    return [
        age for _, fork in _nodes(forks, bool) for _, age in sorted(at for there in fork.at.values() for at in there)
    ]


class Walk(QueueIndex["DfsWeightOrder"], frozen=True, gc=False):
    """The weights of the nodes above what waits."""

    kept: Weights = Weights()

    def joined(
        self, order: "DfsWeightOrder", queued: QueuedRequest, group: int, cache: PrefixCache
    ) -> tuple["Walk", QueuedRequest]:
        match = cache.tree.match(queued.request.prompt)
        return self._moved([(queued, group, (match.node, match.blocks))], None, cache), queued

    def left(self, order: "DfsWeightOrder", queued: QueuedRequest, score: int, group: int, admitted: bool) -> "Walk":
        kept = self.kept
        left = Walk(Weights(kept.forks, kept.stops, kept.cold, (*kept.leaving, (queued.age, group))))
        return left if admitted else left.refreshed()

    def refreshed(self) -> "Walk":
        return self._moved([], None, PrefixCache()) if self.kept.leaving else self

    def recached(
        self, moved: Sequence[tuple[QueuedRequest, int, Stop]], split: tuple[int, int] | None, cache: PrefixCache
    ) -> "Walk":
        return self._moved(moved, split, cache)

    def _moved(
        self, moved: Sequence[tuple[QueuedRequest, int, Stop]], split: tuple[int, int] | None, cache: PrefixCache
    ) -> "Walk":
        """These requests, each with its group, stand there from now on."""
        stops, cold = self.kept.stops, self.kept.cold
        forks = self.kept.forks.mutate()
        going = dict(self.kept.leaving)
        # One that left may be here again.
        going.update((queued.age, group) for queued, group, _ in moved if queued.age in stops)
        for age, group in going.items():
            if not stops[age][1]:
                left = cold[group].remove(age)
                cold = cold.set(group, left) if left.size else cold.delete(group)
        _go(forks, stops, [each for each in going.items() if stops[each[0]][1]])
        for age in going:
            stops = stops.delete(age)
        if split is not None and split[1] in forks:
            _cut(forks, *split)
        for queued, group, stop in moved:
            if stop[1]:
                _stands(forks, cache, stop, queued.age, group)
            else:
                cold = cold.set(group, cold.get(group, _NO_AGES).add(queued.age))
            stops = stops.set(queued.age, stop)
        return Walk(Weights(forks.finish(), stops, cold))

    def ranking(self, order: "DfsWeightOrder", groups: int, kv_capacity_tokens: int) -> "WalkRanking":
        return WalkRanking(self.refreshed().kept, groups)

    def check(self, order: "DfsWeightOrder", waiting: list[tuple[QueuedRequest, int, int]], cache: PrefixCache) -> None:
        anew = Walk()
        for queued, group, _ in waiting:
            anew, _ = anew.joined(order, queued, group, cache)
        # All of it is as if made now.
        kept = self.refreshed().kept
        for name in Weights.__struct_fields__:
            assert getattr(kept, name) == getattr(anew.kept, name)


class WalkRanking(Ranking):
    """In the order of the walk as it was when the decision began, as far as that was walked."""

    def __init__(self, weights: Weights, groups: int) -> None:
        self._weights = weights
        self._gone: set[int] = set()
        self._bests: dict[int, tuple[Path, int]] = {}
        self._order: list[tuple[Path, int]] = []
        self._members: dict[int, Iterator[tuple[Path, int]]] = {}
        self._firsts = firsts(weights, self._bests)
        self._more = 1
        self._reached: Path = ()
        matching = weights.forks[ROOT].groups
        waiting = [*matching, *(group for group in weights.cold if group not in matching)]
        self._unknown = len(waiting)
        self.heads = np.full(groups, NO_SCORE, dtype=np.int64)
        self.heads[waiting] = NO_SCORE + 1
        self._look()

    def best(self, group: int) -> int:
        return self._bests[group][1]

    def found(self, group: int) -> bool:
        """It is where none that was not found is before it.  Each time that it is not, twice as many are looked for."""
        if not self._unknown or (group in self._bests and self._bests[group][0] <= self._reached):
            return True
        self._look()
        return False

    def _look(self) -> None:
        for _ in range(min(self._more, self._unknown)):
            self._reached, age, group = next(self._firsts)
            self._take(self._reached, age, group)
            self._unknown -= 1
        self._more *= 2

    def _take(self, path: Path, age: int, group: int) -> None:
        """The best of a group is that one: its score is between those beside it.  O(log g) for g groups found, O(g)
        where there is no room."""
        self._bests[group] = path, age
        order, heads = self._order, self.heads
        place = bisect_left(order, (path, group))
        order.insert(place, (path, group))
        above = int(heads[order[place - 1][1]]) if place else 0
        below = int(heads[order[place + 1][1]]) if place + 1 < len(order) else above - 2 * GAP
        heads[group] = score = (above + below) // 2
        if score in (above, below) or below < -LOWEST:
            heads[[each for _, each in order]] = np.arange(1, len(order) + 1) * -GAP

    def leave(self, index: Walk, age: int, group: int) -> None:
        """What `members` takes, and O(log g) for g groups that were found."""
        self._gone.add(age)
        path, best = self._bests[group]
        if best != age:
            return
        if group not in self._members:
            self._members[group] = members(self._weights, group)
        del self._order[bisect_left(self._order, (path, group))]
        for path, best in self._members[group]:
            if best not in self._gone:
                self._take(path, best, group)
                return
        self.heads[group] = NO_SCORE


@attrs.frozen
class DfsWeightOrder(FollowsCache, RanksQueue, LimitsBypass):
    """Depth first through the tree of what is cached, where most requests wait first."""

    name: ClassVar[str] = "dfs-weight"
    index: ClassVar[type[QueueIndex[Any]]] = Walk
    bypass_budget: int | None = bypass_budget_field()

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """That of the walk without a bypass budget, a request's bound with one."""
        return (*((P_DFS_1,) if self.bypass_budget is None else ()), *super().theorems)
