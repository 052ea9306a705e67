"""A draft of a prefix index, in which one operation changes several nodes.

A boundary between two nodes exists only where something changes: where prompts part, where other workers hold on,
where a hit of the window ends, or where the last access of a worker ended.  `settle` takes away what is no longer
needed, so the tree stays as small as what it says, whatever its history.
"""

from immutables import Map, MapMutation
from msgspec.structs import replace

from fairsched.model.prefix_cache.index_node import NOTHING, IndexNode, Shelf, bits
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
        below = Map((worker, 1) for worker in bits(self.nodes[lower].held))
        split(self.nodes, lower, at, upper, below=below, stamps=NOTHING, ends=0)

    def attach(self, i: int, parent: int, prompt: Prompt, start: int, end: int) -> None:
        """Hang a leaf from `parent`, to be node `i`, that no worker holds yet."""
        above = self.nodes[parent]
        leaf = IndexNode(parent, prompt, start, end, NO_CHILDREN, 0, NOTHING, NOTHING, NOTHING, 0)
        self.nodes[i] = leaf
        self.nodes[parent] = replace(above, children=above.children.set(leaf.first_key, i))

    def access(self, last: int, stamp: int, hit: int) -> None:
        """The worker holds the path to node `last` and used it at `stamp`, which counts as `hit` (0 or 1) hits."""
        nodes, worker, bit = self.nodes, self.worker, self.bit
        node = nodes[last]
        if last != ROOT:
            if not node.below.get(worker):
                self._leave(node, last)
                self.order = self.order.add((stamp, last))
            node = replace(node, stamps=node.stamps.set(worker, stamp))
        i, step, joints = last, hit, []
        while True:
            gained = not node.held & bit
            hits = node.hits.set(worker, node.hits.get(worker, 0) + 1) if hit else node.hits
            held = node.held | bit
            nodes[i] = replace(node, held=held, hits=hits, ends=node.ends + step)
            if gained:
                self.blocks += node.end - node.start
            if i == ROOT:
                break
            i, step = node.parent, 0
            node = self._passed(nodes[i], i, gained)
            if len(node.children) == 1 and not node.ends and not node.stamps and held == node.held | bit and i != ROOT:
                joints.append(i)
        for i in joints:
            self._join(i)

    def _leave(self, node: IndexNode, i: int) -> None:
        """Node `i` is no longer the worker's leaf with the stamp it had, if it was."""
        old = node.stamps.get(self.worker)
        if old is not None:
            self.order = self.order.remove((old, i))

    def _passed(self, node: IndexNode, i: int, gained: bool) -> IndexNode:
        """Node `i` after an access that goes on to a child, which the worker may just have gained."""
        worker, below, stamps = self.worker, node.below, node.stamps
        if gained:
            count = below.get(worker, 0)
            if not count:
                self._leave(node, i)
            below = below.set(worker, count + 1)
        if worker in stamps:
            stamps = stamps.delete(worker)
        elif not gained:
            return node
        return replace(node, below=below, stamps=stamps)

    def expire(self, last: int) -> None:
        """A hit of the worker that ended with node `last` leaves the window."""
        nodes, worker = self.nodes, self.worker
        i, step = last, 1
        while i != NO_NODE:
            node = nodes[i]
            count = node.hits[worker] - 1
            hits = node.hits.set(worker, count) if count else node.hits.delete(worker)
            nodes[i] = replace(node, hits=hits, ends=node.ends - step)
            i, step = node.parent, 0
        self.settle(last)

    def forget(self, top: int) -> None:
        """The worker no longer holds node `top`, nor anything below it; what it used last there, its parent hands on.

        O(nodes it loses, and their children).
        """
        nodes, worker, bit = self.nodes, self.worker, self.bit
        lost, latest = [top], NO_NODE
        for i in lost:
            node = nodes[i]
            below, stamps = node.below, node.stamps
            if worker in stamps:
                latest = max(latest, stamps[worker])
                stamps = stamps.delete(worker)
            if worker in below:
                lost.extend(c for c in node.children.values() if nodes[c].held & bit)
                below = below.delete(worker)
            else:
                self._leave(node, i)
            nodes[i] = replace(node, held=node.held ^ bit, below=below, stamps=stamps)
            self.blocks -= node.end - node.start
        self._lose_child(nodes[top].parent, latest)
        for i in reversed(lost):
            self.settle(i)

    def _lose_child(self, i: int, latest: int) -> None:
        """One child of node `i`, last used at `latest`, is gone for the worker: `i` may be its leaf now."""
        node, worker = self.nodes[i], self.worker
        count = node.below[worker] - 1
        below = node.below.set(worker, count) if count else node.below.delete(worker)
        stamps = node.stamps
        if i != ROOT:
            stamp = max(latest, stamps.get(worker, latest))
            stamps = stamps.set(worker, stamp)
            if not count:
                self.order = self.order.add((stamp, i))
        self.nodes[i] = replace(node, below=below, stamps=stamps)

    def settle(self, i: int) -> None:
        """Remove node `i` if it has no holder and no hit, and its ancestors likewise; join the rest where it is one."""
        nodes = self.nodes
        while i != ROOT and (node := nodes.get(i)) is not None:
            if node.children:
                if len(node.children) == 1 and not node.ends and not node.stamps:
                    (child,) = node.children.values()
                    if nodes[child].held == node.held:
                        self._join(i)
                return
            if node.held or node.hits:
                return
            del nodes[i]
            parent = nodes[node.parent]
            nodes[node.parent] = replace(parent, children=parent.children.delete(node.first_key))
            i = node.parent

    def _join(self, upper: int) -> None:
        """The only child of node `upper` takes over its blocks."""
        nodes = self.nodes
        node = nodes[upper]
        (lower,) = node.children.values()
        parent = nodes[node.parent]
        nodes[lower] = replace(nodes[lower], parent=node.parent, start=node.start)
        nodes[node.parent] = replace(parent, children=parent.children.set(node.first_key, lower))
        del nodes[upper]
