"""The shared strategies draw what they say, and reach what their users count on."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from fairsched.model.events import Cancelled, Event, Evicted, Finished, Preempted, Rejected, WorkerJoined
from fairsched.model.request import Workload
from fairsched.model.worker import WorkerState, transitions, violations
from fairsched.policies.registry import LOCAL_POLICIES
from fairsched.verify.conformance import strategies, worker_invariants
from fairsched.verify.conformance.event_invariants import EventLedger

pytestmark = pytest.mark.kept

SEARCH = settings(max_examples=3_000, derandomize=True, database=None, deadline=None, phases=(Phase.generate,))


@given(strategies.workloads(jobs_max=6, span_ns=100))
def test_workloads_can_be_served(drawn: Workload) -> None:
    """Ids are unique, times do not run back, and a call follows earlier ones only."""
    assert [job.request.id for job in drawn.jobs] == list(range(len(drawn.jobs)))
    assert all(a.request.arrival_ns <= b.request.arrival_ns for a, b in pairwise(drawn.jobs))
    for job in drawn.jobs:
        assert all(parent < job.request.id for parent in job.after)
        assert job.request.client < len(drawn.clients)


@given(st.data(), strategies.worker_states())
def test_plans_can_be_executed(data: st.DataObject, state: WorkerState) -> None:
    """Every drawn plan is feasible by the view that a policy has, and the worker executes it as it was planned."""
    plan = data.draw(strategies.step_plans(state))
    assert not violations(plan, state.view(0))
    after, _ = transitions.step(state, plan, 0)
    worker_invariants.check(after)


@given(strategies.plays())
def test_states_and_events_belong_together(play: tuple[WorkerState, list[Event]]) -> None:
    """Whatever happens to a worker its invariants hold, its events add up, and every policy can follow them."""
    state, told = play
    worker_invariants.check(state)
    assert isinstance(told[0], WorkerJoined)
    ledger = EventLedger()
    for event in told:
        ledger.record(event)
    assert set(ledger.waiting) == set(state.queue)
    assert set(ledger.running) == set(state.running)
    for policy in LOCAL_POLICIES.values():
        seen: Any = policy.init()
        for event in told:
            seen = policy.observe(seen, event)
        policy.check(seen)
        assert set(seen.queue.entries) == set(state.queue)
        worker_invariants.check_copy(seen.cache, state.cache)


REACHED: dict[str, Callable[[tuple[WorkerState, list[Event]]], bool]] = {
    "a full queue and a batch": lambda play: bool(play[0].queue and play[0].decoding),
    "two who decode": lambda play: play[0].decoding >= 2,
    "growth beyond what was reserved": lambda play: play[0].growing >= 1,
    "a prefill in chunks": lambda play: any(left for _, left in play[0].prefilling),
    "a cache that is pinned": lambda play: bool(play[0].cache.pins),
    "a finish": lambda play: any(isinstance(event, Finished) for event in play[1]),
    "a cancellation of who ran": lambda play: any(isinstance(e, Cancelled) and e.was_running for e in play[1]),
    "a preemption after some output": lambda play: any(
        isinstance(e, Preempted) and e.generated_tokens for e in play[1]
    ),
    "an eviction": lambda play: any(isinstance(event, Evicted) for event in play[1]),
    "a rejection": lambda play: any(isinstance(event, Rejected) for event in play[1]),
}


@pytest.mark.parametrize("what", REACHED)
def test_what_matters_is_reached(what: str) -> None:
    """Each of these is among the first few thousand draws, so a property over them is not vacuous."""
    assert REACHED[what](find(strategies.plays(), REACHED[what], settings=SEARCH))
