"""What tests of logs share: a run written to a file, a policy built from a log's header, and small hard cases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from hypothesis import strategies as st

from fairsched.engines.changes import Restart
from fairsched.engines.lane import Lane
from fairsched.engines.log import CanonicalLog
from fairsched.engines.log_file import LogHeader, LogWriter, RunInfo, params_of
from fairsched.engines.simulator import Simulator
from fairsched.model import worker as transitions
from fairsched.model.events import Event
from fairsched.model.latency import DecodePiece, LatencyModel
from fairsched.model.workload import Workload
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS, parameters, with_parameters
from fairsched.verify.strategies import workloads

LATENCY = LatencyModel(
    name="small",
    source="made for tests: 10 ns a step, 1 ns a prefilled token, 10 + 2 x requests + context ns a decode step",
    prefill_constant_ns=10,
    prefill_token_ns=1,
    prefill_attention_ps=0,
    decode=(DecodePiece(1, 10, 1, 2),),
    kv_capacity_tokens=40,
)
"""Integer times small enough to be worked out by hand."""


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

    def build(self) -> ComposedPolicy:
        """The policy."""
        return with_parameters(LOCAL_POLICIES[self.policy], self.params)


@attrs.frozen
class Written:
    """A log on disk, the simulator that wrote it, every event in the order of the run, and the log's hash."""

    path: Path
    simulator: Simulator = attrs.field(repr=False)
    events: list[Event] = attrs.field(repr=False)
    log_sha256: str


class Stopping(Simulator):
    """A simulator in which some outputs end earlier than was foreseen, as in an engine that samples their last token:
    those of requests with an odd id, whenever their worker decides while it decodes them."""

    def _decide(self, lane: Lane) -> None:
        for request_id, flight in sorted(lane.state.in_flight.items()):
            if request_id % 2 and flight.clock_start is not None:
                lane.state, events = transitions.stop(lane.state, request_id, self.now_ns)
                self._publish(lane, events)
        super()._decide(lane)


def write(
    path: Path, workload: Workload, case: Case, complete: bool = True, kind: type[Simulator] = Simulator
) -> Written:
    """Run the case over the workload and log it; without `complete` as if interrupted at the end."""
    policy = case.build()
    info = RunInfo(
        policy=case.policy,
        params=params_of(parameters(policy)),
        router=case.router,
        workers=case.workers,
        kv_capacity_tokens=case.kv_capacity_tokens,
        latency=case.latency,
        workload=workload.name,
        leap=case.leap,
    )
    events: list[Event] = []
    with LogWriter(path, "0.0.0", info, workload) as writer:
        log = CanonicalLog(writer)

        def on_events(happened: list[Event]) -> None:
            events.extend(happened)
            log.record(happened)

        simulator = kind(
            workload,
            policy,
            ROUTERS[case.router],
            case.latency,
            workers=case.workers,
            kv_capacity_tokens=case.kv_capacity_tokens,
            on_events=on_events,
            leap=case.leap,
            changes=case.changes,
        )
        simulator.run()
        sha256 = log.sha256()
        if complete:
            writer.complete(sha256, [lane.policy_state for lane in simulator.lanes])
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
    if "quantum" in parameters(LOCAL_POLICIES[policy]):
        params["quantum"] = str(draw(st.sampled_from([1, 5, 30])))
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
