"""How many requests a second E2 places, with everything that it learns, as tools, videos and workers grow.

    PYTHONPATH=src taskset -c 0 python benchmarks/e2.py [--requests N] [--workers W ...]

A decision is one `route` with the full cost (what would be evicted included) and all events of its request: admitted,
prefilled, cached, what the worker evicted for it, decoded, finished.  Workers are real prefix trees that evict their
least recently used leaf; their work is not in the time.  Prompts are those of `benchmarks/loads.py`, by Zipf's law.
Each worker's cache is full before the clock starts, 32 requests run on each, and the window holds 6,000 requests.
Times are processor time, the median of batches of 100 decisions.

With Ray installed its prefix tree takes turns with ours in the same run: for each prompt, as text, it is asked for the
longest match, inserts and evicts.  That is the part of a decision that it has: it prices nothing, counts no hits, and
learns from no reports.
"""

import argparse
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median
from time import thread_time_ns
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from loads import LOADS, Load

from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.events import Admitted, Cached, Decoded, Event, Evicted, Finished, Prefilled
from fairsched.model.prefix_cache import PrefixTree
from fairsched.model.request import Prompt, Request
from fairsched.policies.base import AnyRouter
from fairsched.policies.routers import E2

BETWEEN_NS = 1_000_000
RUNNING = 32
BATCH = 100
OUTPUT_TOKENS = 40
CAPACITY_TOKENS, WINDOW_REQUESTS = 130_000, 6_000
PLACED = 1_000
"""Prompts of a round of `make bench`."""


