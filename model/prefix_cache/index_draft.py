"""A draft of a prefix index, in which one operation changes several nodes.

A boundary between two nodes exists only where something changes: where prompts part, where other workers hold on,
where a hit of the window ends, or where the last access of a worker ended.  What is no longer needed is taken
away, so the tree stays as small as what it says, whatever its history.
"""

from immutables import Map, MapMutation
from msgspec.structs import replace

from fairsched.model.prefix_cache.index_node import NOTHING, IndexNode, Shelf, bits, less, more, one
from fairsched.model.prefix_cache.tree_draft import NO_CHILDREN, NO_NODE, ROOT, split
from fairsched.model.request import Prompt


class IndexDraft:
    """An index being changed on behalf of one worker: its node map is open for mutation, so that an operation copies
    each inner map node at most once, and `order` is the worker's order of eviction.
    """

    __slots__ = ("bit", "blocks", "nodes", "order", "worker")

    def __init__(self, nodes: Map[int, IndexNode], worker: int, shelf: Shelf) -> None:
        self.nodes: MapMutation[int, IndexNode] = nodes.mutate()
        self.worker, self.bit = worker, 1 << worker
        self.order, self.blocks = shelf.order, shelf.blocks

    def shelf(self) -> Shelf:
        """What the worker holds now."""
        return Shelf(self.order, self.blocks)

    def split(self, lower: int, at: int, upper: int) -> None:
        """Cut node `lower` at block `at`; node `upper` takes over what lies before.  O(workers that hold it)."""
        held = self.nodes[lower].held
        below = one(self.worker) if held == self.bit else Map(dict.fromkeys(bits(held), 1))
        split(self.nodes, lower, at, upper, below=below, stamps=NOTHING, ends=0)

    def attach(self, i: int, parent: int, prompt: Prompt, start: int, end: int, stamp: int, hit: int) -> None:
        """Hang a leaf from `parent`, to be node `i`, that the worker uses at `stamp`, with `hit` (0 or 1) hits."""
        worker = self.worker
        stamps, hits = NOTHING.set(worker, stamp), one(worker) if hit else NOTHING
        leaf = IndexNode(parent, prompt, start, end, NO_CHILDREN, self.bit, NOTHING, stamps, hits, hit)
        self.nodes[i] = leaf
        self.order, self.blocks = self.order.add((stamp, i)), self.blocks + end - start
        self._climb(parent, self.bit, True, hit, leaf.first_key, i)

    def access(self, last: int, stamp: int, hit: int) -> None:
        """The worker holds the path to node `last` and used it at `stamp`, which counts as `hit` (0 or 1) hits."""
        worker, bit, node = self.worker, self.bit, self.nodes[last]
        held, stamps = node.held, node.stamps
        if last != ROOT:
            if worker not in node.below:
                self._leave(stamps, last)
                self.order = self.order.add((stamp, last))
            stamps = stamps.set(worker, stamp)
        gained = not held & bit
        if gained:
            held |= bit
            self.blocks += node.end - node.start
        hits = more(node.hits, worker) if hit else node.hits
        self.nodes[last] = replace(node, held=held, stamps=stamps, hits=hits, ends=node.ends + hit)
        if last != ROOT:
            self._climb(node.parent, held, gained, hit)

    def _climb(self, i: int, held: int, gained: bool, hit: int, key: bytes = b"", child: int = ROOT) -> None:
        """An access goes on from node `i` to a child with the holders `held`, which the worker may just have `gained`;
        a new one is `child`, known by `key`.
        """
        nodes, worker, bit = self.nodes, self.worker, self.bit
        joints = []
        while True:
            node = nodes[i]
            children, below, stamps, hits, above = node.children, node.below, node.stamps, node.hits, node.held
            if key:
                children, key = children.set(key, child), b""
            if gained:
                if worker in below:
                    below = below.set(worker, below[worker] + 1)
                else:
                    self._leave(stamps, i)
                    below = below.set(worker, 1) if below else one(worker)
            used = worker in stamps
            if used:
                stamps = less(stamps, worker)
            if hit:
                hits = more(hits, worker)
            gains = not above & bit
            if gains:
                above |= bit
                self.blocks += node.end - node.start
            if gained or hit or used:
                nodes[i] = replace(node, children=children, held=above, below=below, stamps=stamps, hits=hits)
            if i == ROOT:
                break
            if len(children) == 1 and not (stamps or node.ends) and held == above:
                joints.append(i)
            i, held, gained = node.parent, above, gains
        for i in joints:
            _join(nodes, i)

    def _leave(self, stamps: Map[int, int], i: int) -> None:
        """Node `i` is no longer the worker's leaf with the stamp it had, if it was."""
        old = stamps.get(self.worker)
        if old is not None:
            self.order = self.order.remove((old, i))

    def forget(self, top: int) -> None:
        """The worker no longer holds node `top`, nor anything below it; what it used last there, its parent hands on.

        O(nodes it loses, and their children).
        """
        nodes, worker, bit = self.nodes, self.worker, self.bit
        lost = [top]
        for i in lost:
            node = nodes[i]
            if worker in node.below:
                lost.extend([c for c in node.children.values() if nodes[c].held & bit])
        for i in reversed(lost):
            self._forget_leaf(i)

    def _forget_leaf(self, i: int) -> None:
        """The worker no longer holds its leaf `i`, whose parent may be its leaf now."""
        nodes, worker = self.nodes, self.worker
        leaf = nodes[i]
        up, stamp, held = leaf.parent, leaf.stamps[worker], leaf.held ^ self.bit
        self.order, self.blocks = self.order.remove((stamp, i)), self.blocks - leaf.end + leaf.start
        node = nodes[up]
        children, below, stamps = node.children, node.below, node.stamps
        count = below[worker] - 1
        below = below.set(worker, count) if count else less(below, worker)
        if up != ROOT:
            latest = max(stamp, stamps.get(worker, stamp))
            stamps = stamps.set(worker, latest)
            if not count:
                self.order = self.order.add((latest, up))
        stays = leaf.children or held or leaf.hits
        if stays:
            nodes[i] = replace(leaf, held=held, stamps=less(leaf.stamps, worker))
        else:
            del nodes[i]
            children = children.delete(leaf.first_key)
        nodes[up] = replace(node, children=children, below=below, stamps=stamps)
        if stays:
            _settle(nodes, i)

    def cut(self, i: int, keep: int, upper: int) -> None:
        """The worker holds of node `i` only what lies before block `keep`, which becomes node `upper`.

        O(workers that hold it, and what the worker holds below it).
        """
        nodes, worker = self.nodes, self.worker
        if worker in nodes[i].below:
            for child in nodes[i].children.values():
                if nodes[child].held & self.bit:
                    self.forget(child)
        leaf = nodes[i]
        stamp, held, children = leaf.stamps[worker], leaf.held ^ self.bit, NO_CHILDREN
        self.order, self.blocks = self.order.remove((stamp, i)).add((stamp, upper)), self.blocks - leaf.end + keep
        stays = leaf.children or held or leaf.hits
        if stays:
            low = replace(leaf, parent=upper, start=keep, held=held, stamps=less(leaf.stamps, worker))
            nodes[i], children = low, children.set(low.first_key, i)
        else:
            del nodes[i]
        below, stamps = Map(dict.fromkeys(bits(held), 1)) if held else NOTHING, NOTHING.set(worker, stamp)
        nodes[upper] = replace(leaf, end=keep, children=children, below=below, stamps=stamps, ends=0)
        node = nodes[leaf.parent]
        nodes[leaf.parent] = replace(node, children=node.children.set(leaf.first_key, upper))
        if stays:
            _settle(nodes, i)


