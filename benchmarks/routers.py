"""How many requests a second each router places.

    python benchmarks/routers.py

Prints decisions a second of one core for 4, 16 and 64 workers: one `route` a request, prompts of 1 to 4,000 tokens of
50 clients, one request a millisecond of the cluster's time, and a new view for each (made beforehand: the engine pays
for it).  Routers that learn from events also observe one `Finished` a request, inside the time.  The best of nine runs
of 2,000 requests, routers taking turns.  Then microseconds of Llumnix for an event and for a decision on migrations,
of Splitwise for an event and for the decision on a request's pair of machines, and of split phases for a request: the
first router's choice, the second's, and the four events between them.
"""

import time
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from fairsched.model.decision import ClusterView, Role, WorkerLoad
from fairsched.model.events import (
    NOWHERE,
    Admitted,
    Arrived,
    Event,
    Finished,
    Migrated,
    Prefilled,
    TransferStarted,
)
from fairsched.model.request import Prompt, Request
from fairsched.policies.base import AnyRouter, Router
from fairsched.policies.registry import ROUTERS, router_with
from fairsched.policies.routers import Llumnix, SplitPhases, Splitwise, ValleyFilling

WORKERS = (4, 16, 64)
REQUESTS = 2_000
RUNS = 9
BETWEEN_NS = 1_000_000
CAPACITY = 132_000

VARIANTS = {
    "power-of-two, by tokens": router_with(ROUTERS["power-of-two"], {"measure": "tokens"}),
    "join-shortest-queue, by tokens": router_with(ROUTERS["join-shortest-queue"], {"measure": "tokens"}),
    "sal, polling for every request": router_with(ROUTERS["sal"], {"poll_us": "0"}),
}


def traffic() -> list[Request]:
    """Requests of many lengths and clients."""
    rng = np.random.default_rng(0)
    lengths, clients = rng.integers(1, 4_000, REQUESTS), rng.integers(0, 50, REQUESTS)
    return [Request(i, int(clients[i]), i * BETWEEN_NS, Prompt(int(lengths[i])), 64) for i in range(REQUESTS)]


def views(workers: int) -> list[ClusterView]:
    """A view for each request: loaded workers, some of them full."""
    rng = np.random.default_rng(workers)
    made = []
    for i in range(REQUESTS):
        drawn = rng.integers((0, 1, 0), (20, 200, CAPACITY), (workers, 3)).tolist()
        loads = [
            WorkerLoad(worker, waiting, running, 500 * waiting, free, CAPACITY)
            for worker, (waiting, running, free) in enumerate(drawn)
        ]
        made.append(ClusterView(i * BETWEEN_NS, tuple(loads)))
    return made


def seconds(router: AnyRouter, requests: list[Request], seen: list[ClusterView]) -> float:
    """Time to place all requests."""
    learns = type(router).observe is not Router.observe
    ends = [Finished(request.arrival_ns, 0, request.id, request.client, 64) for request in requests]
    route, observe, state = router.route, router.observe, router.init()
    start = time.process_time()
    for request, view, end in zip(requests, seen, ends, strict=True):
        _, state = route(state, request, view)
        if learns:
            state = observe(state, end)
    return time.process_time() - start


