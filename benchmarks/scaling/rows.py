"""How a policy and a router do as a cluster grows: decisions a second, memory and fairness of simulated runs.

Decisions are timed where they are made: whatever a router spends in `route` (or a cluster policy in `decide`) and in
`observe` is divided by its decisions, and so for the local policies of all workers together.  The simulator's own time,
which builds the views and applies the plans, is in the run's seconds only.  All times are of one core's work, so that
they depend little on what else the machine does.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import product
from typing import Any, TypeVar

import attrs
import numpy as np

from fairsched.engines.analysis import Recorder, run_charging
from fairsched.engines.analysis.metrics import Shared
from fairsched.engines.simulation.runs import NOTHING, Cluster, RunSpec, limits_of
from fairsched.engines.simulation.simulator import Simulator
from fairsched.engines.simulation.sweep import Progress
from fairsched.engines.simulation.tasks import run_tasks, tell
from fairsched.engines.workloads import WORKLOADS, generate
from fairsched.model.request import Workload
from fairsched.policies.base import Policy, Router
from fairsched.policies.registry import ROUTERS, unknown

SIZED = tuple(
    name
    for name, spec in WORKLOADS.items()
    if {"clients", "requests"} <= {parameter.name for parameter in spec.parameters}
)
"""Workloads that can be had with any number of clients and requests."""

RECORDED_MAX = 1_000_000
"""Up to so many requests a run's events are kept, for figures of fairness; they take some 1,300 bytes a request."""
DOCUMENTS_MAX = 100_000
"""More documents no workload has."""

_Policy = TypeVar("_Policy", bound=Policy[Any])


@attrs.frozen
class ScaleRow:
    """One size: `cpu_s` are the simulation's seconds of one core of this machine, without figures.

    `peak_rss_bytes` is the largest memory of the process so far, that of earlier and smaller sizes included.  `jain` is
    Jain's index of client service while all clients are active, None if they never are; `gap` the largest service gap
    on a worker and `bound` the policy's, in cost units, None without one.  Above `RECORDED_MAX` requests nothing but
    the bound is known of fairness and throughput, and `cpu_s` has no time that goes into recording.
    """

    workers: int
    clients: int
    requests: int
    cpu_s: float
    requests_per_s: float
    router_decisions: int
    router_decisions_per_s: float | None
    local_decisions: int
    local_decisions_per_s: float | None
    peak_rss_bytes: int
    throughput_rps: float | None
    imbalance: float | None
    jain: float | None
    gap: int | None
    bound: int | None

    @property
    def gap_over_bound(self) -> float | None:
        """The gap as a part of its bound."""
        return None if self.bound is None or self.gap is None else self.gap / self.bound


@attrs.frozen
class Growth:
    """Cost grows as a power of a size: `exponents` by what is paid, least squares of logarithms over the `sizes`.

    `by` is "workers", "clients" or "requests"; each value of the others has a constant of its own.  Where requests
    follow from workers and clients, they grow along.
    """

    by: str
    sizes: tuple[int, ...]
    exponents: Mapping[str, float]


_COSTS: Mapping[str, Callable[[ScaleRow], float | None]] = {
    "a router's decision": lambda row: row.router_decisions_per_s and 1 / row.router_decisions_per_s,
    "a worker's decision": lambda row: row.local_decisions_per_s and 1 / row.local_decisions_per_s,
    "a simulated request": lambda row: 1 / row.requests_per_s,
}


def growth(rows: Sequence[ScaleRow]) -> tuple[Growth, ...]:
    """Fit how costs grow by workers, clients and requests; nothing by a size that has one value only."""
    found = []
    asked = {(row.workers, row.clients): row.requests for row in rows}
    follow = all(asked[row.workers, row.clients] == row.requests for row in rows)
    grown = ("workers", "clients") if follow else ("workers", "clients", "requests")
    for by in grown:
        sizes = tuple(sorted({getattr(row, by) for row in rows}))
        fixed = [name for name in grown if name != by]
        exponents: dict[str, float] = {}
        for name, cost in _COSTS.items():
            alike: dict[tuple[int, ...], list[tuple[float, float]]] = {}
            for row in rows:
                if paid := cost(row):
                    alike.setdefault(tuple(getattr(row, each) for each in fixed), []).append((getattr(row, by), paid))
            if (power := exponent(alike.values())) is not None:
                exponents[name] = power
        if exponents:
            found.append(Growth(by, sizes, exponents))
    return tuple(found)


def exponent(series: Iterable[Sequence[tuple[float, float]]]) -> float | None:
    """Return the power of the sizes that costs follow: least squares of logarithms, each series with a constant of its
    own.  None where all sizes of each are equal.

    >>> round(exponent([[(1, 5), (10, 500)], [(2, 1), (4, 4)]]), 6)
    2.0
    """
    across = up = 0.0
    for pairs in series:
        x, y = np.log(np.array(pairs, dtype=float)).T
        across += float((x - x.mean()) @ (x - x.mean()))
        up += float((x - x.mean()) @ (y - y.mean()))
    return up / across if across else None


@attrs.define(eq=False)
class Meter:
    """Calls that were counted, and the nanoseconds that they and what belongs to them took."""

    calls: int = 0
    ns: int = 0
    inside: bool = False

    @property
    def per_s(self) -> float | None:
        """Calls a second, None without any."""
        return self.calls * 1e9 / self.ns if self.ns and self.calls else None


