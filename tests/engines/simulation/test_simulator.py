"""The simulator's time, order and endings: a run worked out by hand, and what every run must satisfy."""

from collections import Counter
from copy import copy
from functools import partial
from typing import Any

import attrs
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fairsched.engines.simulation import Simulator, simulate_events
from fairsched.engines.simulation.simulated_worker import ENDS, PolicyStallError
from fairsched.engines.workloads.fleet import Crash, Drain, Join, Restart, WorkerSpec
from fairsched.model import events as ev
from fairsched.model.decision import Admission, StepPlan, WorkerView
from fairsched.model.events import Event
from fairsched.model.machine import AttentionTable, DecodePiece, HostTime, Kernels, LatencyModel, Skew, TimeTable
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.model.serialization import digest
from fairsched.policies.base import AnyRouter
from fairsched.policies.catalog import FCFS
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import ROUTERS
from fairsched.policies.routers import JoinShortestQueue, RoundRobin
from fairsched.verify.conformance import worker_invariants
from fairsched.verify.conformance.event_invariants import EventLedger
from tests.support.logs import LATENCY, RUNS, Case, recorded

STEPPED = attrs.evolve(
    LATENCY, name="stepped", decode=(DecodePiece(1, 10, 1, 2), DecodePiece(2, 5, 2, 7), DecodePiece(4, 30, 0, 1))
)
"""Decode times that change with the size of the batch."""
_GROWING = TimeTable((0, 6, 30), (1, 9, 90))
MEASURED = LatencyModel.of_kernels(
    "measured",
    "made for tests",
    Kernels(
        TimeTable((1, 4, 5), (6, 6, 20)),
        AttentionTable(
            TimeTable((1, 3), (_GROWING, TimeTable((0, 6, 30), (3, 30, 70)))),
            TimeTable((2, 9), (TimeTable((0,), (_GROWING,)), TimeTable((0,), (TimeTable((0,), (40,)),)))),
            Skew((2, 4), (400, 1000), (5, 20), (500_000, 0, 900_000, 100_000, 300_000, 0, 0, 700_000)),
        ),
        TimeTable((1, 2), (2, 3)),
        host=HostTime(8, 2),
        graph_sizes=(1, 4, 8),
    ),
    LATENCY.kv_capacity_tokens,
)
"""Tables whose attention depends on the longest and the shortest context of the batch."""
TOKENS = JoinShortestQueue(measure="tokens")
"""A router that sees how much memory grows while others leap."""
ANY_ROUTER = st.sampled_from([*ROUTERS.values(), TOKENS])


def job(i: int, at_ns: int, prompt: int = 2, output: int = 1, **truth: Any) -> Job:
    """A job of client 0 that shares nothing."""
    return Job(Request(i, 0, at_ns, Prompt(prompt), output), output, **truth)


def world(*jobs: Job) -> Workload:
    """These jobs, of one client."""
    return Workload("by hand", jobs, (Client(0, "a"),))


def served(*jobs: Job, **options: Any) -> list[Event]:
    """The events of a run of these jobs, first come, first served, behind round robin."""
    return simulate_events(world(*jobs), FCFS(), RoundRobin(), LATENCY, **options)


def run(
    workload: Workload, case: Case, router: AnyRouter, latency: LatencyModel, leap: bool = True
) -> tuple[Simulator, list[Event], str]:
    """The simulator after the run, its events, and the hash of its log."""
    return recorded(partial(case.simulator, workload, router=router, latency=latency, leap=leap))


def check_run(workload: Workload, simulator: Simulator, events: list[Event]) -> None:
    """Every request ended once, nothing was lost or made up, and every worker is empty and in order."""
    ledger = EventLedger()
    latest: Counter[int] = Counter()
    for event in events:
        ledger.record(event)
        assert event.time_ns >= latest[event.worker]
        latest[event.worker] = event.time_ns
    ledger.check_over(j.request.id for j in workload.jobs)
    outputs = {j.request.id: j.output_tokens for j in workload.jobs}
    assert all(outputs[e.request_id] == e.output_tokens for e in events if isinstance(e, ev.Finished))
    for worker in simulator.workers:
        worker_invariants.check(worker.state)
        simulator.pool.policy.check(worker.policy_state)
        assert not worker.state.queue
        assert not worker.state.running


