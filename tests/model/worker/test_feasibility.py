"""The predicate of feasibility agrees with the worker: what it names, the worker refuses."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.plan import Admission, StepPlan
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import InfeasiblePlanError, WorkerState, receive, reserve, violations
from fairsched.model.worker.transitions import arrive, begin, step


def busy() -> WorkerState:
    """A worker of 100 tokens: request 0 decodes, request 1 has 10 tokens left to prefill, 2 and 3 wait."""
    state = WorkerState(worker=0, capacity=100)
    for i in range(4):
        state, _ = arrive(state, Request(i, 0, 0, Prompt(20), 10), 5, 0)
    both = (Admission(0, 0, 20, 0, 10), Admission(1, 0, 20, 0, 10))
    state, _ = step(state, StepPlan(admit=both, chunks=((0, 20), (1, 10))), 0)
    return state


def half_paused() -> WorkerState:
    """The same worker, with request 0 paused."""
    return begin(busy(), StepPlan(pause=(0,)), 0)[0]


ADMISSIONS = st.builds(
    Admission,
    request_id=st.integers(0, 4),
    client=st.just(0),
    extend_tokens=st.integers(0, 40),
    cached_prefix_tokens=st.just(0),
    reserved_output_tokens=st.sampled_from([0, 10, 30]),
)
PLANS = st.builds(
    StepPlan,
    preempt=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    admit=st.lists(ADMISSIONS, max_size=2).map(tuple),
    chunks=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 25)), max_size=3).map(tuple),
    decode=st.booleans(),
    valid_steps=st.just(1),
    pause=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    resume=st.lists(st.integers(0, 3), max_size=2).map(tuple),
)


@given(PLANS, st.sampled_from([busy, half_paused]))
def test_whatever_is_named_the_worker_refuses(plan: StepPlan, made: Callable[[], WorkerState]) -> None:
    """A plan with a violation that the worker can see is refused by `begin`, which leaves the state as it was."""
    state = made()
    # The worker computes what is really missing, whatever an admission claims, so only true claims are compared.
    truthful = all(admission.extend_tokens == 20 for admission in plan.admit)
    if truthful and violations(plan, state.view(0)):
        with pytest.raises(InfeasiblePlanError):
            begin(state, plan, 0)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (StepPlan(preempt=(2,)), "does not run"),
        (StepPlan(preempt=(0, 0)), "twice"),
        (StepPlan(admit=(Admission(0, 0, 20, 0, 10),)), "runs already"),
        (StepPlan(admit=(Admission(2, 0, 20, 0, 10), Admission(2, 0, 20, 0, 10))), "twice"),
        (StepPlan(chunks=((1, 11),)), "10 tokens left"),
        (StepPlan(chunks=((1, 5), (1, 5))), "two chunks"),
        (StepPlan(admit=(Admission(2, 0, 90, 0, 10),)), "are free"),
        (StepPlan(valid_steps=0), "0 steps"),
        (StepPlan(chunks=((1, 5),), valid_steps=2), "one step only"),
        (StepPlan(pause=(0,), valid_steps=None), "one step only"),
        (StepPlan(pause=(2,)), "does not run"),
        (StepPlan(pause=(1,)), "10 tokens left to prefill"),
        (StepPlan(pause=(0, 0)), "twice"),
        (StepPlan(preempt=(0,), pause=(0,)), "twice"),
        (StepPlan(swap_out=(0,), pause=(0,)), "twice"),
        (StepPlan(resume=(0,)), "is not paused"),
        (StepPlan(resume=(2,)), "is not paused"),
    ],
)
def test_each_violation_is_said(plan: StepPlan, said: str) -> None:
    """Each way in which a plan can be impossible has its sentence."""
    assert any(said in sentence for sentence in violations(plan, busy().view(0)))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (StepPlan(pause=(0,)), "paused already"),
        (StepPlan(pause=(0,), resume=(0,)), "twice"),
        (StepPlan(resume=(0,), valid_steps=2), "one step only"),
    ],
)
def test_what_is_paused_is_neither_paused_nor_resumed_twice(plan: StepPlan, said: str) -> None:
    """What no plan may do with a paused request has its sentence, and the worker refuses it."""
    state = half_paused()
    assert any(said in sentence for sentence in violations(plan, state.view(0)))
    if "step" not in said:
        with pytest.raises(InfeasiblePlanError):
            begin(state, plan, 0)


def test_nothing_speaks_against_a_plan_that_can_be_executed() -> None:
    """A plan that the worker executes has no violation."""
    state = busy()
    plan = StepPlan(admit=(Admission(2, 0, 20, 0, 10),), chunks=((1, 10), (2, 20)))
    assert violations(plan, state.view(0)) == ()
    begin(state, plan, 0)


def test_what_comes_with_its_kv_gives_back_what_is_cached_of_it() -> None:
    """A request holds 8 tokens of 20, of which 4 are cached by now: it needs 5, so that 12 more fit beside it, and 13
    do not; nothing speaks against what fits, and the worker refuses the other."""
    state, shared = WorkerState(worker=0, capacity=20), Prompt.from_keys(range(4))
    state, _ = arrive(state, Request(0, 0, 0, shared, 1), 1, 0)
    state, _ = step(state, StepPlan(admit=(Admission(0, 0, 4, 0, 1),), chunks=((0, 4),)), 0)
    state = reserve(state, 1, 8)
    state, _ = receive(state, Request(1, 0, 0, Prompt.from_keys(range(8)), 2), 2, 0, generated_tokens=1, kv_tokens=8)
    entering, held = Admission(1, 0, 1, 4, 0), state.transit.landed[1]
    assert (held.promised, held.used, state.cache.tree.cached_tokens) == (8, 8, 4)
    for tokens, fits in ((11, True), (12, False)):
        state, _ = arrive(state, Request(tokens, 0, 0, Prompt(tokens), 1), 1, 0)
        plan = StepPlan(admit=(entering, Admission(tokens, 0, tokens, 0, 0)), chunks=((1, 1), (tokens, tokens)))
        try:
            begin(state, plan, 0)
            executed = True
        except InfeasiblePlanError:
            executed = False
        assert (executed, not violations(plan, state.view(0))) == (fits, fits)
