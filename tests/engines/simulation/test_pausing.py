"""Runs in which requests are paused at random: nothing is lost, nothing is counted twice, and a leap is its steps."""

from collections import Counter
from functools import partial
from typing import Any

import attrs
import pytest
from hypothesis import given, settings

from fairsched.engines.simulation import Simulator, simulate_events
from fairsched.engines.simulation.simulated_worker import PolicyStallError, SimulatedWorker
from fairsched.model.decision import StepPlan, WorkerView
from fairsched.model.events import Event, Finished, Paused, Resumed
from fairsched.model.request import Workload
from fairsched.model.worker import change_batch
from fairsched.policies.catalog import FCFS
from fairsched.policies.routers import RoundRobin
from fairsched.verify.conformance import worker_invariants
from fairsched.verify.conformance.event_invariants import EventLedger
from tests.support.logs import RUNS, Case, before_decisions, recorded
from tests.support.policies.pausing import PAUSES, RandomPauses, paused_run
from tests.support.scenarios import UNIT, job, world


@given(RUNS, PAUSES)
@settings(max_examples=30)
def test_pauses_lose_nothing_and_a_leap_is_its_steps(drawn: tuple[Workload, Case], pausing: Any) -> None:
    """Every request ends once, each that is served has all of its output, what is used and promised adds up before
    each decision, and the log of a run with leaps is the one without."""
    workload, case = drawn

    def sound(worker: SimulatedWorker) -> None:
        worker_invariants.check(worker.state)

    made, events, sha256 = recorded(
        partial(paused_run, workload, case, pausing, True), prepare=partial(before_decisions, act=sound)
    )
    ledger = EventLedger()
    for event in events:
        ledger.record(event)
    ledger.check_over(each.request.id for each in workload.jobs)
    outputs = {each.request.id: each.output_tokens for each in workload.jobs}
    assert all(outputs[e.request_id] == e.output_tokens for e in events if isinstance(e, Finished))
    for worker in made.workers:
        worker_invariants.check(worker.state)
        assert not worker.state.running
        assert worker.state.promised == worker.state.used == 0
    stepped, _, stepped_sha256 = recorded(partial(paused_run, workload, case, pausing, False))
    assert sha256 == stepped_sha256
    assert [worker.state for worker in made.workers] == [worker.state for worker in stepped.workers]


def test_a_run_with_pauses_has_them() -> None:
    """The worlds of these tests pause: in one with eight requests each is paused, and goes on as often."""
    jobs = world(job(i, i % 3, i, 3, 12) for i in range(8))
    policy = RandomPauses(FCFS(), seed=1, every=2, percent=50)
    events = simulate_events(jobs, policy, RoundRobin(), UNIT, kv_capacity_tokens=200)
    stops, goes = (
        Counter(event.request_id for event in events if isinstance(event, kind)) for kind in (Paused, Resumed)
    )
    assert set(stops) == set(range(8))
    assert stops == goes


@attrs.frozen
class Forgetful(FCFS):
    """Pauses the first request that decodes, and never resumes it."""

    def decide(self, state: Any, view: WorkerView) -> tuple[StepPlan, Any]:
        if view.paused:
            return StepPlan(decode=False), state
        if view.decoding:
            return StepPlan(pause=(next(iter(view.in_flight)),), decode=False), state
        return super().decide(state, view)


def test_a_request_that_is_paused_for_ever_is_named() -> None:
    """A policy that never resumes a request ends in an error, and not in a run without its end."""
    with pytest.raises(PolicyStallError, match="never resumes 1 requests, 7 first"):
        simulate_events(world([job(7, 0, 0, 3, 5)]), Forgetful(), RoundRobin(), UNIT)


def test_what_another_policy_paused_goes_on() -> None:
    """A policy that pauses none lets a paused request go on at once, before it lets others in."""
    workload = world([job(0, 0, 0, 3, 6), job(1, 1, 1, 3, 2)])
    events: list[Event] = []
    made = Simulator(workload, FCFS(), RoundRobin(), UNIT, kv_capacity_tokens=9, on_events=events.extend)

    def stop(worker: SimulatedWorker) -> None:
        flight = worker.state.in_flight.get(0)
        if flight is not None and flight.decodes and not any(isinstance(event, Paused) for event in events):
            made.pool.apply(worker, change_batch(worker.state, StepPlan(pause=(0,)), made.loop.now_ns))

    before_decisions(made, stop)
    made.run()
    told = [event for event in events if isinstance(event, Paused | Resumed | Finished)]
    kinds = [(type(event), event.request_id) for event in told]
    assert kinds == [(Paused, 0), (Resumed, 0), (Finished, 0), (Finished, 1)]
    assert told[0].time_ns == told[1].time_ns
