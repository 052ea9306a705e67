"""Which workers hold how much of a prompt, as a value: the prefix index of a router in front of many workers.

One radix tree serves all workers; a node has a bit mask of its holders, so a match costs the same for 4 workers as
for 1,000.  (Measured before it was chosen: asking and setting one of 1,000 bits takes 60 ns where a persistent map
takes 285, and the holders of a parent that its node lacks 43 ns where the map takes 38 us.)  A snapshot costs
nothing, because every operation returns a new index and keeps the old.

The index holds what its owner reported: that a request was sent to a worker, which will cache its prompt (`insert`),
that a worker evicted something (`evicted`), that it died (`without`).  Reports come late, so a worker may hold more or
less than is said here; a report about what is no longer there changes nothing.

Beside the holders it counts the hits of a sliding window, per worker and the node where they end, and knows in which
order a worker would evict: least recently used leaf first, where a leaf is a node of which the worker holds no child.
Both are the inputs of Preble's load cost (E2, Algorithm 2: for every part j evicted to make room, its recomputation
times `hits of j / requests` of the worker in the window).  A node without holders and without hits in the window is
removed.

**A draft** is an index in which one operation changes several nodes.  A boundary between two nodes exists only where
something changes: where prompts part, where other workers hold on, where a hit of the window ends, or where the last
access of a worker ended.  What is no longer needed is taken away, so the tree stays as small as what it says, whatever
its history.

**A node** says of many workers what each of them holds.  It is written without what follows from the rest: its children
and `below` from its children's rows, its hits from the window.
"""

from base64 import b64decode, b64encode
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping
from functools import lru_cache
from heapq import heappop, heappush
from itertools import compress
from typing import Any

import msgspec
from immutables import Map, MapMutation
from msgspec.structs import astuple, replace

from fairsched.model.prefix_cache.sorted_tuple import SortedTuple
from fairsched.model.prefix_cache.tree import (
    NO_CHILDREN,
    NO_NODE,
    ROOT,
    Span,
    check_shape,
    holding,
    split,
    walk,
)
from fairsched.model.request import KEY_BYTES, Prompt

# --- nodes ------------------------------------------------------------------------------------------------------------


ALL_WORKERS = -1
"""The root holds nothing, so every worker holds it."""

NOTHING: Map[int, int] = Map()


class IndexNode(Span, frozen=True):
    """The workers that hold these blocks, and those that were asked for them in the window.

    Bit w of `held` says that worker w holds all the blocks; `below[w]` counts the children that w holds.  `stamps[w]`
    is the latest access of w that ended here, or below in what w lost since; a later access that goes on to a child
    takes it away.  So where w holds no child it is there, and is the latest access through this node.  `ends[w]` counts
    the hits of the window on w that end with this node; those that go through it are counted when they are asked for.
    """

    held: int
    below: Map[int, int]
    stamps: Map[int, int]
    ends: Map[int, int]


class Hit(msgspec.Struct, frozen=True, gc=False):
    """A request sent to `worker` at `now_ns` whose cacheable prompt ends with `node`."""

    now_ns: int
    worker: int
    node: int


class Shelf(msgspec.Struct, frozen=True, gc=False):
    """What one worker holds: its `blocks`, and its leaves by (stamp, node), the next victim first."""

    order: SortedTuple[tuple[int, int]] = SortedTuple()
    blocks: int = 0


_TRUTHS = bytes.maketrans(b"01", b"\0\1")
FEW_BITS = 12
"""So many bits are found one by one in less time than all digits are read."""


def bits(mask: int) -> list[int]:
    """Return the workers of a bit mask (not negative) in ascending order.  O(workers in it), by C where they are
    many."""
    if mask.bit_count() > FEW_BITS:
        digits = f"{mask:b}"[::-1].encode().translate(_TRUTHS)
        return [*compress(range(len(digits)), digits)]
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


@lru_cache(4_096)
def one(worker: int) -> Map[int, int]:
    """Return a count of one for the worker and for no other: the same object every time, since most nodes have it."""
    return Map({worker: 1})


def more(counts: Map[int, int], worker: int) -> Map[int, int]:
    """Return the counts with one more for the worker."""
    return counts.set(worker, counts.get(worker, 0) + 1) if counts else one(worker)


