"""A draft of a prefix index, in which one operation changes several nodes.

A boundary between two nodes exists only where something changes: where prompts part, where other workers hold on,
where a hit of the window ends, or where the last access of a worker ended.  What is no longer needed is taken
away, so the tree stays as small as what it says, whatever its history.
"""

from immutables import Map, MapMutation
from msgspec.structs import replace

from fairsched.model.prefix_cache.index_node import NOTHING, IndexNode, Shelf, bits, fewer, less, more, one
from fairsched.model.prefix_cache.tree import NO_CHILDREN, ROOT, SortedTuple, split
from fairsched.model.request import KEY_BYTES, Prompt


class IndexDraft:
    """An index being changed on behalf of one worker: its node map is open for mutation, so that an operation copies
    each inner map node at most once, and `order` is the worker's order of eviction.
    """

    __slots__ = ("bit", "blocks", "nodes", "order", "worker")

    def __init__(self, nodes: Map[int, IndexNode], worker: int, shelf: Shelf) -> None:
        self.nodes: MapMutation[int, IndexNode] = nodes.mutate()
        self.worker = worker
        self.bit = 1 << worker
        self.order = shelf.order
        self.blocks = shelf.blocks

    def split(self, lower: int, at: int, upper: int) -> None:
        """Cut node `lower` at block `at`; node `upper` takes over what lies before.  O(workers that hold it)."""
        held = self.nodes[lower].held
        below = one(self.worker) if held == self.bit else Map(dict.fromkeys(bits(held), 1))
        split(self.nodes, lower, at, upper, below=below, stamps=NOTHING, ends=NOTHING)

    def attach(self, i: int, parent: int, prompt: Prompt, start: int, end: int, stamp: int, hit: int) -> None:
        """Hang a leaf from `parent`, to be node `i`, that the worker uses at `stamp`, with `hit` (0 or 1) hits."""
        worker = self.worker
        first = start * KEY_BYTES
        ends = one(worker) if hit else NOTHING
        self.nodes[i] = IndexNode(
            parent, prompt, start, end, NO_CHILDREN, self.bit, NOTHING, NOTHING.set(worker, stamp), ends
        )
        self.order = self.order.add((stamp, i))
        self.blocks += end - start
        self._gain(parent, prompt.keys[first : first + KEY_BYTES], i)

    def access(self, last: int, stamp: int, hit: int) -> None:
        """Let the worker hold the path to node `last`, used at `stamp`, which counts as `hit` (0 or 1) hits."""
        worker, node = self.worker, self.nodes[last]
        held, stamps = node.held, node.stamps
        if last != ROOT:
            if worker not in node.below:
                self._leave(stamps, last)
                self.order = self.order.add((stamp, last))
            stamps = stamps.set(worker, stamp)
        gained = not held >> worker & 1
        if gained:
            held |= self.bit
            self.blocks += node.end - node.start
        ends = more(node.ends, worker) if hit else node.ends
        self.nodes[last] = replace(node, held=held, stamps=stamps, ends=ends)
        if gained:
            self._gain(node.parent)
        else:
            self._pass(node.parent)

    def _gain(self, i: int, key: bytes = b"", child: int = ROOT) -> None:
        """Follow an access from node `i` to a child that the worker did not hold; a new one is `child`, by `key`."""
        nodes, worker = self.nodes, self.worker
        gained = True
        while gained:
            node = nodes[i]
            children, held, below, stamps = node.children, node.held, node.below, node.stamps
            if key:
                children, key = children.set(key, child), b""
            if worker in below:
                below, gained = below.set(worker, below[worker] + 1), False
            else:
                self._leave(stamps, i)
                below = below.set(worker, 1) if below else one(worker)
                # A worker that holds a child holds the node above it.
                gained = not held >> worker & 1
                if gained:
                    held |= self.bit
                    self.blocks += node.end - node.start
            if worker in stamps:
                stamps = less(stamps, worker)
            nodes[i] = replace(node, children=children, held=held, below=below, stamps=stamps)
            if len(children) == 1 and i != ROOT:
                _settle(nodes, i)
            i = node.parent
        self._pass(i)

    def _pass(self, i: int) -> None:
        """Follow an access from node `i` to a child that the worker held."""
        nodes, worker = self.nodes, self.worker
        while i > ROOT:
            node = nodes[i]
            stamps = node.stamps
            if worker in stamps:
                nodes[i] = replace(node, stamps=less(stamps, worker))
                _settle(nodes, i)
            i = node.parent

    def _leave(self, stamps: Map[int, int], i: int) -> None:
        """Node `i` is no longer the worker's leaf with the stamp it had, if it was."""
        old = stamps.get(self.worker)
        if old is not None:
            self.order = self.order.remove((old, i))

    def forget(self, top: int) -> None:
        """Forget node `top`, and all below it, of what the worker holds; what it used last there, its parent hands on.

        O(nodes it loses, and their children).
        """
        nodes, worker, bit = self.nodes, self.worker, self.bit
        if worker in nodes[top].below:
            lost = [top]
            for i in lost:
                node = nodes[i]
                if worker in node.below:
                    lost.extend([c for c in node.children.values() if nodes[c].held & bit])
            for i in reversed(lost[1:]):
                self._forget_leaf(i)
        self._forget_leaf(top)

    def _forget_leaf(self, i: int) -> None:
        """Forget leaf `i`, whose parent may be a leaf now, of what the worker holds."""
        leaf = self.nodes[i]
        self.order = leaf_lost(self.nodes, self.worker, i, leaf, self.order)
        self.blocks += leaf.start - leaf.end

    def cut(self, i: int, keep: int, upper: int) -> None:
        """Keep of node `i` only what lies before block `keep`, which becomes node `upper`.

        O(workers that hold it, and what the worker holds below it).
        """
        nodes, worker = self.nodes, self.worker
        if worker in nodes[i].below:
            for child in nodes[i].children.values():
                if nodes[child].held & self.bit:
                    self.forget(child)
        leaf = nodes[i]
        stamp, held, children = leaf.stamps[worker], leaf.held ^ self.bit, NO_CHILDREN
        self.order, self.blocks = self.order.exchange((stamp, i), (stamp, upper)), self.blocks - leaf.end + keep
        stays = leaf.children or held or leaf.ends
        if stays:
            low = replace(leaf, parent=upper, start=keep, held=held, stamps=less(leaf.stamps, worker))
            nodes[i], children = low, children.set(low.first_key, i)
        else:
            del nodes[i]
        below, stamps = Map(dict.fromkeys(bits(held), 1)) if held else NOTHING, NOTHING.set(worker, stamp)
        nodes[upper] = replace(leaf, end=keep, children=children, below=below, stamps=stamps, ends=NOTHING)
        node = nodes[leaf.parent]
        nodes[leaf.parent] = replace(node, children=node.children.set(leaf.first_key, upper))
        if stays:
            _settle(nodes, i)


