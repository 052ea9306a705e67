"""What a worker says of itself: free memory, the longest leap, the shape of a step, and the KV of a request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.model import worker as transitions
from fairsched.model.decision import Admission, Host, StepPlan, WorkerLoad
from fairsched.model.events import Arrived, Event, Evicted, Finished, Transferred
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import InfeasiblePlanError, WorkerState, kv_tokens
from fairsched.verify.conformance import worker_invariants
from fairsched.verify.conformance.event_invariants import EventLedger
from fairsched.verify.conformance.strategies import plays, worker_states


@given(worker_states())
def test_what_a_worker_reports_follows_from_its_memory(state: WorkerState) -> None:
    """Free is what is neither pinned nor promised, and room what is neither cached nor used; a router and a policy are
    told the same.  A request's KV is what of its context is computed or cached, and each output but the last."""
    tree = state.cache.tree
    free = state.capacity - (tree.protected_tokens + state.promised)
    assert (state.free, state.view(5).kv_free_tokens) == (free, free)
    assert state.room == state.capacity - (tree.cached_tokens + state.used)
    waits = sum(waiting.context_tokens for waiting in state.queue.values())
    assert state.load() == WorkerLoad(0, len(state.queue), len(state.running), waits, free, state.capacity, state.role)
    for request_id, flight in state.in_flight.items():
        left = dict(state.prefilling).get(request_id, 0)
        assert kv_tokens(state, request_id) == flight.context_tokens - left + max(
            state.view(5).decoded_tokens(request_id) - 1, 0
        )


@given(plays(40))
def test_every_sum_is_that_of_the_requests(play: tuple[WorkerState, list[Event]]) -> None:
    """Whatever happened to a worker, and its events say so."""
    state, told = play
    worker_invariants.check(state)
    ledger = EventLedger()
    for event in told:
        ledger.record(event)
    left = {*state.queue, *state.running}
    assert left == {event.request.id for event in told if isinstance(event, Arrived)} - set(ledger.ended)
    assert sorted(ledger.paused) == sorted(state.paused)
    assert ledger.kept == dict(state.host.kv)


@given(worker_states())
def test_a_leap_ends_with_a_request_or_where_memory_must_be_made(state: WorkerState) -> None:
    """Up to the longest leap each step is nothing but tokens, and no request ends before the last of them; then one
    ends, or the next step evicts something or does not fit."""
    if not state.decoding:
        return
    ended = False
    for step in range(state.decode_steps_max(), 0, -1):
        state, made = transitions.begin(state, StepPlan(), 0)
        assert not made
        state, told = transitions.finish(state, StepPlan(), 1, 1)
        ended = any(isinstance(event, Finished) for event in told)
        assert not ended or step == 1
    if not ended:
        try:
            assert any(isinstance(event, Evicted) for event in transitions.begin(state, StepPlan(), 0)[1])
        except InfeasiblePlanError:
            assert state.growing > state.free


def test_the_shape_of_a_step() -> None:
    """Chunks with the context before them, and padding; requests whose KV came with them compute their last token as a
    decode does, one row each over their contexts, while a single token of any other prompt is a chunk."""
    state = WorkerState(0, 200)
    for request_id, prompt in ((0, 11), (1, 13)):
        state = transitions.reserve(state, request_id, 30)
        state = transitions.receive(state, Request(request_id, 0, 0, Prompt(prompt), 9), 9, 0, 2, prompt + 1)[0]
    for request_id, prompt in ((2, 5), (3, 7)):
        state = transitions.arrive(state, Request(request_id, 0, 0, Prompt(prompt), 9), 9, 0)[0]
    admit = tuple(Admission(i, 0, extend, 0, 0) for i, extend in enumerate((1, 1, 5, 7)))
    state = transitions.begin(state, StepPlan(admit=admit, chunks=((2, 4),)), 0)[0]
    state = transitions.finish(state, StepPlan(chunks=((2, 4),)), 1, 0)[0]
    assert dict(state.prefilling) == {0: 1, 1: 1, 2: 1, 3: 7}
    for chunks, padding, shape in (
        (((0, 1), (1, 1), (2, 1), (3, 2)), 0, ([(1, 4), (2, 0)], 2, 13 + 15)),
        (((0, 1), (3, 1)), 6, ([(1, 0), (6, 0)], 1, 13)),
        (((3, 7),), 0, ([(7, 0)], 0, 0)),
    ):
        plan = StepPlan(chunks=chunks, padding_tokens=padding)
        assert state.step_shape(plan) == shape
        before = {0: 12, 1: 14, 2: 4, 3: 0}
        assert state.chunk_contexts(plan) == [(tokens, before[request_id]) for request_id, tokens in chunks]


@pytest.mark.parametrize("levels", [0, 1])
def test_a_worker_that_keeps_nothing_uses_prompts_when_they_are_used(levels: int) -> None:
    """Without a time to keep KV for, the prompt of a call that others follow is evicted as any other: the one that was
    let in first, though its request ended last."""
    state = WorkerState(0, 20)
    for request_id, outputs in ((0, 4), (1, 1)):
        request = Request(request_id, 0, 0, Prompt.from_keys([10 * request_id + i for i in range(4)]), 4)
        state = transitions.arrive(state, replace(request, downstream_levels=levels), outputs, 0)[0]
        plan = StepPlan(admit=(Admission(request_id, 0, 4, 0, 4),), chunks=((request_id, 4),))
        state = transitions.step(state, plan, request_id)[0]
    for now_ns in (5, 6):
        state = transitions.step(state, StepPlan(), now_ns)[0]
    assert not state.running
    gone = state.cache.evict(1)[1]
    assert [eviction.owner for eviction in gone] == [0]


@given(st.integers(1, 4))
def test_several_requests_come_from_the_host_in_one_step(count: int) -> None:
    """What moves is the sum of what is not cached, and their places on the host are free when it has come."""
    state = WorkerState(0, 100, host=Host(50))
    ids = tuple(range(count))
    for i in ids:
        state = transitions.arrive(state, Request(i, i, 0, Prompt(1 + i), 9), 9, 0)[0]
    admit = tuple(Admission(i, i, 1 + i, 0, 0) for i in ids)
    state = transitions.step(state, StepPlan(admit=admit, chunks=tuple((i, 1 + i) for i in ids)), 0)[0]
    kv = [1 + i for i in ids]
    state, told = transitions.step(state, StepPlan(swap_out=ids, decode=False), 1)
    assert _moved(told) == [(sum(kv), 0)]
    assert (state.free, dict(state.host.kv)) == (100, dict(enumerate(kv)))
    back = tuple(Admission(i, i, 2 + i - kv[i], 0, 0) for i in ids)
    begun = transitions.begin(state, StepPlan(admit=back, swap_in=ids, decode=False), 2)[0]
    assert begun.host.free_tokens == 50 - sum(kv)
    state, told = transitions.finish(begun, StepPlan(admit=back, swap_in=ids, decode=False), 1, 3)
    assert _moved(told) == [(0, sum(kv))]
    assert state.host == Host(50)


def _moved(told: list[Event]) -> list[tuple[int, int]]:
    """Tokens that went out and that came in."""
    return [(event.out_tokens, event.in_tokens) for event in told if isinstance(event, Transferred)]