class Server:
    """A worker as far as a router sees it: what it caches and evicts, and what runs."""

    def __init__(self, worker: int, capacity_tokens: int) -> None:
        self.worker, self.capacity_tokens = worker, capacity_tokens
        self.tree = PrefixTree.empty()
        self.running: deque[int] = deque()

    def serve(self, request: Request, now_ns: int) -> list[Event]:
        """The request's events, and those of who had to end for it."""
        worker, prompt, i = self.worker, request.prompt, request.id
        cached = min(self.tree.match(prompt).blocks, prompt.reusable_blocks)
        missed = prompt.tokens - cached
        events: list[Event] = [Admitted(now_ns, worker, i, 0, missed, cached, OUTPUT_TOKENS)]
        excess = self.tree.cached_tokens + missed - self.capacity_tokens
        if excess > 0:
            self.tree, evictions = self.tree.evict(max(excess, self.capacity_tokens // 128))
            events += [Evicted(now_ns, worker, e.owner, e.prompt, e.keep_blocks, e.blocks) for e in evictions]
        self.tree, _ = self.tree.insert(prompt, prompt.blocks, i, now_ns)
        events += [Prefilled(now_ns, worker, i, 0, missed, 0), Cached(now_ns, worker, i, prompt, prompt.blocks)]
        self.running.append(i)
        if len(self.running) > RUNNING:
            events += [
                Decoded(now_ns, worker, OUTPUT_TOKENS, (0,), (OUTPUT_TOKENS * RUNNING,)),
                Finished(now_ns, worker, self.running.popleft(), 0, OUTPUT_TOKENS),
            ]
        return events


class Front:
    """A router before its workers."""

    def __init__(self, router: AnyRouter, workers: int, capacity_tokens: int) -> None:
        self.router, self.state = router, router.init()
        self.servers = [Server(worker, capacity_tokens) for worker in range(workers)]
        self.placed = self.ns = self.cached_tokens = self.tokens = self.evictions = 0

    def place(self, prompt: Prompt) -> None:
        """One decision and its events, timed without the worker's own work."""
        now_ns = self.placed * BETWEEN_NS
        loads = [WorkerLoad(s.worker, 0, RUNNING, 0, s.capacity_tokens, s.capacity_tokens) for s in self.servers]
        view, request = ClusterView(now_ns, tuple(loads)), Request(self.placed, 0, now_ns, prompt, OUTPUT_TOKENS)
        start = thread_time_ns()
        dispatch, state = self.router.route(self.state, request, view)
        self.ns += thread_time_ns() - start
        events = self.servers[dispatch.worker].serve(request, now_ns)
        observe = self.router.observe
        start = thread_time_ns()
        for event in events:
            state = observe(state, event)
        self.ns += thread_time_ns() - start
        self.state = state
        self.placed += 1
        self.tokens += prompt.tokens
        self.cached_tokens += sum(event.cached_prefix_tokens for event in events if type(event) is Admitted)
        self.evictions += sum(type(event) is Evicted for event in events)

    def warm(self, window_requests: int) -> bool:
        """Whether the window and all caches are full."""
        full = all(s.tree.cached_tokens > 0.9 * s.capacity_tokens for s in self.servers)
        return full and self.placed >= window_requests


class Placing(Protocol):
    """Whatever places prompts and counts its own nanoseconds."""

    ns: int

    def place(self, prompt: Prompt) -> None: ...


class Ray:
    """Ray Serve's prefix tree: matches a prompt, inserts it for one who holds most of it, and evicts the excess."""

    def __init__(self, tree: Any, workers: int, capacity_tokens: int) -> None:
        self.tree, self.capacity_tokens = tree, capacity_tokens
        self.names = [str(worker) for worker in range(workers)]
        tree.add_tenants(self.names, 0)
        self.placed = self.ns = 0

    def place(self, prompt: Prompt) -> None:
        """One prompt, a character a token; who matches alike gets prompts in turn."""
        text = "".join(map(chr, (np.frombuffer(prompt.keys, dtype="<i8") % 50_000).tolist()))
        start = thread_time_ns()
        _, names = self.tree.prefix_match(text)
        matching = names or self.names
        name = matching[self.placed % len(matching)]
        self.tree.insert(text, name, self.placed)
        excess = self.tree.tenant_to_char_count[name] - self.capacity_tokens
        if excess > 0:
            self.tree.evict_tenant_by_lru(name, excess)
        self.ns += thread_time_ns() - start
        self.placed += 1


def peer(workers: int, capacity_tokens: int) -> Ray | None:
    """Ray's tree, if there is one.

    It is loaded by its file, since its package wants all of Ray Serve and it only the name of a log.
    """
    package = find_spec("ray")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / "llm/_internal/serve/routing_policies/prefix_aware/prefix_tree.py"
    constants = ModuleType("ray.serve._private.constants")
    constants.__dict__["SERVE_LOGGER_NAME"] = "ray.serve"
    for name in ("ray.serve", "ray.serve._private"):
        sys.modules.setdefault(name, ModuleType(name))
    sys.modules.setdefault(constants.__name__, constants)
    spec = spec_from_file_location("ray_prefix_tree", path)
    if not path.exists() or spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return Ray(module.PrefixTree(), workers, capacity_tokens)


def measure(name: str, workers: int, requests: int, capacity_tokens: int, window_requests: int) -> str:
    """One line of the table: fill the caches and the window, then time `requests`."""
    load = Load(*LOADS[name])
    front = Front(E2(window_us=window_requests * BETWEEN_NS // 1_000), workers, capacity_tokens)
    other = peer(workers, capacity_tokens)
    while not front.warm(window_requests):
        prompt = load.prompt()
        front.place(prompt)
        if other is not None:
            other.place(prompt)
    front.cached_tokens = front.tokens = front.evictions = 0
    ours, theirs = in_turns(load, front, other, requests)
    nodes, cached = len(front.state.index.nodes), front.cached_tokens / front.tokens
    evictions = front.evictions / requests
    beside = compared(median(ours), theirs)
    return f"{name:<24}{workers:>8}{nodes:>8}{cached:>8.0%}{evictions:>10.1f}{beside}"


def in_turns(load: Load, front: Placing, other: Ray | None, requests: int) -> tuple[list[float], list[float]]:
    """Let a router and Ray's tree place the same prompts, a batch each in turn: microseconds a prompt of each batch."""
    ours, theirs = [], []
    for _ in range(requests // BATCH):
        prompts = load.prompts(BATCH)
        front.ns = 0
        for prompt in prompts:
            front.place(prompt)
        ours.append(front.ns / BATCH / 1_000)
        if other is not None:
            other.ns = 0
            for prompt in prompts:
                other.place(prompt)
            theirs.append(other.ns / BATCH / 1_000)
    return ours, theirs


COMPARED = "".join(f"{column:>9}" for column in ("us", "1/s", "Ray us", "ratio"))


def compared(us: float, theirs: list[float]) -> str:
    """The columns of `COMPARED`."""
    ratio = f"{median(theirs):>9.1f}{median(theirs) / us:>9.1f}" if theirs else f"{'-':>9}{'-':>9}"
    return f"{us:>9.1f}{1e6 / us:>9,.0f}{ratio}"


def placing(front: Placing, load: Load) -> Callable[[], float]:
    """The work is to place some more prompts."""

    def run() -> float:
        front.ns = 0
        for _ in range(PLACED):
            front.place(load.prompt())
        return front.ns / 1_000 / PLACED

    return run


def e2_placing(name: str, workers: int, before: int) -> Callable[[], float]:
    """The side of ours, whose caches are full after so many prompts."""
    router = E2(window_us=WINDOW_REQUESTS * BETWEEN_NS // 1_000)
    load, front = Load(*LOADS[name]), Front(router, workers, CAPACITY_TOKENS)
    for _ in range(before):
        front.place(load.prompt())
    assert front.warm(WINDOW_REQUESTS)
    return placing(front, load)


def ray_placing(name: str, workers: int, before: int) -> Callable[[], float] | None:
    """The side of Ray's tree."""
    load, tree = Load(*LOADS[name]), peer(workers, CAPACITY_TOKENS)
    if tree is None:
        return None
    for _ in range(before):
        tree.place(load.prompt())
    return placing(tree, load)


FIGURES = {
    f"E2: a decision and its events, {name}, {workers} workers": {
        "ours": partial(e2_placing, name, workers, before),
        "Ray's prefix tree": partial(ray_placing, name, workers, before),
    }
    for name, workers, before in (
        ("toolbench, 1,500 tools", 4, 6_000),
        ("toolbench, 1,500 tools", 64, 20_000),
        ("videoqa, 1,000 videos", 4, 6_000),
    )
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 16, 64, 256])
    parser.add_argument("--capacity-tokens", type=int, default=CAPACITY_TOKENS, help="of each worker")
    parser.add_argument("--window-requests", type=int, default=WINDOW_REQUESTS, help="what H holds")
    arguments = parser.parse_args()
    print(f"{'load':<24}{'workers':>8}{'nodes':>8}{'cached':>8}{'evictions':>10}{COMPARED}")
    for name in arguments.loads:
        for workers in arguments.workers:
            sizes = arguments.requests, arguments.capacity_tokens, arguments.window_requests
            print(measure(name, workers, *sizes), flush=True)


if __name__ == "__main__":
    main()