def check_alike(leaping: tuple[Simulator, list[Event], str], stepping: tuple[Simulator, list[Event], str]) -> None:
    """Two runs have one log and the same final states."""
    assert leaping[2] == stepping[2]
    to_json = leaping[0].pool.policy.state_to_json
    for one, two in zip(leaping[0].workers, stepping[0].workers, strict=True):
        assert one.state == two.state
        assert to_json(one.policy_state) == to_json(two.policy_state)


@given(RUNS)
def test_routers_see_what_workers_have_now(drawn: tuple[Workload, Case]) -> None:
    """The shortest queue is where the fewest requests are, by all that has happened until then, if no worker is down:
    no router sees one that is."""
    workload, case = drawn
    assume(not any(isinstance(change, Restart) and change.down_ns for change in case.changes))
    simulator, events, _ = run(workload, case, JoinShortestQueue(), LATENCY)
    there: list[set[int]] = [set() for _ in simulator.workers]
    for event in events:
        if isinstance(event, ev.Arrived):
            assert len(there[event.worker]) == min(map(len, there))
            there[event.worker].add(event.request.id)
        elif isinstance(event, ev.Finished | ev.Cancelled | ev.Rejected) and event.worker >= 0:
            there[event.worker].discard(event.request_id)


def test_two_requests_to_the_nanosecond() -> None:
    """A prefill of 10 + 4 ns, a decode step of 10 + 5 + 2, one mixed step of 10 + 2 + (6 + 2): worked out by hand.

    The second request comes in the middle of a leap of two steps, which ends after its first.
    """
    events = served(job(0, 5, 4, 3), job(1, 30, 2, 1))
    requests = [job(0, 5, 4, 3).request, job(1, 30, 2, 1).request]
    assert events == [
        ev.WorkerJoined(0, 0, 40),
        ev.Arrived(5, 0, requests[0]),
        ev.Admitted(5, 0, 0, 0, 4, 0, 3),
        ev.Prefilled(19, 0, 0, 0, 4, 0),
        ev.Decoded(19, 0, 1, (0,), (1,)),
        ev.Arrived(30, 0, requests[1]),
        ev.Decoded(36, 0, 1, (0,), (1,)),
        ev.Admitted(36, 0, 1, 0, 2, 0, 1),
        ev.Prefilled(56, 0, 1, 0, 2, 0),
        ev.Decoded(56, 0, 1, (0,), (2,)),
        ev.Finished(56, 0, 1, 0, 1),
        ev.Finished(56, 0, 0, 0, 3),
    ]


@pytest.mark.nightly
@given(RUNS, ANY_ROUTER, st.sampled_from([LATENCY, STEPPED, MEASURED]))
def test_leaps_are_steps(drawn: tuple[Workload, Case], router: AnyRouter, latency: LatencyModel) -> None:
    """Leaping and stepping give one log and the same final states, whatever the router sees of the workers."""
    workload, case = drawn
    check_alike(run(workload, case, router, latency), run(workload, case, router, latency, leap=False))


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(1, 8), st.none() | st.integers(1, 90)),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["fcfs", "dlpm", "vtc", "trail", "fcfs-optimistic"]),
)
def test_what_a_worker_does_not_ask_changes_nothing(calls: list[tuple[int, int, int, int | None]], name: str) -> None:
    """Prompts of many steps, beside which requests come, end and are given up at any moment, give the log and the
    states of a worker that asks before each step."""
    at_ns, jobs = 0, []
    for number, (gap_ns, prompt, output, gives_up_ns) in enumerate(calls):
        at_ns += gap_ns
        jobs.append(job(number, at_ns, prompt, output, cancel_after_ns=gives_up_ns))
    case = Case(name, {"max_batched_tokens": "4", "max_running": "3"}, kv_capacity_tokens=60)
    asking = run(world(*jobs), case, RoundRobin(), LATENCY, leap=False)
    check_alike(run(world(*jobs), case, RoundRobin(), LATENCY), asking)


@pytest.mark.parametrize(("leap", "asked"), [(True, 3), (False, 9)])
def test_a_worker_asks_once_for_steps_that_are_alike(monkeypatch: pytest.MonkeyPatch, leap: bool, asked: int) -> None:
    """A prompt of 19 tokens in steps of four: its admission, the three full steps together and the last one are asked
    for; that the worker then decodes, and has nothing to do at the end, goes without saying."""
    decide, views = ComposedPolicy.decide, []

    def counted(policy: ComposedPolicy, state: Any, view: WorkerView) -> tuple[StepPlan, Any]:
        views.append(view)
        return decide(policy, state, view)

    monkeypatch.setattr(ComposedPolicy, "decide", counted)
    run(world(job(0, 0, 19, 4)), Case("fcfs", {"max_batched_tokens": "4"}), RoundRobin(), LATENCY, leap)
    assert len(views) == asked


