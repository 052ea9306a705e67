"""What a worker's KV cache holds, as a value: a radix tree over the keys of prompts, with pins and leaf-first LRU.

A node covers blocks `[start, end)` of some prompt that was cached, and shares that prompt's bytes; the path from the
root to a node spells a cached prefix.  All nodes lie in one persistent map from id to node, so a change replaces the
nodes it touches and never the path above them.

Two ideas keep every operation short.  An access stamps only the deepest node of its path: a leaf that goes hands its
stamp to its parent, so whenever a node becomes a leaf, and with that a possible victim, it carries the latest access
through it.  And `refs` counts a child once, however much is pinned below it, so the walk up from a pin stops at the
first ancestor that was protected already.

`PrefixCache` adds what running requests pin, and is the same value in a worker and in a policy's copy of it.  A request
that enters the batch pins the cached part of its prompt, so that it cannot be evicted; when its prefill is complete its
whole prompt is cached and pinned; when it leaves the batch the pin goes and the prompt stays, until memory is needed.
Prompts without keys take part in none of this.
"""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np
from immutables import Map, MapMutation
from msgspec.structs import replace

from fairsched.model.prefix_cache.shares import NO_CLIENT, CachedBlock, Evictor, Shares, blocks_over, charged
from fairsched.model.prefix_cache.sorted_tuple import SortedTuple
from fairsched.model.request import KEY_BYTES, Prompt

SCHEMA = 1

# --- nodes ------------------------------------------------------------------------------------------------------------

ROOT = 0
"""Id of the root, which covers no block and is never evicted."""

NO_NODE = -1
VIEW_BYTES = 1 << 13
"""An edge of so many bytes is compared where it lies; a shorter one is copied in less time than a view takes."""
NO_CHILDREN: Map[bytes, int] = Map()


class Span(msgspec.Struct, frozen=True, gc=False):
    """Blocks `[start, end)` of `prompt`, as a node of a tree over prompts; `children` maps the first key of a child to
    its id.
    """

    parent: int
    prompt: Prompt
    start: int
    end: int
    children: Map[bytes, int]

    @property
    def first_key(self) -> bytes:
        """Key of the first block, by which the parent knows this node."""
        start = self.start * KEY_BYTES
        return self.prompt.keys[start : start + KEY_BYTES]

    @property
    def edge(self) -> bytes:
        """Keys of all its blocks (a copy)."""
        return self.prompt.keys[self.start * KEY_BYTES : self.end * KEY_BYTES]


class Node(Span, frozen=True):
    """What is cached for request `owner`.

    `pins` counts the pins on this very node, `refs` adds one for each child that is protected: the node is protected
    exactly when `refs` is positive.  In a tree with shares, `holders` are the clients that used the whole node or what
    lies below, and a protected node is charged to `keeper`.
    """

    owner: int
    stamp: int
    pins: int
    refs: int
    holders: tuple[int, ...] = ()
    keeper: int = NO_CLIENT


AnySpan = TypeVar("AnySpan", bound=Span)


class Eviction(msgspec.Struct, frozen=True, gc=False):
    """The last `blocks` blocks of a leaf were freed: of `prompt`, cached for `owner`, the first `keep_blocks` remain.

    `removed` says that nothing is left of the node `node` itself (its ancestors hold the `keep_blocks`).
    """

    owner: int
    prompt: Prompt
    keep_blocks: int
    blocks: int
    node: int
    removed: bool


def is_victim(i: int, node: Node) -> bool:
    """Return whether node `i` may be evicted: a leaf without pins."""
    return i != ROOT and not node.children and not node.refs


