"""Many runs side by side: policies, routers, parameter values, predictors and rates, multiplied."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.metadata import version
from itertools import product
from pathlib import Path

import attrs

from fairsched.engines.analysis import Comparison, Run, RunName, labels_of
from fairsched.engines.analysis.report import FrameWriter
from fairsched.engines.logs import LogWriter, RunInfo, params_of
from fairsched.engines.simulation.predictors import Predictor
from fairsched.engines.simulation.runs import Cluster, RunSpec, name_of, run_one
from fairsched.engines.simulation.tasks import run_tasks, tell
from fairsched.engines.workloads import trace_info
from fairsched.model.request import Workload
from fairsched.model.service import Tables
from fairsched.policies.base import AnyClusterPolicy, AnyLocalPolicy
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import parameters, unknown

DEFAULT_POLICIES = ("fcfs", "lpm", "vtc", "dlpm")
"""What is compared unless policies are named."""
Progress = Callable[[str, int, int], None]
"""Called now and then with what is being run, how much of it is done, and how much there is to do."""
Settings = Mapping[str, Mapping[str, Sequence[object]]]
"""Values of parameters by policy or router and by parameter; several values are runs of their own."""


def compare(
    workload: Workload | Mapping[float, Workload],
    policies: Iterable[str | AnyLocalPolicy] = DEFAULT_POLICIES,
    routers: Iterable[str | AnyClusterPolicy] = ("round-robin",),
    *,
    cluster: Cluster | None = None,
    settings: Settings | None = None,
    predictors: Sequence[Predictor | None] = (None,),
    logs: Path | None = None,
    frames: str | Path | None = None,
    jobs: int = 1,
    ray: str | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> Comparison:
    """Simulate a workload under every policy behind every router, and return the figures side by side.

    `workload` is one, or one for each rate scale.  Policies and routers are values or names; `settings` multiplies them
    by values of their parameters, and each of `predictors` is a run of its own.  Event logs go into the folder `logs`.
    `frames` is a folder for `requests.parquet` and `events.parquet`, or a file `*.parquet` for the requests.  `jobs`
    processes or the cores of a `ray` cluster run at a time (`run_tasks` says what it raises); figures, logs and frames
    are the same whatever they are.

    An interrupt ends the comparison with what was computed: with one process the run under way is kept as far as it
    came, with several those that ended.  Raises `ValueError` for names, parameters or values that are not there, before
    anything is run, and for logs of runs on Ray, whose machines have folders of their own.

    >>> from fairsched.engines.workloads import generate
    >>> found = compare(generate("demo", limit=20), ["fcfs", "dlpm"], settings={"dlpm": {"quantum": [256, 512]}})
    >>> found.labels()
    ['fcfs', 'dlpm quantum=256', 'dlpm quantum=512']
    """
    cluster = cluster or Cluster()
    workloads = workload if isinstance(workload, Mapping) else {1.0: workload}
    if not all(each.jobs for each in workloads.values()):
        raise ValueError("a workload without requests has nothing to compare")
    runs = list(_runs(list(policies), list(routers), workloads, settings or {}, predictors))
    for run in runs:
        cluster.suits(run.router)
    if ray and logs is not None:
        raise ValueError("logs are written where the runs are, and those of Ray are on other machines: leave one out")
    labels = labels_of([_named(run) for run in runs])
    paths = [None if logs is None else logs / _log_name(place, run) for place, run in enumerate(runs)]
    tasks = [
        _Task(workloads[run.rate_scale], run, cluster, path, frames is not None)
        for run, path in zip(runs, paths, strict=True)
    ]
    total = sum(len(task.workload.jobs) for task in tasks)
    ended = [0] * len(tasks)

    def heard(place: int, done: int) -> None:
        ended[place] = done
        if progress is not None:
            progress(runs[place].title, sum(ended), total)

    found: dict[int, Run] = {}
    complete = False
    with ExitStack() as written:
        writer = None if frames is None else written.enter_context(FrameWriter(Path(frames)))
        rows = _Rows(writer, labels, found)
        with suppress(KeyboardInterrupt):
            for place, done in run_tasks(_run, tasks, jobs=jobs, ray=ray, title=_titled, heard=heard):
                found[place] = done.run
                heard(place, len(tasks[place].workload.jobs))
                rows.add(place, done.trace)
                if not done.complete:
                    break
            else:
                complete = True
        rows.add_rest()
    if not (found or complete):
        raise KeyboardInterrupt
    places = sorted(found)
    facts = _facts(workloads, cluster, runs, complete)
    if logs is not None:
        facts["logs"] = [str(paths[place]) for place in places]
    return Comparison(version("fairsched"), command, facts, [found[place] for place in places])


@attrs.frozen
class _Task:
    """A run to be done, with what it needs in a process of its own."""

    workload: Workload
    run: RunSpec
    cluster: Cluster
    log: Path | None
    traced: bool


@attrs.frozen
class _Done:
    """A run that was done; `trace` are the columns of its events, if they were asked for."""

    run: Run
    trace: Tables | None
    complete: bool


@attrs.define(eq=False)
class _Rows:
    """Rows of frames, those of a run behind those of the run before it, whichever ends first."""

    writer: FrameWriter | None
    labels: Sequence[str]
    runs: Mapping[int, Run]
    waiting: dict[int, Tables] = attrs.field(factory=dict)
    written: int = 0

    def add(self, place: int, trace: Tables | None) -> None:
        if trace is not None:
            self.waiting[place] = trace
        while self.written in self.waiting:
            self._write(self.written)
            self.written += 1

    def add_rest(self) -> None:
        """Write the rows of runs behind one that never ended."""
        for place in sorted(self.waiting):
            self._write(place)

    def _write(self, place: int) -> None:
        assert self.writer is not None
        run = self.runs[place]
        self.writer.add(self.labels[place], run.requests, self.waiting.pop(place), run.names)


def _titled(task: _Task) -> str:
    return task.run.title


def _run(task: _Task) -> _Done:
    """Do a run, also in another process."""
    workload, run = task.workload, task.run
    trace: Tables | None = None

    def keep(_: Run, columns: Tables) -> None:
        nonlocal trace
        trace = columns

    with ExitStack() as stack:
        sink = None
        if task.log is not None:
            info = _info(workload, task.cluster, run)
            sink = stack.enter_context(LogWriter(task.log, version("fairsched"), info, workload))
        result, simulator, complete = run_one(
            workload, run, task.cluster, progress=tell, sink=sink, keep=keep if task.traced else None
        )
        if sink is not None and complete:
            sink.complete(result.log_sha256, [worker.policy_state for worker in simulator.workers])
    return _Done(result, trace, complete)


def _named(run: RunSpec) -> RunName:
    predictor = None if run.predictor is None else run.predictor.title
    return RunName(run.name, run.router_title, run.params, predictor, run.rate_scale)


def _runs(
    policies: Sequence[str | AnyLocalPolicy],
    routers: Sequence[str | AnyClusterPolicy],
    rate_scales: Iterable[float],
    settings: Settings,
    predictors: Sequence[Predictor | None],
) -> Iterator[RunSpec]:
    """Yield every policy with every combination of its parameter values, behind every router, with every predictor, at
    every rate."""
    chosen = [name_of(each) for each in (*policies, *routers)]
    for name in settings:
        if name not in chosen:
            raise unknown("policy in --set (it is not among --policies or --routers)", name, chosen)
    for scale, predictor, policy, router in product(rate_scales, predictors, policies, routers):
        for params, routing in product(_choices(settings, policy), _choices(settings, router)):
            yield RunSpec.of(
                policy, router, params=params, router_params=routing, predictor=predictor, rate_scale=scale
            )


def _choices(settings: Settings, policy: str | AnyLocalPolicy | AnyClusterPolicy) -> list[dict[str, object]]:
    """Return every combination of the parameter values that were given to a policy or router."""
    given = settings.get(name_of(policy), {})
    return [dict(zip(given, values, strict=True)) for values in product(*given.values())]


def _log_name(place: int, run: RunSpec) -> str:
    """Return a file of its own for each run, in the order of the table."""
    params = "".join(f"-{key}={value}" for key, value in run.params.items())
    name = f"{place + 1:02}-{run.name}-{run.router_title}{params}"
    return re.sub(r"[^A-Za-z0-9=._-]", "_", name) + ".jsonl"


def _info(workload: Workload, cluster: Cluster, run: RunSpec) -> RunInfo:
    if not isinstance(run.policy, ComposedPolicy):
        raise ValueError(f"{run.name} is no composed policy, and its log could not say what was run")
    return RunInfo(
        policy=run.name,
        params=params_of(parameters(run.policy)),
        router=run.router_title,
        workers=len(cluster.all_specs),
        kv_capacity_tokens=cluster.capacity,
        latency=cluster.latency,
        workload=workload.name,
        latencies=tuple(spec.latency for spec in cluster.all_specs) if cluster.differ else (),
    )


def _facts(
    workloads: Mapping[float, Workload], cluster: Cluster, runs: Sequence[RunSpec], complete: bool
) -> dict[str, object]:
    """Return what a report says of the workload (at the first rate) and of the workers."""
    scale, workload = next(iter(workloads.items()))
    facts = trace_info(workload)
    if len(workloads) > 1:
        facts["rate_scales"] = ", ".join(f"{each:g}" for each in workloads)
        facts["notes"] = [*facts["notes"], f"What is said of the workload is at rate scale {scale:g}."]
    if any(run.predictor for run in runs):
        facts["predictors"] = "; ".join(dict.fromkeys(run.predictor.title for run in runs if run.predictor))
    facts |= cluster.facts()
    facts["complete"] = complete
    return facts
