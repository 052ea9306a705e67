"""What a worker's KV cache holds, as a value: a radix tree over the keys of prompts, with pins and leaf-first LRU.

A node covers blocks `[start, end)` of some prompt that was cached, and shares that prompt's bytes; the path from the
root to a node spells a cached prefix.  All nodes lie in one persistent map from id to node, so a change replaces the
nodes it touches and never the path above them.

Two ideas keep every operation short.  An access stamps only the deepest node of its path: a leaf that goes hands its
stamp to its parent, so whenever a node becomes a leaf, and with that a possible victim, it carries the latest access
through it.  And `refs` counts a child once, however much is pinned below it, so the walk up from a pin stops at the
first ancestor that was protected already.
"""

from base64 import b64decode, b64encode
from typing import Any

import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model.prefix_cache.sorted_tuple import SortedTuple
from fairsched.model.prefix_cache.tree_draft import (
    NO_CHILDREN,
    NO_NODE,
    ROOT,
    Draft,
    Eviction,
    Node,
    check_shape,
    climb,
    is_victim,
    leaves_first,
    walk,
)
from fairsched.model.request import KEY_BYTES, Prompt

SCHEMA = 1


class Match(msgspec.Struct, frozen=True, gc=False):
    """The longest cached prefix of a prompt: its `blocks`, and the deepest node reached, perhaps only in part."""

    node: int
    blocks: int


class Insertion(msgspec.Struct, frozen=True, gc=False):
    """What an insertion did.

    `node` ends exactly where the inserted prefix ends.  `matched_blocks` were cached before, `new_blocks` are new and
    hang from `base`: only a prompt that matched `base` up to `matched_blocks` can match more than it did.  `split` is
    (upper, lower) when a node was cut at `matched_blocks`: the lower part keeps id, children and pins, the upper part
    is new.  `leaf` is the node made for the new blocks; it is None when there are none, and when `base` was an
    unprotected leaf and was lengthened instead (then `node` is `base`).
    """

    node: int
    base: int
    matched_blocks: int
    new_blocks: int
    split: tuple[int, int] | None
    leaf: int | None