def test_router_sees_growth_inside_a_leap() -> None:
    """Outputs that grow into free memory count at once for a router that compares tokens, leap or not."""
    case = Case("fcfs", {"reserve": "optimistic"}, workers=2)
    jobs = (job(0, 0, 2, 20), job(1, 0, 6, 20), *(job(2 + i, 40 * (i + 1), 1, 3) for i in range(6)))
    assert run(world(*jobs), case, TOKENS, LATENCY)[2] == run(world(*jobs), case, TOKENS, LATENCY, leap=False)[2]


def test_an_eviction_ends_a_leap() -> None:
    """What is evicted for a decode run takes a waiting request its rank, and the next one fits: no leap over it."""
    prompts = [Prompt.from_keys(k, block_tokens=64) for k in ((0, 0, 1), (0, 0, 0, 0), (1, 1, 0, 0, 0))]
    sizes = [(prompts[0], 136), (Prompt(256), 117), (prompts[1], 133), (prompts[2], 132)]
    jobs = [Job(Request(i, 0, 0, prompt, output), output) for i, (prompt, output) in enumerate(sizes)]
    case = Case("lpm", {"reserve": "optimistic", "max_running": "4"}, kv_capacity_tokens=774)
    stepped = run(world(*jobs), case, RoundRobin(), LATENCY, leap=False)[2]
    assert run(world(*jobs), case, RoundRobin(), LATENCY)[2] == stepped


@given(RUNS, ANY_ROUTER)
def test_every_request_ends_once(drawn: tuple[Workload, Case], router: AnyRouter) -> None:
    """Nothing is lost, made up or served twice, on any worker; and at the end every worker is empty and in order."""
    workload, case = drawn
    simulator, events, _ = run(workload, case, router, LATENCY)
    check_run(workload, simulator, events)


@given(RUNS)
@example((world(job(0, 0, 30, 30), job(1, 0, after=(0,)), job(2, 0, after=(1,))), Case("fcfs")))
@settings(max_examples=60)
def test_calls_wait_for_what_they_depend_on(drawn: tuple[Workload, Case]) -> None:
    """A call is sent `think_ns` after the last of its predecessors finished, or never if one of them did not."""
    workload, case = drawn
    _, events, _ = run(workload, case, RoundRobin(), LATENCY)
    finished = {e.request_id: e.time_ns for e in events if isinstance(e, ev.Finished)}
    came = {e.request.id: e.time_ns for e in events if isinstance(e, ev.Arrived)}
    came |= {e.request_id: e.time_ns for e in events if isinstance(e, ev.Rejected) and e.request_id not in came}
    never = {e.request_id for e in events if isinstance(e, ev.Cancelled) and e.worker < 0}
    for each in workload.jobs:
        i = each.request.id
        if not each.after:
            assert came[i] == each.request.arrival_ns
        elif all(parent in finished for parent in each.after):
            assert came[i] == max(finished[parent] for parent in each.after) + each.think_ns
        else:
            assert i in never
            assert i not in came


@given(RUNS)
@settings(max_examples=60)
def test_callers_give_up_on_time(drawn: tuple[Workload, Case]) -> None:
    """A waiting request is cancelled the instant its caller gives up, a running one when its step ends."""
    workload, case = drawn
    _, events, _ = run(workload, case, RoundRobin(), LATENCY)
    came = {e.request.id: e.time_ns for e in events if isinstance(e, ev.Arrived)}
    patience = {j.request.id: j.cancel_after_ns for j in workload.jobs if j.cancel_after_ns is not None}
    for event in events:
        if isinstance(event, ev.Cancelled) and event.worker >= 0:
            late = event.time_ns - came[event.request_id] - patience[event.request_id]
            # No step of these worlds takes longer than a decode step over all memory and a prefill of it.
            assert 0 <= late <= (200 if event.was_running else 0)
        if isinstance(event, ev.Finished) and event.request_id in patience:
            assert event.time_ns - came[event.request_id] - patience[event.request_id] <= 200


def test_simultaneous_arrivals_come_in_order_of_their_ids() -> None:
    """Requests of one instant arrive in order of their ids and are all there when an idle worker decides."""
    events = served(job(2, 7), job(0, 7), job(1, 7))
    kinds = [(type(e), getattr(e, "request_id", None)) for e in events if e.time_ns == 7]
    assert kinds == [(ev.Arrived, None)] * 3 + [(ev.Admitted, i) for i in range(3)]
    assert [e.request.id for e in events if isinstance(e, ev.Arrived)] == [0, 1, 2]


