"""A draft of a prefix index, in which one operation changes several nodes.

A boundary between two nodes exists only where something changes: where prompts part, where other workers hold on,
where a hit of the window ends, or where the last access of a worker ended.  `settle` takes away what is no longer
needed, so the tree stays as small as what it says, whatever its history.
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

    def attach(self, i: int, parent: int, prompt: Prompt, start: int, end: int) -> None:
        """Hang a leaf from `parent`, to be node `i`, that no worker holds yet."""
        above = self.nodes[parent]
        leaf = IndexNode(parent, prompt, start, end, NO_CHILDREN, 0, NOTHING, NOTHING, NOTHING, 0)
        self.nodes[i] = leaf
        self.nodes[parent] = replace(above, children=above.children.set(leaf.first_key, i))

    def access(self, last: int, stamp: int, hit: int) -> None:
        """The worker holds the path to node `last` and used it at `stamp`, which counts as `hit` (0 or 1) hits."""
        nodes, worker, bit = self.nodes, self.worker, self.bit
        i, node, ends, joints = last, nodes[last], hit, []
        below, stamps = node.below, node.stamps
        if last != ROOT:
            if worker not in below:
                self._leave(node, last)
                self.order = self.order.add((stamp, last))
            stamps = stamps.set(worker, stamp)
        changes = True
        while True:
            held, hits = node.held, node.hits
            gained = not held & bit
            if gained:
                held |= bit
                self.blocks += node.end - node.start
            if hit:
                hits = more(hits, worker)
            if changes or hit:
                nodes[i] = replace(node, held=held, below=below, stamps=stamps, hits=hits, ends=node.ends + ends)
            if i == ROOT:
                break
            # The node above after an access that goes on to a child, which the worker may just have gained.
            i, ends = node.parent, 0
            node = nodes[i]
            below, stamps = node.below, node.stamps
            changes = gained or worker in stamps
            if gained:
                below = self._gained_child(node, i)
            if worker in stamps:
                stamps = less(stamps, worker)
            if not (stamps or node.ends or i == ROOT) and len(node.children) == 1 and held == node.held | bit:
                joints.append(i)
        for i in joints:
            _join(nodes, i)

    def _gained_child(self, node: IndexNode, i: int) -> Map[int, int]:
        """What workers hold below node `i` after this one gained a child."""
        count = node.below.get(self.worker, 0)
        if count:
            return node.below.set(self.worker, count + 1)
        self._leave(node, i)
        return more(node.below, self.worker)

    def _leave(self, node: IndexNode, i: int) -> None:
        """Node `i` is no longer the worker's leaf with the stamp it had, if it was."""
        old = node.stamps.get(self.worker)
        if old is not None:
            self.order = self.order.remove((old, i))

    def forget(self, top: int) -> None:
        """The worker no longer holds node `top`, nor anything below it; what it used last there, its parent hands on.

        O(nodes it loses, and their children).
        """
        nodes, worker, bit = self.nodes, self.worker, self.bit
        lost, latest = [top], NO_NODE
        for i in lost:
            node = nodes[i]
            below, stamps = node.below, node.stamps
            stamp = stamps.get(worker)
            if stamp is not None:
                latest = max(latest, stamp)
                stamps = less(stamps, worker)
            if worker in below:
                lost.extend([c for c in node.children.values() if nodes[c].held & bit])
                below = less(below, worker)
            elif stamp is not None:
                self.order = self.order.remove((stamp, i))
            nodes[i] = replace(node, held=node.held ^ bit, below=below, stamps=stamps)
            self.blocks -= node.end - node.start
        self._lose_child(nodes[top].parent, latest)
        for i in reversed(lost):
            settle(nodes, i)

    def _lose_child(self, i: int, latest: int) -> None:
        """One child of node `i`, last used at `latest`, is gone for the worker: `i` may be its leaf now."""
        node, worker = self.nodes[i], self.worker
        below, stamps, count = node.below, node.stamps, node.below[worker] - 1
        below = below.set(worker, count) if count else less(below, worker)
        if i != ROOT:
            stamp = max(latest, stamps.get(worker, latest))
            stamps = stamps.set(worker, stamp)
            if not count:
                self.order = self.order.add((stamp, i))
        self.nodes[i] = replace(node, below=below, stamps=stamps)


def expire(nodes: MapMutation[int, IndexNode], worker: int, last: int) -> None:
    """A hit of the worker that ended with node `last` leaves the window."""
    i, ends = last, 1
    while i != NO_NODE:
        node = nodes[i]
        hits = node.hits
        count = hits[worker]
        hits = hits.set(worker, count - 1) if count > 1 else less(hits, worker)
        nodes[i] = replace(node, hits=hits, ends=node.ends - ends)
        i, ends = node.parent, 0
    settle(nodes, last)


def settle(nodes: MapMutation[int, IndexNode], i: int) -> None:
    """Remove node `i` if it has no holder and no hit, and its ancestors likewise; join the rest where it is one."""
    while i != ROOT and (node := nodes.get(i)) is not None:
        if node.children:
            if len(node.children) == 1 and not node.ends and not node.stamps:
                (child,) = node.children.values()
                if nodes[child].held == node.held:
                    _join(nodes, i)
            return
        if node.held or node.hits:
            return
        del nodes[i]
        i = node.parent
        parent = nodes[i]
        nodes[i] = replace(parent, children=parent.children.delete(node.first_key))


def _join(nodes: MapMutation[int, IndexNode], upper: int) -> None:
    """The only child of node `upper` takes over its blocks."""
    node = nodes[upper]
    (lower,) = node.children.values()
    parent = nodes[node.parent]
    nodes[lower] = replace(nodes[lower], parent=node.parent, start=node.start)
    nodes[node.parent] = replace(parent, children=parent.children.set(node.first_key, lower))
    del nodes[upper]