def leaf_lost(
    nodes: MapMutation[int, IndexNode], worker: int, i: int, leaf: IndexNode, order: SortedTuple[tuple[int, int]]
) -> SortedTuple[tuple[int, int]]:
    """Take leaf `i`, whose parent may be a leaf now, from what the worker holds; returns its order of eviction."""
    up, own, held = leaf.parent, leaf.stamps, leaf.held ^ 1 << worker
    node, stamp = nodes[up], own[worker]
    below, stamps = node.below, node.stamps
    order = order.remove((stamp, i))
    if up != ROOT:
        if worker in stamps and stamps[worker] > stamp:
            stamp = stamps[worker]
        else:
            stamps = stamps.set(worker, stamp)
        if below[worker] == 1:
            order = order.add((stamp, up))
    below, children = fewer(below, worker), leaf.children
    if held or leaf.ends or children:
        nodes[i] = replace(leaf, held=held, stamps=less(own, worker))
        nodes[up] = replace(node, below=below, stamps=stamps)
        if len(children) == 1 and not leaf.ends:
            _settle(nodes, i)
    else:
        del nodes[i]
        nodes[up] = replace(node, children=node.children.delete(leaf.first_key), below=below, stamps=stamps)
    return order


def expire(nodes: MapMutation[int, IndexNode], worker: int, last: int) -> None:
    """Let a hit of the worker that ended with node `last` leave the window, and nodes that only it kept."""
    i, node = last, nodes[last]
    ends, children = fewer(node.ends, worker), node.children
    while i != ROOT and not (ends or node.held or children):
        del nodes[i]
        gone, i = node.first_key, node.parent
        node = nodes[i]
        ends, children = node.ends, node.children.delete(gone)
    nodes[i] = replace(node, children=children, ends=ends)
    if len(children) == 1 and i != ROOT and not ends:
        _settle(nodes, i)


def _settle(nodes: MapMutation[int, IndexNode], i: int) -> None:
    """Join node `i` with its only child where nothing parts them any more."""
    node = nodes[i]
    if len(node.children) == 1 and not node.ends and not node.stamps:
        (child,) = node.children.values()
        if nodes[child].held == node.held:
            _join(nodes, i)


def _join(nodes: MapMutation[int, IndexNode], upper: int) -> None:
    """Give the blocks of node `upper` to its only child."""
    node = nodes[upper]
    (lower,) = node.children.values()
    parent = nodes[node.parent]
    nodes[lower] = replace(nodes[lower], parent=node.parent, start=node.start)
    nodes[node.parent] = replace(parent, children=parent.children.set(node.first_key, lower))
    del nodes[upper]