def walk(nodes: Mapping[int, Span], keys: bytes) -> tuple[int, int]:
    """Return the deepest node that `keys` reach, perhaps only in part, and the number of blocks matched."""
    at, end = ROOT, 0
    children = nodes[ROOT].children
    while (child := children.get(keys[end : end + KEY_BYTES])) is not None:
        node = nodes[child]
        known, stop = node.prompt.keys, node.end * KEY_BYTES
        if known is not keys:
            # A view of a long edge spares its copy.
            edge = known[end:stop] if stop - end < VIEW_BYTES else memoryview(known)[end:stop]
            if not keys.startswith(edge, end):
                return child, _first_mismatch(keys, known, end, stop) // KEY_BYTES
        at, end, children = child, stop, node.children
    return at, end // KEY_BYTES


def holding(nodes: Mapping[int, Span], prompt: Prompt, block: int) -> int:
    """Return the node that has block `block` of this very prompt, found by first keys alone; the root if that is not
    sure.

    A node's prompt begins with all that its ancestors spell, so those of a node with the same prompt need no
    comparison.  O(nodes on the path).
    """
    keys, end, found, before = prompt.keys, 0, ROOT, block * KEY_BYTES
    children = nodes[ROOT].children
    while (child := children.get(keys[end : end + KEY_BYTES])) is not None:
        node = nodes[child]
        end, children = node.end * KEY_BYTES, node.children
        if end > before:
            found = found or child
            if node.prompt is prompt:
                return found
    return ROOT


def _first_mismatch(a: bytes, b: bytes, start: int, stop: int) -> int:
    """Byte offset of the first key in which `a` and `b` differ, from `start` on and at most `stop`."""
    count = (min(len(a), stop) - start) // KEY_BYTES
    differ = np.frombuffer(a, np.int64, count, start) != np.frombuffer(b, np.int64, count, start)
    first = int(differ.argmax())
    return start + KEY_BYTES * (first if differ[first] else count)


def split(nodes: MapMutation[int, AnySpan], lower: int, at: int, upper: int, **above: Any) -> None:
    """Cut node `lower` at block `at`; node `upper` takes over what lies before, with the fields `above`."""
    node = nodes[lower]
    parent = nodes[node.parent]
    low = replace(node, parent=upper, start=at)
    nodes[lower] = low
    nodes[upper] = replace(node, end=at, children=NO_CHILDREN.set(low.first_key, lower), **above)
    nodes[node.parent] = replace(parent, children=parent.children.set(node.first_key, upper))


def check_shape(nodes: Map[int, AnySpan], next_id: int, block_tokens: int) -> None:
    """Raise `AssertionError` unless the nodes are a tree over prompts.  O(all keys)."""
    root = nodes[ROOT]
    # The root covers nothing and has no parent.
    assert (root.parent, root.start, root.end) == (NO_NODE, 0, 0)
    # Every node but the root is the child of exactly one, and ids come from the counter.
    assert sorted([ROOT, *(c for node in nodes.values() for c in node.children.values())]) == sorted(nodes)
    assert all(ROOT <= i < next_id for i in nodes)
    for i, node in nodes.items():
        # Every child begins where its parent ends, covers at least a block, and is known by its first key.
        for key, c in node.children.items():
            child = nodes[c]
            assert (child.parent, child.start, child.first_key) == (i, node.end, key)
            assert child.start < child.end <= child.prompt.blocks
            # Its prompt begins with all that its ancestors spell, and has blocks of the tree's size.
            assert child.prompt.keys.startswith(node.prompt.keys[: node.end * KEY_BYTES])
            assert child.prompt.block_tokens == block_tokens


