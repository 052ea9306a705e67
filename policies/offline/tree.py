"""The compact prefix tree of a batch of prompts: which prompts share how many leading tokens.

Source: BatchLLM ("BatchLLM: Optimizing Large Batched LLM Inference with Global Prefix Sharing and Throughput-oriented
Token Batching"), the tree from which prompts are grouped: nodes with a single child are merged, and a prompt ends in a
leaf.  Here leaves are not written down: each prompt knows the deepest inner node on its path.

A prompt always has a token of its own, since at least one is computed for the first output; so of equal prompts all
but the last token (the last block, where blocks are longer) are shared.

It is read off one lexicographic sort of the key chains, where those that share a prefix stand side by side.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from fairsched.model.algebra import Ints
from fairsched.model.prefix_cache import common_keys
from fairsched.model.request import KEY_BYTES, Prompt

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