class PrefixTree(msgspec.Struct, frozen=True, gc=False):
    """A path-compressed radix tree over prompts, immutable: every operation returns a new tree and keeps the old.

    Tokens are counted in whole blocks of `block_tokens`.  `cached_tokens` is what all nodes hold, `protected_tokens`
    what lies on a path from the root to a pinned node (counted once), and `evictable` orders the unprotected leaves,
    the only possible victims, by (stamp, id).  A node is *protected* when it or a descendant is pinned.

    With d nodes on the path (2 to 4 in practice: an unprotected leaf is lengthened, not chained), N nodes and E
    evictable leaves: `match` compares the prompt's bytes once, O(blocks) by memcmp, and looks up d children; `insert`
    is a match plus O(log N + sqrt E); `pin` and `unpin` are O(1 + ancestors that change protection); `evict` is
    O(log N + sqrt E) a victim; `drop` is a match plus that for each node removed.
    """

    nodes: Map[int, Node]
    evictable: SortedTuple[tuple[int, int]]
    next_id: int
    block_tokens: int
    cached_tokens: int
    protected_tokens: int

    @classmethod
    def empty(cls, block_tokens: int = 1) -> "PrefixTree":
        """A tree that holds nothing.  It takes on the block size of the first prompt inserted."""
        root = Node(NO_NODE, Prompt(tokens=1), 0, 0, NO_CHILDREN, NO_NODE, 0, 0, 0)
        return cls(Map({ROOT: root}), SortedTuple(), ROOT + 1, block_tokens, 0, 0)

    def match(self, prompt: Prompt) -> Match:
        """The longest cached prefix of `prompt`; nothing is stamped.  Another block size matches nothing."""
        if prompt.block_tokens != self.block_tokens:
            return Match(ROOT, 0)
        return Match(*walk(self.nodes, prompt.keys))

    def prefix(self, node: int) -> tuple[Prompt, int]:
        """A prompt and how many of its leading blocks the path to `node` spells; `KeyError` if there is none."""
        known = self.nodes[node]
        return known.prompt, known.end

    def insert(self, prompt: Prompt, blocks: int, owner: int, stamp: int) -> tuple["PrefixTree", Insertion]:
        """Cache the first `blocks` blocks of `prompt` for request `owner`, and stamp them all as accessed at `stamp`.

        Raises `ValueError` if the prompt has fewer blocks, or blocks of another size than the tree holds.
        """
        if not 0 <= blocks <= prompt.blocks:
            raise ValueError(f"request {owner}: its prompt has {prompt.blocks} whole blocks, not {blocks}")
        if blocks and prompt.block_tokens != self.block_tokens and self.cached_tokens:
            raise ValueError(
                f"request {owner}: blocks of {prompt.block_tokens} tokens do not fit a tree of {self.block_tokens}"
            )
        base, matched = walk(self.nodes, prompt.keys[: blocks * KEY_BYTES])
        draft, next_id, split = Draft(self.nodes, self.evictable), self.next_id, None
        if matched < draft.nodes[base].end:
            draft.split(base, matched, upper=next_id)
            split = next_id, base
            base = next_id
            next_id += 1
        node, leaf = base, None
        if matched == blocks:
            draft.touch(base, stamp)
        elif draft.can_grow(base, stamp):
            draft.grow(base, prompt, blocks, owner, stamp)
        else:
            node = leaf = next_id
            next_id += 1
            draft.attach(leaf, Node(base, prompt, matched, blocks, NO_CHILDREN, owner, stamp, 0, 0))
        block_tokens = prompt.block_tokens if blocks else self.block_tokens
        cached = self.cached_tokens + (blocks - matched) * block_tokens
        tree = PrefixTree(draft.nodes.finish(), draft.evictable, next_id, block_tokens, cached, self.protected_tokens)
        return tree, Insertion(node, base, matched, blocks - matched, split, leaf)

    def pin(self, node: int, stamp: int) -> "PrefixTree":
        """Keep the path to `node` from eviction until it is unpinned as often, and stamp it.

        Raises `KeyError` if there is no such node.
        """
        known = self.nodes[node]
        nodes, evictable = self.nodes.mutate(), self.evictable
        nodes[node] = replace(known, stamp=max(known.stamp, stamp), pins=known.pins + 1, refs=known.refs + 1)
        blocks = 0 if known.refs else climb(nodes, known, 1)
        if is_victim(node, known):
            evictable = evictable.remove((known.stamp, node))
        protected = self.protected_tokens + blocks * self.block_tokens
        return replace(self, nodes=nodes.finish(), evictable=evictable, protected_tokens=protected)

    def unpin(self, node: int) -> "PrefixTree":
        """Take back one pin.  Raises `KeyError` if there is no such node, `ValueError` if it has no pin."""
        known = self.nodes[node]
        if not known.pins:
            raise ValueError(f"node {node} (cached for request {known.owner}) has no pin to take back")
        nodes, evictable = self.nodes.mutate(), self.evictable
        nodes[node] = unpinned = replace(known, pins=known.pins - 1, refs=known.refs - 1)
        blocks = 0 if unpinned.refs else climb(nodes, known, -1)
        if is_victim(node, unpinned):
            evictable = evictable.add((known.stamp, node))
        protected = self.protected_tokens - blocks * self.block_tokens
        return replace(self, nodes=nodes.finish(), evictable=evictable, protected_tokens=protected)

    def stamped(self, node: int, stamp: int) -> "PrefixTree":
        """Count `node` as used at `stamp`, unless it was used later.  Raises `KeyError` if there is no such node."""
        draft = Draft(self.nodes, self.evictable)
        draft.touch(node, stamp)
        return replace(self, nodes=draft.nodes.finish(), evictable=draft.evictable)

    def evict(self, tokens: int) -> tuple["PrefixTree", tuple[Eviction, ...]]:
        """Free at least `tokens` tokens, or all that is unprotected, from the tails of least recently used leaves.

        Never frees more than `tokens` rounded up to a block: the last victim keeps its head.
        """
        needed = max(-(-tokens // self.block_tokens), 0)
        draft, evictions = Draft(self.nodes, self.evictable), []
        while needed and draft.evictable.size:
            _, victim = draft.evictable.first()
            eviction = draft.cut(victim, draft.nodes[victim].end - needed)
            evictions.append(eviction)
            needed -= eviction.blocks
        return self._after(draft, evictions), tuple(evictions)

    def drop(self, prompt: Prompt, keep_blocks: int) -> tuple["PrefixTree", tuple[Eviction, ...]]:
        """Forget whatever of `prompt` lies beyond its first `keep_blocks` blocks, and everything below that.

        This applies an eviction that happened elsewhere to a copy of the tree.  Returns what was forgotten, leaves
        first; nothing if it is not there.  Raises `ValueError` if part of it is pinned here, or on a negative number.
        """
        if keep_blocks < 0:
            raise ValueError(f"keep_blocks is not negative ({keep_blocks})")
        match = self.match(prompt)
        if match.blocks <= keep_blocks:
            return self, ()
        top = match.node
        while self.nodes[top].start > keep_blocks:
            top = self.nodes[top].parent
        if self.nodes[top].refs:
            raise ValueError(f"cannot drop node {top} (cached for request {self.nodes[top].owner}): it is pinned")
        draft = Draft(self.nodes, self.evictable)
        evictions = [draft.cut(victim, keep_blocks) for victim in leaves_first(self.nodes, top)]
        return self._after(draft, evictions), tuple(evictions)

    def _after(self, draft: Draft, evictions: list[Eviction]) -> "PrefixTree":
        cached = self.cached_tokens - sum(e.blocks for e in evictions) * self.block_tokens
        return replace(self, nodes=draft.nodes.finish(), evictable=draft.evictable, cached_tokens=cached)

    def to_json(self) -> dict[str, Any]:
        """The tree as plain lists, numbers and strings, with every id and stamp; keys are written once, in base64."""
        order = sorted(self.nodes.items(), key=lambda item: (item[1].start, item[0]))
        prompts: dict[Prompt, int] = {}
        rows = []
        for i, n in order:
            prompt = prompts.setdefault(n.prompt, len(prompts))
            rows.append([i, n.parent, n.owner, prompt, n.start, n.end, n.stamp, n.pins, _text(n.edge)])
        return {
            "schema": SCHEMA,
            "block_tokens": self.block_tokens,
            "next_id": self.next_id,
            "nodes": rows,
            "prompts": [self._prompt_row(prompt) for prompt in prompts],
        }

    def _prompt_row(self, prompt: Prompt) -> list[Any]:
        # A prompt may go on beyond what is still cached of it; only those keys are not in the nodes.
        match = self.match(prompt)
        rest = prompt.keys[match.blocks * KEY_BYTES :]
        return [prompt.tokens, prompt.block_tokens, match.node, match.blocks, _text(rest)]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "PrefixTree":
        """The tree that `to_json` wrote, equal in value; raises `ValueError` on another schema version."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"a prefix tree of schema {data.get('schema')!r} cannot be read, only {SCHEMA}")
        keys: dict[int, bytes] = {NO_NODE: b""}
        for i, parent, *_, edge in data["nodes"]:
            keys[i] = keys[parent] + b64decode(edge)
        prompts = [
            Prompt(tokens, block_tokens, keys[node][: blocks * KEY_BYTES] + b64decode(rest))
            for tokens, block_tokens, node, blocks, rest in data["prompts"]
        ]
        nodes = {
            i: Node(parent, prompts[prompt], start, end, NO_CHILDREN, owner, stamp, pins, pins)
            for i, parent, owner, prompt, start, end, stamp, pins, _ in data["nodes"]
        }
        block_tokens = data["block_tokens"]
        # Parents come before their children in `nodes`, so the reverse order knows a node's refs before its parent's.
        for i, node in reversed(list(nodes.items())):
            if i != ROOT:
                parent = nodes[node.parent]
                children = parent.children.set(node.first_key, i)
                nodes[node.parent] = replace(parent, children=children, refs=parent.refs + (nodes[i].refs > 0))
        return cls(
            nodes=Map(nodes),
            evictable=SortedTuple.from_sorted(sorted((n.stamp, i) for i, n in nodes.items() if is_victim(i, n))),
            next_id=data["next_id"],
            block_tokens=block_tokens,
            cached_tokens=sum(n.end - n.start for n in nodes.values()) * block_tokens,
            protected_tokens=sum(n.end - n.start for n in nodes.values() if n.refs) * block_tokens,
        )

    def check(self) -> None:
        """Raise `AssertionError` unless every representation invariant holds.  O(all keys)."""
        check_shape(self.nodes, self.next_id, self.block_tokens)
        for node in self.nodes.values():
            # A node is referred to by its own pins and once by each protected child.
            assert node.pins >= 0
            assert node.refs == node.pins + sum(self.nodes[c].refs > 0 for c in node.children.values())
        # The counters are the sums over the nodes.
        assert self.cached_tokens == self.block_tokens * sum(n.end - n.start for n in self.nodes.values())
        assert self.protected_tokens == self.block_tokens * sum(n.end - n.start for n in self.nodes.values() if n.refs)
        # Evictable are exactly the leaves with neither a pin nor a protected child, in the order of their stamps.
        self.evictable.check()
        assert list(self.evictable) == sorted((n.stamp, i) for i, n in self.nodes.items() if is_victim(i, n))


def _text(raw: bytes) -> str:
    return b64encode(raw).decode("ascii")