class Draft:
    """A tree being changed: its node map is open for mutation, so that one operation copies each inner map node at most
    once and hands back a map that the old tree does not see.
    """

    __slots__ = ("evictable", "nodes", "shares")

    def __init__(
        self, nodes: Map[int, Node], evictable: SortedTuple[tuple[int, int]], shares: Shares | None = None
    ) -> None:
        self.nodes: MapMutation[int, Node] = nodes.mutate()
        self.evictable = evictable
        self.shares = shares

    def charge(self, clients: tuple[int, ...], blocks: int) -> None:
        """Charge idle blocks to clients, where there are shares."""
        if self.shares is not None:
            self.shares = replace(self.shares, idle=charged(self.shares.idle, clients, blocks))

    def hold(self, i: int, client: int) -> None:
        """Let the client hold the path to node `i`, which it used.  Whoever holds a node holds those above it."""
        while i != ROOT and client not in (node := self.nodes[i]).holders:
            self.nodes[i] = replace(node, holders=(*node.holders, client))
            if not node.refs:
                self.charge((client,), node.end - node.start)
            i = node.parent

    def touch(self, i: int, stamp: int) -> None:
        """Stamp node `i`; an older stamp changes nothing."""
        node = self.nodes[i]
        if stamp > node.stamp:
            self.nodes[i] = replace(node, stamp=stamp)
            if is_victim(i, node):
                self.evictable = self.evictable.remove((node.stamp, i)).add((stamp, i))

    def can_grow(self, i: int, stamp: int, client: int) -> bool:
        """Return whether a new tail may lengthen node `i`: nothing pins its end, and tail and node will share a stamp,
        and be charged to the same client.

        Without this the turns of a long conversation would be a chain of nodes, each holding its turn's whole prompt.
        """
        node = self.nodes[i]
        if self.shares is not None and (node.holders != (client,) or node.keeper not in (NO_CLIENT, client)):
            return False
        return is_victim(i, node) and node.stamp <= stamp

    def grow(self, i: int, prompt: Prompt, blocks: int, owner: int, stamp: int) -> None:
        """Lengthen the unprotected leaf `i`, which becomes `owner`'s."""
        node = self.nodes[i]
        self.charge(node.holders, blocks - node.end)
        self.nodes[i] = replace(node, owner=owner, prompt=prompt, end=blocks, stamp=stamp)
        self.evictable = self.evictable.remove((node.stamp, i)).add((stamp, i))

    def attach(self, i: int, leaf: Node) -> None:
        """Hang `leaf`, to be node `i`, from its parent."""
        parent = self.nodes[leaf.parent]
        self.nodes[i] = leaf
        self.nodes[leaf.parent] = replace(parent, children=parent.children.set(leaf.first_key, i))
        if is_victim(leaf.parent, parent):
            self.evictable = self.evictable.remove((parent.stamp, leaf.parent))
        self.evictable = self.evictable.add((leaf.stamp, i))

    def cut(self, i: int, keep: int) -> Eviction:
        """Cut the unprotected leaf `i` after block `keep`; if nothing is left of it, it goes and stamps its parent."""
        leaf = self.nodes[i]
        self.charge(leaf.holders, max(keep, leaf.start) - leaf.end)
        if keep > leaf.start:
            self.nodes[i] = replace(leaf, end=keep)
            return Eviction(leaf.owner, leaf.prompt, keep, leaf.end - keep, i, False)
        del self.nodes[i]
        self.evictable = self.evictable.remove((leaf.stamp, i))
        old = self.nodes[leaf.parent]
        parent = replace(old, children=old.children.delete(leaf.first_key), stamp=max(old.stamp, leaf.stamp))
        self.nodes[leaf.parent] = parent
        if is_victim(leaf.parent, parent):
            self.evictable = self.evictable.add((parent.stamp, leaf.parent))
        return Eviction(leaf.owner, leaf.prompt, leaf.start, leaf.end - leaf.start, i, True)


def climb(nodes: MapMutation[int, Node], node: Node, step: int) -> int:
    """Tell the ancestors that `node` became protected (`step` 1) or unprotected (-1).

    Returns the blocks that changed with it, its own included.
    """
    blocks = node.end - node.start
    while node.parent != NO_NODE:
        i = node.parent
        node = nodes[i]
        nodes[i] = replace(node, refs=node.refs + step)
        if node.refs > (step < 0):
            break
        blocks += node.end - node.start
    return blocks


def leaves_first(nodes: Map[int, Node], top: int) -> list[int]:
    """Return the nodes of the subtree under `top`, children before parents, in an order that depends on ids alone."""
    order = [top]
    for i in order:
        order.extend(sorted(nodes[i].children.values()))
    return order[::-1]


