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
Cost: the walk is made anew when the queue or the tree changed, O(n + nodes above a request) by Python and not by numpy:
docs/policies/queues/orders.md says how long it takes.
"""

from functools import lru_cache
from typing import ClassVar

import attrs
import numpy as np

from fairsched.model.algebra import Ints
from fairsched.model.prefix_cache import ROOT
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.orders.abilities import (
    NO_MATCHES,
    Columns,
    FollowsCache,
    LimitsBypass,
    Matches,
    Ranking,
    RanksQueue,
    bypass_budget_field,
)

P_DFS_1 = Theorem(
    "P-DFS-1",
    "requests below one node of the tree are served together: no request from elsewhere is in between, and of two "
    "children of a node the one below which more wait is first",
    "SGLang's dfs-weight; this library",
    scope=Scope.TESTED,
)


def walked(matches: Matches) -> list[int]:
    """Return the ages of matching requests, in the order of the walk.  O(n log n + nodes above a request)."""
    here = _standing(matches)
    parents: dict[int, list[int]] = {}
    seen: set[int] = set()
    for node in here:
        while node != ROOT and node not in seen:
            seen.add(node)
            parent = matches.tree.nodes[node].parent
            parents.setdefault(parent, []).append(node)
            node = parent
    # Of each node: how many wait below with the sign turned, and which is the oldest.
    weights: dict[int, tuple[int, int]] = {}
    for node in reversed(_preorder(parents)):
        at = here.get(node, ())
        below = [weights[child] for child in parents.get(node, ())]
        oldest = min([age for _, age in at] + [age for _, age in below], default=0)
        weights[node] = sum(weight for weight, _ in below) - len(at), oldest
    # A walk from the root to the last child first, read backwards, is one to the first child that ends at the root.
    down = {node: sorted(children, key=lambda child: weights[child]) for node, children in parents.items()}
    return [age for node in reversed(_preorder(down)) for _, age in sorted(here.get(node, ()))]


def _standing(matches: Matches) -> dict[int, list[tuple[int, int]]]:
    """Return the requests at each node, as (blocks with the sign turned, age): in a node, a longer match is lower."""
    here: dict[int, list[tuple[int, int]]] = {}
    stops = matches.stops
    for age, request_id in matches.ids.items():
        node, blocks = stops.get(request_id, (ROOT, 0))
        if blocks:
            here.setdefault(node, []).append((-blocks, age))
    return here


def _preorder(children: dict[int, list[int]]) -> list[int]:
    """Every node before those below it, and its last child first."""
    found, left = [], [ROOT]
    while left:
        node = left.pop()
        found.append(node)
        left += children.get(node, ())
    return found


@attrs.frozen(eq=False)
class _Same:
    """Matches that are the same when the values that they are made of are the very same, not copies."""

    matches: Matches

    def __hash__(self) -> int:
        return id(self.matches.ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same):
            return False
        one, two = self.matches, other.matches
        return one.ids is two.ids and one.stops is two.stops and one.tree.nodes is two.tree.nodes


@lru_cache(maxsize=16)
def _walked(of: _Same) -> Ints:
    """The walk, not made again while neither the queue nor the tree has changed: persistent values tell by identity."""
    return np.array(walked(of.matches), dtype=np.int64)


@attrs.frozen
class DfsWeightOrder(FollowsCache, RanksQueue, LimitsBypass):
    """Depth first through the tree of what is cached, where most requests wait first."""

    name: ClassVar[str] = "dfs-weight"
    bypass_budget: int | None = bypass_budget_field()

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """That of the walk without a bypass budget, a request's bound with one."""
        return (*((P_DFS_1,) if self.bypass_budget is None else ()), *super().theorems)

    def ranking(self, columns: Columns, groups: int, kv_capacity_tokens: int, matches: Matches = NO_MATCHES) -> Ranking:
        """Rank requests by their place in the walk, then those that match nothing by age."""
        there = columns.settled()
        ages = _walked(_Same(matches))
        keys = np.arange(len(ages), len(ages) + len(there.ages))
        keys[np.searchsorted(there.ages, ages)] = np.arange(len(ages))
        return Ranking(there, keys, groups)
