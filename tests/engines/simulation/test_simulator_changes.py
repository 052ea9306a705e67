"""Workers that differ, crash, drain and join; policies that hold and move requests; reports that are late or lost."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.engines.analysis import explain, replay
from fairsched.engines.logs import LogWriter, RunInfo, params_of
from fairsched.engines.simulation import Reports, Simulator, simulate_events
from fairsched.engines.workloads.fleet import Change, Crash, Drain, Join, KvLink, Restart, WorkerSpec
from fairsched.model import events as ev
from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch, Migration
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.base import AnyClusterPolicy
from fairsched.policies.catalog import FCFS
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS, parameters, with_parameters
from fairsched.policies.routers import RoundRobin
from fairsched.policies.routers.load_based import TurnState
from fairsched.verify.conformance.strategies import workloads
from tests.engines.simulation.test_simulator import check_alike, check_run, job, world
from tests.model.monitor.test_monitor import assert_kept, watched
from tests.support.faults.drifters import Credit, Drifter, Harbour, Hoarder
from tests.support.logs import LATENCY, Case, build, cases, recorded

SPAN_NS = 600
SLOWER = attrs.evolve(LATENCY, name="slower", prefill_constant_ns=35, prefill_token_ns=3, kv_capacity_tokens=60)
SPECS = (WorkerSpec(LATENCY), WorkerSpec(SLOWER), WorkerSpec(LATENCY, 25))
LINK = KvLink(bytes_per_token=10, bytes_per_s=1_000_000_000)
"""Ten nanoseconds a token."""


@attrs.frozen
class Cluster:
    """A cluster in which much happens."""

    workers: tuple[WorkerSpec, ...]
    changes: tuple[Change, ...]
    router: AnyClusterPolicy
    reports: Reports | None

    def simulator(self, workload: Workload, case: Case, **options: Any) -> Simulator:
        """A run of it."""
        own = attrs.asdict(self, recurse=False) | {"link": LINK}
        router = own.pop("router")
        return Simulator(workload, case.build(), router, LATENCY, **own, **options)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """One worker to three, of any kind; anything may happen to them, at any time; any policy; any reports."""
    specs = tuple(draw(st.lists(st.sampled_from(SPECS), min_size=1, max_size=3)))
    times = st.integers(0, SPAN_NS)
    worker = st.integers(0, len(specs) - 1)
    downs = st.sampled_from([0, 1, 60, 700])
    change: st.SearchStrategy[Change] = st.one_of(
        st.builds(Crash, worker, times, st.one_of(st.none(), downs)),
        st.builds(Restart, worker, times, downs),
        st.builds(Drain, worker, times),
        st.builds(Join, times, st.one_of(st.none(), st.sampled_from(SPECS))),
    )
    seeds = st.integers(0, 999)
    router: st.SearchStrategy[AnyClusterPolicy] = st.one_of(
        st.sampled_from(list(ROUTERS.values())),
        st.builds(Drifter, seeds, split=st.just(False)),
        st.builds(Harbour, seeds, split=st.just(False), every_us=st.sampled_from([None, None, 1])),
        st.just(Credit()),
    )
    reports = st.builds(
        Reports, st.sampled_from([1, 2]), st.integers(0, 2), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 9)
    )
    return Cluster(
        specs,
        tuple(draw(st.lists(change, max_size=4))),
        draw(router),
        draw(st.one_of(st.none(), st.none(), st.none(), reports)),
    )


def simulated(
    workload: Workload, case: Case, cluster: Cluster, leap: bool = True
) -> tuple[Simulator, list[ev.Event], str]:
    """The simulator after the run, its events, and the hash of its log."""
    return recorded(partial(cluster.simulator, workload, case, leap=leap))


MANY = settings(max_examples=max(250, settings().max_examples))
"""For each of four properties, a thousand runs in all."""
RUNS = st.tuples(workloads(jobs_max=16, span_ns=SPAN_NS), cases(), clusters())


@pytest.mark.nightly
@given(RUNS)
@settings(MANY, suppress_health_check=list(HealthCheck))
def test_every_request_ends_once_whatever_happens(drawn: tuple[Workload, Case, Cluster]) -> None:
    """Workers die, drain and join, policies hold, move and send nowhere, reports are lost: nothing else is."""
    workload, case, cluster = drawn
    simulator, events, _ = simulated(workload, case, cluster)
    check_run(workload, simulator, events)


@pytest.mark.nightly
@given(RUNS)
@settings(MANY, suppress_health_check=list(HealthCheck))
def test_leaps_are_steps_whatever_happens(drawn: tuple[Workload, Case, Cluster]) -> None:
    """Leaping and stepping give one log and the same final states."""
    workload, case, cluster = drawn
    check_alike(simulated(workload, case, cluster), simulated(workload, case, cluster, leap=False))


def written(path: Path, workload: Workload, case: Case, cluster: Cluster) -> tuple[Path, str]:
    """A run's log on disk, and its hash."""
    params = params_of(parameters(case.build()))
    joins = sum(isinstance(change, Join) for change in cluster.changes)
    info = RunInfo(case.policy, params, "any", len(cluster.workers) + joins, 60, LATENCY, workload.name)
    with LogWriter(path, "0.0.0", info, workload) as writer:
        simulator, _, sha256 = recorded(partial(cluster.simulator, workload, case), writer)
        writer.complete(sha256, [worker.policy_state for worker in simulator.workers])
    return path, sha256


