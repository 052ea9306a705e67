"""What one request costs a worker's prefix tree, and what immutability adds to that.

    PYTHONPATH=src taskset -c 0 python benchmarks/prefix_tree.py [--requests N] [--capacity-tokens N] [--tools T ...]

A request of the toolbench-like load is match, insert with its LRU stamp, pin, the unpin of the request that finished,
and whatever eviction keeps the cache inside its capacity.  Prompts are those of toolbench in `benchmarks/loads.py`, by
Zipf's law.  Both trees see the same requests, interleaved in batches, and must end with equal figures; `x mutable` is
the median of the batches' ratios.
"""

import argparse
import heapq
from collections import deque
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter_ns, process_time_ns

import numpy as np
from loads import toolbench

from fairsched.model.prefix_cache import PrefixTree
from fairsched.model.request import KEY_BYTES, Prompt

RUNNING = 64
BATCH = 500


class Persistent:
    """A worker that keeps its cache in `PrefixTree`."""

    def __init__(self, capacity_tokens: int) -> None:
        self.tree = PrefixTree.empty()
        self.capacity_tokens = capacity_tokens
        self.running: deque[int] = deque()
        self.hits = self.evicted = self.stamp = 0

    def serve(self, prompt: Prompt) -> None:
        """Admit one request and finish the oldest."""
        self.stamp = stamp = self.stamp + 1
        tree = self.tree
        match = tree.match(prompt)
        self.hits += match.blocks
        if len(self.running) == RUNNING:
            tree = tree.unpin(self.running.popleft())
        tree, done = tree.insert(prompt, prompt.blocks, stamp, stamp)
        tree = tree.pin(done.node, stamp)
        self.running.append(done.node)
        if tree.cached_tokens > self.capacity_tokens:
            tree, evictions = tree.evict(tree.cached_tokens - self.capacity_tokens)
            self.evicted += sum(e.blocks for e in evictions)
        self.tree = tree

    def figures(self) -> tuple[int, int, int]:
        """Tokens hit, evicted and cached."""
        return self.hits, self.evicted, self.tree.cached_tokens


class Branch:
    """A node of the mutable tree."""

    __slots__ = ("children", "end", "keys", "parent", "refs", "stamp", "start")

    def __init__(self, parent: "Branch | None", keys: bytes, start: int, end: int, stamp: int) -> None:
        self.parent, self.keys, self.start, self.end, self.stamp = parent, keys, start, end, stamp
        self.children: dict[bytes, Branch] = {}
        self.refs = 0