# --- tree -------------------------------------------------------------------------------------------------------------


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
    the only possible victims, by (stamp, id).  A node is *protected* when it or a descendant is pinned.  `shares` says
    what is charged to which client, where clients have floors (`prefix_cache.shares`).

    With d nodes on the path (2 to 4 in practice: an unprotected leaf is lengthened, not chained), N nodes and E
    evictable leaves: `match` compares the prompt's bytes once, O(blocks) by memcmp, and looks up d children; `insert`
    is a match plus O(log N + sqrt E); `pin` and `unpin` are O(1 + ancestors that change protection); `evict` is
    O(log N + sqrt E) a victim; `drop` is a match plus that for each node removed.  With shares an eviction looks at all
    E leaves, and what becomes protected, or idle, takes O(its holders).
    """

    nodes: Map[int, Node]
    evictable: SortedTuple[tuple[int, int]]
    next_id: int
    block_tokens: int
    cached_tokens: int
    protected_tokens: int
    shares: Shares | None = None

    @classmethod
    def empty(cls, block_tokens: int = 1) -> "PrefixTree":
        """Return a tree that holds nothing.  It takes on the block size of the first prompt inserted."""
        root = Node(NO_NODE, Prompt(tokens=1), 0, 0, NO_CHILDREN, NO_NODE, 0, 0, 0)
        return cls(Map({ROOT: root}), SortedTuple(), ROOT + 1, block_tokens, 0, 0)

    def match(self, prompt: Prompt) -> Match:
        """Return the longest cached prefix of `prompt`; nothing is stamped.  Another block size matches nothing."""
        if prompt.block_tokens != self.block_tokens:
            return Match(ROOT, 0)
        return Match(*walk(self.nodes, prompt.keys))

    def prefix(self, node: int) -> tuple[Prompt, int]:
        """Return a prompt and how many of its leading blocks the path to `node` spells; `KeyError` if there is none."""
        known = self.nodes[node]
        return known.prompt, known.end

    def insert(
        self, prompt: Prompt, blocks: int, owner: int, stamp: int, client: int = NO_CLIENT
    ) -> tuple["PrefixTree", Insertion]:
        """Cache the first `blocks` blocks of `prompt` for request `owner` of `client`, and stamp them all as accessed
        at `stamp`.

        Raises `ValueError` if the prompt has fewer blocks, or blocks of another size than the tree holds.
        """
        if not 0 <= blocks * KEY_BYTES <= len(prompt.keys):
            raise ValueError(f"request {owner}: its prompt has {prompt.blocks} whole blocks, not {blocks}")
        if blocks and prompt.block_tokens != self.block_tokens and self.cached_tokens:
            raise ValueError(
                f"request {owner}: blocks of {prompt.block_tokens} tokens do not fit a tree of {self.block_tokens}"
            )
        base, matched = walk(self.nodes, prompt.keys[: blocks * KEY_BYTES])
        draft, next_id, parts = Draft(self.nodes, self.evictable, self.shares), self.next_id, None
        if matched < draft.nodes[base].end:
            split(draft.nodes, base, matched, next_id, pins=0, refs=int(draft.nodes[base].refs > 0))
            parts = next_id, base
            base = next_id
            next_id += 1
        node, leaf = base, None
        if matched == blocks:
            draft.touch(base, stamp)
        elif draft.can_grow(base, stamp, client):
            draft.grow(base, prompt, blocks, owner, stamp)
        else:
            node = leaf = next_id
            next_id += 1
            draft.attach(leaf, Node(base, prompt, matched, blocks, NO_CHILDREN, owner, stamp, 0, 0))
        if draft.shares is not None:
            draft.hold(node, client)
        block_tokens = prompt.block_tokens if blocks else self.block_tokens
        cached, protected = self.cached_tokens + (blocks - matched) * block_tokens, self.protected_tokens
        tree = PrefixTree(draft.nodes.finish(), draft.evictable, next_id, block_tokens, cached, protected, draft.shares)
        return tree, Insertion(node, base, matched, blocks - matched, parts, leaf)

    def cut(self, node: int, blocks: int, stamp: int) -> tuple["PrefixTree", Insertion]:
        """Cut `node` after the first `blocks` blocks of its prompt, and stamp what lies before as accessed then."""
        nodes, known, upper = self.nodes.mutate(), self.nodes[node], self.next_id
        split(nodes, node, blocks, upper, stamp=max(known.stamp, stamp), pins=0, refs=int(known.refs > 0))
        tree = replace(self, nodes=nodes.finish(), next_id=upper + 1)
        return tree, Insertion(upper, upper, blocks, 0, (upper, node), None)

    def pin(self, node: int, stamp: int, client: int = NO_CLIENT) -> "PrefixTree":
        """Keep the path to `node` from eviction for a request of `client`, until it is unpinned as often, and stamp it.

        Raises `KeyError` if there is no such node.
        """
        known = self.nodes[node]
        nodes, evictable = self.nodes.mutate(), self.evictable
        nodes[node] = replace(known, stamp=max(known.stamp, stamp), pins=known.pins + 1, refs=known.refs + 1)
        blocks = 0 if known.refs else climb(nodes, known, 1)
        if is_victim(node, known):
            evictable = evictable.remove((known.stamp, node))
        protected = self.protected_tokens + blocks * self.block_tokens
        shares = self.shares and _pinned(self.shares, nodes, node, blocks, client)
        return replace(self, nodes=nodes.finish(), evictable=evictable, protected_tokens=protected, shares=shares)

    def unpin(self, node: int, again: bool = False) -> "PrefixTree":
        """Take back one pin.  Raises `KeyError` if there is no such node, `ValueError` if it has no pin.

        If the same request pins the path `again` at once, what is charged to whom stays.
        """
        known = self.nodes[node]
        if not known.pins:
            raise ValueError(f"node {node} (cached for request {known.owner}) has no pin to take back")
        nodes, evictable = self.nodes.mutate(), self.evictable
        nodes[node] = unpinned = replace(known, pins=known.pins - 1, refs=known.refs - 1)
        blocks = 0 if unpinned.refs else climb(nodes, known, -1)
        if is_victim(node, unpinned):
            evictable = evictable.add((known.stamp, node))
        protected = self.protected_tokens - blocks * self.block_tokens
        shares = self.shares and _idle(self.shares, nodes, node, blocks, again)
        return replace(self, nodes=nodes.finish(), evictable=evictable, protected_tokens=protected, shares=shares)

    def stamped(self, node: int, stamp: int) -> "PrefixTree":
        """Count `node` as used at `stamp`, unless it was used later.  Raises `KeyError` if there is no such node."""
        draft = Draft(self.nodes, self.evictable)
        draft.touch(node, stamp)
        return replace(self, nodes=draft.nodes.finish(), evictable=draft.evictable)

    def evict(self, tokens: int, evictor: Evictor | None = None) -> tuple["PrefixTree", tuple[Eviction, ...]]:
        """Free at least `tokens` tokens, or all that is unprotected, from the tails of least recently used leaves.

        With an `evictor`, of those that it chooses, and as much as it lets go.  Never frees more than `tokens` rounded
        up to a block: the last victim keeps its head.
        """
        needed = max(-(-tokens // self.block_tokens), 0)
        draft, evictions = Draft(self.nodes, self.evictable, self.shares), list[Eviction]()
        if evictor is not None:
            self._evict_over(draft, needed, evictor, evictions)
            return self._after(draft, evictions), tuple(evictions)
        while needed and draft.evictable.size:
            _, victim = draft.evictable.first()
            eviction = draft.cut(victim, draft.nodes[victim].end - needed)
            evictions.append(eviction)
            needed -= eviction.blocks
        return self._after(draft, evictions), tuple(evictions)

    def _evict_over(self, draft: Draft, needed: int, evictor: Evictor, evictions: list[Eviction]) -> None:
        """Cut leaves of clients over their floors, a leaf at most until one of its holders is at its floor."""

        def offered(i: int) -> CachedBlock:
            node = draft.nodes[i]
            return CachedBlock(i, node.holders, node.stamp, (node.end - node.start) * self.block_tokens)

        nodes, over = self.nodes, {client for client in evictor.held if evictor.excess((client,)) > 0}
        evictor.offer([offered(i) for _, i in draft.evictable if over.issuperset(nodes[i].holders)])
        while needed and (found := evictor.next()):
            block, excess = found
            leaf = draft.nodes[block.item]
            eviction = draft.cut(block.item, leaf.end - min(needed, blocks_over(excess, self.block_tokens)))
            evictions.append(eviction)
            evictor.took(block, eviction.blocks * self.block_tokens)
            needed -= eviction.blocks
            if eviction.removed and is_victim(leaf.parent, draft.nodes[leaf.parent]):
                evictor.offer([offered(leaf.parent)])

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
        draft = Draft(self.nodes, self.evictable, self.shares)
        evictions = [draft.cut(victim, keep_blocks) for victim in leaves_first(self.nodes, top)]
        return self._after(draft, evictions), tuple(evictions)

    def _after(self, draft: Draft, evictions: list[Eviction]) -> "PrefixTree":
        cached = self.cached_tokens - sum(e.blocks for e in evictions) * self.block_tokens
        nodes, shares = draft.nodes.finish(), draft.shares
        return replace(self, nodes=nodes, evictable=draft.evictable, cached_tokens=cached, shares=shares)

    def to_json(self) -> dict[str, Any]:
        """Return the tree as plain lists, numbers and strings, with every id and stamp; keys are written once, in
        base64."""
        order = sorted(self.nodes.items(), key=lambda item: (item[1].start, item[0]))
        prompts: dict[Prompt, int] = {}
        rows = []
        for i, n in order:
            prompt = prompts.setdefault(n.prompt, len(prompts))
            rows.append([i, n.parent, n.owner, prompt, n.start, n.end, n.stamp, n.pins, _text(n.edge)])
        document = {
            "schema": SCHEMA,
            "block_tokens": self.block_tokens,
            "next_id": self.next_id,
            "nodes": rows,
            "prompts": [self._prompt_row(prompt) for prompt in prompts],
        }
        if self.shares is not None:
            document["shares"] = [[i, *n.holders, n.keeper] for i, n in order]
        return document

    def _prompt_row(self, prompt: Prompt) -> list[Any]:
        # A prompt may go on beyond what is still cached of it; only those keys are not in the nodes.
        match = self.match(prompt)
        rest = prompt.keys[match.blocks * KEY_BYTES :]
        return [prompt.tokens, prompt.block_tokens, match.node, match.blocks, _text(rest)]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "PrefixTree":
        """Return the tree that `to_json` wrote, equal in value; raises `ValueError` on another schema version."""
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
        shares = data.get("shares")
        for i, *holders, keeper in shares or ():
            nodes[i] = replace(nodes[i], holders=tuple(holders), keeper=keeper)
        block_tokens = data["block_tokens"]
        # Parents come before their children in `nodes`, so the reverse order knows a node's refs before its parent's.
        for i, node in reversed(list(nodes.items())):
            if i != ROOT:
                parent = nodes[node.parent]
                children = parent.children.set(node.first_key, i)
                nodes[node.parent] = replace(parent, children=children, refs=parent.refs + (nodes[i].refs > 0))
        return cls(
            shares=None if shares is None else Shares(*_charges(nodes)),
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
        if self.shares is not None:
            self._check_shares(self.shares)

    def _check_shares(self, shares: Shares) -> None:
        for i, node in self.nodes.items():
            if i != ROOT:
                # A node has holders, each once, and all that hold what lies below; a protected one has a keeper.
                assert node.holders
                assert len(set(node.holders)) == len(node.holders)
                assert all(set(self.nodes[c].holders) <= set(node.holders) for c in node.children.values())
                assert (node.keeper != NO_CLIENT) == (node.refs > 0)
        assert (shares.idle, shares.pinned) == _charges(self.nodes)


def _pinned(shares: Shares, nodes: MapMutation[int, Node], i: int, blocks: int, client: int) -> Shares:
    """Charge `blocks` blocks of the path up from node `i`, which became protected, to the client that pinned them."""
    idle, pinned = shares.idle, shares.pinned
    while blocks:
        node = nodes[i]
        keeper, size = client if node.keeper == NO_CLIENT else node.keeper, node.end - node.start
        nodes[i] = replace(node, keeper=keeper)
        idle, pinned = charged(idle, node.holders, -size), charged(pinned, (keeper,), size)
        i, blocks = node.parent, blocks - size
    return Shares(idle, pinned)


def _idle(shares: Shares, nodes: MapMutation[int, Node], i: int, blocks: int, again: bool) -> Shares:
    """Charge `blocks` blocks of the path up from node `i`, which are protected no more, to all their holders."""
    idle, pinned = shares.idle, shares.pinned
    while blocks:
        node = nodes[i]
        size = node.end - node.start
        idle, pinned = charged(idle, node.holders, size), charged(pinned, (node.keeper,), -size)
        if not again:
            nodes[i] = replace(node, keeper=NO_CLIENT)
        i, blocks = node.parent, blocks - size
    return Shares(idle, pinned)


def _charges(nodes: Mapping[int, Node]) -> tuple[Map[int, int], Map[int, int]]:
    """Return the idle and the pinned blocks that are charged to each client.  O(nodes and their holders)."""
    idle, pinned = Counter[int](), Counter[int]()
    for node in nodes.values():
        charges, clients = (pinned, (node.keeper,)) if node.refs else (idle, node.holders)
        charges.update(dict.fromkeys(clients, node.end - node.start))
    for charges in (idle, pinned):
        charges.pop(NO_CLIENT, None)
    return Map(idle), Map(pinned)


def _text(raw: bytes) -> str:
    return b64encode(raw).decode("ascii")


# --- pins of running requests -----------------------------------------------------------------------------------------

EMPTY_TREE = PrefixTree.empty()
NO_PINS: Map[int, int] = Map()


class PrefixCache(msgspec.Struct, frozen=True, gc=False):
    """A prefix tree and, for each request in the batch that holds a cached prefix, the node it pins."""

    tree: PrefixTree = EMPTY_TREE
    pins: Map[int, int] = NO_PINS

    def cached_tokens(self, prompt: Prompt) -> int:
        """Return tokens of the prompt that need not be computed; at least one always must be.  O(depth of the tree)."""
        if not prompt.keys:
            return 0
        return min(self.tree.match(prompt).blocks, prompt.reusable_blocks) * prompt.block_tokens

    def stop(self, prompt: Prompt) -> tuple[int, int]:
        """Return the deepest node that a prompt reaches, and how many of its blocks are cached.  O(depth)."""
        if not prompt.keys or prompt.block_tokens != self.tree.block_tokens:
            return ROOT, 0
        return walk(self.tree.nodes, prompt.keys)

    @classmethod
    def shared(cls) -> "PrefixCache":
        """Return an empty cache that knows what is charged to which client."""
        return cls(replace(EMPTY_TREE, shares=Shares()))

    def admit(
        self, request_id: int, prompt: Prompt, stamp: int, client: int = NO_CLIENT
    ) -> tuple["PrefixCache", int, Insertion | None]:
        """Pin the cached part of the prompt for this request; return also its tokens, and the cut made for it, if any.

        O(depth).
        """
        node, matched = self.stop(prompt)
        blocks = min(matched, (prompt.tokens - 1) // prompt.block_tokens)
        if not blocks:
            return self, 0, None
        cache, insertion = self.pin(request_id, node, blocks, stamp, client)
        return cache, blocks * prompt.block_tokens, insertion

    def pin(
        self, request_id: int, node: int, blocks: int, stamp: int, client: int = NO_CLIENT
    ) -> tuple["PrefixCache", Insertion | None]:
        """Pin the first `blocks` of a prompt that reaches `node`, or beyond them, one at least, for this request.

        A node that goes on beyond what is used is cut there: a last block that is cached and computed again all the
        same would otherwise take its memory twice, and a request that fits alone might never fit.  O(depth).
        """
        tree, insertion = self.tree, None
        while blocks <= tree.nodes[node].start:
            node = tree.nodes[node].parent
        if blocks < tree.nodes[node].end:
            tree, insertion = tree.cut(node, blocks, stamp)
            node = insertion.node
        return PrefixCache(tree.pin(node, stamp, client), self.pins.set(request_id, node)), insertion

    def complete(
        self, request_id: int, prompt: Prompt, blocks: int, stamp: int, client: int = NO_CLIENT
    ) -> tuple["PrefixCache", Insertion]:
        """Cache the first `blocks` blocks, computed by this request of `client`, and pin them for it.  O(depth).

        What it had pinned is let go before, so that the turns of a conversation lengthen one node.
        """
        tree, insertion = self.release(request_id, again=True).tree.insert(prompt, blocks, request_id, stamp, client)
        tree = tree.pin(insertion.node, stamp, client)
        return PrefixCache(tree, self.pins.set(request_id, insertion.node)), insertion

    def keep(self, request_id: int, until: int) -> "PrefixCache":
        """Count what the request pins as used at `until`, which may be later than now."""
        pinned = self.pins.get(request_id)
        return self if pinned is None else PrefixCache(self.tree.stamped(pinned, until), self.pins)

    def release(self, request_id: int, again: bool = False) -> "PrefixCache":
        """Drop the request's pin, if it has one (see `PrefixTree.unpin`).  O(depth)."""
        pinned = self.pins.get(request_id)
        if pinned is None:
            return self
        return PrefixCache(self.tree.unpin(pinned, again), self.pins.delete(request_id))

    def evict(self, tokens: int, evictor: Evictor | None = None) -> tuple["PrefixCache", tuple[Eviction, ...]]:
        """Free at least `tokens` unpinned tokens, least recently used leaf first, or what an evictor chooses."""
        tree, evictions = self.tree.evict(tokens, evictor)
        return PrefixCache(tree, self.pins), evictions

    def evicted(self, prompt: Prompt, keep_blocks: int) -> tuple["PrefixCache", tuple[Eviction, ...]]:
        """Follow an eviction that happened in the cache of which this is a copy."""
        tree, evictions = self.tree.drop(prompt, keep_blocks)
        return PrefixCache(tree, self.pins), evictions

    def cacheable(self, prompt: Prompt) -> bool:
        """Return whether this cache can hold the prompt: it has keys, and blocks of the size that the cache has."""
        return bool(prompt.keys) and (not self.tree.cached_tokens or self.tree.block_tokens == prompt.block_tokens)


# --- key chains beside each other -------------------------------------------------------------------------------------


def common_keys(left: bytes, right: bytes, key_bytes: int) -> int:
    """Leading keys that two chains share.  O(bytes), by memcmp where one begins with the other.

    A chain is the keys of a prompt's blocks as bytes, `key_bytes` bytes a key (`model.request.Prompt.keys` has eight;
    token ids below 2^32 go into four).  In sorted order, chains that share a prefix stand side by side.

    >>> common_keys(b"aabbcc", b"aabbcd", 2)
    2
    """
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size // key_bytes
    keys = f"<u{key_bytes}"
    differs = np.frombuffer(left, keys, size // key_bytes) != np.frombuffer(right, keys, size // key_bytes)
    return int(differs.argmax())