def test_arrival_at_the_end_of_a_step_joins_the_next_but_one() -> None:
    """Steps end before requests come: who comes at that instant finds the next step begun."""
    events = served(job(0, 0, 4, 3), job(1, 14, 2, 1))
    # The prefill of request 0 ends at 14, its next decode step at 14 + 17.
    assert [e.time_ns for e in events if isinstance(e, ev.Admitted)] == [0, 31]


def test_round_robin_over_three_workers() -> None:
    """Workers are independent lanes: three equal requests at once take as long as one."""
    events = served(*(job(i, 0, 4, 3) for i in range(3)), workers=3)
    assert sorted((e.worker, e.request_id, e.time_ns) for e in events if isinstance(e, ev.Finished)) == [
        (0, 0, 49),
        (1, 1, 49),
        (2, 2, 49),
    ]


def test_request_that_fits_nowhere_is_rejected_by_name_and_number() -> None:
    """A request larger than a worker is rejected on arrival, and the reason has the numbers."""
    events = served(job(0, 3, 38, 3))
    assert events[1:] == [ev.Rejected(3, 0, 0, 0, "request 0 needs 41 tokens, worker 0 holds 40 in all")]


def test_progress_is_told() -> None:
    """`progress` hears of every 256th ending."""
    told: list[int] = []
    workload = world(*(job(i, i) for i in range(600)))
    Simulator(workload, FCFS(), RoundRobin(), LATENCY, progress=told.append).run()
    assert told == [256, 512]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "not 0"),
        ({"kv_capacity_tokens": 1}, "for 1 tok"),
        ({"changes": [Restart(1, 5, 5)]}, "a restart of worker 1: there are 1 workers"),
        ({"changes": [Restart(0, -1, 5)]}, "a restart at -1 ns: the run starts at 0"),
        ({"changes": [Crash(0, 5, -1)]}, "worker 0 cannot be down for -1 ns"),
        ({"changes": [Drain(2, 5)]}, "a drain of worker 2: there are 1 workers, from 0 on"),
        ({"changes": [Join(-5)]}, "a join at -5 ns: the run starts at 0"),
        ({"changes": [Join(5, WorkerSpec(LATENCY, 1))]}, "for 1 tokens"),
    ],
)
def test_impossible_clusters_are_refused(options: dict[str, Any], message: str) -> None:
    """A cluster without workers, a worker without memory, and a change of no worker, before the run or for less than no
    time are errors that say so."""
    with pytest.raises(ValueError, match=message):
        Simulator(world(job(0, 0)), FCFS(), RoundRobin(), LATENCY, **options)


def test_a_failure_to_the_nanosecond() -> None:
    """Two of four tokens are produced when the worker fails in its next step, which is void; it is back 100 ns later,
    computes prompt and both tokens again, and produces the other two.
    """
    failing = (Restart(0, 40, 100),)
    events = served(job(0, 5, 4, 4), job(1, 60, 2, 1), changes=failing)
    assert [event for event in events if not isinstance(event, ev.WorkerJoined | ev.Arrived)] == [
        ev.Admitted(5, 0, 0, 0, 4, 0, 4),
        ev.Prefilled(19, 0, 0, 0, 4, 0),
        ev.Decoded(19, 0, 1, (0,), (1,)),
        ev.Decoded(36, 0, 1, (0,), (1,)),
        ev.Preempted(40, 0, 0, 0, 2, 0),
        ev.Admitted(140, 0, 0, 0, 6, 0, 2),
        ev.Admitted(140, 0, 1, 0, 2, 0, 1),
        ev.Prefilled(158, 0, 0, 0, 6, 0),
        ev.Prefilled(158, 0, 1, 0, 2, 0),
        ev.Decoded(158, 0, 1, (0,), (2,)),
        ev.Finished(158, 0, 1, 0, 1),
        ev.Decoded(177, 0, 1, (0,), (1,)),
        ev.Finished(177, 0, 0, 0, 4),
    ]


