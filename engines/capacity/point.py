"""One quantum and one in-flight cap, simulated: what `tuning` asks of a point.

**What a wait is.**  With `of="clients"`, a client waits from when it has a request in the queue, or was last let in
while it had, until it is let in: what the theorems bound.  With "requests", a request waits from its arrival to its
admission.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs
import numpy as np

from fairsched.engines.analysis import EventTables, Measures, Outcomes, Summary, occupied_ns, run_charging, summary
from fairsched.engines.analysis.audit import without_service
from fairsched.engines.simulation import Cluster, RunSpec, limits_of
from fairsched.model.events import Admitted, Arrived
from fairsched.model.monitor import FirstTokenBound
from fairsched.model.request import Workload
from fairsched.model.service import Charging, Ints, Table, Tables, backlogs, busiest, charges, service_gap
from fairsched.policies.base import Limits
from fairsched.policies.gates import deficit
from fairsched.policies.guarantees import wait_bound_cost
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import parameters

WaitOf = Literal["clients", "requests"]


@attrs.frozen
class TunedPoint:
    """One configuration as it was simulated.

    `wait_us` is of the client that fares worst (or of all requests, as asked), `rate` the cost units a second that a
    worker charged on average while it had anything to do, `bound_cost` what is proved about a wait in cost units (None:
    nothing), `bound_us` the same in time: by `bound_by`, which is T-wait of the latency model alone, or D-A.2-time at
    the rate where that is stated or T-wait proves nothing.
    """

    quantum: int
    cap: int | None
    measures: Measures
    wait_us: Summary
    waits_longest: str
    gap: int
    rate: float
    bound_cost: int | None
    bound_us: float | None
    bound_by: str = deficit.D_A2_TIME.id

    @property
    def throughput(self) -> float:
        """Finished requests a second."""
        return self.measures.throughput_rps or 0.0

    def keeps(self, max_wait_us: float) -> bool:
        """Return whether the measured wait is at most that; where no client is served, no wait ends."""
        return self.throughput > 0 and (self.wait_us.p99 or 0.0) <= max_wait_us


@attrs.frozen
class PointRun:
    """What is the same in all points: workload and cluster, the policy's other parameters, and what is asked."""

    workload: Workload
    cluster: Cluster
    policy: str
    params: Mapping[str, object]
    router: str
    router_params: Mapping[str, object]
    wait_of: WaitOf
    rate: float | None

    def point(self, quantum: int, cap: int | None, progress: Callable[[int], None] | None = None) -> TunedPoint:
        chosen = {**self.params, "quantum": quantum, "in_flight_cap_tokens": "none" if cap is None else cap}
        run = RunSpec.of(self.policy, self.router, params=chosen, router_params=self.router_params)
        return simulated(self.workload, run, self.cluster, self.wait_of, self.rate, progress)


def simulated(
    workload: Workload,
    run: RunSpec,
    cluster: Cluster,
    of: WaitOf,
    stated_rate: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> TunedPoint:
    """Simulate a policy with a deficit gate, measure what tuning asks, and hold it against what is proved."""
    policy = run.policy
    assert isinstance(policy, ComposedPolicy)
    events = EventTables()
    run.simulator(workload, cluster, events.add, progress).run()
    trace = events.whole()
    charging = run_charging(policy, workload.clients) or Charging()
    charged, waited = charges(trace, charging), backlogs(trace)
    waits, who = _waits(workload, trace, waited, of)
    rate = stated_rate or _rate(trace, charged, charging)
    limits = limits_of(workload, cluster, policy)
    bound = wait_bound_cost(policy.gate, workload.clients, limits)
    worst = None if stated_rate else _worst(workload, policy, cluster, limits)
    at_rate_us = bound / rate * 1e6 if bound is not None and rate else None
    tuned: dict[str, Any] = parameters(policy)
    return TunedPoint(
        quantum=tuned["quantum"],
        cap=tuned["in_flight_cap_tokens"],
        measures=Outcomes(workload, trace).measures(None),
        wait_us=waits,
        waits_longest=who,
        gap=service_gap(charged, waited, busiest(charged, len(workload.clients))).cost,
        rate=rate,
        bound_cost=bound,
        bound_us=at_rate_us if worst is None else worst.admission_ns / 1e3,
        bound_by=deficit.D_A2_TIME.id if worst is None else worst.theorem.id,
    )


def _worst(workload: Workload, policy: ComposedPolicy, cluster: Cluster, limits: Limits) -> FirstTokenBound | None:
    """Return the longest wait of a client on the slowest of the workers; None where it is not proved."""
    longest = max((job.request.prompt.tokens for job in workload.jobs), default=1)
    outputs = max((job.request.max_output_tokens for job in workload.jobs), default=1)
    limits = attrs.evolve(limits, prompt_tokens_max=min(longest, limits.prompt_tokens_max), output_tokens_max=outputs)
    latencies = dict.fromkeys(spec.latency for spec in cluster.all_specs)
    waits = [policy.guarantee.worst_wait(workload.clients, limits, latency) for latency in latencies]
    proved = [wait for wait in waits if wait is not None]
    return max(proved, key=lambda wait: wait.admission_ns) if len(proved) == len(waits) else None


def _waits(workload: Workload, trace: Tables, waited: Table, of: WaitOf) -> tuple[Summary, str]:
    """Return the waits that count, and whose they are."""
    admitted = trace[Admitted]
    if of == "requests":
        return summary(_request_waits(trace)), "all requests"
    found: list[tuple[Summary, str]] = []
    for client in workload.clients:
        lengths = []
        for worker in np.unique(waited["worker"]).tolist():
            mine = (waited["client"] == client.id) & (waited["worker"] == worker)
            let_in = admitted["time_ns"][(admitted["client"] == client.id) & (admitted["worker"] == worker)]
            start, stop = without_service((waited["start_ns"][mine], waited["stop_ns"][mine]), let_in, 1)
            lengths += [stop - start, np.zeros(max(len(let_in) - len(start), 0), dtype=np.int64)]
        if lengths:
            found.append((summary(np.concatenate(lengths)), client.name))
    return max(found, key=lambda row: row[0].p99 or 0.0, default=(Summary(), "nobody"))


def _request_waits(trace: Tables) -> Ints:
    """Return the waits from each request's first arrival at a worker to its first admission."""
    arrived, admitted = trace[Arrived], trace[Admitted]
    sent, at = np.unique(arrived["request_id"], return_index=True)
    served, first = np.unique(admitted["request_id"], return_index=True)
    waits: Ints = admitted["time_ns"][first] - arrived["time_ns"][at][np.searchsorted(sent, served)]
    return waits


def _rate(trace: Tables, charged: Table, charging: Charging) -> float:
    """Cost units a second that the slowest worker charged while it had anything to do; 0.0 if none ever had."""
    costs = charged["amount"]
    if charging.multipliers:
        costs = costs // np.array(charging.multipliers, dtype=np.int64)[charged["client"]]
    return min(
        (
            int(costs[charged["worker"] == worker].sum()) * 1e9 / busy_ns
            for worker, busy_ns in enumerate(occupied_ns(trace).tolist())
            if busy_ns
        ),
        default=0.0,
    )
