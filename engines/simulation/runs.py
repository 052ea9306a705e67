"""One run: a policy and a router over a workload on a cluster, with every figure, the bound and the log's hash.

Policies, routers and latency models are given as values or by the names that `fairsched policies` lists.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from fairsched.engines.analysis import Recorder, Run, assumption_monitor, organisations, run_charging, run_limits
from fairsched.engines.logs import CanonicalLog
from fairsched.engines.simulation.control_plane import Reports
from fairsched.engines.simulation.predictors import Predictor
from fairsched.engines.simulation.simulator import Simulator
from fairsched.engines.workloads import Change, Join, KvLink, WorkerSpec, described, rate_cautions
from fairsched.model.events import Event, Rejected
from fairsched.model.machine import DEFAULT_PRESET, GPUS, PRESETS, LatencyModel, check, decoded, preset
from fairsched.model.request import Workload
from fairsched.model.service import Tables
from fairsched.model.shown import short_repr
from fairsched.model.worker import WorkerState
from fairsched.policies.base import AnyClusterPolicy, AnyLocalPolicy, Limits
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import (
    CLUSTER_POLICIES,
    cluster_policy,
    local_policy,
    router_with,
    unknown,
    with_parameters,
)
from fairsched.policies.validators import whole_number

NOTHING: Mapping[str, object] = {}
"""No parameters."""
KV_SAMPLE_EVERY = 4
"""Every so many transitions of the run, the KV use of the worker is sampled for the plot."""
_PIECE = 1 << 12
"""So many events are recorded at once."""


def latency_model(name: str | LatencyModel) -> LatencyModel:
    """Return the latency preset of that name, the machine by formula of a model and GPUs (`qwen3-32b-h100-tp2`), or the
    model of a file that `fairsched calibrate` or `fairsched machine import` wrote (a name ending in .json).

    Raises `ValueError` for a name that is not there, a file that is no preset, one that was fitted to a log and is not
    credible, or one that is faster than its GPUs; `OSError` for a file that is not there.

    >>> latency_model("llama-3.1-8b-a100").kv_capacity_tokens
    427000
    """
    if isinstance(name, LatencyModel):
        return name
    if name.endswith(".json"):
        try:
            document = decoded(Path(name).read_bytes())
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if document.server is not None and not document.server.credible:
            why = "; ".join(document.server.reasons)
            raise ValueError(
                f"{name} is not like the log that it was fitted to ({why}); nothing can be concluded from it: fit a "
                "longer or steadier stretch of the log"
            )
        latency, deployment = document.latency, document.deployment
        known = deployment is not None and deployment.gpu in GPUS and latency.gpus is not None
        return check(latency) if known else latency
    found = preset(name)
    if found is None:
        raise unknown("latency model", name, PRESETS)
    return found


@attrs.frozen
class Cluster:
    """The workers of a run, and what happens to them.

    `latency` is a latency model or a preset's name.  `workers` are so many with this model and `kv_capacity_tokens`
    (None: the model's own figure), or one for each spec.

    >>> Cluster("llama-3.1-8b-a100", workers=2, kv_capacity_tokens=65_536).facts()["workers"]
    2
    """

    __repr__ = short_repr

    latency: LatencyModel = attrs.field(default=PRESETS[DEFAULT_PRESET], converter=latency_model)
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
    def differ(self) -> bool:
        """Whether they are of several kinds."""
        return len(set(self.all_specs)) > 1

    @property
    def split(self) -> tuple[int, int] | None:
        """How many workers only prefill, and how many only decode; None where all do both."""
        counts = Counter(spec.role for spec in self.specs)
        return (counts["prefill"], counts["decode"]) if len(self.specs) > counts["both"] else None

    def suits(self, router: AnyClusterPolicy) -> None:
        """Raise `ValueError` where workers have roles that the router does not know, or one worker is to be split."""
        if self.split is not None and not router.splits_phases:
            prefill, decode = self.split
            known = ", ".join(name for name, each in CLUSTER_POLICIES.items() if each.splits_phases) or "none yet"
            raise ValueError(
                f"router {router.name} knows no phases, and of the workers {prefill} prefill and {decode} decode: "
                f"take a router that splits phases ({known})"
            )
        if len(self.specs) == 1 and not self.changes and router.splits_phases:
            raise ValueError(f"router {router.name} splits phases, and there is one worker: it takes two or more")

    @property
    def capacity(self) -> int:
        """KV tokens of the largest worker: what bounds rest on."""
        return max(spec.capacity for spec in self.all_specs)

    @property
    def described(self) -> str:
        """The machines in a few words, each kind once."""
        kinds = Counter((spec.latency.described, spec.capacity) for spec in self.specs)
        several = len(self.specs) > 1
        return "; ".join(
            f"{f'{number} x ' if several else ''}{what}; memory for {capacity:,} tokens"
            for (what, capacity), number in kinds.items()
        )

    def facts(self) -> dict[str, object]:
        """Return what a report says of the cluster."""
        facts: dict[str, object] = {
            "workers": len(self.specs),
            "machine": self.described,
            "latency_model": self.latency.name,
            "latency_source": self.latency.source,
            "kv_capacity_tokens": self.capacity,
        }
        if any(spec.host_capacity_tokens for spec in self.all_specs):
            link = self.specs[0].link
            facts["host_capacity_tokens"] = max(spec.host_capacity_tokens for spec in self.all_specs)
            facts["host_link"] = f"{link.bytes_per_token} bytes a token at {link.bytes_per_s / 1e9:g} GB/s"
        if self.split is not None:
            facts["split"] = "{} prefill, {} decode".format(*self.split)
            latency = f", {self.link.latency_ns / 1e3:g} us" if self.link.latency_ns else ""
            contended = ", one transfer at a time" if self.link.contended else ""
            facts["link"] = f"{self.link.bytes_per_token} bytes a token at {self.link.bytes_per_s / 1e9:g} GB/s"
            facts["link"] = f"{facts['link']}{latency}{contended}"
        if self.differ:
            facts["worker_kinds"] = [f"{spec.latency.name}:{spec.capacity}" for spec in self.specs]
        if self.changes:
            facts["changes"] = [described(change) for change in sorted(self.changes, key=lambda change: change.at_ns)]
        if (late := self.reports) is not None:
            facts["reports"] = f"every {late.every_us} us, {late.delay_us} us late, {late.loss:.4g} of them lost"
        return facts


@attrs.frozen
class RunSpec:
    """What is run: a policy and a router (or another cluster policy), each with the parameters that were set.

    Requests come with the predictions of `predictor`, of the workload itself without one; `rate_scale` says how much
    faster than the workload's own rate they come.
    """

    policy: AnyLocalPolicy
    name: str
    params: Mapping[str, str]
    router: AnyClusterPolicy
    router_params: Mapping[str, str] = attrs.field(factory=dict)
    predictor: Predictor | None = None
    rate_scale: float = 1.0

    @classmethod
    def of(
        cls,
        policy: str | AnyLocalPolicy,
        router: str | AnyClusterPolicy = "round-robin",
        *,
        params: Mapping[str, object] = NOTHING,
        router_params: Mapping[str, object] = NOTHING,
        predictor: Predictor | None = None,
        rate_scale: float = 1.0,
    ) -> "RunSpec":
        """Return the run of a policy and a router, each a value or a name, with parameters set as on a command line.

        Raises `ValueError` for a name or a parameter that is not there, or a value out of range.

        >>> RunSpec.of("dlpm", "e2", params={"quantum": 512}).title
        'dlpm (quantum=512)'
        """
        given = {name: str(value) for name, value in params.items()}
        routing = {name: str(value) for name, value in router_params.items()}
        name = name_of(policy)
        chosen = local_policy(policy) if isinstance(policy, str) else policy
        # Parameters that are not given may follow from others: a named policy gets them also without any.
        if isinstance(chosen, ComposedPolicy) and (given or isinstance(policy, str)):
            chosen = with_parameters(chosen, given)
        elif given:
            raise ValueError(f"{name} is no composed policy, and has no parameters to set")
        placing = router_with(router_of(router), routing)
        return cls(chosen, name, given, placing, routing, predictor, rate_scale)

    def simulator(
        self,
        workload: Workload,
        cluster: Cluster,
        on_events: Callable[[list[Event]], None],
        progress: Callable[[int], None] | None = None,
    ) -> Simulator:
        """Return the simulator of this run of a workload on a cluster."""
        return Simulator(
            workload,
            self.policy,
            self.router,
            cluster.latency,
            workers=cluster.specs,
            changes=cluster.changes,
            reports=cluster.reports,
            link=cluster.link,
            predictor=self.predictor,
            on_events=on_events,
            progress=progress,
        )

    @property
    def router_title(self) -> str:
        """The router in one word or two."""
        return _titled(self.router.name, self.router_params)

    @property
    def title(self) -> str:
        """The run in one word or two."""
        return _titled(self.name, self.params)


def _titled(name: str, params: Mapping[str, str]) -> str:
    listed = ", ".join(f"{key}={value}" for key, value in params.items())
    return f"{name} ({listed})" if listed else name


def name_of(policy: str | AnyLocalPolicy | AnyClusterPolicy) -> str:
    """Return the name under which a policy or router is shown."""
    return policy if isinstance(policy, str) else str(getattr(policy, "name", type(policy).__name__))


def router_of(name: str | AnyClusterPolicy) -> AnyClusterPolicy:
    """Return the router (or other cluster policy) of that name, as `cluster_policy` does."""
    return cluster_policy(name) if isinstance(name, str) else name


def simulate(
    workload: Workload,
    policy: str | AnyLocalPolicy,
    router: str | AnyClusterPolicy = "round-robin",
    *,
    cluster: Cluster | None = None,
    params: Mapping[str, object] = NOTHING,
    router_params: Mapping[str, object] = NOTHING,
    predictor: Predictor | None = None,
    progress: Callable[[int], None] | None = None,
) -> Run:
    """Simulate a workload under a policy on every worker and a router before them, and return every figure of the run.

    Policy and router are values or names, with parameters set as on a command line; `cluster` is one worker of the
    default preset unless given.  `progress` is called with the number of requests that have ended.

    >>> from fairsched.engines.workloads import generate
    >>> run = simulate(generate("demo", limit=20), "dlpm")
    >>> run.measures.finished, run.gap.cost <= run.service_gap_bound
    (20, True)
    """
    run = RunSpec.of(policy, router, params=params, router_params=router_params, predictor=predictor)
    result, _, complete = run_one(workload, run, cluster or Cluster(), progress=progress)
    if not complete:
        raise KeyboardInterrupt
    return result


def limits_of(workload: Workload, cluster: Cluster, policy: AnyLocalPolicy) -> Limits:
    """Return what the policy's bound rests on in a run over this cluster."""
    limits = run_limits(policy, workload.jobs, cluster.capacity, len(cluster.all_specs))
    adapters = {job.request.adapter for job in workload.jobs if job.request.adapter}
    lack = len(adapters) > min(spec.adapter_slots for spec in cluster.all_specs)
    return attrs.evolve(limits, slots_lack=lack and limits.slots_lack)


def run_one(
    workload: Workload,
    run: RunSpec,
    cluster: Cluster,
    *,
    progress: Callable[[int], None] | None = None,
    sink: Callable[[Event, bytes], None] | None = None,
    keep: Callable[[Run, Tables], None] | None = None,
) -> tuple[Run, Simulator, bool]:
    """Simulate one run.  Returns its figures, the simulator in its last state, and whether it was completed: an
    interrupted run (KeyboardInterrupt) keeps the figures of what happened until then.  `keep` is given the run and the
    columns of its events in the end."""
    limits = limits_of(workload, cluster, run.policy)
    latencies = [spec.latency for spec in cluster.all_specs]
    recorder = Recorder(workload, assumption_monitor(run.policy, workload.clients, limits), latencies)
    log = CanonicalLog(sink)
    pending: list[Event] = []
    due = KV_SAMPLE_EVERY

    refusal: str | None = None

    def record() -> None:
        nonlocal refusal
        refusal = refusal or next((event.reason for event in pending if isinstance(event, Rejected)), None)
        log.record(pending)
        recorder.record(pending)
        pending.clear()

    def sample(state: WorkerState) -> None:
        samples = recorder.kv_samples(state.worker)
        if samples.is_due():
            tree = state.cache.tree
            held, idle = state.used + tree.protected_tokens, tree.cached_tokens - tree.protected_tokens
            samples.add(simulator.loop.now_ns, held, idle, state.capacity)

    def on_events(events: list[Event]) -> None:
        nonlocal due
        pending.extend(events)
        due -= 1
        if not due:
            due = KV_SAMPLE_EVERY
            if events[0].worker >= 0:
                sample(simulator.workers[events[0].worker].state)
            if len(pending) >= _PIECE:
                record()

    def at_once(events: list[Event]) -> None:
        on_events(events)
        record()

    # A sink wants every line, since the run may be cut off.
    simulator = run.simulator(workload, cluster, on_events if sink is None else at_once, progress)
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
        params={name: text if (value := whole_number(text)) is None else value for name, text in run.params.items()},
        charging=run_charging(run.policy, workload.clients),
        service_gap_bound=run.policy.guarantee.service_gap_bound(workload.clients, limits),
        gap_scope="worker" if limits.workers == 1 else "cluster",
        organisation_gap_bound=run.policy.guarantee.group_gap_bound(organisations(workload.clients), limits),
        wall_s=0.0,
        log_sha256=sha256,
        workers=len(simulator.workers),
        moves=simulator.moved(),
    )
    predictor = None if run.predictor is None else run.predictor.title
    wall_s = time.perf_counter() - started
    needs = [job.request.prompt_tokens + job.request.max_output_tokens for job in workload.jobs]
    notes = (*result.notes, *rate_cautions(workload, len(cluster.specs)))
    notes += run.policy.guarantee.cautions(cluster.capacity, needs)
    if (bound := result.service_gap_bound) is not None and (ratio := result.bound_over_busiest or 0.0) >= 1:
        most = round(bound / ratio)
        why = run.policy.guarantee.loose(workload.clients, limits, most)
        said = f"{run.name}: its bound of {bound:,} is not binding, as no client was charged more than {most:,}"
        notes += (f"{said}; {why}." if why else f"{said}.",)
    result = attrs.evolve(
        result, wall_s=wall_s, predictor=predictor, rate_scale=run.rate_scale, notes=notes, refusal=refusal
    )
    if keep is not None:
        keep(result, recorder.trace())
    return result, simulator, complete
