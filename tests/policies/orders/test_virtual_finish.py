"""Virtual finish times as an order: programs that were served less, or need less, go first."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import BATCHINGS, Chunked
from fairsched.policies.gates import HierarchicalGate, OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import VirtualFinish
from fairsched.policies.orders.virtual_finish import UNIT
from fairsched.verify.conformance import WorkerPlay, admitted
from fairsched.verify.conformance.local import check_local_policy


def served(order: VirtualFinish, calls: list[tuple[int, int, int]]) -> list[int]:
    """The programs in the order in which their calls, (program, prompt, levels below it), are let in one by one."""
    play = WorkerPlay(ComposedPolicy("played", order, OpenGate(), Chunked(max_running=1)), WorkerState(0, 1 << 20))
    for number, (program, prompt, levels) in enumerate(calls):
        play.arrive(Request(number, program, 0, Prompt(prompt), 1, downstream_levels=levels), 1, 0)
    return [calls[request_id][0] for now in range(len(calls)) for request_id in admitted(play.step(now))]


def test_many_calls_at_once_gain_nothing() -> None:
    """Program 0 sends six calls before program 1 sends two: they take turns."""
    calls = [(0, 128, 0)] * 6 + [(1, 128, 0)] * 2
    assert served(VirtualFinish(), calls) == [0, 1, 0, 1, 0, 0, 0, 0]


def test_by_predictions_the_shorter_program_goes_first_with_all_its_calls() -> None:
    """Program 0 says that five calls will follow its first, program 1 that one will."""
    calls = [(0, 128, 5), (0, 128, 4), (1, 128, 1), (1, 128, 0)]
    assert served(VirtualFinish("predicted"), calls) == [1, 1, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=20))
def test_two_programs_that_wait_are_served_alike(calls: list[tuple[int, int]]) -> None:
    """While both wait, what they were charged differs by at most a call of each, to a unit of rank a call."""
    sized = [(program, UNIT * prompt - 2, 0) for program, prompt in calls]
    left = [sum(1 for program, _ in calls if program == each) for each in range(4)]
    charged, most = [0] * 4, max(UNIT * prompt for _, prompt in calls)
    sizes = {each: [prompt for program, prompt, _ in sized if program == each] for each in range(4)}
    both = [each for each in range(4) if left[each]]
    for program in served(VirtualFinish(), sized):
        waiting = [each for each in both if left[each]]
        assert all(charged[f] - charged[g] <= 2 * most for f in waiting for g in waiting)
        charged[program] += sizes[program].pop(0) + 2
        left[program] -= 1


@pytest.mark.nightly
@pytest.mark.usefixtures("by_night")
@pytest.mark.parametrize("service", ["attained", "predicted"])
@pytest.mark.parametrize("reserve", ["static", "optimistic"])
def test_it_conforms(service: Any, reserve: Any) -> None:
    """The battery of every policy, under the gate of programs."""
    batching = BATCHINGS["chunked"](8, 4, reserve)
    policy = ComposedPolicy("played", VirtualFinish(service), HierarchicalGate(quantum=5), batching)
    check_local_policy(policy, settings=settings(max_examples=200, stateful_step_count=30))
