"""Prefix groups: a batch of prompts parted so that each part computes one shared prefix once, and most is saved.

Source: BatchLLM, section on global prefix sharing: attention over one shared prefix a request is fast, over several
levels of them it is not, so only one level survives: every prompt is in one group, a group shares its longest common
prefix, and everything behind that is a prompt's own.  Saved are sum over groups of (|G| - 1) lcp(G) tokens, and the
saving ratio is that over all prompt tokens (its equation 1).

The paper's algorithm is a greedy one (`policies.prefix_groups_greedy`), which can save a quarter less than is possible.
This one is exact.  With d(v) the tokens from the root through node v, and x the d of the nearest node above v that has
a group (0 if none has),

    save(v, x) = max( sum over what is below v of save(c, x),              v has no group
                      sum over what is below v of save(c, d(v)) - d(v) )   v has one, and computes its prefix once

where a prompt saves x.  For given nodes with groups every prompt should join the deepest one above it, and two groups
of one longest common prefix should merge; so the optimum is the sum over the root's children of save(c, 0).

As a function of x, save(v, .) is convex, rising and piecewise linear: a sum of such, and the greater of one and a
constant.  So v has a group exactly if x is below a threshold t(v), and one pass upwards with the points at which slopes
change finds all thresholds, without trying the ancestors of each node.
"""

from bisect import bisect_left
from collections.abc import Sequence

import attrs
import numpy as np

from fairsched.model.algebra import Ints
from fairsched.model.theorem import Scope, Theorem
from fairsched.policies.batch_tree import ROOT, BatchTree

SOURCE = "this library; the saving is BatchLLM's, equation 1"
P_BL_1 = Theorem(
    "P-BL-1",
    "the exact groups save as many tokens as any partition of the prompts can with one level of sharing",
    SOURCE,
    (),
    scope=Scope.TESTED,
)
P_BL_2 = Theorem(
    "P-BL-2",
    "the paper's greedy groups save at most as much as the exact ones, and at least as much as without forking",
    "BatchLLM, algorithm 1 as printed; this library",
    (),
    scope=Scope.TESTED,
)
P_BL_3 = Theorem(
    "P-BL-3",
    "every prompt is in one group and begins with its group's prefix; prefixes computed once and what is behind them "
    "add up to all tokens less those saved",
    SOURCE,
    (),
    scope=Scope.TESTED,
)
THEOREMS = (P_BL_1, P_BL_2, P_BL_3)


@attrs.frozen(eq=False)
class PrefixGroups:
    """`group_of[i]` of each prompt; `prefix_tokens[g]` and `sizes[g]` of each group; `prompt_tokens` in all.

    Groups are numbered by their first prompt.  One that shares nothing is a group of one, with a prefix of 0 tokens.
    """

    group_of: Ints
    prefix_tokens: Ints
    sizes: Ints
    prompt_tokens: int

    @property
    def saved_tokens(self) -> int:
        """Prompt tokens that need not be computed."""
        return int(((self.sizes - 1) * self.prefix_tokens).sum())

    @property
    def saving_ratio(self) -> float:
        """Share of the prompt tokens that need not be computed, in [0, 1)."""
        return self.saved_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def exact_groups(tree: BatchTree) -> PrefixGroups:
    """The groups that save most; of equally good ones those with the fewest prefixes on each path.

    O(n) for n prompts, and for each inner node the points at which the savings below it change slope; there are at most
    two for each inner node below, and few in practice.
    """
    limits = thresholds(tree)
    depths, parents = tree.depths.tolist(), tree.parents.tolist()
    hosts = [ROOT] * len(depths)
    for v in range(1, len(depths)):
        above = hosts[parents[v]]
        hosts[v] = v if depths[above] < limits[v] else above
    return grouped(tree, hosts)


def thresholds(tree: BatchTree) -> list[int]:
    """t(v) of each node: it has a group exactly if the nearest group above has a prefix of fewer tokens."""
    depths, parents = tree.depths.tolist(), tree.parents.tolist()
    # save(v, x) = floor + sum of slope * max(x - at, 0) over the bends (at, slope), in ascending order.
    bends: list[list[tuple[int, int]]] = [[] for _ in depths]
    floors = [0] * len(depths)
    limits = [0] * len(depths)
    prompts = np.bincount(tree.homes, minlength=len(depths)).tolist()
    for v in range(len(depths) - 1, 0, -1):
        parent, depth = parents[v], depths[v]
        below, bends[v] = bends[v], []
        if prompts[v]:
            below.append((0, prompts[v]))
        below.sort()
        hosted = floors[v] + sum(slope * (depth - at) for at, slope in below) - depth
        limits[v], below = _flattened(below, floors[v], hosted)
        floors[parent] += max(hosted, floors[v])
        # Above v nobody has as many tokens as the parent's children.
        del below[bisect_left(below, (depths[parent], 0)) :]
        more, fewer = (below, bends[parent]) if len(below) > len(bends[parent]) else (bends[parent], below)
        more.extend(fewer)
        bends[parent] = more
    return limits


def _flattened(bends: list[tuple[int, int]], floor: int, least: int) -> tuple[int, list[tuple[int, int]]]:
    """The first whole x at which floor + the bends is at least `least`, and the bends of the greater of both."""
    if least <= floor:
        return 0, bends
    slope = passed = rise = 0
    for at, more in bends:
        if floor + slope * at - rise >= least:
            break
        slope, rise, passed = slope + more, rise + more * at, passed + 1
    first = -(-(least - floor + rise) // slope)
    over = floor + slope * first - rise - least
    # Between two whole numbers the line may cross at a fraction; nobody asks there.
    return first, [(first - 1, over), (first, slope - over), *bends[passed:]]


def grouped(tree: BatchTree, hosts: Sequence[int]) -> PrefixGroups:
    """The groups in which each prompt joins the host of its deepest node; at the root it stays alone.  O(n)."""
    joined = np.asarray(hosts, dtype=np.int64)[tree.homes]
    alone = np.flatnonzero(joined == ROOT)
    labels = joined.copy()
    labels[alone] = len(tree.depths) + alone
    _, first, inverse, sizes = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    rank = np.argsort(np.argsort(first))
    order = np.argsort(first)
    prefixes = np.where(sizes > 1, tree.depths[joined[first]], 0)
    return PrefixGroups(rank[inverse], prefixes[order], sizes[order].astype(np.int64), tree.prompt_tokens)