class Mutable:
    """The plain way: the same radix tree changed in place, dict children, a lazy heap of victims.

    Offsets are bytes.  It does for this load what `PrefixTree` does, and no more: no JSON, no ids, no older versions.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self.root = Branch(None, b"", 0, 0, 0)
        self.capacity = capacity_tokens * KEY_BYTES
        self.running: deque[Branch] = deque()
        self.victims: list[tuple[int, int, Branch]] = []
        self.cached = self.hits = self.evicted = self.stamp = self.pushed = 0

    def walk(self, keys: bytes) -> tuple[Branch, int]:
        """Deepest whole node and bytes matched; a node reached in part is split, as an insertion would."""
        node, at = self.root, 0
        while (child := node.children.get(keys[at : at + KEY_BYTES])) is not None:
            edge = child.keys[at : child.end]
            if not keys.startswith(edge, at):
                upper = self.split(child, keys)
                return upper, upper.end
            node, at = child, child.end
        return node, at

    def split(self, lower: Branch, keys: bytes) -> Branch:
        """Cut a node where `keys` leave it."""
        a = np.frombuffer(keys, np.int64, offset=lower.start)
        b = np.frombuffer(lower.keys[lower.start : lower.end], np.int64)
        count = min(len(a), len(b))
        differ = np.flatnonzero(a[:count] != b[:count])
        at = lower.start + KEY_BYTES * int(differ[0] if len(differ) else count)
        assert lower.parent is not None
        upper = Branch(lower.parent, lower.keys, lower.start, at, lower.stamp)
        upper.refs = int(lower.refs > 0)
        lower.parent.children[upper.keys[upper.start : upper.start + KEY_BYTES]] = upper
        upper.children[lower.keys[at : at + KEY_BYTES]] = lower
        lower.parent, lower.start = upper, at
        return upper

    def offer(self, node: Branch) -> None:
        """Make an unprotected leaf a victim."""
        if not node.refs and not node.children and node.parent is not None:
            self.pushed += 1
            heapq.heappush(self.victims, (node.stamp, self.pushed, node))

    def refer(self, node: Branch | None, step: int) -> None:
        """Pin (1) or unpin (-1) a path."""
        while node is not None:
            before = node.refs
            node.refs += step
            self.offer(node)
            if before > (step < 0):
                return
            node = node.parent

    def serve(self, prompt: Prompt) -> None:
        """Admit one request and finish the oldest."""
        self.stamp = stamp = self.stamp + 1
        keys = prompt.keys
        self.hits += self.walk(keys)[1]
        if len(self.running) == RUNNING:
            self.refer(self.running.popleft(), -1)
        node, _ = self.walk(keys)
        if node.end < len(keys):
            leaf = Branch(node, keys, node.end, len(keys), stamp)
            node.children[keys[node.end : node.end + KEY_BYTES]] = leaf
            self.cached += leaf.end - leaf.start
            node = leaf
        node.stamp = stamp
        self.refer(node, 1)
        self.running.append(node)
        if self.cached > self.capacity:
            self.evict(self.cached - self.capacity)

    def evict(self, count: int) -> None:
        """Free `count` bytes of keys from the least recent leaves."""
        while count:
            stamp, _, leaf = self.victims[0]
            if leaf.refs or leaf.children or stamp != leaf.stamp or leaf.start == leaf.end:
                heapq.heappop(self.victims)
                continue
            freed = min(count, leaf.end - leaf.start)
            leaf.end -= freed
            count -= freed
            self.cached -= freed
            self.evicted += freed
            if leaf.start == leaf.end:
                heapq.heappop(self.victims)
                assert leaf.parent is not None
                del leaf.parent.children[leaf.keys[leaf.start : leaf.start + KEY_BYTES]]
                leaf.parent.stamp = max(leaf.parent.stamp, leaf.stamp)
                self.offer(leaf.parent)

    def figures(self) -> tuple[int, int, int]:
        """Tokens hit, evicted and cached."""
        return self.hits // KEY_BYTES, self.evicted // KEY_BYTES, self.cached // KEY_BYTES


def batch_us(worker: Persistent | Mutable, prompts: list[Prompt]) -> float:
    """Microseconds a request."""
    start = perf_counter_ns()
    for prompt in prompts:
        worker.serve(prompt)
    return (perf_counter_ns() - start) / 1_000 / len(prompts)


def measure(tools: int, requests: int, capacity_tokens: int) -> str:
    """One line of the table: fill until eviction runs, then time `requests`."""
    load = toolbench(tools)
    ours, plain = Persistent(capacity_tokens), Mutable(capacity_tokens)
    while not ours.evicted or ours.stamp < requests:
        for prompt in load.prompts(BATCH):
            ours.serve(prompt)
            plain.serve(prompt)
    hits, evicted, _ = ours.figures()
    costs = []
    for _ in range(max(requests // BATCH, 1)):
        prompts = load.prompts(BATCH)
        costs.append((batch_us(ours, prompts), batch_us(plain, prompts)))
    assert ours.figures() == plain.figures(), (ours.figures(), plain.figures())
    ours.tree.check()
    served = len(costs) * BATCH
    return (
        f"{tools:6,} {len(ours.tree.nodes):8,} {(ours.hits - hits) / served / load.prompt_tokens:8.0%}"
        f" {(ours.evicted - evicted) / served:10,.0f} {median(c[0] for c in costs):9.1f}"
        f" {median(c[1] for c in costs):9.1f} {median(c[0] / c[1] for c in costs):9.2f}"
    )


def serving(worker: type[Persistent] | type[Mutable], tools: int, capacity_tokens: int) -> Callable[[], float]:
    """Fill a tree until it evicts; the work is a batch of new requests."""
    load, tree = toolbench(tools), worker(capacity_tokens)
    while not tree.evicted:
        for prompt in load.prompts(BATCH):
            tree.serve(prompt)

    def run() -> float:
        prompts = load.prompts(BATCH)
        start = process_time_ns()
        for prompt in prompts:
            tree.serve(prompt)
        return (process_time_ns() - start) / 1_000 / BATCH

    return run


FIGURES = {
    "prefix cache: match, insert, pin, unpin and evict for a prompt, 1,500 tools": {
        "ours": partial(serving, Persistent, 1_500, 2_000_000),
        "a plain tree changed in place": partial(serving, Mutable, 1_500, 2_000_000),
    }
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--capacity-tokens", type=int, default=2_000_000)
    parser.add_argument("--tools", type=int, nargs="+", default=[150, 1_500, 4_000])
    options = parser.parse_args()
    print(" tools    nodes  hits   evicted/req   us/req  mutable us  x mutable")
    for tools in options.tools:
        print(measure(tools, options.requests, options.capacity_tokens), flush=True)
    print(
        "SGLang's mutable radix cache (0.5.23): match 32 + insert 47 us, eviction apart; measured on another machine."
    )


if __name__ == "__main__":
    main()
