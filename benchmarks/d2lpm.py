"""Decisions a second of D2LPM with all events applied, as tools, workers and clients grow.

    PYTHONPATH=src taskset -c 0 python benchmarks/d2lpm.py [--tools T ...] [--workers W ...] [--clients C]

Prompts are toolbench-like with 1,838 token-exact keys, their hashing left out (benchmarks/prefix_index.py).  Each
decision is followed by all that the router is told of it: a first output token, the prompt's caching, as many evictions
as the worker's index holds too much, and the end of the request after 43 tokens.  A view of the workers is made before
the clock starts, as an engine has one.  Microseconds are processor time, medians of batches of
100 decisions.
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from time import thread_time_ns

import numpy as np
from e2 import ray_placing
from prefix_index import BATCH, SYSTEM_TOKENS, TAIL_TOKENS, TOOL_TOKENS, Load

from fairsched.model.events import Cached, Decoded, Event, Evicted, Finished
from fairsched.model.request import Request
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies.routers import D2LPM

OUTPUT_TOKENS = 43
PLACED = 1_000
"""Requests of a round of `make bench`."""
WARM_UP_MAX = 20_000
"""Requests before the clock starts, if caches are not full before."""
PROMPT_TOKENS = SYSTEM_TOKENS + TOOL_TOKENS + TAIL_TOKENS


class Front:
    """The router, and workers that evict as its index says they would."""

    def __init__(self, router: D2LPM, workers: int, capacity_tokens: int, clients: int) -> None:
        self.router, self.state = router, router.init()
        self.capacity_tokens = capacity_tokens
        self.random = np.random.default_rng(2)
        self.clients, self.workers = clients, workers
        self.routed = self.hits = self.reports = 0
        self.route_ns = self.observe_ns = 0
        self.queues = [0] * workers

    def view(self) -> ClusterView:
        """Workers with queues of their own lengths."""
        size = self.capacity_tokens
        loads = [WorkerLoad(w, queue, 10, queue * 500, size // 2, size) for w, queue in enumerate(self.queues)]
        return ClusterView(self.routed, tuple(loads))

    def serve(self, load: Load) -> None:
        """One request from its coming to its end."""
        prompt = load.prompt()
        request = Request(self.routed, int(self.random.integers(self.clients)), self.routed, prompt, OUTPUT_TOKENS)
        self.queues[int(self.random.integers(self.workers))] = int(self.random.integers(20))
        view = self.view()
        start = thread_time_ns()
        dispatch, state = self.router.route(self.state, request, view)
        self.route_ns += thread_time_ns() - start
        worker, index = dispatch.worker, state.index
        sent = state.sent[request.id]
        self.hits += prompt.tokens - sent.extend_tokens
        now, client = self.routed, request.client
        excess = index.held_tokens(worker) - self.capacity_tokens
        events: list[Event] = [
            Decoded(now, worker, 1, (client,), (1,)),
            Cached(now, worker, request.id, prompt, prompt.blocks),
            *(
                Evicted(now, worker, 0, index.nodes[v.node].prompt, v.context_tokens, v.tokens)
                for v in index.victims(worker, excess)
            ),
            Finished(now, worker, request.id, client, OUTPUT_TOKENS),
        ]
        self.reports += len(events) - 3
        observe = self.router.observe
        start = thread_time_ns()
        for event in events:
            state = observe(state, event)
        self.observe_ns += thread_time_ns() - start
        self.state = state
        self.routed += 1


def warm(tools: int, workers: int, clients: int, capacity_tokens: int) -> tuple[Load, Front]:
    """A router whose caches are full, and what comes next."""
    load, front = Load(tools, zipf=True), Front(D2LPM(), workers, capacity_tokens, clients)
    while front.routed < WARM_UP_MAX and not (
        front.routed % BATCH == 0
        and sum(front.state.index.held_tokens(w) for w in range(workers)) > 0.9 * workers * capacity_tokens
    ):
        front.serve(load)
    return load, front


def measure(tools: int, workers: int, clients: int, requests: int, capacity_tokens: int) -> str:
    """One line of the table: fill the caches, then time `requests`."""
    load, front = warm(tools, workers, clients, capacity_tokens)
    front.hits = front.reports = 0
    route, observe = [], []
    for _ in range(requests // BATCH):
        front.route_ns = front.observe_ns = 0
        for _ in range(BATCH):
            front.serve(load)
        route.append(front.route_ns / 1_000 / BATCH)
        observe.append(front.observe_ns / 1_000 / BATCH)
    cached, pairs = front.hits / requests / PROMPT_TOKENS, sum(len(a.deficits) for a in front.state.accounts.values())
    us = median(route) + median(observe)
    return (
        f"{tools:>6} {workers:>7} {clients:>7} {len(front.state.index.nodes):>7} {cached:>6.0%} {pairs:>7}"
        f" {front.reports / requests:>8.1f} {median(route):>8.1f} {median(observe):>8.1f} {us:>8.1f} {1e6 / us:>7.0f}"
    )


def placing(tools: int, workers: int) -> Callable[[], float]:
    """Fill the caches; the work is some more requests of 100 clients."""
    load, front = warm(tools, workers, 100, 130_000)

    def run() -> float:
        front.route_ns = front.observe_ns = 0
        for _ in range(PLACED):
            front.serve(load)
        return (front.route_ns + front.observe_ns) / 1_000 / PLACED

    return run


FIGURES = {
    "D2LPM: a decision and its events, toolbench, 1,500 tools, 64 workers": {
        "ours": partial(placing, 1_500, 64),
        "Ray's prefix tree": partial(ray_placing, "toolbench, 1,500 tools", 64, 20_000),
    }
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--tools", type=int, nargs="+", default=[1_500, 4_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 16, 64, 256])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--capacity-tokens", type=int, default=130_000, help="of each worker")
    arguments = parser.parse_args()
    print(
        f"{'tools':>6} {'workers':>7} {'clients':>7} {'nodes':>7} {'cached':>6} {'pairs':>7} {'reports':>8}"
        f" {'route':>8} {'observe':>8} {'all us':>8} {'1/s':>7}"
    )
    for tools in arguments.tools:
        for workers in arguments.workers:
            line = measure(tools, workers, arguments.clients, arguments.requests, arguments.capacity_tokens)
            print(line, flush=True)


if __name__ == "__main__":
    main()
