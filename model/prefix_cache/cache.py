"""The prefix cache of a worker with the pins of what runs: the same value in the worker and in a policy's copy of it.

A request that enters the batch pins the cached part of its prompt, so that it cannot be evicted; when its prefill is
complete its whole prompt is cached and pinned; when it leaves the batch the pin goes and the prompt stays, until
memory is needed.  Prompts without keys take part in none of this.
"""

import msgspec
from immutables import Map

from fairsched.model.prefix_cache.tree import Insertion, PrefixTree
from fairsched.model.prefix_cache.tree_draft import ROOT, Eviction
from fairsched.model.request import Prompt

EMPTY_TREE = PrefixTree.empty()
NO_PINS: Map[int, int] = Map()


class PrefixCache(msgspec.Struct, frozen=True, gc=False):
    """A prefix tree and, for each request in the batch that holds a cached prefix, the node it pins."""

    tree: PrefixTree = EMPTY_TREE
    pins: Map[int, int] = NO_PINS

    def cached_tokens(self, prompt: Prompt) -> int:
        """Tokens of the prompt that need not be computed; at least one always must be.  O(depth of the tree)."""
        if not prompt.keys:
            return 0
        return min(self.tree.match(prompt).blocks, prompt.reusable_blocks) * prompt.block_tokens

    def stop(self, prompt: Prompt) -> tuple[int, int]:
        """The deepest node that a prompt reaches, and how many of its blocks are cached.  O(depth)."""
        if not prompt.keys:
            return ROOT, 0
        match = self.tree.match(prompt)
        return match.node, match.blocks

    def admit(
        self, request_id: int, prompt: Prompt, stamp: int, match: tuple[int, int] | None = None
    ) -> tuple["PrefixCache", int, Insertion | None]:
        """Pin the cached part of the prompt for this request; also its tokens, and the cut if a node was cut for it.

        `match` is what `stop` says of the prompt, where that is known already.  A node that goes on beyond what is
        used is cut there: a last block that is cached and computed again all the same would otherwise take its memory
        twice, and a request that fits alone might never fit.  O(depth).
        """
        if not prompt.keys:
            return self, 0, None
        node, matched = match or self.stop(prompt)
        blocks = min(matched, prompt.reusable_blocks)
        if not blocks:
            return self, 0, None
        tree, insertion = self.tree, None
        if blocks < tree.nodes[node].end:
            tree, insertion = tree.insert(prompt, blocks, request_id, stamp)
            node = insertion.node
        cache = PrefixCache(tree.pin(node, stamp), self.pins.set(request_id, node))
        return cache, blocks * prompt.block_tokens, insertion

    def complete(self, request_id: int, prompt: Prompt, blocks: int, stamp: int) -> tuple["PrefixCache", Insertion]:
        """Cache the first `blocks` blocks, computed by this request, and pin them for it.  O(depth)."""
        tree, insertion = self.tree.insert(prompt, blocks, request_id, stamp)
        tree = tree.pin(insertion.node, stamp)
        pinned = self.pins.get(request_id)
        if pinned is not None:
            tree = tree.unpin(pinned)
        return PrefixCache(tree, self.pins.set(request_id, insertion.node)), insertion

    def keep(self, request_id: int, until: int) -> "PrefixCache":
        """Count what the request pins as used at `until`, which may be later than now."""
        pinned = self.pins.get(request_id)
        return self if pinned is None else PrefixCache(self.tree.stamped(pinned, until), self.pins)

    def release(self, request_id: int) -> "PrefixCache":
        """Drop the request's pin, if it has one.  O(depth)."""
        pinned = self.pins.get(request_id)
        if pinned is None:
            return self
        return PrefixCache(self.tree.unpin(pinned), self.pins.delete(request_id))

    def evict(self, tokens: int) -> tuple["PrefixCache", tuple[Eviction, ...]]:
        """Free at least `tokens` unpinned tokens, least recently used leaf first."""
        tree, evictions = self.tree.evict(tokens)
        return PrefixCache(tree, self.pins), evictions

    def evicted(self, prompt: Prompt, keep_blocks: int) -> tuple["PrefixCache", tuple[Eviction, ...]]:
        """Follow an eviction that happened in the cache of which this is a copy."""
        tree, evictions = self.tree.drop(prompt, keep_blocks)
        return PrefixCache(tree, self.pins), evictions

    def cacheable(self, prompt: Prompt) -> bool:
        """Whether this cache can hold the prompt: it has keys, and blocks of the size that the cache has."""
        return bool(prompt.keys) and (not self.tree.cached_tokens or self.tree.block_tokens == prompt.block_tokens)
