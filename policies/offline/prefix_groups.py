"""Prefix groups: a batch of prompts parted so that each part computes one shared prefix once, and most is saved.

Source: BatchLLM, section on global prefix sharing: attention over one shared prefix a request is fast, over several
levels of them it is not, so only one level survives: every prompt is in one group, a group shares its longest common
prefix, and everything behind that is a prompt's own.  Saved are sum over groups of (|G| - 1) lcp(G) tokens, and the
saving ratio is that over all prompt tokens (its equation 1).

The paper's algorithm is a greedy one (`greedy_groups`), which can save a quarter less than is possible.
This one is exact.  With d(v) the tokens from the root through node v, and x the d of the nearest node above v that has
a group (0 if none has),

    save(v, x) = max( sum over what is below v of save(c, x),              v has no group
                      sum over what is below v of save(c, d(v)) - d(v) )   v has one, and computes its prefix once

where a prompt saves x.  For given nodes with groups every prompt should join the deepest one above it, and two groups
of one longest common prefix should merge; so the optimum is the sum over the root's children of save(c, 0).

As a function of x, save(v, .) is convex, rising and piecewise linear: a sum of such, and the greater of one and a
constant.  So v has a group exactly if x is below a threshold t(v), and one pass upwards with the points at which slopes
change finds all thresholds, without trying the ancestors of each node.

**The tree** is the compact prefix tree of a batch of prompts: which prompts share how many leading tokens.

Source: BatchLLM ("BatchLLM: Optimizing Large Batched LLM Inference with Global Prefix Sharing and Throughput-oriented
Token Batching"), the tree from which prompts are grouped: nodes with a single child are merged, and a prompt ends in a
leaf.  Here leaves are not written down: each prompt knows the deepest inner node on its path.

A prompt always has a token of its own, since at least one is computed for the first output; so of equal prompts all
but the last token (the last block, where blocks are longer) are shared.

It is read off one lexicographic sort of the key chains, where those that share a prefix stand side by side.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal, get_args

import attrs
import numpy as np

from fairsched.model.algebra import Ints
from fairsched.model.prefix_cache import common_keys
from fairsched.model.request import KEY_BYTES, Prompt
from fairsched.model.theorem import Scope, Theorem

# --- tree -------------------------------------------------------------------------------------------------------------


ROOT = 0


@attrs.frozen(eq=False)
class BatchTree:
    """`parents[v]` and `depths[v]` (tokens from the root through v) of each inner node, the root being 0 and every
    parent numbered lower than its children; `homes[i]` and `tokens[i]` of each prompt: its deepest node, its length.

    Every node but the root has at least two of prompts and nodes right below it.
    """

    parents: Ints
    depths: Ints
    homes: Ints
    tokens: Ints

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return int(self.tokens.sum())

    @property
    def saved_tokens_max(self) -> int:
        """Tokens that need not be computed if every shared prefix is computed once, on every level."""
        edges = self.depths - self.depths[self.parents]
        return self.prompt_tokens - int(edges.sum() + (self.tokens - self.depths[self.homes]).sum())


def batch_tree(chains: Sequence[bytes], tokens: Ints, block_tokens: Ints, key_bytes: int = KEY_BYTES) -> BatchTree:
    """Return the tree of prompts given by their key chains, their lengths and their block sizes, in tokens.

    Prompts of different block sizes share nothing.  O(n log n) comparisons of chains by memcmp, O(bytes) and O(n) for n
    prompts.
    """
    sizes = block_tokens.tolist()
    # A chain that loses its last key to this comes first of those that begin with it, so sorting by all keys will do.
    most = ((tokens - 1) // block_tokens).tolist()
    if len(set(sizes)) > 1:
        order = sorted(range(len(chains)), key=lambda i: (sizes[i], chains[i]))
    else:
        order = sorted(range(len(chains)), key=chains.__getitem__)
    shared = [0] * (len(order) + 1)
    for place in range(1, len(order)):
        i, before = order[place], order[place - 1]
        if sizes[i] == sizes[before]:
            common = common_keys(chains[before], chains[i], key_bytes)
            shared[place] = min(common, most[before], most[i]) * sizes[i]
    parents, depths, homes = _intervals(shared)
    # Parents lie less deep than their children, so numbers by depth have parents first.
    by_depth = np.argsort(np.array(depths, dtype=np.int64), kind="stable")
    number = np.empty_like(by_depth)
    number[by_depth] = np.arange(len(by_depth))
    placed = np.empty(len(order), dtype=np.int64)
    placed[np.array(order, dtype=np.int64)] = number[np.array(homes, dtype=np.int64)]
    return BatchTree(
        number[np.array(parents, dtype=np.int64)[by_depth]],
        np.array(depths, dtype=np.int64)[by_depth],
        placed,
        np.asarray(tokens, dtype=np.int64),
    )


def tree_of(prompts: Sequence[Prompt]) -> BatchTree:
    """Return the tree of prompts."""
    tokens = np.array([prompt.tokens for prompt in prompts], dtype=np.int64)
    return batch_tree(
        [prompt.keys for prompt in prompts],
        tokens,
        np.array([prompt.block_tokens for prompt in prompts], dtype=np.int64),
    )


def _intervals(shared: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Return parents and depths of nodes, the root's parent being itself, and for each place in the order its deepest
    node.

    `shared[place]` is what the prompts at `place - 1` and `place` share, 0 at both ends.  Linear: nodes on the path of
    the last prompt are on a stack.
    """
    parents, depths, homes = [ROOT], [0], []
    path = [ROOT]
    for place in range(len(shared) - 1):
        ahead = shared[place + 1]
        if depths[path[-1]] < ahead:
            path.append(len(depths))
            parents.append(ROOT)
            depths.append(ahead)
        homes.append(path[-1])
        while depths[path[-1]] > ahead:
            closed = path.pop()
            if depths[path[-1]] < ahead:
                path.append(len(depths))
                parents.append(ROOT)
                depths.append(ahead)
            parents[closed] = path[-1]
    return parents, depths, homes


