"""Which prompts share prefixes: what an infinite cache would hit, which prompt continues which, and key portions.

All answers come from one lexicographic sort of the key chains, in which shared prefixes stand side by side:
O(total bytes) comparisons and O(n log n) of them, so a trace of any block size is analysed in about a second.

A key portion is the part of a prompt that decides where it should go.  Source: Preble (Srivatsa et al., ICLR'25).  Lay
all prompts into one prefix tree.  A node is a stretch of blocks between two places where prompts part or end, so all of
its prompts have the whole of it.  The key portion of a prompt is the deepest node on its path that is longer than
everything before it: a worker that keeps that node has more than half of the prefix up to its end.  A prompt that
shares nothing is its own key portion.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import attrs

from fairsched.model.prefix_cache import common_keys
from fairsched.model.request import KEY_BYTES, Prompt

_ROOT = 0


def shared_blocks(prompts: Sequence[Prompt]) -> list[int]:
    """Return for each prompt the most leading blocks it shares with any earlier one of the sequence."""
    best = [0] * len(prompts)
    order = sorted_chains(prompts)
    common = [common_blocks(prompts[one], prompts[other]) for one, other in pairwise(order)]
    _nearest_earlier(order, common, best)
    _nearest_earlier(order[::-1], common[::-1], best)
    return best


def continued(prompts: Sequence[Prompt]) -> list[int | None]:
    """Return for each prompt the earlier one that it continues (None: it continues none).

    A prompt continues the longest earlier prompt all of whose blocks it begins with, if those are two or more, and of
    equal ones the last; a system prompt that all prompts share therefore does not make two prompts one conversation.
    """
    result: list[int | None] = [None] * len(prompts)
    # The prompts that begin the current one, shortest first; equal chains share an entry, in order of the sequence.
    nested: list[tuple[Prompt, list[int]]] = []
    for index in sorted_chains(prompts):
        prompt = prompts[index]
        while nested and not _begins(nested[-1][0], prompt):
            nested.pop()
        if nested and nested[-1][0].keys == prompt.keys:
            nested[-1][1].append(index)
        else:
            nested.append((prompt, [index]))
        for shorter, indexes in reversed(nested):
            earlier = bisect_left(indexes, index)
            if earlier and shorter.blocks >= 2:
                result[index] = indexes[earlier - 1]
                break
    return result


def sorted_chains(prompts: Sequence[Prompt]) -> list[int]:
    """Return indexes of the prompts that have blocks, by block size, then chain, then place in the sequence."""
    keyed = [index for index, prompt in enumerate(prompts) if prompt.keys]
    keyed.sort(key=lambda index: (prompts[index].block_tokens, prompts[index].keys))
    return keyed


def _begins(shorter: Prompt, longer: Prompt) -> bool:
    return shorter.block_tokens == longer.block_tokens and longer.keys.startswith(shorter.keys)


def common_blocks(left: Prompt, right: Prompt) -> int:
    """Leading blocks two prompts share."""
    if left.block_tokens != right.block_tokens:
        return 0
    return common_keys(left.keys, right.keys, KEY_BYTES)


def _nearest_earlier(order: Sequence[int], common: Sequence[int], best: list[int]) -> None:
    """Raise `best[i]` to what i shares with the nearest prompt before it in `order` that is earlier in the sequence.

    `common` is what each two neighbours share; what two distant places share is the least in between, so the nearest
    earlier prompt shares the most.  A stack of ever later prompts finds it in O(n).
    """
    # (index, least common length between this entry and the entry below it on the stack)
    stack: list[tuple[int, int]] = []
    for index, shared in zip(order, (0, *common), strict=False):
        while stack and stack[-1][0] > index:
            shared = min(shared, stack.pop()[1])
        if stack:
            best[index] = max(best[index], shared)
        stack.append((index, shared))


# --- key portions -----------------------------------------------------------------------------------------------------


@attrs.frozen
class KeyPortion:
    """A key portion: its length in tokens (whole blocks), how many prompts begin with it and all before it, and which
    prompts of the sequence have it as theirs (a prompt with a longer node further down has that one).
    """

    tokens: int
    sharers: int
    prompts: tuple[int, ...]


def key_portions(prompts: Sequence[Prompt]) -> list[KeyPortion]:
    """Return the key portions of all prompts that have blocks, each such prompt in exactly one.

    A node's prompts stand side by side in the sorted chains.
    """
    order = sorted_chains(prompts)
    parents, ends, last_nodes = _tree(prompts, order)
    keys, passing = [_ROOT] * len(ends), [0] * len(ends)
    from_root = sorted(range(1, len(ends)), key=ends.__getitem__)
    for node in from_root:
        parent = parents[node]
        keys[node] = node if ends[node] > 2 * ends[parent] else keys[parent]
    owners: dict[int, list[int]] = {}
    for index, node in zip(order, last_nodes, strict=True):
        owners.setdefault(keys[node], []).append(index)
        passing[node] += 1
    for node in reversed(from_root):
        passing[parents[node]] += passing[node]
    return [
        KeyPortion(
            (ends[node] - ends[parents[node]]) * prompts[found[0]].block_tokens, passing[node], tuple(sorted(found))
        )
        for node, found in owners.items()
    ]


def _tree(prompts: Sequence[Prompt], order: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Return the prefix tree of prompts in sorted order: each node's parent and end (in blocks), and each prompt's last
    node.

    Node 0 is the root, which ends at 0.  The path to the prompt before is kept, and cut where the next one parts.
    """
    parents, ends, last_nodes, path = [_ROOT], [0], [], [_ROOT]
    for place, index in enumerate(order):
        shared = common_blocks(prompts[order[place - 1]], prompts[index]) if place else 0
        cut = _ROOT
        while ends[path[-1]] > shared:
            cut = path.pop()
        if ends[path[-1]] < shared:
            _grow(parents, ends, path, shared)
            parents[cut] = path[-1]
        if prompts[index].blocks > shared:
            _grow(parents, ends, path, prompts[index].blocks)
        last_nodes.append(path[-1])
    return parents, ends, last_nodes


def _grow(parents: list[int], ends: list[int], path: list[int], end: int) -> None:
    """Add a new node under the last of the path, which then ends with it."""
    parents.append(path[-1])
    path.append(len(ends))
    ends.append(end)