def metered(policy: _Policy, decides: str) -> tuple[_Policy, Meter]:
    """The same policy, and a meter of its method `decides` (counted) and `observe` (its time belongs to it)."""
    meter = Meter()
    kind = type(policy)
    timed = {decides: _timed(getattr(kind, decides), meter, 1)}
    if kind.observe is not Policy.observe and kind.observe is not Router.observe:
        timed["observe"] = _timed(kind.observe, meter, 0)
    same = copy(policy)
    # A subclass without fields of its own: configurations are frozen, and all else must stay what it is.
    object.__setattr__(same, "__class__", type(kind.__name__, (kind,), {"__slots__": (), **timed}))
    return same, meter


def _timed(method: Callable[..., object], meter: Meter, counted: int) -> Callable[..., object]:
    def call(*arguments: object) -> object:
        if meter.inside:
            return method(*arguments)
        meter.inside = True
        started = time.thread_time_ns()
        try:
            return method(*arguments)
        finally:
            meter.ns += time.thread_time_ns() - started
            meter.calls += counted
            meter.inside = False

    return call


def measure(
    workload: Workload, run: RunSpec, cluster: Cluster, progress: Callable[[int], None] | None = None
) -> ScaleRow:
    """Simulate one size, with every figure that a `ScaleRow` has."""
    router, routed = metered(run.router, "route" if isinstance(run.router, Router) else "decide")
    policy, decided = metered(run.policy, "decide")
    recorder = Recorder(workload) if len(workload.jobs) <= RECORDED_MAX else None
    simulator = Simulator(
        workload,
        policy,
        router,
        cluster.latency,
        workers=cluster.workers,
        kv_capacity_tokens=cluster.kv_capacity_tokens,
        on_events=None if recorder is None else recorder.record,
        progress=progress,
    )
    started = time.thread_time()
    simulator.run()
    cpu_s = time.thread_time() - started
    limits = limits_of(workload, cluster, run.policy)
    charging, count = run_charging(run.policy, workload.clients), len(simulator.workers)
    shared = Shared() if recorder is None else recorder.shared(charging, count)
    return ScaleRow(
        workers=count,
        clients=len(workload.clients),
        requests=len(workload.jobs),
        cpu_s=cpu_s,
        requests_per_s=len(workload.jobs) / cpu_s,
        router_decisions=routed.calls,
        router_decisions_per_s=routed.per_s,
        local_decisions=decided.calls,
        local_decisions_per_s=decided.per_s,
        peak_rss_bytes=peak_rss_bytes(),
        throughput_rps=shared.throughput_rps,
        imbalance=shared.imbalance,
        jain=shared.jain_client,
        gap=None if shared.gap is None else shared.gap.cost,
        bound=run.policy.guarantee.service_gap_bound(workload.clients, limits),
    )


def scale(
    workers: Sequence[int],
    clients: Sequence[int],
    requests: Sequence[int] = (),
    *,
    policy: str = "dlpm",
    router: str = "e2",
    workload: str = "toolbench",
    params: Mapping[str, object] = NOTHING,
    requests_per_worker: int = 20,
    requests_per_client: int = 2,
    rate_scale: float = 1.0,
    cluster: Cluster | None = None,
    seed: int = 0,
    jobs: int = 1,
    ray: str | None = None,
    progress: Progress | None = None,
) -> Iterator[ScaleRow]:
    """Simulate every number of workers with every number of clients, and yield each size, from small to large.

    Each is simulated with every number of `requests`; where none is given, with so many for each worker or client,
    whatever is more.  `workload` is one of `SIZED`, with parameters `params`; with more requests come more documents,
    where it has any.  `cluster` says what a worker is.  `jobs` processes or the cores of a `ray` cluster run sizes at
    the same time (`run_tasks` says what it raises); their times are longer where they share a machine's memory.
    Raises `ValueError` for a name that is not there.
    """
    if router not in ROUTERS:
        raise unknown("router", router, ROUTERS)
    if workload not in SIZED:
        raise unknown("workload with any number of clients and requests", workload, SIZED)
    run = RunSpec.of(policy, router)
    like = cluster or Cluster()
    defaults = {parameter.name: parameter.default for parameter in WORKLOADS[workload].parameters}
    sizes = []
    for count, people, asked in sorted(product(workers, clients, requests or (0,)), key=_cost):
        sent = asked or max(requests_per_worker * count, requests_per_client * people)
        given: dict[str, object] = {"requests": sent}
        if "documents" in defaults:
            given["documents"] = min(max(round(sent / defaults["sharers"]), 1), DOCUMENTS_MAX)
        given |= dict(params) | {"clients": people}
        sizes.append(_Size(attrs.evolve(like, workers=count), run, workload, given, rate_scale, seed))

    def heard(place: int, ended: int) -> None:
        if progress is not None:
            progress(sizes[place].title, ended, int(sizes[place].params["requests"]))

    rows: dict[int, ScaleRow] = {}
    shown = 0
    for place, row in run_tasks(_measured, sizes, jobs=jobs, ray=ray, title=lambda size: size.title, heard=heard):
        rows[place] = row
        heard(place, row.requests)
        while shown in rows:
            yield rows.pop(shown)
            shown += 1


def _cost(size: tuple[int, int, int]) -> tuple[int, int]:
    workers, clients, requests = size
    return requests, workers * clients


@attrs.frozen
class _Size:
    """One size, from which any process makes the same run."""

    cluster: Cluster
    run: RunSpec
    workload: str
    params: Mapping[str, Any]
    rate_scale: float
    seed: int

    @property
    def title(self) -> str:
        count = int(self.params["requests"])
        return f"{self.cluster.workers:,} workers, {self.params['clients']:,} clients, {count:,} requests"


def _measured(size: _Size) -> ScaleRow:
    specs = size.cluster.specs
    jobs = generate(size.workload, seed=size.seed, rate_scale=size.rate_scale, workers=specs, **size.params)
    return measure(jobs, size.run, size.cluster, tell)


def peak_rss_bytes() -> int:
    """The largest memory that this process has had."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