SOURCE = "this library; the saving is BatchLLM's, equation 1"
P_BL_1 = Theorem(
    "P-BL-1",
    "the exact groups save as many tokens as any partition of the prompts can with one level of sharing",
    SOURCE,
    scope=Scope.TESTED,
)
P_BL_2 = Theorem(
    "P-BL-2",
    "the paper's greedy groups save at most as much as the exact ones, and at least as much as without forking",
    "BatchLLM, algorithm 1 as printed; this library",
    scope=Scope.TESTED,
)
P_BL_3 = Theorem(
    "P-BL-3",
    "every prompt is in one group and begins with its group's prefix; prefixes computed once and what is behind them "
    "add up to all tokens less those saved",
    SOURCE,
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
    """Return the groups that save most; of equally good ones those with the fewest prefixes on each path.

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
        # Above v no group has as many tokens as the parent's children.
        del below[bisect_left(below, (depths[parent], 0)) :]
        more, fewer = (below, bends[parent]) if len(below) > len(bends[parent]) else (bends[parent], below)
        more.extend(fewer)
        bends[parent] = more
    return limits


def _flattened(bends: list[tuple[int, int]], floor: int, least: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the first whole x at which floor + the bends is at least `least`, and the bends of the greater of both."""
    if least <= floor:
        return 0, bends
    slope = passed = rise = 0
    for at, more in bends:
        if floor + slope * at - rise >= least:
            break
        slope, rise, passed = slope + more, rise + more * at, passed + 1
    first = -(-(least - floor + rise) // slope)
    over = floor + slope * first - rise - least
    # Between two whole numbers the line may cross at a fraction, which is never asked for.
    return first, [(first - 1, over), (first, slope - over), *bends[passed:]]


def grouped(tree: BatchTree, hosts: Sequence[int]) -> PrefixGroups:
    """Return the groups in which each prompt joins the host of its deepest node; at the root it stays alone.  O(n)."""
    joined = np.asarray(hosts, dtype=np.int64)[tree.homes]
    alone = np.flatnonzero(joined == ROOT)
    labels = joined.copy()
    labels[alone] = len(tree.depths) + alone
    _, first, inverse, sizes = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    rank = np.argsort(np.argsort(first))
    order = np.argsort(first)
    prefixes = np.where(sizes > 1, tree.depths[joined[first]], 0)
    return PrefixGroups(rank[inverse], prefixes[order], sizes[order].astype(np.int64), tree.prompt_tokens)


# --- the paper's greedy groups ----------------------------------------------------------------------------------------


Grouping = Literal["exact", "greedy", "greedy-absorb-last", "whole", "longest"]
GROUPINGS: tuple[Grouping, ...] = get_args(Grouping)
"""The exact groups, the paper's two, one for each child of the root, and each prompt at its deepest node."""


def groups_by(tree: BatchTree, grouping: Grouping) -> PrefixGroups:
    """Return the groups of that name."""
    if grouping == "exact":
        return exact_groups(tree)
    if grouping == "whole":
        return _of_top_nodes(tree, tree.parents.tolist())
    if grouping == "longest":
        return grouped(tree, range(len(tree.depths)))
    return greedy_groups(tree, absorb_last=grouping == "greedy-absorb-last")


def greedy_groups(tree: BatchTree, *, absorb_last: bool = False) -> PrefixGroups:
    """Return the groups of BatchLLM's algorithm 1, a greedy walk from the leaves: as printed, or as released with
    `absorb_last`.

    For every child c of a node D, first c itself; then each grandchild g under c is cut from c and moved up to D, with
    c's tokens before its own, if (prompts under g - 1) * tokens of g > tokens of c.  In the end each child of the root
    is a group.  With `absorb_last` the last grandchild that is left absorbs its parent, which costs nothing.

    The paper calls it dynamic programming that maximises reuse.  It does not (F-BL-1): grandchildren share one penalty
    when they leave together, and a move that was right for D can be wrong above it.

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
    """Return one group for each child of the root and whatever is below it.  Nodes only move up, to lower numbers."""
    hosts = [ROOT] * len(parents)
    for v in range(1, len(parents)):
        hosts[v] = v if parents[v] == ROOT else hosts[parents[v]]
    return grouped(tree, hosts)


# --- the order of groups ----------------------------------------------------------------------------------------------


GroupOrder = Literal["per_request", "paper", "known_lengths"]
GROUP_ORDERS: tuple[GroupOrder, ...] = get_args(GroupOrder)
SCALE_BITS = 96
"""Ratios below 2^40 tokens that differ do so by more than 2^-80: scaled so far, their whole parts differ."""


def ratio(outputs: int, prompt_tokens: int) -> int:
    """Return the outputs for each token that is computed, so scaled that whole numbers order it exactly."""
    return (outputs << SCALE_BITS) // prompt_tokens


def group_places(
    tree: BatchTree,
    groups: PrefixGroups,
    order: GroupOrder = "per_request",
    outputs: Sequence[int] | Ints | None = None,
) -> Ints:
    """Return the place of each group, from 0: those with many outputs for little prefill first; ties by the group's
    number.

    Source: BatchLLM, on throughput-oriented token batching: groups that decode much beside few prompt tokens go first,
    so that long prefills are left to be mixed with their decodes.  With all output lengths taken as 1 its equation 3
    reads 1 / (prefix + own parts), although a group of n prompts has n outputs: `paper` is that, `per_request` has n in
    the numerator, and `known_lengths` the outputs themselves, from `outputs`, the output tokens of each prompt.

    O(n log n) for n prompts.  Raises `ValueError` if lengths are to be known and are not given.
    """
    sizes = groups.sizes
    whole = np.bincount(groups.group_of, weights=tree.tokens, minlength=len(sizes)).astype(np.int64)
    computed = (whole - (sizes - 1) * groups.prefix_tokens).tolist()
    if order == "known_lengths":
        if outputs is None:
            raise ValueError("the order known_lengths needs the output tokens of each prompt")
        decoded = np.bincount(groups.group_of, weights=outputs, minlength=len(sizes)).astype(np.int64).tolist()
    else:
        decoded = sizes.tolist() if order == "per_request" else [1] * len(sizes)
    keys = [-ratio(many, tokens) for many, tokens in zip(decoded, computed, strict=True)]
    places = np.empty(len(keys), dtype=np.int64)
    places[np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)] = np.arange(len(keys))
    return places