@pytest.mark.nightly
@given(RUNS)
@settings(MANY, suppress_health_check=list(HealthCheck))
def test_logs_replay_whatever_happens(drawn: tuple[Workload, Case, Cluster]) -> None:
    """A log in which workers come and go and requests move replays: every event, the hash, each policy's state.

    Workers that share credit are rebuilt one by one, so their states are not.
    """
    workload, case, cluster = drawn
    if case.build().shared_credit is not None:
        return
    with TemporaryDirectory() as folder:
        path, sha256 = written(Path(folder) / "log", workload, case, cluster)
        report = replay(path, build)
    assert report.equal, report.difference
    assert report.log_sha256 == sha256


def test_a_request_that_moved_is_explained() -> None:
    """The explanation is that of its last worker, and says where it came from, with what; where no worker had it when
    it ended, the error says so."""
    cases = (
        (Once(), (), "arrives with 3 output tokens and the KV of 6 tokens from worker 0, where it was told to leave; "),
        (First(), (Crash(0, 40),), "arrives with 2 output tokens from worker 0, which left; "),
    )
    workload = world(job(0, 5, 4, 5), job(1, 45))
    for router, changes, said in cases:
        cluster = Cluster((WorkerSpec(LATENCY),) * 2, changes, router, None)
        with TemporaryDirectory() as folder:
            explained = explain(written(Path(folder) / "log", workload, Case("fcfs"), cluster)[0], 0, build)
        assert explained.worker == 1
        assert explained.moments[0].what.startswith(said)
        assert explained.outcome == "finished"
    cluster = Cluster((WorkerSpec(LATENCY),), (Crash(0, 40),), First(), None)
    with TemporaryDirectory() as folder:
        path, _ = written(Path(folder) / "log", workload, Case("fcfs"), cluster)
        with pytest.raises(ValueError, match=r"request 0 ended where no worker had it, rejected: .*; it came from"):
            explain(path, 0, build)


@pytest.mark.nightly
@given(RUNS)
@settings(MANY, suppress_health_check=list(HealthCheck))
def test_bounds_hold_whatever_happens(drawn: tuple[Workload, Case, Cluster]) -> None:
    """On every worker, dead ones included, no gap exceeds its bound and no lag does without a broken assumption.

    The monitor names what each change breaks: BothServe for a worker that drains or is gone, CapacityFloor if a request
    waited there, NothingRefunded for a request that leaves in the middle of its prefill; nothing else.
    """
    workload, case, cluster = drawn
    chosen = case.build()
    if not chosen.gate.grouped or chosen.shared_credit is not None:
        return
    _, events, _ = simulated(workload, case, cluster)
    for report in watched(chosen, workload, 60, events, capacity_floor=1e-9):
        here = [event for event in events if event.worker == report.worker]
        assert_kept(report)
        changes = sum(isinstance(event, ev.WorkerLeft | ev.WorkerDraining) for event in here)
        assert (report.assumptions["BothServe"].violated or 0) == changes
        lefts = sum(isinstance(event, ev.WorkerLeft) for event in here)
        assert (report.assumptions["CapacityFloor"].violated or 0) <= lefts
        refunds = sum(isinstance(event, ev.Cancelled | ev.Migrated) and event.uncomputed_tokens > 0 for event in here)
        assert (report.assumptions["NothingRefunded"].violated or 0) == refunds


def test_a_crash_breaks_what_was_claimed_of_the_rate() -> None:
    """Client 1 waits behind client 0 when their worker dies: CapacityFloor and BothServe are broken there, nothing
    is on the other worker, which serves both."""
    chosen = with_parameters(LOCAL_POLICIES["dlpm"], {"quantum": "30", "max_running": "1"})
    jobs = tuple(Job(Request(i, i, 0, Prompt(4), 4), 4) for i in range(2))
    workload = Workload("two", jobs, (Client(0, "a"), Client(1, "b")))
    events = simulate_events(workload, chosen, First(), LATENCY, workers=2, changes=[Crash(0, 20)])
    dead, alive = watched(chosen, workload, 40, events, capacity_floor=1e-9)
    floor = dead.assumptions["CapacityFloor"].first
    both = dead.assumptions["BothServe"].first
    assert floor is not None
    assert both is not None
    assert (floor.time_ns, floor.text) == (20, "worker 0 left, and client 1 waits for nothing")
    assert both.text == "worker 0 left"
    assert set(dead.violated()) == {"CapacityFloor"}
    assert not alive.violated()
    assert [e.worker for e in events if isinstance(e, ev.Finished)] == [1, 1]


