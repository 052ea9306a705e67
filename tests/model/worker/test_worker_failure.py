"""Between two steps a worker loses its memory, or an output ends early: what it tells, and what policies make of it."""

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.model.decision import Admission, StepPlan
from fairsched.model.events import Event, Evicted, Finished, Preempted, WorkerJoined
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import Step, WorkerState, transitions
from fairsched.policies.base import AnyLocalPolicy
from fairsched.policies.batching import BATCHINGS
from fairsched.policies.registry import LOCAL_POLICIES
from fairsched.verify.conformance import worker_invariants
from fairsched.verify.conformance.event_invariants import EventLedger
from fairsched.verify.conformance.strategies import requests


class Run:
    """A worker that executes whatever its policy plans, and what both have told."""

    def __init__(self, policy: AnyLocalPolicy, capacity: int) -> None:
        self.policy = policy
        self.worker = WorkerState(0, capacity)
        self.state = policy.observe(policy.init(), WorkerJoined(0, 0, capacity))
        self.ledger = EventLedger()
        self.now_ns = 0

    def apply(self, step: Step) -> list[Event]:
        """Take a transition, tell the policy and the ledger, and check that both agree with the worker."""
        self.worker, events = step
        for event in events:
            self.ledger.record(event)
            self.state = self.policy.observe(self.state, event)
        self.agree()
        return events

    def step(self) -> None:
        """One step of the policy's plan; the policy learns it as from an engine that folds nothing."""
        plan, _ = self.policy.decide(self.state, self.worker.view(self.now_ns))
        self.apply(transitions.begin(self.worker, plan, self.now_ns))
        self.now_ns += 1
        self.apply(transitions.finish(self.worker, plan, 1, self.now_ns))

    def agree(self) -> None:
        """The policy's queue, batch and cache are the worker's."""
        worker_invariants.check(self.worker)
        self.policy.check(self.state)
        assert set(self.state.queue.entries) == set(self.worker.queue)
        assert set(self.state.flights) == set(self.worker.running)
        for i, waiting in self.worker.queue.items():
            assert self.state.queue.entries[i].generated_tokens == waiting.generated_tokens
        worker_invariants.check_copy(self.state.cache, self.worker.cache)

    def serve(self) -> None:
        """Until nothing is left."""
        for _ in range(2_000):
            if not self.worker.queue and not self.worker.running:
                return
            self.step()
        raise AssertionError("never done")


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Any policy and batching rule on a tiny worker in the middle of its work."""
    policy = LOCAL_POLICIES[draw(st.sampled_from(sorted(LOCAL_POLICIES)))]
    rule = BATCHINGS[draw(st.sampled_from(sorted(BATCHINGS)))]
    reserve: Any = draw(st.sampled_from(["static", "optimistic"]))
    run = Run(
        attrs.evolve(policy, batching=rule(max_batched_tokens=7, max_running=4, reserve=reserve)),
        draw(st.integers(10, 30)),
    )
    for i, request in enumerate(draw(st.lists(requests(output_tokens_max=6), min_size=1, max_size=10))):
        request = replace(request, id=i)
        if run.policy.refuses(request) is None and run.worker.fits_alone(request):
            output_tokens = draw(st.integers(1, request.max_output_tokens))
            run.apply(transitions.arrive(run.worker, request, output_tokens, 0))
    for _ in range(draw(st.integers(0, 12))):
        run.step()
    return run


@given(runs(), st.booleans())
def test_a_lost_memory_is_empty_and_every_request_waits(run: Run, begun: bool) -> None:
    """Between two steps or in the middle of one: batch and cache are empty, nobody is lost, and the events say it all.

    Every policy that observes them has the same queue, batch and cache afterwards, and serves everybody in the end.
    """
    if begun:
        plan, _ = run.policy.decide(run.state, run.worker.view(run.now_ns))
        run.apply(transitions.begin(run.worker, plan, run.now_ns))
    before = run.worker
    run.now_ns += 1
    events = run.apply(transitions.lose(before, run.now_ns))
    after = run.worker
    assert not after.running
    assert (after.used, after.promised, after.decoding, after.growing, after.context) == (0, 0, 0, 0, 0)
    assert after.cache.tree.cached_tokens == 0
    assert after.free == after.room == after.capacity
    assert set(after.queue) == set(before.queue) | set(before.running)
    for i, waiting in before.queue.items():
        assert after.queue[i] == waiting
    batch = len(before.running)
    for event, (_, request_id) in zip(events[:batch], before.ranks, strict=True):
        flight, known = before.in_flight[request_id], before.running[request_id].waiting
        generated = known.generated_tokens + worker_invariants.produced(before, flight)
        assert event == Preempted(run.now_ns, 0, request_id, flight.client, generated, flight.remaining_tokens)
        assert after.queue[request_id] == replace(known, generated_tokens=generated)
    evicted = [event for event in events[batch:] if isinstance(event, Evicted)]
    assert len(evicted) == len(events) - batch
    assert sum(event.blocks for event in evicted) == before.cache.tree.cached_tokens
    ids = set(after.queue) | set(run.ledger.ended)
    run.serve()
    run.ledger.check_over(ids)


@given(runs())
@settings(max_examples=60)
def test_an_empty_memory_cannot_be_lost(run: Run) -> None:
    """Losing it again changes nothing and tells nothing."""
    once, _ = transitions.lose(run.worker, run.now_ns)
    twice, events = transitions.lose(once, run.now_ns)
    assert twice is once
    assert not events


@given(runs(), st.integers(0, 99), st.integers(0, 8))
def test_an_output_that_ends_early_is_a_finish(run: Run, index: int, more: int) -> None:
    """The request leaves with what it produced, and what it was promised and does not share is free at once."""
    while not run.worker.decoding and (run.worker.queue or run.worker.running):
        run.step()
    decoding = sorted(i for i, flight in run.worker.in_flight.items() if flight.clock_start is not None)
    if not decoding:
        return
    request_id = decoding[index % len(decoding)]
    before = run.worker
    flight, known = before.in_flight[request_id], before.running[request_id].waiting
    output_tokens = known.generated_tokens + worker_invariants.produced(before, flight)
    assert output_tokens < known.output_tokens
    events = run.apply(transitions.stop(before, request_id, run.now_ns))
    assert events == [Finished(run.now_ns, 0, request_id, flight.client, output_tokens)]
    assert request_id not in run.worker.running
    assert run.worker.queue == before.queue
    grown = 0 if flight.reserved else worker_invariants.produced(before, flight)
    assert run.worker.promised == before.promised - flight.kv_tokens - grown
    assert run.worker.cache.tree.cached_tokens == before.cache.tree.cached_tokens
    ids = set(run.worker.queue) | set(run.worker.running) | set(run.ledger.ended)
    run.serve()
    run.ledger.check_over(ids)


def running() -> WorkerState:
    """Request 0 (two blocks of two tokens, five tokens of output) has produced two, request 1 half of its prompt, and
    request 2 waits."""
    state = WorkerState(3, 40)
    prompts = [Prompt.from_keys([1, 2], block_tokens=2), Prompt(4), Prompt(6)]
    for i, prompt in enumerate(prompts):
        state, _ = transitions.arrive(state, Request(i, i, 0, prompt, 5), 5, 0)
    state, _ = transitions.step(state, StepPlan((), (Admission(0, 0, 4, 0, 5),), ((0, 4),)), 1)
    return transitions.step(state, StepPlan((), (Admission(1, 1, 4, 0, 5),), ((1, 2),)), 2)[0]


@pytest.mark.parametrize(
    ("request_id", "why"),
    [
        (1, "request 1 cannot stop, since it has 2 tokens left to prefill"),
        (2, "request 2 cannot stop, since it is not running"),
        (7, "request 7 cannot stop, since it is not running"),
    ],
)
def test_only_what_decodes_can_stop(request_id: int, why: str) -> None:
    """Whoever has produced nothing since its admission cannot have ended; the message says who and why."""
    with pytest.raises(ValueError, match=f"worker 3: {why}"):
        transitions.stop(running(), request_id, 9)
