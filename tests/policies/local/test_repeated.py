"""What a worker need not ask: a plan with chunks that is repeated, and a policy that rests, beside asking each time."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import full_steps
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES, with_parameters
from fairsched.verify.conformance import WorkerPlay
from fairsched.verify.conformance.gate_holds import check_holds

BUDGETS = {"max_batched_tokens": "4", "max_running": "3"}
SMALL = {
    name: with_parameters(policy, {key: value for key, value in BUDGETS.items() if key in dir(policy.batching)})
    for name, policy in LOCAL_POLICIES.items()
    if isinstance(policy, ComposedPolicy) and policy.shared_credit is None
}
"""Every shipped policy of one worker, in steps of few tokens."""
SMALL["displacing"] = with_parameters(LOCAL_POLICIES["learning-to-rank"], {**BUDGETS, "reserve": "static"})
CALLS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30), st.integers(1, 6), st.integers(0, 3)), max_size=8)
"""Requests as (client, prompt tokens, output tokens, steps since the one before)."""


def played(policy: ComposedPolicy, calls: list[tuple[int, int, int, int]]) -> list[int | None]:
    """For how many steps each plan with chunks was said to hold; each decision is held to what it says."""
    play, now_ns, said = WorkerPlay(policy, WorkerState(0, 60)), 0, list[int | None]()

    def steps(count: int) -> None:
        nonlocal now_ns
        for _ in range(count):
            before = play.state
            plan = play.decide(now_ns)
            if not plan.changes_batch:
                check_holds(policy, play.worker, before, plan, now_ns)
            if plan.chunks:
                said.append(plan.valid_steps)
            play.execute(plan, now_ns)
            now_ns += 1

    for number, (client, prompt, output, pause) in enumerate(calls):
        steps(pause)
        request = Request(number, client, now_ns, Prompt(prompt), output)
        if policy.refuses(request) is None:
            play.arrive(request, output, now_ns)
    steps(12)
    return said


@pytest.mark.parametrize("name", SMALL)
@given(calls=CALLS)
def test_what_is_not_asked_would_have_been_answered_so(name: str, calls: list[tuple[int, int, int, int]]) -> None:
    """Decided anew before each step of a repeated plan, whatever arrives, the plan is the same and so is the state; and
    a policy that rests decodes where nothing waits."""
    played(SMALL[name], calls)


@pytest.mark.parametrize(
    ("name", "expected"), [("fcfs", [1, 3, 2, 1, 1]), ("dlpm-in-batch", [1] * 5), ("displacing", [1] * 5)]
)
def test_a_long_prompt_is_asked_for_once(name: str, expected: list[int]) -> None:
    """Of 19 tokens four are computed a step: after the first step, which lets the request in, 15 are left, and three
    steps are full.  Where clients may be paused, or a request that comes may displace, every step is asked for."""
    assert played(SMALL[name], [(0, 19, 1, 0)]) == expected


@given(st.integers(0, 60), st.integers(-2, 20))
def test_full_steps_are_counted_to_the_last(remaining: int, budget: int) -> None:
    """One more step would not take the whole budget."""
    steps = full_steps(remaining, budget)
    assert steps >= 1
    if budget > 0:
        assert (steps + 1) * budget > remaining
        assert steps == 1 or steps * budget <= remaining


def test_where_the_answer_is_not_known_policies_do_not_rest() -> None:
    """Outputs that grow may run short of memory, and clients may be paused: then nothing waiting is not enough."""
    rests: dict[str, Any] = {name: policy.rests for name, policy in SMALL.items()}
    assert rests["fcfs"]
    assert rests["dlpm"]
    assert not rests["fcfs-optimistic"]
    assert not rests["dlpm-in-batch"]