@attrs.frozen
class First(RoundRobin):
    """Everything goes to the first worker of the view."""

    def route(self, state: Any, request: Request, view: ClusterView) -> tuple[Dispatch, Any]:
        return Dispatch(request.id, view.workers[0].worker), state


def test_a_crash_to_the_nanosecond() -> None:
    """Two of four tokens are out when a worker dies in its next step; the other computes prompt and both again."""
    events = simulate_events(world(job(0, 5, 4, 4)), FCFS(), First(), LATENCY, workers=2, changes=[Crash(0, 40, 100)])
    request = job(0, 5, 4, 4).request
    assert events == [
        ev.WorkerJoined(0, 0, 40),
        ev.WorkerJoined(0, 1, 40),
        ev.Arrived(5, 0, request),
        ev.Admitted(5, 0, 0, 0, 4, 0, 4),
        ev.Prefilled(19, 0, 0, 0, 4, 0),
        ev.Decoded(19, 0, 1, (0,), (1,)),
        ev.Decoded(36, 0, 1, (0,), (1,)),
        ev.WorkerLeft(40, 0),
        ev.Arrived(40, 1, replace(request, arrival_ns=40), 2),
        ev.Admitted(40, 1, 0, 0, 6, 0, 2),
        ev.Prefilled(56, 1, 0, 0, 6, 0),
        ev.Decoded(56, 1, 1, (0,), (1,)),
        ev.Decoded(75, 1, 1, (0,), (1,)),
        ev.Finished(75, 1, 0, 0, 4),
    ]


def test_requests_wait_for_a_worker_that_comes_back() -> None:
    """While no worker serves, a router's request is held; it is rejected if none ever will."""
    jobs = world(job(0, 0, 4, 4), job(1, 60))
    events = simulate_events(jobs, FCFS(), RoundRobin(), LATENCY, changes=[Crash(0, 40, 100)])
    assert [(e.time_ns, e.worker, e.request.id, e.generated_tokens) for e in events if isinstance(e, ev.Arrived)] == [
        (0, 0, 0, 0),
        (40, ev.NOWHERE, 0, 2),
        (60, ev.NOWHERE, 1, 0),
        (140, 0, 0, 2),
        (140, 0, 1, 0),
    ]
    assert {e.request_id for e in events if isinstance(e, ev.Finished)} == {0, 1}
    events = simulate_events(jobs, FCFS(), RoundRobin(), LATENCY, changes=[Crash(0, 40)])
    reason = "finds no worker that takes requests, and none is to come"
    assert events[-2:] == [ev.Rejected(t, ev.NOWHERE, i, 0, f"request {i} {reason}") for t, i in ((40, 0), (60, 1))]


def test_a_drain_finishes_what_is_there() -> None:
    """A worker that drains takes nothing new, and leaves when it is done; a worker that joins takes its share."""
    jobs = world(job(0, 0, 4, 4), job(1, 0, 4, 4), job(2, 30), job(3, 60))
    changes = [Drain(0, 25), Join(50, WorkerSpec(SLOWER))]
    events = simulate_events(jobs, FCFS(), RoundRobin(), LATENCY, workers=2, changes=changes)
    assert [e for e in events if isinstance(e, ev.WorkerJoined | ev.WorkerDraining | ev.WorkerLeft)] == [
        ev.WorkerJoined(0, 0, 40),
        ev.WorkerJoined(0, 1, 40),
        ev.WorkerDraining(25, 0),
        ev.WorkerJoined(50, 2, 60),
        ev.WorkerLeft(68, 0),
    ]
    assert {e.request_id: e.worker for e in events if isinstance(e, ev.Finished)} == {0: 0, 1: 1, 2: 1, 3: 2}


@attrs.frozen
class Once(First):
    """Moves request 0 from worker 0 to worker 1 when request 1 has come."""

    with_kv: bool = True

    def decide(self, state: Any, view: ClusterView) -> tuple[ClusterPlan, Any]:
        if view.now_ns < 40 or state.placed:
            return ClusterPlan(), state
        return ClusterPlan((), (Migration(0, 0, 1, self.with_kv),)), TurnState(1)


