"""Whatever a policy or a router returns, however late, engines and windows that ask it go on serving."""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.adapters.sglang.settings import SglangSettings
from fairsched.engines.adapters.vllm.settings import VllmSettings
from fairsched.engines.gateway import Share, Window, window_policy
from fairsched.engines.serving import AdmissionGuard, NoDecisionError, RouterGuard, empty_worker
from fairsched.engines.serving.guard.advisor import is_shipped
from fairsched.engines.serving.guard.budget import OverdueError, within
from fairsched.model.decision import Admission, ClusterPlan, ClusterView, Dispatch, Migration, StepPlan, WorkerLoad
from fairsched.model.events import Arrived, WorkerJoined
from fairsched.model.request import Prompt, Request
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS
from fairsched.policies.routers import JoinShortestQueue
from tests.support.adapters import sglang_stand_in, vllm_stand_in
from tests.support.policies.misbehaving import faulty

Answer = Callable[[Any, Any], Any]
"""What a decision returns, given the state and the view."""


class Evil:
    """Each of its attributes raises, and so do its text, its length and its truth."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __bool__(self) -> bool:
        raise RuntimeError("bool")

    def __len__(self) -> int:
        raise RuntimeError("len")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __hash__(self) -> int:
        raise RuntimeError("hash")


class EvilError(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError("str")


class Disguised(int):
    """A number that is none."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    __hash__ = int.__hash__


def raising(error: BaseException) -> Answer:
    """An answer that is an exception."""

    def answer(state: Any, view: Any) -> Any:
        raise error

    return answer


def generator(state: Any, view: Any) -> Any:
    """A generator."""
    yield StepPlan()


async def coroutine(state: Any, view: Any) -> Any:
    """A coroutine."""
    return StepPlan(), state


def admits(request_id: Any, extend: Any = 1, *, client: Any = 0) -> Answer:
    """A plan that admits a request with such numbers."""
    return lambda state, view: (StepPlan((), (Admission(request_id, client, extend, 0, 1),)), state)


FINDING_11: dict[str, Answer] = {
    "None": lambda state, view: (None, state),
    "a text": lambda state, view: ("plan", state),
    "a tuple of None": lambda state, view: ((None,), state),
    "a tuple of a number": lambda state, view: ((7,), state),
    "no pair": lambda state, view: None,
}
ANSWERS: dict[str, Answer] = FINDING_11 | {
    "a lone text": lambda state, view: "plan",
    "one value": lambda state, view: (None,),
    "numbers": lambda state, view: (7, 7),
    "no admissions": lambda state, view: (StepPlan(admit=None), state),  # type: ignore[arg-type]
    "admission of None": lambda state, view: (StepPlan(admit=(None,)), state),  # type: ignore[arg-type]
    "a number admitted": lambda state, view: (StepPlan(admit=(7,)), state),  # type: ignore[arg-type]
    "a list": lambda state, view: (StepPlan(admit=[Admission(0, 0, 1, 0, 1)]), state),  # type: ignore[arg-type]
    "nothing": lambda state, view: (StepPlan(), state),
    "evil": lambda state, view: Evil(),
    "an evil plan": lambda state, view: (Evil(), state),
    "evil admissions": lambda state, view: (StepPlan(admit=Evil()), state),  # type: ignore[arg-type]
    "evil preemptions": lambda state, view: (StepPlan(preempt=Evil()), state),  # type: ignore[arg-type]
    "an evil state": lambda state, view: (StepPlan(), Evil()),
    "a stranger": admits(10**9),
    "a negative one": admits(-1),
    "a huge number": admits(1 << 100),
    "huge tokens": admits(0, 1 << 100),
    "many tokens": admits(0, 1 << 40),
    "a name": admits("0"),
    "a float": admits(0.0),
    "a truth": admits(False),
    "not a number": admits(float("nan")),
    "disguised": admits(Disguised(0)),
    "somebody else's": admits(0, client=10**6),
    "generator": generator,
    "coroutine": coroutine,
    "an exception": raising(KeyError(1)),
    "an exception without a text": raising(EvilError()),
    "the end of the program": raising(SystemExit(1)),
    "the end of a generator": raising(GeneratorExit()),
    "a keyboard": raising(KeyboardInterrupt()),
    "a deep recursion": lambda state, view: deep(0),
}


