"""One run of a comparison: a policy and a router over a workload, with every figure, the bound and the log's hash."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from fairsched.engines.assumptions import assumption_monitor
from fairsched.engines.changes import Change, Join, WorkerSpec
from fairsched.engines.head import Reports
from fairsched.engines.log import CanonicalLog
from fairsched.engines.metrics import Recorder, RunResult
from fairsched.engines.moves import KvLink
from fairsched.engines.organisations import organisations
from fairsched.engines.predictors import Predictor
from fairsched.engines.simulator import Simulator
from fairsched.model.events import Event
from fairsched.model.latency import LatencyModel
from fairsched.model.pricing import multipliers
from fairsched.model.service import Charging
from fairsched.model.worker_state import WorkerState
from fairsched.model.workload import Workload
from fairsched.policies.base import ClusterPolicy, Limits, LocalPolicy

KV_SAMPLE_EVERY = 4
"""Every so many transitions of the run, the KV use of the worker is sampled for the plot."""
_PIECE = 1 << 12
"""So many events are recorded at once."""


@attrs.frozen
class Cluster:
    """The workers of a comparison, and what happens to them.

    `workers` are so many with the model and `kv_capacity_tokens` (None: the model's own figure), or one for each spec.
    """

    latency: LatencyModel
    workers: int | tuple[WorkerSpec, ...] = 1
    kv_capacity_tokens: int | None = None
    changes: tuple[Change, ...] = ()
    reports: Reports | None = None
    link: KvLink = attrs.field(factory=KvLink)

    @property
    def specs(self) -> tuple[WorkerSpec, ...]:
        """The workers that are there from the start."""
        if isinstance(self.workers, int):
            return (WorkerSpec(self.latency, self.kv_capacity_tokens),) * self.workers
        return self.workers

    @property
    def all_specs(self) -> tuple[WorkerSpec, ...]:
        """Those that join later too, in order of their numbers."""
        joins = sorted((change for change in self.changes if isinstance(change, Join)), key=lambda join: join.at_ns)
        return (*self.specs, *(join.spec or self.specs[0] for join in joins))

    @property
    def count(self) -> int:
        """How many there are from the start."""
        return len(self.specs)

    @property
    def differ(self) -> bool:
        """Whether they are of several kinds."""
        return len(set(self.all_specs)) > 1

    @property
    def capacity(self) -> int:
        """KV tokens of the largest worker: what bounds rest on."""
        return max(spec.capacity for spec in self.all_specs)


@attrs.frozen
class Run:
    """What is run: a policy and a router (or another cluster policy), each with the parameters that were set.

    Requests come with the predictions of `predictor`, of the workload itself without one; `rate_scale` says how much
    faster than the workload's own rate they come.
    """

    policy: LocalPolicy[Any]
    name: str
    params: Mapping[str, str]
    router: ClusterPolicy[Any]
    router_params: Mapping[str, str] = attrs.field(factory=dict)
    predictor: Predictor | None = None
    rate_scale: float = 1.0

    @property
    def router_title(self) -> str:
        """The router in one word or two."""
        params = ", ".join(f"{key}={value}" for key, value in self.router_params.items())
        return f"{self.router.name} ({params})" if params else self.router.name

    @property
    def title(self) -> str:
        """The run in one word or two."""
        params = ", ".join(f"{key}={value}" for key, value in self.params.items())
        return f"{self.name} ({params})" if params else self.name


def limits_of(workload: Workload, cluster: Cluster, policy: LocalPolicy[Any]) -> Limits:
    """What the policy's bound rests on: the declared output limits, the KV capacity, and the batching rule.

    The longest prompt is whatever fits a worker beside one output token; no maximum of the trace's prompts enters.
    """
    declared = max((job.request.max_output_tokens for job in workload.jobs), default=1)
    limits = policy.limits(cluster.capacity, declared)
    return limits if policy.credit() is None else attrs.evolve(limits, workers=len(cluster.all_specs))


def run_one(
    workload: Workload,
    run: Run,
    cluster: Cluster,
    *,
    progress: Callable[[int], None] | None = None,
    sink: Callable[[Event, bytes], None] | None = None,
) -> tuple[RunResult, Simulator, bool]:
    """Simulate one run.  Returns its figures, the simulator in its last state, and whether it was completed: an
    interrupted run (KeyboardInterrupt) keeps the figures of what happened until then."""
    limits = limits_of(workload, cluster, run.policy)
    recorder = Recorder(workload, assumption_monitor(run.policy, workload.clients, limits))
    log = CanonicalLog(sink)
    pending: list[Event] = []
    due = KV_SAMPLE_EVERY

    def record() -> None:
        log.record(pending)
        recorder.record(pending)
        pending.clear()

    def sample(state: WorkerState) -> None:
        samples = recorder.kv_samples(state.worker)
        if samples.is_due():
            tree = state.cache.tree
            held, idle = state.used + tree.protected_tokens, tree.cached_tokens - tree.protected_tokens
            samples.add(simulator.now_ns, held, idle, state.capacity)

    def on_events(events: list[Event]) -> None:
        nonlocal due
        pending.extend(events)
        due -= 1
        if not due:
            due = KV_SAMPLE_EVERY
            if events[0].worker >= 0:
                sample(simulator.lanes[events[0].worker].state)
            if len(pending) >= _PIECE:
                record()

    def at_once(events: list[Event]) -> None:
        on_events(events)
        record()

    simulator = Simulator(
        workload,
        run.policy,
        run.router,
        cluster.latency,
        workers=cluster.specs,
        changes=cluster.changes,
        reports=cluster.reports,
        link=cluster.link,
        predictor=run.predictor,
        on_events=on_events if sink is None else at_once,  # a sink wants every line, since the run may be cut off
        progress=progress,
    )
    started, complete = time.perf_counter(), True
    try:
        simulator.run()
    except KeyboardInterrupt:
        complete = False
    record()
    sha256 = log.sha256()
    result = recorder.result(
        policy=run.name,
        router=run.router_title,
        params={name: int(text) if text.isdecimal() else text for name, text in run.params.items()},
        charging=charging_of(workload, run.policy),
        service_gap_bound=run.policy.service_gap_bound(workload.clients, limits),
        gap_scope="worker" if limits.workers == 1 else "cluster",
        organisation_gap_bound=run.policy.group_gap_bound(organisations(workload.clients), limits),
        wall_s=0.0,
        log_sha256=sha256,
        workers=len(simulator.lanes),
        moves=simulator.moved(),
    )
    said = None if run.predictor is None else run.predictor.title
    wall_s = time.perf_counter() - started
    result = attrs.evolve(result, wall_s=wall_s, predictor=said, rate_scale=run.rate_scale)
    return result, simulator, complete


def charging_of(workload: Workload, policy: LocalPolicy[Any]) -> Charging | None:
    """How the policy charges, for the figures of charged service; None for a policy that charges nobody."""
    rule = policy.charging
    if rule is None:
        return None
    multiples = multipliers([client.weight for client in workload.clients])
    return Charging(rule.rates, rule.input, multiples, rule.cached_percent, rule.splits)
