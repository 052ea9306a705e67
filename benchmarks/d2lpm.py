"""Decisions a second of D2LPM with all events applied, as loads, workers and clients grow.

    PYTHONPATH=src taskset -c 0 python benchmarks/d2lpm.py [--loads L ...] [--workers W ...] [--clients C]

Prompts are those of `benchmarks/loads.py`, by Zipf's law.  Each decision is followed by all that the router is told of
it: a first output token, the prompt's caching, as many evictions as the worker's index holds too much, and the end of
the request after 43 tokens.  A view of the workers is made before the clock starts, as an engine has one.  Microseconds
are processor time, medians of batches of 100 decisions; `route` is the decision's own part, a mean.  With Ray installed
its prefix tree places the same prompts in turns (`benchmarks/e2.py`).
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from time import thread_time_ns

import numpy as np
from e2 import BATCH, CAPACITY_TOKENS, COMPARED, Ray, compared, in_turns, peer, placing, ray_placing
from loads import LOADS, Load

from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.events import Cached, Decoded, Event, Evicted, Finished
from fairsched.model.request import Prompt, Request
from fairsched.policies.routers import D2LPM

OUTPUT_TOKENS = 43
WARM_UP_MAX = 20_000
"""Requests before the clock starts, if caches are not full before."""


class Front:
    """The router, and workers that evict as its index says they would."""

    def __init__(self, router: D2LPM, workers: int, capacity_tokens: int, clients: int) -> None:
        self.router, self.state = router, router.init()
        self.capacity_tokens = capacity_tokens
        self.random = np.random.default_rng(2)
        self.clients, self.workers = clients, workers
        self.routed = self.hits = self.reports = 0
        self.ns = self.route_ns = 0
        self.queues = [0] * workers

    def view(self) -> ClusterView:
        """Workers with queues of their own lengths."""
        size = self.capacity_tokens
        loads = [WorkerLoad(w, queue, 10, queue * 500, size // 2, size) for w, queue in enumerate(self.queues)]
        return ClusterView(self.routed, tuple(loads))

    def place(self, prompt: Prompt) -> None:
        """One request from its coming to its end."""
        request = Request(self.routed, int(self.random.integers(self.clients)), self.routed, prompt, OUTPUT_TOKENS)
        self.queues[int(self.random.integers(self.workers))] = int(self.random.integers(20))
        view = self.view()
        start = thread_time_ns()
        dispatch, state = self.router.route(self.state, request, view)
        took_ns = thread_time_ns() - start
        self.route_ns += took_ns
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
        self.ns += took_ns + thread_time_ns() - start
        self.state = state
        self.routed += 1

    def warm(self) -> bool:
        """Whether caches are full, or so many requests came that they need not be."""
        if self.routed % BATCH or self.routed >= WARM_UP_MAX:
            return self.routed >= WARM_UP_MAX
        held = sum(self.state.index.held_tokens(w) for w in range(self.workers))
        return held > 0.9 * self.workers * self.capacity_tokens


def warmed(load: Load, front: Front, other: Ray | None = None) -> None:
    """Fill the caches."""
    while not front.warm():
        prompt = load.prompt()
        front.place(prompt)
        if other is not None:
            other.place(prompt)


def measure(name: str, workers: int, clients: int, requests: int, capacity_tokens: int) -> str:
    """One line of the table: fill the caches, then time `requests`."""
    load, front = Load(*LOADS[name]), Front(D2LPM(), workers, capacity_tokens, clients)
    other = peer(workers, capacity_tokens)
    warmed(load, front, other)
    front.hits = front.reports = front.route_ns = 0
    ours, theirs = in_turns(load, front, other, requests)
    cached = front.hits / requests / load.prompt_tokens
    pairs = sum(len(account.deficits) for account in front.state.accounts.values())
    return (
        f"{name:<24}{workers:>8}{clients:>8}{len(front.state.index.nodes):>8}{cached:>8.0%}{pairs:>7}"
        f"{front.reports / requests:>10.1f}{front.route_ns / requests / 1_000:>8.1f}{compared(median(ours), theirs)}"
    )


def d2lpm_placing(name: str, workers: int) -> Callable[[], float]:
    """Fill the caches; the work is some more requests of 100 clients."""
    load, front = Load(*LOADS[name]), Front(D2LPM(), workers, CAPACITY_TOKENS, 100)
    warmed(load, front)
    return placing(front, load)


FIGURES = {
    "D2LPM: a decision and its events, toolbench, 1,500 tools, 64 workers": {
        "ours": partial(d2lpm_placing, "toolbench, 1,500 tools", 64),
        "Ray's prefix tree": partial(ray_placing, "toolbench, 1,500 tools", 64, 20_000),
    }
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 16, 64, 256])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--capacity-tokens", type=int, default=CAPACITY_TOKENS, help="of each worker")
    arguments = parser.parse_args()
    first = f"{'load':<24}{'workers':>8}{'clients':>8}{'nodes':>8}{'cached':>8}{'pairs':>7}"
    print(f"{first}{'evictions':>10}{'route':>8}{COMPARED}")
    for name in arguments.loads:
        for workers in arguments.workers:
            sizes = arguments.clients, arguments.requests, arguments.capacity_tokens
            print(measure(name, workers, *sizes), flush=True)


if __name__ == "__main__":
    main()