def deep(depth: int) -> int:
    """Recurse for ever."""
    return deep(depth + 1) + 1


def loops(state: Any, view: Any) -> Any:
    """Never return."""
    while True:
        pass


def sleeps(state: Any, view: Any) -> Any:
    """Return after an hour, unless an exception comes between two moments."""
    for _ in range(3_600_000):
        time.sleep(0.001)


LATE: dict[str, Answer] = {"loops": loops, "sleeps": sleeps}


def each(answers: dict[str, Answer]) -> pytest.MarkDecorator:
    """A test for each of them."""
    return pytest.mark.parametrize("answer", answers.values(), ids=answers)


@attrs.frozen
class Answers:
    """Decides as `answers` say in turn (None: as `good` does), and is otherwise `good`."""

    good: Any
    answers: tuple[Answer | None, ...]
    asked: list[int] = attrs.field(factory=list, eq=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.good, name)

    def decide(self, state: Any, view: Any) -> Any:
        """Decide."""
        self.asked.append(1)
        answer = self.answers[(len(self.asked) - 1) % len(self.answers)]
        return self.good.decide(state, view) if answer is None else answer(state, view)


def vllm(
    answers: tuple[Answer | None, ...], budget_ms: int = 20_000, fault: str = "", count: int = 6
) -> tuple[Any, list[str]]:
    """Serve six requests inside vLLM's stand-in."""
    good: Any = vllm_stand_in.policy_of("vtc")
    policy: Any = faulty(good, fault) if fault else Answers(good, answers)
    engine = vllm_stand_in.StandIn(policy, seats=2, settings=VllmSettings(decision_budget_ms=budget_ms))
    for i in range(count):
        engine.add(vllm_stand_in.StandInRequest(f"r{i}", "a" if i < 4 else "b", 2, 2, 2))
    engine.run(1000)
    return engine.tracker.guard, engine.let_in


def sglang(
    answers: tuple[Answer | None, ...], budget_ms: int = 20_000, fault: str = "", count: int = 6
) -> tuple[Any, list[str]]:
    """Serve six requests inside SGLang's stand-in."""
    engine = sglang_stand_in.StandIn(SglangSettings(policy="vtc", decision_budget_ms=budget_ms), seats=2)
    guard = engine.shim.tracker.guard
    good: Any = guard.policy
    guard.policy = faulty(good, fault) if fault else Answers(good, answers)  # type: ignore[assignment]
    for i in range(count):
        engine.add(f"r{i}", "a" if i < 4 else "b", 2, 2)
    engine.run()
    return guard, engine.let_in


def window(answers: tuple[Answer | None, ...], budget_ms: int = 20_000) -> tuple[Any, list[str]]:
    """Serve six requests through the window of the gateway, of the endpoint picker and of Ray Serve."""
    policy: Any = Answers(window_policy("fcfs+deficit", 8), answers)
    made = Window(policy, ROUTERS["join-shortest-queue"], [Share(8, 2), Share(8, 2)], budget_ms=budget_ms)
    for i in range(6):
        made.arrive(i, i // 4, 3, 2, 0)
    let_in: list[str] = []
    for now in range(1, 100):
        for placement in made.admit(now):
            let_in.append(f"r{placement.request_id}")
            made.finish(placement.request_id, 3, 2, now)
    assert (made.waiting, made.in_flight, made.in_flight_tokens) == (0, 0, 0)
    return made.guard, let_in


Engine = Callable[..., tuple[Any, list[str]]]
EACH_ENGINE = pytest.mark.parametrize("engine", [vllm, sglang, window])


@EACH_ENGINE
@each(ANSWERS)
def test_whatever_a_policy_returns_every_request_is_served(engine: Engine, answer: Answer) -> None:
    """Once, in order of arrival where the policy is not followed; it is counted, and the policy is set aside."""
    guard, let_in = engine((answer,))
    assert let_in == [f"r{i}" for i in range(6)]
    assert guard.interventions.total() > 0
    assert guard.last_error
    assert len(guard.last_error) < 1000


@pytest.mark.parametrize("engine", [vllm, sglang])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [("raises", "exception"), ("unknown", "infeasible"), ("nobody", "stalled"), ("observe", "observe")],
)
def test_a_policy_that_does_not_stop_failing_is_set_aside(engine: Engine, fault: str, cause: str) -> None:
    """Each failure is counted by its cause, and every request is served."""
    guard, let_in = engine((), fault=fault, count=20)
    assert sorted(let_in) == sorted(f"r{i}" for i in range(20))
    assert set(guard.interventions) == {cause}
    assert guard.set_aside is not None


