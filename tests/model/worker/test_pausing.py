"""A decoding request is paused and goes on: what it keeps, what it does not get, and how it may leave."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.model import worker as transitions
from fairsched.model.decision import Admission, Host, StepPlan
from fairsched.model.events import Cancelled, Decoded, Event, Finished, Migrated, Paused, Preempted, Resumed, SwappedOut
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import Step, WorkerState
from fairsched.verify.conformance import worker_invariants
from fairsched.verify.conformance.strategies import plays

OUTPUT = 6


def decoding(requests: int = 2, reserved: bool = True, capacity: int = 100) -> WorkerState:
    """Request i of client i with a prompt of 10 + i tokens, prefilled with one token out, five to come."""
    state = WorkerState(0, capacity, host=Host(capacity))
    admit, chunks = [], []
    for i in range(requests):
        state, _ = transitions.arrive(state, Request(i, i, 0, Prompt(10 + i), OUTPUT), OUTPUT, 0)
        admit.append(Admission(i, i, 10 + i, 0, OUTPUT * reserved))
        chunks.append((i, 10 + i))
    return transitions.step(state, StepPlan(admit=tuple(admit), chunks=tuple(chunks)), 0)[0]


def paused(state: WorkerState, *request_ids: int) -> WorkerState:
    """The worker with these paused."""
    return transitions.begin(state, StepPlan(pause=request_ids), 0)[0]


def test_a_pause_by_hand() -> None:
    """Of two requests with five tokens to come, one pauses for three steps: the other one alone produces in these, both
    do in the next two, and then the other one has ended, and the one that paused ends three steps later."""
    state, told = transitions.begin(decoding(), StepPlan(pause=(0,)), 7)
    assert told == [Paused(7, 0, 0, 0, 1)]
    assert (state.decoding, state.context, state.clients, state.paused) == (1, 12, (1,), (0,))
    state, told = transitions.finish(state, StepPlan(), 3, 8)
    assert told == [Decoded(8, 0, 3, (1,), (3,))]
    assert state.view(0).decoded_tokens(0) == 1
    state, told = transitions.step(state, StepPlan(resume=(0,)), 9)
    assert told == [Resumed(9, 0, 0, 0), Decoded(9, 0, 1, (0, 1), (1, 1))]
    assert state.decode_steps_max() == 1
    state, told = transitions.step(state, StepPlan(), 10)
    assert told == [Decoded(10, 0, 1, (0, 1), (1, 1)), Finished(10, 0, 1, 1, OUTPUT)]
    assert state.decode_steps_max() == 3
    state, told = transitions.step(state, StepPlan(), 11, 3)
    assert told == [Decoded(11, 0, 3, (0,), (3,)), Finished(11, 0, 0, 0, OUTPUT)]
    assert state.free == state.capacity


def _gone(state: WorkerState, how: str) -> Step:
    """What becomes of a worker whose request 0 leaves in this way."""
    if how == "preempt":
        return transitions.step(state, StepPlan(preempt=(0,), decode=False), 9)
    if how == "swap":
        return transitions.begin(state, StepPlan(swap_out=(0,), decode=False), 9)
    ways: dict[str, Any] = {
        "cancel": transitions.cancel,
        "depart": transitions.depart,
        "stage": transitions.stage,
        "stop": transitions.stop,
    }
    return transitions.lose(state, 9) if how == "lose" else ways[how](state, 0, 9)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("preempt", [Preempted(9, 0, 0, 0, 3, 0)]),
        ("swap", [SwappedOut(9, 0, 0, 0, 12), Preempted(9, 0, 0, 0, 3, 0)]),
        ("cancel", [Cancelled(9, 0, 0, 0, True, 0, 3)]),
        ("depart", [Migrated(9, 0, 0, 0, True, 0, 3)]),
        ("stage", [Migrated(9, 0, 0, 0, True, 0, 3, 12)]),
        ("stop", [Finished(9, 0, 0, 0, 3)]),
        ("lose", [Preempted(9, 0, 0, 0, 3, 0), Preempted(9, 0, 1, 1, 5, 0)]),
    ],
)
@pytest.mark.parametrize("reserved", [True, False])
def test_a_paused_request_may_leave(how: str, told: list[Event], reserved: bool) -> None:
    """Taken out, swapped out, cancelled, sent elsewhere, ended early or lost, a paused request leaves with the tokens
    that it had when it was paused, and all that it held is free or on its way."""
    state = transitions.step(decoding(2, reserved), StepPlan(), 0, 2)[0]
    state = transitions.finish(paused(state, 0), StepPlan(), 2, 1)[0]
    after, said = _gone(state, how)
    assert said == told
    worker_invariants.check(after)
    assert after.paused == ()


def test_what_is_paused_ends_no_leap() -> None:
    """The longest leap ends with the first end of those that decode, or where the memory that they take ends."""
    state = transitions.step(decoding(2), StepPlan(), 0, 3)[0]
    younger = transitions.arrive(state, Request(2, 2, 0, Prompt(5), 20), 20, 0)[0]
    younger = transitions.step(younger, StepPlan(admit=(Admission(2, 2, 5, 0, 20),), chunks=((2, 5),)), 0)[0]
    assert younger.decode_steps_max() == 1
    assert paused(younger, 0, 1).decode_steps_max() == 19


@given(plays(40), st.data())
@settings(max_examples=25)
def test_a_leap_is_its_steps_beside_what_is_paused(play: tuple[WorkerState, list[Event]], data: st.DataObject) -> None:
    """A leap of as many steps as may be is those steps one by one, and the requests that pause go on as they were."""
    state, _ = play
    if not state.decoding:
        return
    chosen = data.draw(st.sets(st.sampled_from(sorted(i for i, f in state.in_flight.items() if f.decodes))))
    if len(chosen) < state.decoding:
        state = paused(state, *sorted(chosen))
    if state.decode_steps_max() < 1:
        return
    steps = data.draw(st.integers(1, state.decode_steps_max()))
    single = state
    for _ in range(steps):
        single = transitions.finish(single, StepPlan(), 1, 0)[0]
    leapt = transitions.finish(state, StepPlan(), steps, 0)[0]
    assert leapt == single
    for request_id in leapt.paused:
        assert leapt.view(0).decoded_tokens(request_id) == state.view(0).decoded_tokens(request_id)
    if leapt.paused and leapt.free >= leapt.growing + len(leapt.paused):
        going, told = transitions.begin(leapt, StepPlan(resume=leapt.paused), 0)
        assert [event.request_id for event in told if isinstance(event, Resumed)] == list(leapt.paused)
        worker_invariants.check(going)
        assert going.paused == ()