@pytest.mark.parametrize(
    ("with_kv", "lands_ns", "extend", "kv", "took_ns"), [(True, 54 + 60, 1, 6, 10 + 7 + 2), (False, 54, 7, 0, 10 + 7)]
)
def test_a_migration_to_the_nanosecond(with_kv: bool, lands_ns: int, extend: int, kv: int, took_ns: int) -> None:
    """The decision falls into the third decode step, which ends at 54; with its KV of six tokens the request lands
    60 ns later and decodes there over a context of seven, without it lands at once and all seven are computed."""
    jobs = world(job(0, 5, 4, 5), job(1, 45))
    events = simulate_events(jobs, FCFS(), Once(with_kv=with_kv), LATENCY, workers=2, link=LINK)
    assert [e for e in events if isinstance(e, ev.Migrated)] == [ev.Migrated(54, 0, 0, 0, True, 0, 3, kv)]
    request = replace(job(0, 5, 4, 5).request, arrival_ns=lands_ns)
    moved = [e for e in events if e.worker == 1 and not isinstance(e, ev.WorkerJoined)]
    assert moved[:3] == [
        ev.Arrived(lands_ns, 1, request, 3, kv),
        ev.Admitted(lands_ns, 1, 0, 0, extend, 7 - extend, 2),
        ev.Prefilled(lands_ns + took_ns, 1, 0, 0, extend, 0),
    ]
    assert [e.output_tokens for e in events if isinstance(e, ev.Finished) and e.request_id == 0] == [5]


def test_what_is_held_for_ever_is_rejected() -> None:
    """A policy that sends nothing anywhere loses nothing: with and without a rhythm of its own the run ends."""
    for hoarder in (Hoarder(), Hoarder(every_us=5)):
        events = simulate_events(world(job(0, 4), job(1, 9, after=(0,))), FCFS(), hoarder, LATENCY)
        reason = "request 0 is held for ever: its policy sends it nowhere"
        assert [e.reason for e in events if isinstance(e, ev.Rejected)] == [reason]
        assert [e.request_id for e in events if isinstance(e, ev.Cancelled)] == [1]


def test_reports_are_late() -> None:
    """A view is what was reported last, a delay ago, and events come with it; what was lost is never told."""
    seen: list[tuple[int, int]] = []

    @attrs.frozen
    class Looking(First):
        def route(self, state: Any, request: Request, view: ClusterView) -> tuple[Dispatch, Any]:
            seen.append((state.placed, view.workers[0].running_requests))
            return super().route(state, request, view)

        def observe(self, state: Any, event: ev.Event) -> Any:
            return TurnState(state.placed + isinstance(event, ev.Finished))

    jobs = world(job(0, 100, 4, 4), *(job(i, i * 1_000 + 500) for i in range(1, 4)))
    for loss, expected in ((0.0, [(0, 0), (0, 0), (0, 0), (1, 0)]), (1.0, [(0, 0)] * 4)):
        seen.clear()
        reports = Reports(every_us=1, delay_us=2, loss=loss)
        simulate_events(jobs, FCFS(), Looking(), LATENCY, reports=reports)
        assert seen == expected


def test_a_worker_is_chosen_that_the_request_fits() -> None:
    """Of workers that differ a router sees those that can hold the request."""
    specs = [WorkerSpec(LATENCY, 10), WorkerSpec(LATENCY, 40)]
    events = simulate_events(world(job(0, 0, 20, 4), job(1, 0)), FCFS(), First(), LATENCY, workers=specs)
    assert {e.request_id: e.worker for e in events if isinstance(e, ev.Finished)} == {0: 1, 1: 0}


def test_the_checks_can_fail() -> None:
    """A simulator with a bug is caught: requests that ran on a worker that died are not placed again."""
    workload = world(job(0, 5, 4, 4))
    events: list[ev.Event] = []
    changes = [Crash(0, 40, 100)]
    simulator = Simulator(workload, FCFS(), RoundRobin(), LATENCY, workers=2, changes=changes, on_events=events.extend)
    vars(simulator.dispatcher)["place_again"] = lambda transfer: None
    simulator.run()
    with pytest.raises(AssertionError):
        check_run(workload, simulator, events)


@pytest.mark.parametrize("leap", [True, False])
def test_what_a_crashed_worker_had_under_way_does_not_move_the_clock(leap: bool) -> None:
    """A request that is held for ever is rejected when the last thing happened, whether steps leap or not."""
    changes = (Crash(0, 12, None),)
    jobs = world(job(0, 0, 1, 3), job(1, 0, 1, 1))
    events = simulate_events(jobs, FCFS(), Harbour(split=False), LATENCY, changes=changes, leap=leap)
    assert [type(event) for event in events[-3:]] == [ev.WorkerLeft, ev.Arrived, ev.Rejected]
    assert events[-1].time_ns == 12