def deciding(workers: int) -> tuple[float, float]:
    """Microseconds of an event and of a decision of Llumnix, a hundred requests running at each worker."""
    router, state = Llumnix(migrate_out_tokens=300), Llumnix().init()
    events: list[Event] = []
    for i in range(100 * workers):
        worker, prompt = i % workers, 500 + 7 * i % 3_000
        events.append(Arrived(i, worker, Request(i, 0, i, Prompt(prompt), 64)))
        events.append(Admitted(i, worker, i, 0, prompt, 0, 64))
    start = time.process_time()
    for event in events:
        state = router.observe(state, event)
    observed = (time.process_time() - start) / len(events)
    samples = []
    for view in views(workers):
        start = time.process_time()
        router.decide(state, view)
        samples.append(time.process_time() - start)
    return observed * 1e6, sorted(samples)[len(samples) // 2] * 1e6


def pairing(workers: int) -> tuple[float, float]:
    """Microseconds of an event and of a decision of Splitwise, about four requests at each machine at a time."""
    policy, state = Splitwise(), Splitwise().init()
    requests, seen, alive, events = traffic(), views(workers), 4 * workers, 0
    deciding = observing = 0.0
    roles: tuple[Role, Role] = ("prefill", "decode")
    for i, (request, view) in enumerate(zip(requests, seen, strict=True)):
        view = replace(view, workers=tuple(replace(load, role=roles[load.worker % 2]) for load in view.workers))
        told: list[Event] = [Arrived(request.arrival_ns, NOWHERE, request)]
        if i >= alive:
            pair = state.pairs[i - alive]
            told += [Prefilled(0, pair.prompt, i - alive, 0, 1, 0), Finished(0, pair.output, i - alive, 0, 64)]
        start = time.process_time()
        for event in told:
            state = policy.observe(state, event)
        middle = time.process_time()
        _, state = policy.decide(state, view)
        observing, deciding = observing + middle - start, deciding + time.process_time() - middle
        events += len(told)
    return observing / events * 1e6, deciding / len(requests) * 1e6


def handing_over(router: SplitPhases, workers: int) -> float:
    """Microseconds of a request from its dispatch until it is where it decodes; half of the workers are for prompts."""
    requests, state, best = traffic(), router.init(), float("inf")
    split = []
    for view in views(workers):
        loads = [replace(load, role="decode" if load.worker % 2 else "prefill") for load in view.workers]
        split.append(replace(view, workers=tuple(loads)))
    for _ in range(RUNS):
        start = time.process_time()
        for request, view in zip(requests, split, strict=True):
            dispatch, state = router.route(state, request, view)
            at, source, tokens = view.now_ns, dispatch.worker, request.prompt.tokens
            state = router.observe(state, Migrated(at, source, request.id, request.client, True, 0, 1, tokens))
            plan, state = router.decide(state, view)
            target = plan.migrations[0].target
            started = TransferStarted(at, source, request.id, request.client, target, tokens, tokens + 63)
            state = router.observe(state, started)
            state = router.observe(state, Arrived(at, target, request, 1, tokens))
            state = router.observe(state, Finished(at, target, request.id, request.client, 64))
        best = min(best, time.process_time() - start)
    return best / REQUESTS * 1e6


def valleys(held: int) -> tuple[float, float, float]:
    """Microseconds of an arrival among so many held requests, of a decision that sends none, and of each one sent."""
    policy = ValleyFilling(prices="+".join(f"{hour * 3_600}:{100 + (hour * 7 + 5) % 24}" for hour in range(48)))
    state, loads = policy.init(), views(8)[0].workers
    requests = [Request(i, 0, i, Prompt(1), 1, priority=-1) for i in range(held)]
    times = [time.process_time()]
    for request in requests:
        state = policy.observe(state, Arrived(request.arrival_ns, NOWHERE, request))
    times.append(time.process_time())
    for now_ns in (0, 10**18):
        policy.decide(state, ClusterView(now_ns, loads))
        times.append(time.process_time())
    came, none, sent = (later - earlier for earlier, later in pairwise(times))
    return came / held * 1e6, none * 1e6, sent / held * 1e6


def main() -> None:
    """Print the tables."""
    routers: dict[str, AnyRouter] = {**ROUTERS, **VARIANTS}
    requests = traffic()
    best = {(name, workers): float("inf") for name in routers for workers in WORKERS}
    for workers in WORKERS:
        seen = views(workers)
        for _ in range(RUNS):
            for name, router in routers.items():
                best[name, workers] = min(best[name, workers], seconds(router, requests, seen))
    print(f"{'decisions a second':<34}" + "".join(f"{f'{workers} workers':>14}" for workers in WORKERS))
    for name in sorted(routers):
        rates = [REQUESTS / best[name, workers] for workers in WORKERS]
        print(f"{name:<34}" + "".join(f"{rate:>14,.0f}" for rate in rates))
    for workers in WORKERS:
        observed, decided = deciding(workers)
        print(f"llumnix, {workers} workers: an event {observed:.1f} us, a decision on migrations {decided:.0f} us")
        observed, decided = pairing(workers)
        print(f"splitwise, {workers} workers: an event {observed:.1f} us, a decision on a pair {decided:.0f} us")
    came, none, sent = valleys(10_000)
    print(
        f"valley-filling, 10,000 held: an arrival {came:.0f} us, a decision {none:.0f} us, and {sent:.0f} us a request"
    )
    for name, router in ROUTERS.items():
        if isinstance(router, SplitPhases):
            costs = ", ".join(f"{handing_over(router, workers):.0f} us on {workers}" for workers in WORKERS)
            print(f"{name}, a request through both phases: {costs} workers")


if __name__ == "__main__":
    main()