@EACH_ENGINE
@each(LATE)
def test_a_decision_that_does_not_return_is_given_up(engine: Engine, answer: Answer) -> None:
    """Every request is served, the failures are counted as late, and no thread goes on with the policy."""
    guard, let_in = engine((answer,), 20)
    assert sorted(let_in) == [f"r{i}" for i in range(6)]
    assert guard.interventions["late"] > 0
    while guard._advisor.busy:
        time.sleep(0.001)


@EACH_ENGINE
@given(st.lists(st.sampled_from([None, *ANSWERS.values()]), min_size=1, max_size=5).map(tuple))
@settings(max_examples=60, deadline=None)
def test_good_and_bad_decisions_in_any_order_lose_no_request(
    engine: Engine, answers: tuple[Answer | None, ...]
) -> None:
    """Each request is served once; a policy that decides well once in a while is not set aside."""
    _, let_in = engine(answers)
    assert sorted(let_in) == [f"r{i}" for i in range(6)]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.builds(Evil),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.builds(Admission, inner, inner, inner, inner, inner)
        | st.builds(StepPlan, inner, inner, inner, inner, inner)
        | st.builds(Dispatch, inner, inner, inner)
        | st.builds(Migration, inner, inner, inner, inner, inner, inner)
        | st.builds(ClusterPlan, inner, inner)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_a_decision_is_one_admission_that_the_caller_admits_or_an_error(value: Any) -> None:
    """Of any value that a policy returns."""
    policy: Any = Answers(window_policy("fcfs+deficit", 8), (lambda state, view: value,))
    guard = AdmissionGuard(policy, logging.getLogger("test"), failures_max=1)
    guard.observe(WorkerJoined(0, 0, 10))
    guard.observe(Arrived(0, 0, Request(3, 1, 0, Prompt(2), 2)))
    try:
        decision = guard.decide(empty_worker(0, 10, 10), lambda admission: admission.request_id == 3)
    except NoDecisionError:
        assert guard.set_aside is not None
        return
    assert decision is None or type(decision.admission) is Admission
    if decision is not None:
        assert [type(number) for number in attrs_of(decision.admission)] == [int] * 5


def attrs_of(admission: Admission) -> list[Any]:
    """Its numbers."""
    return [getattr(admission, name) for name in admission.__struct_fields__]


class Astray(JoinShortestQueue):
    """A router that returns a value."""

    def __init__(self, value: Answer) -> None:
        super().__init__()
        object.__setattr__(self, "value", value)

    def route(self, state: Any, request: Any, view: Any) -> Any:
        return self.value(state, view)  # type: ignore[attr-defined]

    def decide(self, state: Any, view: Any) -> Any:
        return self.value(state, view)  # type: ignore[attr-defined]


LOADS = ClusterView(0, tuple(WorkerLoad(worker, 0, running, 0, 10, 10) for worker, running in ((4, 2), (7, 1))))


