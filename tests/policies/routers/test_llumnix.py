"""Llumnix: which pairs move which request, when none moves, and that a cluster in which requests move loses none."""

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.simulation import Simulator
from fairsched.model import events
from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch, Migration, WorkerLoad
from fairsched.model.machine import PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import FCFS
from fairsched.policies.routers import Freeness, Llumnix
from fairsched.policies.routers.llumnix import PATIENCE, LlumnixState
from tests.support.clusters import numbered

RHYTHM_NS = 100_000_000
NEVER_US = 1_000_000_000

loads = st.builds(
    WorkerLoad,
    worker=st.just(0),
    waiting_requests=st.integers(0, 2),
    running_requests=st.integers(0, 4),
    waiting_tokens=st.integers(0, 30),
    kv_free_tokens=st.integers(0, 200),
    kv_capacity_tokens=st.just(200),
)


def ratio(free: int, requests: int) -> Fraction | float:
    """Freeness as a number."""
    return Fraction(free, requests) if requests else float("inf")


def at(load: WorkerLoad) -> tuple[int, int]:
    """Free tokens less those that wait, and requests."""
    return load.kv_free_tokens - load.waiting_tokens, load.waiting_requests + load.running_requests


def running(router: Llumnix, *requests: tuple[int, int, int, int]) -> LlumnixState:
    """The state in which requests of (id, worker, prompt, longest output) run."""
    state = router.init()
    for request_id, worker, prompt, output in requests:
        state = router.observe(state, events.Arrived(0, worker, Request(request_id, 0, 0, Prompt(prompt), output)))
        state = router.observe(state, events.Admitted(0, worker, request_id, 0, prompt, 0, output))
    router.check(state)
    return state


FULL, EMPTY = WorkerLoad(0, 1, 3, 40, 10, 200), WorkerLoad(0, 0, 1, 0, 190, 200)


@given(st.lists(loads, min_size=1, max_size=4), st.integers(0, 80), st.data())
def test_a_pair_moves_what_narrows_its_gap(made: list[WorkerLoad], threshold: int, data: st.DataObject) -> None:
    """The least free below the threshold with the freest, each worker once, the request with the least to compute; and
    with all that it may hold the target stays freer and the gap is smaller, as fractions say."""
    router, view = Llumnix(migrate_out_tokens=threshold), numbered(made)
    requests = [
        (10 * load.worker + i, load.worker, data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9)))
        for load in view.workers
        for i in range(load.running_requests)
    ]
    state = running(router, *requests)
    plan, after = router.decide(state, view)
    router.check(after)
    busy = [worker for m in plan.migrations for worker in (m.source, m.target)]
    assert len(busy) == len(set(busy))
    assert not plan.dispatches
    poor = [load for load in view.workers if ratio(*at(load)) < threshold and load.running_requests]
    sources = sorted((ratio(*at(load)), -load.worker) for load in poor)
    targets = sorted((-ratio(*at(load)), load.worker) for load in view.workers if ratio(*at(load)) >= threshold)
    pairs = [(-source, target) for (_, source), (_, target) in zip(sources, targets, strict=False)]
    for migration in plan.migrations:
        assert (migration.source, migration.target) in pairs
        (free, n), (room, m) = at(view.workers[migration.source]), at(view.workers[migration.target])
        least_of = {
            i: (prompt, prompt + output) for i, worker, prompt, output in requests if worker == migration.source
        }
        least, most = least_of[migration.request_id]
        assert (least, migration.request_id) == min((size, i) for i, (size, _) in least_of.items())
        for size in (least, most):
            gap = ratio(room - size, m + 1) - ratio(free + size, n - 1)
            assert 0 < gap < ratio(room, m) - ratio(free, n)


def test_a_worker_takes_part_in_one_migration_at_a_time() -> None:
    """Until the request has landed, ended, or was not heard of for long; and it is not asked for twice."""
    router = Llumnix()
    state = running(router, (0, 0, 5, 1), (1, 0, 6, 1), (2, 0, 7, 1))
    plan, asked = router.decide(state, numbered((FULL, EMPTY)))
    assert plan == ClusterPlan((), (Migration(0, 0, 1, with_kv=True),))
    assert router.decide(asked, numbered((FULL, EMPTY)))[0] == ClusterPlan()
    left = router.observe(asked, events.Migrated(0, 0, 0, 0, True, 0, 1))
    assert router.decide(left, numbered((FULL, EMPTY)))[0] == ClusterPlan()
    landed = router.observe(left, events.Arrived(0, 1, Request(0, 0, 0, Prompt(5), 1), 1, 6))
    ended = router.observe(left, events.Finished(0, 1, 0, 0, 1))
    late = numbered((FULL, EMPTY), now_ns=PATIENCE * RHYTHM_NS + 1)
    for state_now, view in ((landed, numbered((FULL, EMPTY))), (ended, numbered((FULL, EMPTY))), (asked, late)):
        assert router.decide(state_now, view)[0].migrations == (Migration(1, 0, 1, with_kv=True),)


