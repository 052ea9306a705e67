"""What a router pays the prefix index of all its workers for one decision, by operation, as tools and workers grow.

    PYTHONPATH=src taskset -c 0 python benchmarks/prefix_index.py [--requests N] [--tools T ...] [--workers W ...]

A decision is E2's: the hits that are too old leave the window, the prompt is matched, and the eviction cost is asked of
each worker that may be chosen (those with the longest prefix when more than half of the prompt is cached, else all).
Then the events follow: the request goes to the cheapest worker, which caches its prompt and reports what it evicted for
it.  Prompts are those of toolbench in `benchmarks/loads.py`, tools by Zipf's law or equally likely.  Times are
microseconds, the median of batches of 100 decisions; each worker's cache is full before the clock starts, and the
window holds 6,000 requests.
"""

import argparse
from statistics import median
from time import perf_counter_ns

from loads import toolbench

from fairsched.model.prefix_cache import IndexMatch, PrefixIndex
from fairsched.model.request import Prompt

WINDOW_REQUESTS = 6_000
BATCH = 100
PARTS = ("advance", "match", "cost", "insert", "evicted")


class Front:
    """A router's use of the index, with the time of each part."""

    def __init__(self, workers: int, capacity_tokens: int, tail_tokens: int) -> None:
        self.index = PrefixIndex.empty(window_ns=WINDOW_REQUESTS)
        self.workers, self.capacity_tokens, self.tail_tokens = workers, capacity_tokens, tail_tokens
        self.ns = dict.fromkeys(PARTS, 0)
        self.routed = self.cached_tokens = self.reports = self.victims = 0

    def route(self, prompt: Prompt) -> None:
        """One decision and its events."""
        self.routed += 1
        times = [perf_counter_ns()]
        index = self.index.advance(self.routed, at_most=8)
        times.append(perf_counter_ns())
        match = index.match(prompt)
        times.append(perf_counter_ns())
        worker, cached = self.cheapest(index, prompt, match)
        times.append(perf_counter_ns())
        index, _ = index.insert(prompt, prompt.blocks, worker, self.routed)
        times.append(perf_counter_ns())
        # The worker itself is not part of the router's work; this one evicts as the index says it would.
        excess = index.held_tokens(worker) - self.capacity_tokens
        reports = [(index.nodes[v.node].prompt, v.context_tokens) for v in index.victims(worker, excess)]
        start = perf_counter_ns()
        for evicted, keep_blocks in reports:
            index = index.evicted(evicted, keep_blocks, worker)
        self.ns["evicted"] += perf_counter_ns() - start
        for part, before, after in zip(PARTS, times, times[1:], strict=False):
            self.ns[part] += after - before
        self.cached_tokens += cached
        self.reports += len(reports)
        self.index = index

    def cheapest(self, index: PrefixIndex, prompt: Prompt, match: IndexMatch) -> tuple[int, int]:
        """The worker whose requests, evictions and recomputation weigh least, and what it holds of the prompt."""
        held = match.blocks_by_worker(self.workers)
        best = max(held)
        exploit = 2 * best > prompt.tokens
        costs = []
        for worker, cached in enumerate(held):
            if exploit and cached < best:
                continue
            missed = prompt.tokens - cached
            requests = index.hits(worker)
            room = self.capacity_tokens - index.held_tokens(worker)
            victims = index.victims(worker, missed - room)
            lost = sum(v.tokens * v.hits for v in victims)
            self.victims += len(victims)
            costs.append((requests * self.tail_tokens + lost / max(requests, 1) + missed, worker, cached))
        _, worker, cached = min(costs)
        return worker, cached


def measure(tools: int, workers: int, requests: int, capacity_tokens: int, zipf: bool) -> str:
    """One line of the table: fill the caches and the window, then time `requests`."""
    load = toolbench(tools, zipf)
    front = Front(workers, capacity_tokens, load.tail_tokens)
    while front.routed < WINDOW_REQUESTS or any(
        front.index.held_tokens(w) < capacity_tokens - load.prompt_tokens for w in range(workers)
    ):
        front.route(load.prompt())
    front.cached_tokens = front.reports = front.victims = 0
    batches = []
    for _ in range(requests // BATCH):
        front.ns = dict.fromkeys(PARTS, 0)
        for prompt in load.prompts(BATCH):
            front.route(prompt)
        batches.append([front.ns[part] / 1_000 / BATCH for part in PARTS])
    us = [median(part) for part in zip(*batches, strict=True)]
    counts = front.victims / requests, front.reports / requests
    cached = front.cached_tokens / requests / load.prompt_tokens
    return (
        f"{tools:>6} {workers:>7} {len(front.index.nodes):>7} {cached:>6.0%} "
        + " ".join(f"{x:>8.1f}" for x in (*counts, *us, sum(us)))
        + f" {1e6 / sum(us):>7.0f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--tools", type=int, nargs="+", default=[150, 1_500, 4_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--capacity-tokens", type=int, default=130_000, help="of each worker")
    parser.add_argument("--even", action="store_true", help="tools equally likely instead of Zipf")
    arguments = parser.parse_args()
    columns = " ".join(f"{name:>8}" for name in ("victims", "reports", *PARTS, "all us"))
    print(f"{'tools':>6} {'workers':>7} {'nodes':>7} {'cached':>6} {columns} {'1/s':>7}")
    for tools in arguments.tools:
        for workers in arguments.workers:
            line = measure(tools, workers, arguments.requests, arguments.capacity_tokens, not arguments.even)
            print(line, flush=True)


if __name__ == "__main__":
    main()
