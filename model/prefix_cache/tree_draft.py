"""The nodes of a prefix tree, and a draft in which one operation changes several of them."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np
from immutables import Map, MapMutation
from msgspec.structs import replace

from fairsched.model.prefix_cache.sorted_tuple import SortedTuple
from fairsched.model.request import KEY_BYTES, Prompt

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
    exactly when `refs` is positive.
    """

    owner: int
    stamp: int
    pins: int
    refs: int


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
    """Whether node `i` may be evicted: a leaf without pins."""
    return i != ROOT and not node.children and not node.refs


def walk(nodes: Mapping[int, Span], keys: bytes) -> tuple[int, int]:
    """The deepest node that `keys` reach, perhaps only in part, and the number of blocks matched."""
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
    """The node that has block `block` of this very prompt, found by first keys alone; the root if that is not sure.

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

    __slots__ = ("evictable", "nodes")

    def __init__(self, nodes: Map[int, Node], evictable: SortedTuple[tuple[int, int]]) -> None:
        self.nodes: MapMutation[int, Node] = nodes.mutate()
        self.evictable = evictable

    def split(self, lower: int, at: int, upper: int) -> None:
        """Cut node `lower` at block `at`; node `upper` takes over what lies before."""
        split(self.nodes, lower, at, upper, pins=0, refs=int(self.nodes[lower].refs > 0))

    def touch(self, i: int, stamp: int) -> None:
        """Stamp node `i`; an older stamp changes nothing."""
        node = self.nodes[i]
        if stamp > node.stamp:
            self.nodes[i] = replace(node, stamp=stamp)
            if is_victim(i, node):
                self.evictable = self.evictable.remove((node.stamp, i)).add((stamp, i))

    def can_grow(self, i: int, stamp: int) -> bool:
        """Whether a new tail may lengthen node `i`: nothing pins its end, and tail and node will share a stamp.

        Without this the turns of a long conversation would be a chain of nodes, each holding its turn's whole prompt.
        """
        node = self.nodes[i]
        return is_victim(i, node) and node.stamp <= stamp

    def grow(self, i: int, prompt: Prompt, blocks: int, owner: int, stamp: int) -> None:
        """Lengthen the unprotected leaf `i`, which becomes `owner`'s."""
        node = self.nodes[i]
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
    """The nodes of the subtree under `top`, children before parents, in an order that depends on ids alone."""
    order = [top]
    for i in order:
        order.extend(sorted(nodes[i].children.values()))
    return order[::-1]


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