def test_the_waiting_move_without_kv() -> None:
    """The one that waits longest, and nobody who runs."""
    router = Llumnix(moves="waiting")
    state = running(router, (0, 0, 1, 1))
    for i, ns in ((1, 30), (2, 20)):
        state = router.observe(state, events.Arrived(ns, 0, Request(i, 0, 0, Prompt(5), 1)))
    assert router.decide(state, numbered((FULL, EMPTY)))[0].migrations == (Migration(2, 0, 1),)


def test_who_was_preempted_waits() -> None:
    """A preempted request is no running one, and one that is admitted again is."""
    router = Llumnix()
    state = running(router, (0, 0, 5, 9))
    gone = router.observe(state, events.Preempted(1, 0, 0, 0, 2, 0))
    assert not gone.candidates
    assert gone.held[0].least == 7
    back = router.observe(gone, events.Admitted(2, 0, 0, 0, 7, 0, 7))
    assert back.candidates[0].first() == (7, 0)


def test_nothing_is_left_of_a_worker_that_left() -> None:
    """Nor of requests that are over."""
    router = Llumnix()
    state = running(router, (0, 0, 5, 1), (1, 1, 5, 1), (2, 1, 6, 1), (3, 1, 7, 1))
    state = router.observe(state, events.WorkerLeft(1, 0))
    state = router.observe(state, events.Finished(1, 1, 1, 0, 1))
    state = router.observe(state, events.Cancelled(1, 1, 2, 0, True, 0, 0))
    state = router.observe(state, events.Rejected(1, 1, 3, 0, "too large"))
    assert state == router.init()


@given(st.lists(loads, min_size=1, max_size=4))
def test_requests_go_where_freeness_sends_them(made: list[WorkerLoad]) -> None:
    """Dispatch is the router `freeness`."""
    view, request = numbered(made), Request(0, 0, 0, Prompt(1), 1)
    assert Llumnix().route(LlumnixState(), request, view)[0] == Freeness().route(Freeness().init(), request, view)[0]


class Skewed(Llumnix):
    """Sends every request to worker 0, so that migration has something to do."""

    def route(self, state: LlumnixState, request: Request, view: ClusterView) -> Any:
        """Always worker 0."""
        return Dispatch(request.id, 0), state


@pytest.mark.parametrize("moves", ["running", "waiting"])
def test_migration_mends_a_bad_placement(moves: Any) -> None:
    """Forty requests sent to one of three workers: with migration others serve some, every request ends once with all
    its tokens, and the last ends earlier than without."""
    jobs = tuple(Job(Request(i, 0, i * 1_000_000, Prompt(200), 100), output_tokens=60 + i, after=()) for i in range(40))
    workload = Workload("skewed", jobs, (Client(0, "a"),))
    local, latency = FCFS(batching=Chunked(reserve="optimistic")), PRESETS["llama-3.1-8b-a100"]
    ends: dict[int, int] = {}
    for rhythm_us in (10_000, NEVER_US):
        log: list[events.Event] = []
        router = Skewed(migrate_out_tokens=100, rhythm_us=rhythm_us, moves=moves)
        Simulator(workload, local, router, latency, workers=3, kv_capacity_tokens=3_000, on_events=log.extend).run()
        finished = {event.request_id: event for event in log if isinstance(event, events.Finished)}
        assert Counter(type(event) for event in log)[events.Finished] == 40
        assert {i: event.output_tokens for i, event in finished.items()} == {i: 60 + i for i in range(40)}
        ends[rhythm_us] = max(event.time_ns for event in finished.values())
        moved = [event for event in log if isinstance(event, events.Migrated)]
        assert bool(moved) is (rhythm_us != NEVER_US)
        assert all(event.was_running is (moves == "running") for event in moved)
    assert ends[10_000] < ends[NEVER_US]