def expire(nodes: MapMutation[int, IndexNode], worker: int, last: int) -> None:
    """A hit of the worker that ended with node `last` leaves the window, and nodes that only it kept."""
    i, ends, gone, stays = last, 1, b"", ROOT
    while i != NO_NODE:
        node = nodes[i]
        children, hits = node.children, node.hits
        count = hits[worker] - 1
        hits = hits.set(worker, count) if count else less(hits, worker)
        if gone:
            children = children.delete(gone)
        if hits or children or node.held:
            nodes[i] = replace(node, children=children, hits=hits, ends=node.ends - ends)
            gone, stays = b"", stays or i
        else:
            del nodes[i]
            gone = node.first_key
        i, ends = node.parent, 0
    if stays != ROOT:
        _settle(nodes, stays)


def _settle(nodes: MapMutation[int, IndexNode], i: int) -> None:
    """Join node `i` with its only child where nothing parts them any more."""
    node = nodes[i]
    if len(node.children) == 1 and not node.ends and not node.stamps:
        (child,) = node.children.values()
        if nodes[child].held == node.held:
            _join(nodes, i)


def _join(nodes: MapMutation[int, IndexNode], upper: int) -> None:
    """The only child of node `upper` takes over its blocks."""
    node = nodes[upper]
    (lower,) = node.children.values()
    parent = nodes[node.parent]
    nodes[lower] = replace(nodes[lower], parent=node.parent, start=node.start)
    nodes[node.parent] = replace(parent, children=parent.children.set(node.first_key, lower))
    del nodes[upper]
