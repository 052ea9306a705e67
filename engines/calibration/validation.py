"""Fidelity: one workload through the real engine in real time and through the simulator with the fitted model.

Both runs are logs of the same events, so one definition (`engines.analysis.outcomes`) gives the figures of both; a
request's time begins when it was sent.  Figures are Vidur's (normalised latency; MLSys'24), Splitwise's (error of
step times; ISCA'24) and DistServe's (SLO attainment; OSDI'24).

The load is a share of the engine's capacity as the model says it: requests finished a second, between the first and
the third quartile of ends, when all of them wait from the start.
"""

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from msgspec.structs import replace

from fairsched.engines.analysis import Outcomes, summary
from fairsched.engines.calibration.drive import Clock, Driver
from fairsched.engines.calibration.meter import KINDS, StepMeter, StepSample, mape
from fairsched.engines.serving import Engine, EventLog, Executor
from fairsched.engines.simulation import simulate_events
from fairsched.model.events import Arrived, Cancelled, Event, Finished
from fairsched.model.machine import LatencyModel
from fairsched.model.request import Slo, Workload
from fairsched.model.service import concatenate, tables
from fairsched.policies.base import AnyLocalPolicy, AnyRouter

SLO_PERCENTILE = 90
"""Where a workload has no targets, they are these percentiles of the simulated TTFT and TPOT."""

START_NS = 100_000_000
"""When the first request comes: a real engine must be there before."""

LATENCIES = ("ttft_us", "tpot_us", "normalized_latency_us")
PERCENTILES = ("p50", "p95")


@attrs.frozen
class RunFigures:
    """What a run was like, in microseconds: percentiles by name and rank (`ttft_us.p95`), makespan, attainment."""

    latencies: Mapping[str, float | None]
    makespan_us: float
    slo_attainment: float | None

    def of(self, key: str) -> float | None:
        return self.makespan_us if key == "makespan_us" else self.latencies[key]


@attrs.frozen
class RealRun:
    """A run of the real engine: its figures, the error of the model along it, and the scheduler's share of its steps.

    `step_mape` is of every step that was taken, priced by the model; `step_bias` what the model says of all steps
    together over what they took, less 1.
    """

    figures: RunFigures
    steps: int
    step_mape: float
    step_mape_by_kind: Mapping[str, float | None]
    step_bias: float
    scheduler_share: float


@attrs.frozen
class Fidelity:
    """A policy, simulated once (a simulation is exact) and run on the real engine several times.

    A machine is not as fast on every day: `at_speed` holds, for each run, what the simulator says with all times of the
    model multiplied by one number, such that all steps of the run together take what they took.
    """

    policy: str
    slo_ttft_ns: int | None
    slo_tpot_ns: int | None
    offered_rps: float
    simulated: RunFigures
    at_speed: tuple[RunFigures, ...]
    runs: tuple[RealRun, ...]

    def errors(self, key: str, *, at_speed: bool = False) -> list[float]:
        """Simulated over real less 1 of the figure of that key, for each run in which there is something to compare."""
        pairs = [(said.of(key), run.figures.of(key)) for said, run in self._pairs(at_speed)]
        return [said / real - 1 for said, real in pairs if said is not None and real]

    def attainment_errors(self, *, at_speed: bool = False) -> list[float]:
        """Simulated less real attainment of each run, as a share of all requests."""
        pairs = [(said.slo_attainment, run.figures.slo_attainment) for said, run in self._pairs(at_speed)]
        return [said - real for said, real in pairs if said is not None and real is not None]

    def all_errors(self, *, at_speed: bool = False) -> dict[str, list[float]]:
        """Return the errors of every latency and of the makespan, of each run."""
        keys = (*self.simulated.latencies, "makespan_us")
        return {key: self.errors(key, at_speed=at_speed) for key in keys}

    def to_dict(self) -> dict[str, Any]:
        """Return the policy's entry in the document of `fairsched validate --json`."""
        entry = attrs.asdict(self)
        entry["errors"] = self.all_errors() | {
            "slo_attainment": self.attainment_errors(),
            "step_mape": [run.step_mape for run in self.runs],
        }
        entry["errors_at_speed"] = self.all_errors(at_speed=True) | {
            "slo_attainment": self.attainment_errors(at_speed=True)
        }
        return entry

    def _pairs(self, at_speed: bool) -> list[tuple[RunFigures, RealRun]]:
        said = self.at_speed if at_speed else (self.simulated,) * len(self.runs)
        return list(zip(said, self.runs, strict=True))


def slowed(latency: LatencyModel, factor: float) -> LatencyModel:
    """Return the model of a machine that takes `factor` times as long for everything, in whole nanoseconds."""

    def times(value: Any, *names: str) -> Any:
        return attrs.evolve(value, **{name: round(getattr(value, name) * factor) for name in names})

    decode = tuple(times(piece, "constant_ns", "context_token_ns", "request_ns") for piece in latency.decode)
    slow: LatencyModel = times(latency, "prefill_constant_ns", "prefill_token_ns", "prefill_attention_ps")
    return attrs.evolve(slow, decode=decode)


class TooFewRequestsError(ValueError):
    """A workload from which no capacity can be read."""


# --- the load -------------------------------------------------------------------------------------------------------