def less(values: Map[int, int], worker: int) -> Map[int, int]:
    """Return the values without that of the worker, which has one."""
    return values.delete(worker) if len(values) > 1 else NOTHING


def fewer(counts: Map[int, int], worker: int) -> Map[int, int]:
    """Return the counts with one less for the worker, which has one."""
    count = counts[worker]
    return counts.set(worker, count - 1) if count > 1 else less(counts, worker)


EMPTY_ROOT = IndexNode(NO_NODE, Prompt(tokens=1), 0, 0, NO_CHILDREN, ALL_WORKERS, NOTHING, NOTHING, NOTHING)


def counted(window: Mapping[int, Hit]) -> tuple[defaultdict[int, Counter[int]], Counter[int]]:
    """Return hits of the window by the node with which they end and by worker, and by worker alone.  O(hits)."""
    ends, requests = defaultdict[int, Counter[int]](Counter), Counter[int]()
    for hit in window.values():
        ends[hit.node][hit.worker] += 1
        requests[hit.worker] += 1
    return ends, requests


def hits_through(nodes: Mapping[int, IndexNode], node: IndexNode, worker: int | None) -> int:
    """Return hits of the worker, or of all, that end with `node` or below.  O(nodes below it)."""
    count, todo = 0, [node]
    for each in todo:
        ends = each.ends
        if ends:
            count += sum(ends.values()) if worker is None else ends.get(worker, 0)
        if each.children:
            todo += [nodes[i] for i in each.children.values()]
    return count


def rows_of(nodes: Mapping[int, IndexNode]) -> list[list[Any]]:
    """Return the nodes but the root as plain rows, parents first; masks are hexadecimal, since they may be long."""
    order = sorted((node.start, i) for i, node in nodes.items() if i != ROOT)
    return [
        [i, node.parent, f"{node.held:x}", sorted(map(list, node.stamps.items())), b64encode(node.edge).decode("ascii")]
        for i, node in ((i, nodes[i]) for _, i in order)
    ]


