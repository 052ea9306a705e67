"""The shared strategies draw what they say, and reach what their users count on."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from fairsched.model.events import Cancelled, Event, Evicted, Finished, Preempted, Rejected, WorkerJoined
from fairsched.model.request import Client, Prompt, Request, Workload
from fairsched.model.worker import WorkerState, transitions, violations
from fairsched.policies.registry import LOCAL_POLICIES
from fairsched.verify.conformance import strategies, worker_invariants
from fairsched.verify.conformance.event_invariants import EventLedger

SEARCH = settings(max_examples=3_000, derandomize=True, database=None, deadline=None, phases=(Phase.generate,))


@given(strategies.prompts(block_tokens=4, blocks_max=3), strategies.requests(7, 50, clients_max=2, output_tokens_max=5))
def test_prompts_and_requests_are_of_the_size_asked_for(prompt: Prompt, request: Request) -> None:
    """Blocks, tails, clients and outputs are within what was asked for."""
    assert prompt.blocks <= 3
    assert prompt.tokens <= 3 * 4 + 2
    assert (request.id, request.arrival_ns) == (7, 50)
    assert request.client in (0, 1)
    assert 1 <= request.max_output_tokens <= 5


@given(strategies.bursts(clients_max=3, blocks_max=2, output_tokens_max=4, count=(5, 7)))
def test_a_burst_is_one_client(drawn: list[Request]) -> None:
    """Five to seven requests of one client at one instant, with ids from 0 on."""
    assert 5 <= len(drawn) <= 7
    assert [request.id for request in drawn] == list(range(len(drawn)))
    assert len({(request.client, request.arrival_ns) for request in drawn}) == 1


@given(strategies.clients(count_max=3, weight_max=2))
def test_clients_are_dense(drawn: tuple[Client, ...]) -> None:
    """Ids are 0, 1, 2, ..., weights small."""
    assert [client.id for client in drawn] == list(range(len(drawn)))
    assert {client.weight for client in drawn} <= {1, 2}
    assert 1 <= len(drawn) <= 3


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


def test_events_and_states_are_the_halves_of_a_play() -> None:
    """The two strategies of one half each find what the whole finds."""
    finishes = find(
        strategies.events(), lambda told: any(isinstance(event, Finished) for event in told), settings=SEARCH
    )
    assert isinstance(finishes[0], WorkerJoined)
    assert find(strategies.worker_states(), lambda state: bool(state.running), settings=SEARCH).running