def dispatches(value: Any) -> tuple[Dispatch, tuple[Migration, ...]]:
    """What a router's guard makes of a value."""
    guard = RouterGuard(Astray(lambda state, view: value), logging.getLogger("test"))
    plan = guard.decide(LOADS)
    return guard.route(Request(3, 1, 0, Prompt(2), 2), LOADS), () if plan is None else plan.migrations


@given(VALUES)
def test_a_dispatch_is_to_a_worker_that_is_there(value: Any) -> None:
    """Of any value that a router returns; and its migrations are values of the right types."""
    dispatch, migrations = dispatches(value)
    assert type(dispatch.worker) is int
    assert (dispatch.request_id, dispatch.worker) in {(3, 4), (3, 7)}
    assert all(type(each) is Migration and type(each.source) is int for each in migrations)


@each(ANSWERS)
def test_where_a_router_fails_the_shortest_queue_is_taken(answer: Answer) -> None:
    """And after some failures the router is set aside."""
    guard = RouterGuard(Astray(answer), logging.getLogger("test"), budget_ms=60_000)
    for _ in range(10):
        assert guard.route(Request(3, 1, 0, Prompt(2), 2), LOADS).worker == 7
        assert guard.decide(LOADS) is None
    assert guard.set_aside is not None
    assert guard.failures == 8


def test_a_router_that_never_returns_is_set_aside() -> None:
    """Its calls are interrupted, and the shortest queue is taken."""
    guard = RouterGuard(Astray(loops), logging.getLogger("test"), budget_ms=10)
    while guard.set_aside is None:
        assert guard.route(Request(3, 1, 0, Prompt(2), 2), LOADS).worker == 7
    assert guard.interventions["late"] >= 8


# --- the budget -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_an_interruption_never_leaves_the_call_that_was_late(seed: int) -> None:
    """Calls that last about as long as their budget either return or are late; nothing is raised anywhere else, not in
    the caller nor in other calls, and every thread that was late ends."""
    rng, late = random.Random(seed), []
    for i in range(300):
        until = time.perf_counter_ns() + rng.randrange(150_000)

        def call(until: int = until, i: int = i) -> int:
            while time.perf_counter_ns() < until:
                pass
            return i

        try:
            assert within(100_000, call) == i
        except OverdueError as error:
            late.append(error.call)
        assert within(60_000_000_000, threading.get_ident) != threading.get_ident()
    while not all(call is None or call.over for call in late):
        time.sleep(0.001)


def test_what_cannot_be_interrupted_holds_nobody_up() -> None:
    """A call that waits in C for an event that does not come is left behind; it ends when the event comes."""
    event = threading.Event()
    with pytest.raises(OverdueError) as caught:
        within(1_000_000, event.wait)
    call = caught.value.call
    assert call is not None
    assert not call.over
    assert within(60_000_000_000, lambda: 7) == 7
    event.set()
    while not call.over:
        time.sleep(0.001)


def test_what_is_shipped_is_asked_in_place_and_all_else_in_a_thread() -> None:
    """A policy is shipped if all its parts are; an answer in place that came late is a failure, too."""

    class Mine(type(window_policy("fcfs", 8).order)):  # type: ignore[misc]
        """An order of the user's."""

    for policy in LOCAL_POLICIES.values():
        assert is_shipped(policy)
        assert not is_shipped(attrs.evolve(policy, order=Mine()))
    assert all(map(is_shipped, ROUTERS.values()))
    assert not is_shipped(Astray(loops))
    with pytest.raises(OverdueError) as caught:
        within(1000, lambda: time.sleep(0.001), in_place=True)
    assert caught.value.call is None
    assert within(60_000_000_000, threading.get_ident, in_place=True) == threading.get_ident()


def test_threads_are_shared() -> None:
    """A thousand guards that decide one after the other need one thread."""
    before = threading.active_count()
    for _ in range(1000):
        assert within(60_000_000_000, threading.get_ident) != threading.get_ident()
    assert threading.active_count() <= before + 1