def capacity_rps(
    workload: Workload, policy: AnyLocalPolicy, router: AnyRouter, latency: LatencyModel, kv_capacity_tokens: int
) -> float:
    """Return requests a second that the simulated engine finishes when all wait from the start."""
    jobs = tuple(
        replace(job, request=replace(job.request, arrival_ns=0), after=(), cancel_after_ns=None)
        for job in workload.jobs
    )
    flood = replace(workload, jobs=jobs)
    events = simulate_events(flood, policy, router, latency, kv_capacity_tokens=kv_capacity_tokens)
    ends = sorted(event.time_ns for event in events if isinstance(event, Finished))
    if len(ends) < 4 or ends[len(ends) // 4] == ends[3 * len(ends) // 4]:
        raise TooFewRequestsError(f"{len(ends)} of {len(jobs)} requests finish, and a capacity needs more")
    first, last = len(ends) // 4, 3 * len(ends) // 4
    return (last - first) * 1e9 / (ends[last] - ends[first])


def with_slo(workload: Workload, slo: Slo) -> Workload:
    """Return the workload with these targets for every request that has none."""
    jobs = (replace(job, request=replace(job.request, slo=job.request.slo or slo)) for job in workload.jobs)
    return replace(workload, jobs=tuple(jobs))


# --- figures --------------------------------------------------------------------------------------------------------


def figures(workload: Workload, events: Sequence[Event]) -> RunFigures:
    """Return the figures of a run's events."""
    measures = _outcomes(workload, events).measures(None)
    return RunFigures(
        {f"{name}.{rank}": getattr(getattr(measures, name), rank) for name in LATENCIES for rank in PERCENTILES},
        measures.makespan_us,
        measures.slo_attainment,
    )


def _outcomes(workload: Workload, events: Sequence[Event]) -> Outcomes:
    return Outcomes(workload, concatenate([tables(events)]))


def typical_slo(workload: Workload, events: Sequence[Event]) -> Slo:
    """Return targets at `SLO_PERCENTILE` of this run, rounded up to whole nanoseconds."""
    outcomes = _outcomes(workload, events)
    begun = outcomes.first >= 0
    several = outcomes.finished & (outcomes.output > 1)
    ttft = outcomes.first[begun] - outcomes.arrival[begun]
    tpot = (outcomes.finish[several] - outcomes.first[several]) / (outcomes.output[several] - 1)
    targets = (getattr(summary(samples, scale=1), f"p{SLO_PERCENTILE}") for samples in (ttft, tpot))
    ttft_ns, tpot_ns = (None if target is None else math.ceil(target) for target in targets)
    return Slo(ttft_ns=ttft_ns, tpot_ns=tpot_ns)


def step_errors(samples: Sequence[StepSample], latency: LatencyModel) -> tuple[float, dict[str, float | None], float]:
    """MAPE of step time over all steps and over those of each kind, and the bias of their sum."""
    pairs = [(float(sample.shape.ns(latency)), float(sample.total_ns)) for sample in samples]
    kinds = [sample.shape.kind for sample in samples]
    by_kind: dict[str, float | None] = {
        kind: mape([pair for pair, of in zip(pairs, kinds, strict=True) if of == kind]) for kind in KINDS
    }
    whole = mape(pairs)
    if whole is None:
        raise TooFewRequestsError("the engine computed nothing")
    return whole, by_kind, math.fsum(said for said, _ in pairs) / math.fsum(real for _, real in pairs) - 1


# --- the real engine ------------------------------------------------------------------------------------------------


def real_run(
    workload: Workload,
    policy: AnyLocalPolicy,
    latency: LatencyModel,
    executor: Executor,
    start_clock: Callable[[], Clock],
    prompt_ids: Mapping[int, Sequence[int]],
    *,
    kv_capacity_tokens: int,
    log: EventLog | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[RealRun, Engine]:
    """Return the workload through a real engine with this executor, from an empty cache on; and the engine, in its last
    state.

    The executor must be new: it holds nothing, as the engine supposes.  `prompt_ids` are the tokens of each request.
    """
    events: list[Event] = []
    meter = StepMeter(executor)
    gc.collect()
    clock = start_clock()
    engine = Engine(
        policy,
        meter,
        kv_capacity_tokens=kv_capacity_tokens,
        clients=workload.clients,
        listeners=[events.extend],
        log=log,
        now_ns=clock.now_ns,
    )
    meter.watch(engine)
    driver = Driver(workload, prompt_ids, engine, meter, clock, progress=progress)
    driver.run()
    if engine.executor_failures:
        raise ValueError(f"the executor failed {engine.executor_failures} times; the program's log says why")
    whole, by_kind, bias = step_errors(meter.samples, latency)
    run = RealRun(
        figures(workload, [_at_its_time(event, driver) for event in events]),
        len(meter.samples),
        whole,
        by_kind,
        bias,
        engine.times.scheduler_share,
    )
    return run, engine


def _at_its_time(event: Event, driver: Driver) -> Event:
    """Return the event at the caller's own time: callers send and give up in the middle of a step too."""
    match event:
        case Arrived():
            return replace(event, time_ns=driver.sent_ns[event.request.id])
        case Cancelled(was_running=False) if event.worker >= 0:
            return replace(event, time_ns=driver.left_ns[event.request_id])
    return event
