"""The nodes of a prefix index: one radix tree that says of many workers what each of them holds.

A node is written without what follows from the rest: its children and `below` from its children's rows, its hits from
the window.
"""

from base64 import b64decode, b64encode
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import lru_cache
from itertools import compress
from typing import Any

import msgspec
from immutables import Map

from fairsched.model.prefix_cache.tree import NO_CHILDREN, NO_NODE, ROOT, SortedTuple, Span
from fairsched.model.request import KEY_BYTES, Prompt

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