@given(RUNS, st.lists(st.tuples(st.integers(0, 900), st.integers(0, 300)), min_size=1, max_size=4))
@settings(max_examples=60)
def test_a_worker_that_is_down_computes_nothing(drawn: tuple[Workload, Case], times: list[tuple[int, int]]) -> None:
    """From a failure to its end nothing is admitted, computed or finished there, and nothing was cached before."""
    workload, case = drawn
    failing = tuple(Restart(k % case.workers, *time) for k, time in enumerate(times))
    _, events, _ = run(workload, attrs.evolve(case, changes=failing), RoundRobin(), LATENCY)
    works = ev.Admitted | ev.Prefilled | ev.Decoded | ev.Finished | ev.Cached
    for failure in failing:
        for event in events:
            if event.worker == failure.worker and failure.at_ns < event.time_ns < failure.at_ns + failure.down_ns:
                assert not isinstance(event, works)


def test_routers_leave_out_who_is_down() -> None:
    """While one of two workers is down the other gets every request; while both are, each is as good as the other."""
    jobs = [job(i, 10 * i) for i in range(8)]
    failing = (Restart(0, 15, 30), Restart(1, 55, 30), Restart(0, 65, 10))
    events = served(*jobs, workers=2, changes=failing)
    placed = {event.request.id: event.worker for event in events if isinstance(event, ev.Arrived)}
    assert [placed[i] for i in (2, 3, 4)] == [1, 1, 1]
    assert placed[6] == 0
    assert placed[7] == 1
    assert {event.request_id for event in events if isinstance(event, ev.Finished)} == set(range(8))


def test_no_worker_fails_after_the_run() -> None:
    """When the last request has ended the run is over, whatever would still have happened."""
    late = (Restart(0, 10_000, 5),)
    assert served(job(0, 0), changes=late) == served(job(0, 0))


@attrs.frozen
class Idle(FCFS):
    """Never admits a request."""

    def decide(self, state: Any, view: WorkerView) -> tuple[StepPlan, Any]:
        """Nothing."""
        return StepPlan(), state


def test_what_a_policy_leaves_waiting_is_rejected_at_the_end() -> None:
    """A policy that never admits loses no request: each ends as rejected, and its dependents as cancelled."""
    events = simulate_events(world(job(0, 4), job(1, 4, after=(0,))), Idle(), RoundRobin(), LATENCY)
    assert events[2:] == [
        ev.Rejected(4, 0, 0, 0, "request 0 still waits at worker 0, which is idle"),
        ev.Cancelled(4, -1, 1, 0, False, 0, 0),
    ]


@attrs.frozen
class Restless(FCFS):
    """Admits and preempts for ever, and computes nothing."""

    def decide(self, state: Any, view: WorkerView) -> tuple[StepPlan, Any]:
        """In and out."""
        if view.running:
            return StepPlan(preempt=(0,), decode=False), state
        return StepPlan(admit=(Admission(0, 0, 2, 0, 1),), decode=False), state

    def observe(self, state: Any, event: Event) -> Any:
        """Learns nothing."""
        return state


def test_a_policy_that_computes_nothing_for_ever_is_named() -> None:
    """Changing the batch without computing anything is an error, not an endless loop."""
    with pytest.raises(PolicyStallError, match="worker 0"):
        simulate_events(world(job(0, 0)), Restless(), RoundRobin(), LATENCY)


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ((job(1, 0), job(1, 5)), "request 1 is in the workload twice"),
        ((job(1, 0), job(2, 0, after=(7,))), "request 2 comes after request 7, which is not in the workload"),
    ],
)
def test_a_workload_that_could_not_end_is_refused(jobs: tuple[Job, ...], said: str) -> None:
    """Ids that are not unique and dependencies on unknown requests are errors before anything runs."""
    with pytest.raises(ValueError, match=said):
        served(*jobs)


@given(RUNS)
@settings(max_examples=60)
def test_what_a_policy_ignores_changes_nothing(drawn: tuple[Workload, Case]) -> None:
    """Told everything, it decides the same and ends in the same state; none ignores how a request ends."""
    workload, case = drawn
    policy = case.build()
    assert policy.ignored.isdisjoint(ENDS)
    kind, attentive = type(policy), copy(policy)
    observing = type(kind.__name__, (kind,), {"__slots__": (), "ignored": frozenset()})
    object.__setattr__(attentive, "__class__", observing)
    found = []
    for each in (policy, attentive):
        run = partial(Simulator, workload, each, RoundRobin(), LATENCY, workers=2)
        simulator, _, sha256 = recorded(partial(run, kv_capacity_tokens=case.kv_capacity_tokens))
        found.append((sha256, [digest(worker.policy_state) for worker in simulator.workers]))
    assert found[0] == found[1]
