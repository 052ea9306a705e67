"""How a policy and a router do as a cluster grows: decisions a second, memory and fairness of one simulated run.

Decisions are timed where they are made: whatever a router spends in `route` (or a cluster policy in `decide`) and in
`observe` is divided by its decisions, and so for the local policies of all workers together.  The simulator's own time,
which builds the views and applies the plans, is in the run's seconds only.  All times are of one core's work, so that
they do not depend on what else the machine does.
"""

import resource
import sys
import time
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

import attrs

from fairsched.engines.compare import Cluster, Run, charging_of, limits_of
from fairsched.engines.metrics import Recorder
from fairsched.engines.simulator import Simulator
from fairsched.model.workload import Workload
from fairsched.policies.base import Policy, Router

_Policy = TypeVar("_Policy", bound=Policy[Any])


@attrs.frozen
class ScaleRow:
    """One size: `cpu_s` are the simulation's seconds of one core of this machine, without figures.

    `peak_rss_bytes` is the largest memory of the process so far, that of earlier and smaller sizes included.  `jain` is
    Jain's index of client service while all clients are active, None if they never are; `gap` the largest service gap
    on a worker and `bound` the policy's, in cost units, None without one.
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
    gap: int
    bound: int | None

    @property
    def gap_over_bound(self) -> float | None:
        """The gap as a part of its bound."""
        return None if self.bound is None else self.gap / self.bound


class Meter:
    """Calls that were counted, and the nanoseconds that they and what belongs to them took."""

    __slots__ = ("calls", "inside", "ns")

    def __init__(self) -> None:
        self.calls = 0
        self.ns = 0
        self.inside = False

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


def _timed(method: Callable[..., Any], meter: Meter, counted: int) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
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


def measure(workload: Workload, run: Run, cluster: Cluster, progress: Callable[[int], None] | None = None) -> ScaleRow:
    """Simulate one size, with every figure that a `ScaleRow` has."""
    router, routed = metered(run.router, "route" if isinstance(run.router, Router) else "decide")
    policy, decided = metered(run.policy, "decide")
    recorder = Recorder(workload)
    simulator = Simulator(
        workload,
        policy,
        router,
        cluster.latency,
        workers=cluster.workers,
        kv_capacity_tokens=cluster.kv_capacity_tokens,
        on_events=recorder.record,
        progress=progress,
    )
    started = time.thread_time()
    simulator.run()
    cpu_s = time.thread_time() - started
    result = recorder.result(
        policy=run.name,
        charging=charging_of(workload, run.policy),
        service_gap_bound=run.policy.service_gap_bound(workload.clients, limits_of(workload, cluster, run.policy)),
        workers=len(simulator.lanes),
    )
    return ScaleRow(
        workers=len(simulator.lanes),
        clients=len(workload.clients),
        requests=len(workload.jobs),
        cpu_s=cpu_s,
        requests_per_s=len(workload.jobs) / cpu_s,
        router_decisions=routed.calls,
        router_decisions_per_s=routed.per_s,
        local_decisions=decided.calls,
        local_decisions_per_s=decided.per_s,
        peak_rss_bytes=peak_rss_bytes(),
        throughput_rps=result.measures.throughput_rps,
        imbalance=result.imbalance,
        jain=result.jain_client,
        gap=result.gap.cost,
        bound=result.service_gap_bound,
    )


def peak_rss_bytes() -> int:
    """The largest memory that this process has had."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
