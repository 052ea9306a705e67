"""Key portions: which part of a prompt decides where it should go, and how many requests have it in common.

Source: Preble (Srivatsa et al., ICLR'25).  Lay all prompts into one prefix tree.  A node is a stretch of blocks between
two places where prompts part or end, so all of its prompts have the whole of it.  The key portion of a prompt is the
deepest node on its path that is longer than everything before it: a worker that keeps that node has more than half of
the prefix up to its end.  A prompt that shares nothing is its own key portion.
"""

from collections.abc import Sequence

import attrs

from fairsched.engines.workloads.sharing import common_blocks, sorted_chains
from fairsched.model.request import Prompt

_ROOT = 0


@attrs.frozen
class KeyPortion:
    """A key portion: its length in tokens (whole blocks), how many prompts begin with it and all before it, and which
    prompts of the sequence have it as theirs (a prompt with a longer node further down has that one).
    """

    tokens: int
    sharers: int
    prompts: tuple[int, ...]


def key_portions(prompts: Sequence[Prompt]) -> list[KeyPortion]:
    """The key portions of all prompts that have blocks, each such prompt in exactly one.

    One sort of the key chains, in which a node's prompts stand side by side: O(total bytes) and O(n log n).
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
    """The prefix tree of prompts in sorted order: each node's parent and end (in blocks), and each prompt's last node.

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
    """A new node under the last of the path, which then ends with it."""
    parents.append(path[-1])
    path.append(len(ends))
    ends.append(end)
