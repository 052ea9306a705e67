"""The predicate of feasibility agrees with the worker: what it names, the worker refuses."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.model.decision import Admission, Host, StepPlan
from fairsched.model.events import Admitted, Decoded, Finished, Rejected, Settled
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import (
    InfeasiblePlanError,
    WorkerState,
    arrive,
    begin,
    finish,
    receive,
    reserve,
    step,
    violations,
)


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
        (StepPlan(chunks=((1, 0),)), "chunk"),
        (StepPlan(chunks=((7, 1),)), "request 7"),
        (StepPlan(admit=(Admission(2, 0, 90, 0, 10),)), "are free"),
        (StepPlan(valid_steps=0), "0 steps"),
        (StepPlan(chunks=((1, 5),), valid_steps=3), "5 tokens of request 1 are to be prefilled for 3 steps, and 10"),
        (StepPlan(chunks=((1, 5),), valid_steps=None), "for ever"),
        (StepPlan(admit=(Admission(2, 0, 20, 0, 10),), valid_steps=2), "one step only"),
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
    """Each way in which a plan can be impossible has its sentence, and the worker refuses it, but for what is said of
    later steps; chunks may be repeated while there is prompt."""
    assert not list(violations(StepPlan(chunks=((1, 5),), valid_steps=2), busy().view(0)))
    assert any(said in sentence for sentence in violations(plan, busy().view(0)))
    if plan.valid_steps in (0, 1) and all(admission.extend_tokens == 20 for admission in plan.admit):
        with pytest.raises(InfeasiblePlanError, match=r"request|plan"):
            begin(replace(busy(), host=Host(100)), plan, 0)


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


def test_an_output_is_reserved_whole_or_not_at_all() -> None:
    """The worker knows what was declared."""
    for reserved in (1, 9):
        with pytest.raises(InfeasiblePlanError, match="request 2"):
            begin(busy(), StepPlan(admit=(Admission(2, 0, 20, 0, reserved),)), 0)


def growing(free: int, prefills: bool) -> WorkerState:
    """A worker with so many tokens left on which request 0, nothing of whose output is reserved, decodes, and request 1
    does too, or has its last prompt token to compute; request 2 decodes into what is reserved."""
    state = WorkerState(0, 100)
    for i in range(3):
        state, _ = arrive(state, Request(i, 0, 0, Prompt(10), 8), 8, 0)
    admit = tuple(Admission(i, 0, 10, 0, 8 * (i == 2)) for i in range(3))
    state, _ = step(state, StepPlan(admit=admit, chunks=((0, 10), (1, 9 if prefills else 10), (2, 10))), 0)
    return replace(state, capacity=state.promised + free)


@pytest.mark.parametrize("prefills", [False, True])
def test_tokens_without_a_reservation_need_free_memory(prefills: bool) -> None:
    """Of two requests whose outputs are not reserved each takes a token, those that decode and those that begin to."""
    plan = StepPlan(chunks=((1, 1),) if prefills else ())
    for free in (0, 1):
        with pytest.raises(InfeasiblePlanError, match=f"needs 2 tokens and {free} are free"):
            begin(growing(free, prefills), plan, 0)
    state, told = step(growing(2, prefills), plan, 0)
    assert (state.free, state.room) == (0, 6)
    assert [event.tokens for event in told if isinstance(event, Decoded)] == [(3,)]


@pytest.mark.parametrize("reserved", [0, 1])
def test_an_output_of_one_token_may_be_reserved(reserved: int) -> None:
    """Then its step needs no free memory beside."""
    state, _ = arrive(WorkerState(0, 11), Request(0, 0, 0, Prompt(10), 1), 1, 0)
    state, told = begin(state, StepPlan(admit=(Admission(0, 0, 10, 0, reserved),), chunks=((0, 10),)), 0)
    assert state.in_flight[0].reserved is bool(reserved)
    assert state.free == 1 - reserved
    state, told = finish(state, StepPlan(chunks=((0, 10),)), 1, 0)
    assert isinstance(told[-1], Finished)
    assert state.free == 11


def test_a_step_that_has_room_evicts_nothing() -> None:
    """However large the worker, and whatever is cached."""
    state = WorkerState(0, 512)
    for i in range(2):
        state, _ = arrive(state, Request(i, 0, 0, Prompt.from_keys(range(100 * i, 100 * i + 50)), 3), 1 + i, 0)
        state, _ = step(state, StepPlan(admit=(Admission(i, 0, 50, 0, 3),), chunks=((i, 50),)), 0)
    assert (state.cache.tree.cached_tokens, state.decoding) == (100, 1)
    state, _ = arrive(state, Request(2, 0, 0, Prompt(20), 3), 3, 0)
    told = begin(state, StepPlan(admit=(Admission(2, 0, 20, 0, 3),), chunks=((2, 20),)), 0)[1]
    assert [type(event) for event in told] == [Admitted]


@pytest.mark.parametrize(("planned", "said"), [(8, []), (6, [8]), (9, [8])])
def test_an_admission_that_computes_something_else_says_so(planned: int, said: list[int]) -> None:
    """It is told as it was planned, and settled with what is to be computed."""
    state, _ = arrive(WorkerState(0, 40), Request(0, 0, 0, Prompt(8), 3), 3, 0)
    told = begin(state, StepPlan(admit=(Admission(0, 0, planned, 8 - planned, 3),)), 0)[1]
    assert told[0] == Admitted(0, 0, 0, 0, planned, 8 - planned, 3)
    assert [event.extend_tokens for event in told if isinstance(event, Settled)] == said


def test_an_admission_pays_for_the_prefix_that_it_pins() -> None:
    """A cached prefix that no running request uses is free memory until a request comes that does."""
    prompt = Prompt.from_keys(range(10))
    for capacity, fits in ((2 * 5 + 8, False), (2 * 5 + 9, True)):
        state, _ = arrive(WorkerState(0, capacity), Request(0, 0, 0, prompt, 1), 1, 0)
        state, _ = step(state, StepPlan(admit=(Admission(0, 0, 10, 0, 1),), chunks=((0, 10),)), 0)
        assert (state.free, state.room) == (capacity, capacity - 10)
        for i in (1, 2):
            state, _ = arrive(state, Request(i, 0, 0, prompt, 4), 4, 0)
        both = tuple(Admission(i, 0, 1, 9, 4) for i in (1, 2))
        if fits:
            begun, _ = begin(state, StepPlan(admit=both), 0)
            assert begun.free == capacity - begun.cache.tree.protected_tokens - 2 * 5
        else:
            with pytest.raises(InfeasiblePlanError, match="request 2 needs 5 tokens and 4 are free"):
                begin(state, StepPlan(admit=both), 0)


def test_a_request_that_never_fits_is_told_why() -> None:
    """It is too long, or needs an adapter on a worker that has no slots."""
    long, adapted = Request(0, 0, 0, Prompt(8), 3), Request(1, 0, 0, Prompt(2), 3, adapter="ann")
    for slots, request, said in (
        (0, long, "needs 11 tokens"),
        (1, replace(long, adapter="ann"), "needs 11 tokens"),
        (0, adapted, "no adapter slots"),
    ):
        [rejected] = arrive(WorkerState(0, 10, adapter_slots=slots), request, 1, 0)[1]
        assert isinstance(rejected, Rejected)
        assert said in rejected.reason


def test_nothing_speaks_against_a_plan_that_can_be_executed() -> None:
    """A plan that the worker executes has no violation."""
    state = busy()
    plan = StepPlan(admit=(Admission(2, 0, 20, 0, 10),), chunks=((1, 10), (2, 20)))
    assert violations(plan, state.view(0)) == ()
    begin(state, plan, 0)


def test_what_comes_with_its_kv_gives_back_what_is_cached_of_it() -> None:
    """A request holds 8 tokens, of which 4 are those of a request that runs: of the 12 that are free it needs none, and
    gives 3 back, so that 15 more fit beside it, and 16 do not; nothing speaks against what fits, and the worker
    refuses the other."""
    state, shared = WorkerState(worker=0, capacity=27), Prompt.from_keys(range(4))
    state, _ = arrive(state, Request(0, 0, 0, shared, 3), 3, 0)
    state, _ = step(state, StepPlan(admit=(Admission(0, 0, 4, 0, 3),), chunks=((0, 4),)), 0)
    state = reserve(state, 1, 8)
    state, _ = receive(state, Request(1, 0, 0, Prompt.from_keys(range(8)), 2), 2, 0, generated_tokens=1, kv_tokens=8)
    entering, held = Admission(1, 0, 1, 4, 0), state.transit.landed[1]
    assert (held.promised, held.used, state.cache.tree.protected_tokens, state.free) == (8, 8, 4, 12)
    for tokens, fits in ((15, True), (16, False)):
        state, _ = arrive(state, Request(tokens, 0, 0, Prompt(tokens), 1), 1, 0)
        plan = StepPlan(admit=(entering, Admission(tokens, 0, tokens, 0, 0)))
        try:
            begin(state, plan, 0)
            executed = True
        except InfeasiblePlanError:
            executed = False
        assert (executed, not violations(plan, state.view(0))) == (fits, fits)