def nodes_of(rows: list[list[Any]], window: Mapping[int, Hit], block_tokens: int) -> Map[int, IndexNode]:
    """Return the nodes that `rows_of` wrote."""
    parents = {ROOT: NO_NODE, **{row[0]: row[1] for row in rows}}
    held = {ROOT: ALL_WORKERS, **{row[0]: int(row[2], 16) for row in rows}}
    keys = {ROOT: b""}
    children = {i: dict[bytes, int]() for i in parents}
    below = {i: Counter[int]() for i in parents}
    for i, parent, _, _, text in rows:
        edge = b64decode(text)
        keys[i] = keys[parent] + edge
        children[parent][edge[:KEY_BYTES]] = i
        below[parent].update(bits(held[i]))
    ends, _ = counted(window)
    stamps = {ROOT: NOTHING, **{row[0]: Map((w, s) for w, s in row[3]) for row in rows}}
    blocks = {i: len(path) // KEY_BYTES for i, path in keys.items()}
    # A node shares the keys of a prompt that goes on below it, so that each path is kept once.
    prompts: dict[int, Prompt] = {}
    for i in sorted(parents, key=lambda i: -blocks[i]):
        if i not in prompts:
            prompts[i] = Prompt(max(blocks[i] * block_tokens, 1), block_tokens, keys[i])
        if i != ROOT:
            prompts.setdefault(parents[i], prompts[i])
    return Map(
        (
            i,
            IndexNode(
                parent,
                EMPTY_ROOT.prompt if i == ROOT else prompts[i],
                blocks[parent] if parent != NO_NODE else 0,
                blocks[i],
                Map(children[i]),
                held[i],
                Map(below[i]),
                stamps[i],
                Map(ends[i]),
            ),
        )
        for i, parent in parents.items()
    )


# --- draft ------------------------------------------------------------------------------------------------------------


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


SCHEMA = 1
SCALARS = ("window_ns", "now_ns", "next_stamp", "oldest", "next_id", "block_tokens")
EMPTY_SHELF = Shelf()


class Level(msgspec.Struct, frozen=True, gc=False):
    """The workers of the bit mask `workers` hold exactly the first `blocks` blocks of a prompt, down to `node`."""

    workers: int
    blocks: int
    node: int


class IndexMatch(msgspec.Struct, frozen=True, gc=False):
    """The longest prefix of a prompt that the index knows: its `blocks`, and the deepest `node`, perhaps only in part.

    `levels` say which workers hold how much of it, the longest first; a worker in none of them holds nothing of the
    prompt.  No level need reach as far as `blocks`: the index also knows what was only hit in the window.
    """

    node: int
    blocks: int
    levels: tuple[Level, ...]

    def blocks_by_worker(self, workers: int) -> list[int]:
        """Return blocks held by each of the workers 0 to `workers` - 1.  O(workers)."""
        held = [0] * workers
        known = (1 << workers) - 1
        for level in self.levels:
            for worker in bits(level.workers & known):
                held[worker] = level.blocks
        return held


class Victim(msgspec.Struct, frozen=True, gc=False):
    """The `tokens` tokens of `node` after the first `context_tokens` of its path; `hits` of its worker in the window.

    To compute them again is a prefill of `tokens` after `context_tokens`.
    """

    node: int
    context_tokens: int
    tokens: int
    hits: int


class PrefixIndex(msgspec.Struct, frozen=True, gc=False):
    """What many workers hold, immutable: every operation returns a new index and keeps the old.

    Workers are named by dense ids (0, 1, 2, ...).  Tokens are counted in whole blocks of `block_tokens`.  A hit counts
    for `window_ns` nanoseconds; `advance` takes out those that are older.  Accesses are numbered (`next_stamp`), so
    the order of eviction is the order of the calls, and has no ties.

    With d nodes on the path of a prompt (2 to 4 in practice), N nodes, L leaves of a worker and W workers: `match` is
    O(blocks) by memcmp and d look-ups; `insert` is a match and O(d + log N + sqrt L), and O(W) when it cuts a node;
    `advance` is O(log N) for each hit that leaves; `evicted` is a match and O(log N + sqrt L) for each node lost.
    A hit is counted at the node with which it ends and, by worker, in `requests`: an insertion and an expiry would
    otherwise change all nodes of a path, and hits through a node are asked only of what would be evicted.
    """

    nodes: Map[int, IndexNode]
    shelves: Map[int, Shelf]
    window: Map[int, Hit]
    requests: Map[int, int]
    window_ns: int
    now_ns: int
    next_stamp: int
    oldest: int
    next_id: int
    block_tokens: int

    @classmethod
    def empty(cls, window_ns: int) -> "PrefixIndex":
        """Return an index that knows nothing.  It takes on the block size of the first prompt inserted."""
        if window_ns < 1:
            raise ValueError(f"a window lasts at least 1 ns, not {window_ns}")
        return cls(Map({ROOT: EMPTY_ROOT}), Map(), Map(), Map(), window_ns, 0, 0, 0, ROOT + 1, 1)

    def match(self, prompt: Prompt) -> IndexMatch:
        """Return which workers hold how much of `prompt`; nothing is stamped.  Another block size matches nothing.

        O(blocks) by memcmp and O(d), for any number of workers.
        """
        if prompt.block_tokens != self.block_tokens:
            return IndexMatch(ROOT, 0, ())
        nodes = self.nodes
        at, blocks = walk(nodes, prompt.keys)
        levels, seen, i, end = [], 0, at, blocks
        while i != ROOT:
            node = nodes[i]
            held = node.held
            # A worker that holds a node holds all above it, so the masks grow on the way up.
            if held != seen:
                levels.append(Level(held ^ seen, end, i))
                seen = held
            i, end = node.parent, node.start
        return IndexMatch(at, blocks, tuple(levels))

    def held_tokens(self, worker: int) -> int:
        """Return tokens that the worker holds.  O(1)."""
        return self.shelves.get(worker, EMPTY_SHELF).blocks * self.block_tokens

    def hits(self, worker: int | None, node: int = ROOT) -> int:
        """Return hits of the window on the worker, or with None on any, through `node`; through the root: all its
        requests.

        Raises `KeyError` if there is no such node.  O(nodes below it), and O(1) for the root.
        """
        known, most = self.nodes[node], len(self.window) if worker is None else self.requests.get(worker, 0)
        return hits_through(self.nodes, known, worker) if most and node != ROOT else most

    def path(self, node: int) -> Iterator[int]:
        """Yield a node and all above it but the root; none if it is gone."""
        while node != ROOT and node in self.nodes:
            yield node
            node = self.nodes[node].parent

    def victims(self, worker: int, tokens: int, spared: Container[int] = ()) -> tuple[Victim, ...]:
        """Return what the worker would evict to free `tokens` tokens, rounded up to a block, or all it can, in its
        order.

        The last victim keeps its head.  The nodes of `spared` that it holds stay, and all above them: those of requests
        in the batch, which pin what they use.  Nothing is changed.  O(v log v) for v victims and spared leaves, and
        what else hangs from these in the index, for any number of other leaves.
        """
        needed = max(-(-tokens // self.block_tokens), 0)
        nodes, size = self.nodes, self.block_tokens
        leaves = iter(self.shelves.get(worker, EMPTY_SHELF).order)
        leaf = next(leaves, None)
        bared: list[tuple[int, int]] = []
        left: dict[int, tuple[int, int]] = {}
        victims = []
        while needed:
            if bared and (leaf is None or bared[0] < leaf):
                stamp, i = heappop(bared)
            elif leaf is not None:
                (stamp, i), leaf = leaf, next(leaves, None)
            else:
                break
            if i in spared:
                continue
            node = nodes[i]
            blocks = min(node.end - node.start, needed)
            victims.append(Victim(i, (node.end - blocks) * size, blocks * size, self.hits(worker, i)))
            needed -= blocks
            if needed and (parent := node.parent) != ROOT:
                # A node whose last child goes becomes a leaf, as recent as the latest access through it.
                above = nodes[parent]
                count, latest = left.get(parent) or (above.below[worker], above.stamps.get(worker, stamp))
                left[parent] = count - 1, max(latest, stamp)
                if count == 1:
                    heappush(bared, (left[parent][1], parent))
        return tuple(victims)

    def insert(
        self, prompt: Prompt, blocks: int, worker: int, now_ns: int, hit: bool = True, match: IndexMatch | None = None
    ) -> tuple["PrefixIndex", int]:
        """Insert the first `blocks` blocks of `prompt`, which the worker holds (or will, for a request sent to it),
        used just now.

        Also returns the node that ends exactly there: it keeps its id while a hit of the window ends with it, and while
        the worker holds it and nothing below it.

        With `hit` it is a request of the window as well, also with no blocks; without, it is a report of what is
        cached.  This index's `match` of the prompt, if given, saves another walk.  Raises `ValueError` if the prompt
        has fewer blocks, or blocks of another size than the index holds, or if `now_ns` is before the last time given.
        O(d log N + sqrt L).
        """
        known = len(prompt.keys) // KEY_BYTES
        fits = prompt.block_tokens == self.block_tokens or not blocks or len(self.nodes) == 1
        if worker < 0 or now_ns < self.now_ns or not (fits and 0 <= blocks <= known):
            self._refuse(prompt, blocks, worker, now_ns)
        draft = IndexDraft(self.nodes, worker, self.shelves.get(worker, EMPTY_SHELF))
        if match is not None and blocks == known:
            node, end = match.node, match.blocks
        else:
            node, end = walk(self.nodes, prompt.keys[: blocks * KEY_BYTES])
        next_id, stamp = self.next_id, self.next_stamp
        if end < self.nodes[node].end:
            draft.split(node, end, upper=next_id)
            node, next_id = next_id, next_id + 1
        if end < blocks:
            draft.attach(next_id, node, prompt, end, blocks, stamp, int(hit))
            node, next_id = next_id, next_id + 1
        else:
            draft.access(node, stamp, int(hit))
        index = PrefixIndex(
            draft.nodes.finish(),
            self.shelves.set(worker, Shelf(draft.order, draft.blocks)) if blocks else self.shelves,
            self.window.set(stamp, Hit(now_ns, worker, node)) if hit else self.window,
            more(self.requests, worker) if hit else self.requests,
            self.window_ns,
            now_ns,
            stamp + 1,
            self.oldest,
            next_id,
            prompt.block_tokens if blocks else self.block_tokens,
        )
        return index, node

    def _refuse(self, prompt: Prompt, blocks: int, worker: int, now_ns: int) -> None:
        """Raise `ValueError` for what cannot be inserted."""
        if not 0 <= blocks <= prompt.blocks:
            raise ValueError(f"worker {worker}: the prompt has {prompt.blocks} whole blocks, not {blocks}")
        if worker < 0:
            raise ValueError(f"worker ids are not negative ({worker})")
        if now_ns < self.now_ns:
            raise ValueError(f"worker {worker}: {now_ns} ns comes after {self.now_ns} ns; time does not go back")
        raise ValueError(
            f"worker {worker}: blocks of {prompt.block_tokens} tokens do not fit an index of {self.block_tokens}"
        )

    def advance(self, now_ns: int, at_most: int | None = None) -> "PrefixIndex":
        """Advance to `now_ns`: hits that are `window_ns` old or older leave the window, and nodes that only they kept.

        `at_most` bounds how many leave now (the rest go with later calls), so that no decision after a quiet time pays
        for a whole window.  Raises `ValueError` if time goes back.  O(1), and O(d log N) for each hit that leaves.
        """
        if now_ns < self.now_ns:
            raise ValueError(f"{now_ns} ns comes after {self.now_ns} ns; time does not go back")
        limit, oldest, last = now_ns - self.window_ns, self.oldest, self.next_stamp
        window, requests, left = self.window, self.requests, last if at_most is None else at_most
        nodes = self.nodes.mutate()
        while left and oldest < last:
            hit = window.get(oldest)
            if hit is not None:
                if hit.now_ns > limit:
                    break
                worker = hit.worker
                expire(nodes, worker, hit.node)
                requests = fewer(requests, worker)
                window, left = window.delete(oldest), left - 1
            oldest += 1
        return replace(self, nodes=nodes.finish(), window=window, requests=requests, oldest=oldest, now_ns=now_ns)

    def ends_with(self, node: int, prompt: Prompt) -> bool:
        """Return whether `node` is there and ends where `prompt` does; asked by identity, so that a yes is sure.
        O(1)."""
        known = self.nodes.get(node)
        return known is not None and known.prompt is prompt and known.end == prompt.blocks

    def evicted(self, prompt: Prompt, keep_blocks: int, worker: int, node: int = ROOT) -> "PrefixIndex":
        """Evict from what the worker holds all of `prompt` but its first `keep_blocks` blocks, and all that goes on
        from there.

        Changes nothing if it is not said to hold more.  The `node` with which the prompt ended when it was inserted
        saves a walk, if it still does; a prompt that nodes have, the very object, is compared with none.
        Raises `ValueError` on a negative number.
        O(nodes it loses, and their children).
        """
        if keep_blocks < 0:
            raise ValueError(f"keep_blocks is not negative ({keep_blocks})")
        shelf = self.shelves.get(worker)
        if shelf is None or prompt.block_tokens != self.block_tokens:
            return self
        nodes, next_id, keys = self.nodes, self.next_id, prompt.keys
        known = nodes.get(node)
        # As `ends_with`, and whether there is anything to lose.
        if known is None or known.prompt is not prompt or known.end * KEY_BYTES != len(keys):
            node = holding(nodes, prompt, keep_blocks)
            if node == ROOT:
                node, blocks = walk(nodes, keys)
                if blocks <= keep_blocks:
                    return self
            known = nodes[node]
        elif known.end <= keep_blocks:
            return self
        while known.start > keep_blocks:
            node = known.parent
            known = nodes[node]
        if not known.held >> worker & 1:
            return self
        if known.start >= keep_blocks and worker not in known.below:
            changing = nodes.mutate()
            order = leaf_lost(changing, worker, node, known, shelf.order)
            nodes, shelf = changing.finish(), Shelf(order, shelf.blocks - known.end + known.start)
            return replace(self, nodes=nodes, shelves=self.shelves.set(worker, shelf))
        draft = IndexDraft(nodes, worker, shelf)
        if known.start < keep_blocks:
            draft.cut(node, keep_blocks, upper=next_id)
            next_id += 1
        else:
            draft.forget(node)
        shelves = self.shelves.set(worker, Shelf(draft.order, draft.blocks))
        return replace(self, nodes=draft.nodes.finish(), shelves=shelves, next_id=next_id)

    def without(self, worker: int) -> "PrefixIndex":
        """Forget what the worker holds (it died, or was drained); its hits stay until the window has passed them.

        O(nodes that it held, and their children).
        """
        if worker not in self.shelves:
            return self
        draft = IndexDraft(self.nodes, worker, self.shelves[worker])
        for child in self.nodes[ROOT].children.values():
            if self.nodes[child].held & draft.bit:
                draft.forget(child)
        return replace(self, nodes=draft.nodes.finish(), shelves=self.shelves.delete(worker))

    def to_json(self) -> dict[str, Any]:
        """Return the index as plain lists, numbers and strings.  O(all keys).

        Equal for indexes that know the same by the same ids; what a prompt goes on with beyond its node is not kept.
        """
        rows = {
            "nodes": rows_of(self.nodes),
            "window": [[stamp, *astuple(self.window[stamp])] for stamp in sorted(self.window)],
            "workers": sorted(self.shelves),
        }
        return {"schema": SCHEMA, **{name: getattr(self, name) for name in SCALARS}, **rows}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "PrefixIndex":
        """Return the index that `to_json` wrote; raises `ValueError` on another schema version.  O(all keys)."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"a prefix index of schema {data.get('schema')!r} cannot be read, only {SCHEMA}")
        scalars = {name: data[name] for name in SCALARS}
        window = Map((stamp, Hit(now_ns, worker, node)) for stamp, now_ns, worker, node in data["window"])
        nodes, (_, requests) = nodes_of(data["nodes"], window, data["block_tokens"]), counted(window)
        leaves: dict[int, list[tuple[int, int]]] = {worker: [] for worker in data["workers"]}
        blocks = dict.fromkeys(leaves, 0)
        for i, node in nodes.items():
            for worker in bits(node.held) if i != ROOT else ():
                blocks[worker] += node.end - node.start
                if worker not in node.below:
                    leaves[worker].append((node.stamps[worker], i))
        shelves = Map((w, Shelf(SortedTuple.from_sorted(sorted(leaves[w])), blocks[w])) for w in leaves)
        return cls(nodes=nodes, shelves=shelves, window=window, requests=Map(requests), **scalars)

    def check(self) -> None:
        """Raise `AssertionError` unless every representation invariant holds.  O(all keys)."""
        root = self.nodes[ROOT]
        # Every worker holds the root, and none stamps it.
        assert root.held == ALL_WORKERS
        assert not root.stamps
        check_shape(self.nodes, self.next_id, self.block_tokens)
        for i, node in self.nodes.items():
            children = [self.nodes[c] for c in node.children.values()]
            # The holders of a child hold its parent; what workers hold below is counted, and nothing else.
            assert all(child.held >= 0 and child.held & ~node.held == 0 for child in children)
            assert dict(node.below) == Counter(w for child in children for w in bits(child.held))
            # Every node has a reason: a holder or a hit, and something that ends with it.
            if i != ROOT:
                assert node.held or node.ends or children
                assert len(children) != 1 or node.ends or node.stamps or children[0].held != node.held
            # Only holders stamp, and no later than the last access.
            assert all(node.held >> w & 1 and stamp < self.next_stamp for w, stamp in node.stamps.items())
        # The window holds exactly the hits that the nodes count, in the order of time, none of the future.
        ends, requests = counted(self.window)
        assert all(dict(n.ends) == ends[i] for i, n in self.nodes.items())
        assert dict(self.requests) == requests
        times = [self.window[stamp].now_ns for stamp in sorted(self.window)]
        assert times == sorted(times)
        assert not times or times[-1] <= self.now_ns
        assert all(self.oldest <= stamp < self.next_stamp for stamp in self.window)
        # A worker's shelf counts its blocks and orders its leaves.
        assert all(self.shelves.get(w) for n in self.nodes.values() if n.held > 0 for w in bits(n.held))
        for w, shelf in self.shelves.items():
            held = {i: n for i, n in self.nodes.items() if i != ROOT and n.held >> w & 1}
            shelf.order.check()
            assert shelf.blocks == sum(n.end - n.start for n in held.values())
            assert list(shelf.order) == sorted((n.stamps[w], i) for i, n in held.items() if w not in n.below)
