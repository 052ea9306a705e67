"""BatchLLM's own grouping, a greedy walk from the leaves, and its two variants.

Source: BatchLLM, algorithm 1.  For every child c of a node D, first c itself; then each grandchild g under c is cut
from c and moved up to D, with c's tokens before its own, if (prompts under g - 1) * tokens of g > tokens of c.  In the
end each child of the root is a group.  The released code also lets the last grandchild that is left absorb its parent,
which costs nothing: `absorb_last`.

The paper calls it dynamic programming that maximises reuse.  It does not (F-BL-1): grandchildren share one penalty when
they leave together, and a move that was right for D can be wrong above it.
"""

from typing import Literal

import numpy as np

from fairsched.policies.batch_tree import ROOT, BatchTree
from fairsched.policies.prefix_groups import PrefixGroups, exact_groups, grouped

Grouping = Literal["exact", "greedy", "greedy-absorb-last", "whole", "longest"]
GROUPINGS: tuple[Grouping, ...] = ("exact", "greedy", "greedy-absorb-last", "whole", "longest")
"""The exact groups, the paper's two, one for each child of the root, and each prompt with whom it shares most."""


def groups_by(tree: BatchTree, grouping: Grouping) -> PrefixGroups:
    """The groups of that name."""
    if grouping == "exact":
        return exact_groups(tree)
    if grouping == "whole":
        return _of_top_nodes(tree, tree.parents.tolist())
    if grouping == "longest":
        return grouped(tree, range(len(tree.depths)))
    return greedy_groups(tree, absorb_last=grouping == "greedy-absorb-last")


def greedy_groups(tree: BatchTree, *, absorb_last: bool = False) -> PrefixGroups:
    """The groups of algorithm 1, as printed, or as released with `absorb_last`.

    Grandchildren are visited in the order of their numbers, prompts are counted anew at each, and those that moved up
    meanwhile are not visited again at D.  O(n + moves log n) for n prompts.
    """
    parents = tree.parents.tolist()
    own = (tree.depths - tree.depths[tree.parents]).tolist()
    direct = np.bincount(tree.homes, minlength=len(parents)).tolist()
    under = list(direct)
    children: list[list[int]] = [[] for _ in parents]
    for v in range(len(parents) - 1, 0, -1):
        under[parents[v]] += under[v]
        children[parents[v]].append(v)
    # Children have higher numbers, so whatever is below was solved before.
    for node in range(len(parents) - 1, -1, -1):
        now: list[int] = []
        for child in sorted(children[node]):
            kept: list[int] = []
            for grand in sorted(children[child]):
                if (under[grand] - 1) * own[grand] > own[child]:
                    own[grand] += own[child]
                    under[child] -= under[grand]
                    now.append(grand)
                else:
                    kept.append(grand)
            if absorb_last and len(kept) == 1 and not direct[child]:
                own[kept[0]] += own[child]
                now.append(kept[0])
            elif under[child]:
                children[child] = kept
                now.append(child)
        children[node] = now
        for child in now:
            parents[child] = node
    return _of_top_nodes(tree, parents)


def _of_top_nodes(tree: BatchTree, parents: list[int]) -> PrefixGroups:
    """One group for each child of the root and whatever is below it.  Nodes only move up, to lower numbers."""
    hosts = [ROOT] * len(parents)
    for v in range(1, len(parents)):
        hosts[v] = v if parents[v] == ROOT else hosts[parents[v]]
    return grouped(tree, hosts)
