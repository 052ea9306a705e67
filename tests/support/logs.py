"""What tests of logs share: a run written to a file, a policy built from a log's header, and small hard cases."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from hypothesis import strategies as st

from fairsched.engines.logs import CanonicalLog, LogHeader, LogWriter, RunInfo, params_of
from fairsched.engines.simulation import Simulator
from fairsched.engines.simulation.simulated_worker import SimulatedWorker
from fairsched.engines.workloads.fleet import Restart, WorkerSpec
from fairsched.model.events import Event
from fairsched.model.machine import LatencyModel
from fairsched.model.request import Workload
from fairsched.model.worker import transitions
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS, parameters, with_parameters
from fairsched.verify.conformance.strategies import workloads
from tests.support.scenarios import latency_of

LATENCY = latency_of(10, prefill_token_ns=1, request_ns=2, context_token_ns=1, kv_capacity_tokens=40)
"""10 ns a step, 1 ns a prefilled token, 10 + 2 x requests + context ns a decode step: to be worked out by hand."""


@attrs.frozen
class Case:
    """A run: a policy with parameters as text, over some workers."""

    policy: str
    params: Mapping[str, str] = attrs.field(factory=dict)
    workers: int = 1
    router: str = "round-robin"
    kv_capacity_tokens: int = 40
    leap: bool = True
    latency: LatencyModel = LATENCY
    changes: tuple[Restart, ...] = ()
    keep_ns: int = 0

    def build(self) -> ComposedPolicy:
        """The policy."""
        return with_parameters(LOCAL_POLICIES[self.policy], self.params)

    def simulator(self, workload: Workload, **options: Any) -> Simulator:
        """A run of the case over a workload; `options` are the simulator's and go first."""
        latency, router = options.pop("latency", self.latency), options.pop("router", ROUTERS[self.router])
        spec = WorkerSpec(self.latency, self.kv_capacity_tokens, keep_ns=self.keep_ns)
        workers = [spec] * self.workers if self.keep_ns else self.workers
        own = {"workers": workers, "kv_capacity_tokens": self.kv_capacity_tokens, "leap": self.leap}
        return Simulator(workload, self.build(), router, latency, **own | {"changes": self.changes} | options)

    def events(
        self, workload: Workload, prepare: Callable[[Simulator], object] = lambda simulator: None
    ) -> list[Event]:
        """The events of a run over the workload; `prepare` may change the simulator before it."""
        return recorded(partial(self.simulator, workload), prepare=prepare)[1]


def recorded(
    simulator: Callable[..., Simulator],
    sink: Callable[[Event, bytes], None] | None = None,
    prepare: Callable[[Simulator], object] = lambda simulator: None,
) -> tuple[Simulator, list[Event], str]:
    """Run what `simulator` makes with a listener; returns it with its events and the hash of its log."""
    events: list[Event] = []
    log = CanonicalLog(sink)

    def listen(happened: list[Event]) -> None:
        events.extend(happened)
        log.record(happened)

    made = simulator(on_events=listen)
    prepare(made)
    made.run()
    return made, events, log.sha256()


def hash_of(events: list[Event]) -> str:
    """The hash of the log of these events."""
    log = CanonicalLog()
    log.record(events)
    return log.sha256()


def before_decisions(simulator: Simulator, act: Callable[[SimulatedWorker], None]) -> None:
    """Let `act` see, and change, each worker that is about to decide."""
    decide = simulator.pool.decide

    def hooked(worker: SimulatedWorker) -> None:
        act(worker)
        decide(worker)

    vars(simulator.pool)["decide"] = hooked


@attrs.frozen
class Written:
    """A log on disk, the simulator that wrote it, every event in the order of the run, and the log's hash."""

    path: Path
    simulator: Simulator = attrs.field(repr=False)
    events: list[Event] = attrs.field(repr=False)
    log_sha256: str


def stop_early(simulator: Simulator) -> None:
    """Let some outputs end earlier than was foreseen, as in an engine that samples their last token: those of requests
    with an odd id, whenever their worker decides while it decodes them."""

    def stop(worker: SimulatedWorker) -> None:
        for request_id, flight in sorted(worker.state.in_flight.items()):
            if request_id % 2 and flight.clock_start is not None:
                worker.state, events = transitions.stop(worker.state, request_id, simulator.loop.now_ns)
                simulator.pool.publish(worker, events)

    before_decisions(simulator, stop)


def write(
    path: Path,
    workload: Workload,
    case: Case,
    complete: bool = True,
    prepare: Callable[[Simulator], object] = lambda simulator: None,
) -> Written:
    """Run the case over the workload and log it; without `complete` as if interrupted at the end."""
    info = RunInfo(
        policy=case.policy,
        params=params_of(parameters(case.build())),
        router=case.router,
        workers=case.workers,
        kv_capacity_tokens=case.kv_capacity_tokens,
        latency=case.latency,
        workload=workload.name,
        leap=case.leap,
    )
    with LogWriter(path, "0.0.0", info, workload) as writer:
        simulator, events, sha256 = recorded(partial(case.simulator, workload), writer, prepare)
        if complete:
            writer.complete(sha256, [worker.policy_state for worker in simulator.workers])
    return Written(path, simulator, events, sha256)


def build(header: LogHeader) -> ComposedPolicy:
    """The policy of a log, as the command line builds it."""
    return with_parameters(LOCAL_POLICIES[header.run.policy], header.run.params)


@st.composite
def restarts(draw: st.DrawFn, workers: int) -> tuple[Restart, ...]:
    """Mostly none, else a few in the time of a drawn workload, perhaps while the worker is still down."""
    if draw(st.integers(0, 2)):
        return ()
    one = st.builds(Restart, st.integers(0, workers - 1), st.integers(0, 600), st.sampled_from([0, 1, 50, 300]))
    return tuple(draw(st.lists(one, min_size=1, max_size=3)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any policy, batching rule and reservation rule over one or two workers that may fail, with budgets small enough
    to matter."""
    policy = draw(st.sampled_from(sorted(LOCAL_POLICIES)))
    params: dict[str, Any] = {
        "batching": draw(st.sampled_from(["chunked", "iteration-level", "eager-prefill", "request-level"])),
        "reserve": draw(st.sampled_from(["static", "optimistic"])),
        "max_batched_tokens": str(draw(st.sampled_from([3, 8, 64]))),
        "max_running": str(draw(st.sampled_from([2, 16]))),
    }
    known = parameters(LOCAL_POLICIES[policy])
    if "quantum" in known:
        params["quantum"] = str(draw(st.sampled_from([1, 5, 30])))
    if "in_flight_cap_tokens" in known:
        params["in_flight_cap_tokens"] = draw(st.sampled_from(["none", "20"]))
    workers = draw(st.integers(1, 2))
    return Case(
        policy,
        params,
        workers=workers,
        router=draw(st.sampled_from(sorted(ROUTERS))),
        leap=draw(st.booleans()),
        changes=draw(restarts(workers)),
    )


RUNS = st.tuples(workloads(span_ns=400), cases())
"""A workload and a case to run it by."""
