"""Queueing theory: waits of one queue against their formulas, and orders before 64 queues.

A worker serves one request at a time, step by step of equal length, and a request has as many steps as output tokens:
geometric ones make service times exponential up to a step, equal ones deterministic.
"""

from itertools import pairwise

import numpy as np

from fairsched.engines.simulation import RunSpec, Simulator
from fairsched.model.algebra import Ints
from fairsched.model.events import Admitted, Arrived, Event, Finished
from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.reproduce.row import Figures, Panel, Platform, Printed, number, rows_of

row = rows_of("queueing")

STEP_NS = 1_000_000
STEPS = 100
"""Steps of a request in the mean."""
STEPPER = LatencyModel(
    name="stepper",
    source="ours: every step takes as long as any other",
    prefill_constant_ns=STEP_NS,
    prefill_token_ns=0,
    prefill_attention_ps=0,
    decode=(DecodePiece(1, STEP_NS, 0, 0),),
    kv_capacity_tokens=1 << 21,
)


def _steppers(workers: int) -> Platform:
    return Platform(STEPPER.name, workers, STEPPER.kv_capacity_tokens)


ONE_AT_A_TIME = RunSpec.of("fcfs", params={"max_running": 1})


def _jobs(seed: int, size: int, load: float, *, equal: bool = False) -> tuple[Workload, Ints, Ints]:
    """Return Poisson arrivals at so much load of one worker a second, their times, and their service times, in ns."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(STEPS * STEP_NS / load, size)
    arrivals = np.cumsum(gaps).astype(np.int64)
    steps = np.full(size, STEPS) if equal else rng.geometric(1 / STEPS, size)
    jobs = (
        Job(Request(i, 0, at, Prompt(1), count), count)
        for i, (at, count) in enumerate(zip(arrivals.tolist(), steps.tolist(), strict=True))
    )
    return Workload("queueing", tuple(jobs), (Client(0, "all"),)), arrivals, steps * STEP_NS


# --- one queue --------------------------------------------------------------------------------------------------------

LOAD = 0.8


def _mean_wait(seed: int, equal: bool) -> tuple[float, float]:
    """Return the mean wait in the simulator, in service times, and how far it is from Lindley's recursion, in ns."""
    jobs, arrivals, service = _jobs(seed, 30_000, LOAD, equal=equal)
    began = np.zeros(len(arrivals), dtype=np.int64)

    def seen(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Admitted):
                began[event.request_id] = event.time_ns

    Simulator(jobs, ONE_AT_A_TIME.policy, ONE_AT_A_TIME.router, STEPPER, on_events=seen).run()
    waits = began - arrivals
    free, off = 0, 0
    for arrival, wait, takes in zip(arrivals.tolist(), waits.tolist(), service.tolist(), strict=True):
        start = max(arrival, free)
        off = max(off, abs(start - arrival - wait))
        free = start + takes
    return float(waits.mean()) / (STEPS * STEP_NS), float(off)


def _wait(name: str, about: str, formula: str, value: float) -> tuple[Printed, Printed]:
    return (
        number(name, f"mean wait before {about}, in service times", formula, value, neutral=None),
        number(
            f"{name}, off", f"ns that any wait before {about} is off", "Lindley's recursion: 0", 0, None, decimals=0
        ),
    )


@row(
    id="61",
    about="waits of one queue",
    panel="M/M/1 and M/D/1",
    platform=_steppers(1),
    setting=f"30,000 Poisson arrivals at load {LOAD}, a worker that serves one request at a time, in order of arrival",
    claims=(
        *_wait("M/M/1", "exponential service", "load / (1 - load) = 4", LOAD / (1 - LOAD)),
        *_wait("M/D/1", "equal service", "half of that, 2", LOAD / (1 - LOAD) / 2),
    ),
    seconds=6,
)
def one_queue(on: Platform, seed: int) -> Figures:
    """Return waits in the simulator, against formulas in the mean and against the recursion one by one."""
    found: dict[str, float] = {}
    for name, equal in (("M/M/1", False), ("M/D/1", True)):
        found[name], found[f"{name}, off"] = _mean_wait(seed, equal)
    return found


# --- 64 queues --------------------------------------------------------------------------------------------------------

WORKERS, REQUESTS = 64, 60_000
ROUTERS = {
    "JSQ": ("join-shortest-queue", 1.04, 1.8),
    "P2C": ("power-of-two", 2.51, 5.2),
    "RR": ("round-robin", 4.57, 18.9),
    "Random": ("random", 8.49, 38.7),
}
"""Each order's router, and what queueing theory has for the mean number of requests at a worker and at the longest."""


def _lengths(router: str, seed: int) -> tuple[float, float]:
    """Return the time averages of the requests at a worker, and at the one with most, after the first third."""
    jobs, arrivals, _ = _jobs(seed, REQUESTS, 0.9 * WORKERS)
    there = np.zeros(WORKERS, dtype=np.int64)
    changes: list[tuple[int, int, int]] = []

    def seen(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Arrived | Finished):
                changes.append((event.time_ns, event.worker, 1 if isinstance(event, Arrived) else -1))

    spec = RunSpec.of("fcfs", router, params={"max_running": 1})
    Simulator(jobs, spec.policy, spec.router, STEPPER, workers=WORKERS, on_events=seen).run()
    begin, end = int(arrivals[REQUESTS // 3]), int(arrivals[-1])
    total = longest = 0.0
    before = begin
    for at, worker, change in sorted(changes):
        if begin < at:
            span = min(at, end) - before
            total, longest, before = total + span * there.sum(), longest + span * there.max(), min(at, end)
        there[worker] += change
    return float(total) / WORKERS / (end - begin), float(longest) / (end - begin)


def _orders() -> tuple[Printed, ...]:
    lengths = [
        number(f"{name} {what}", f"{about}, {name}", str(value), value, neutral=None)
        for name, (_, mean, longest) in ROUTERS.items()
        for what, about, value in (("mean", "requests at a worker", mean), ("max", "at the one with most", longest))
    ]
    names = list(ROUTERS)
    better = [
        number(
            f"{worse} over {name}",
            f"requests at a worker, {worse} over {name}",
            f"{ROUTERS[worse][1]} over {ROUTERS[name][1]}",
            ROUTERS[worse][1] / ROUTERS[name][1],
        )
        for name, worse in pairwise(names)
    ]
    return (*lengths, *better)


@row(
    id="34",
    about="orders before 64 queues",
    panel="M/M/64 at load 0.9",
    platform=_steppers(WORKERS),
    setting=f"{REQUESTS:,} Poisson arrivals, workers that serve one request at a time, exponential service; requests "
    "at a worker, waiting or served, over time, after a third of the arrivals",
    claims=_orders(),
    seconds=40,
)
def orders(on: Platform, seed: int) -> Figures:
    """Return numbers of requests under each router."""
    found: dict[str, float] = {}
    for name, (router, _, _) in ROUTERS.items():
        found[f"{name} mean"], found[f"{name} max"] = _lengths(router, seed)
    names = list(ROUTERS)
    for name, worse in pairwise(names):
        found[f"{worse} over {name}"] = found[f"{worse} mean"] / found[f"{name} mean"]
    return found


PANELS = (
    Panel("M/M/1 and M/D/1", "waits of one queue", rows=("61",)),
    Panel("M/M/64 at load 0.9", "orders before 64 queues", rows=("34",)),
)
