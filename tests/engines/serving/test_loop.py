"""The serving loop: every request ends exactly once with the tokens that are its own, whatever the policy does."""

from collections import Counter
from collections.abc import Container
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.serving import Answer, BlockKeys, Engine, Executor, Sampling
from fairsched.model.decision import StepPlan, WorkerView
from fairsched.model.events import Cancelled, Event, Finished, Rejected
from fairsched.policies.base import LocalPolicy
from fairsched.policies.batching import BATCHINGS
from fairsched.policies.catalog import FCFS, VTC
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES
from tests.support.engines.fake_executor import VOCABULARY, ExecutorDiedError, FailingExecutor, FakeExecutor, answer_of
from tests.support.policies.pausing import RandomPauses

CAPACITY = 40


class Ticks:
    """A clock that goes on by one nanosecond each time it is read."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1
        return self.now_ns


class Ends:
    """A listener that counts how each request ended."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended: Counter[int] = Counter()

    def __call__(self, events: list[Event]) -> None:
        self.events += events
        self.ended.update(e.request_id for e in events if isinstance(e, Finished | Cancelled | Rejected))


@st.composite
def composed(draw: st.DrawFn) -> ComposedPolicy:
    """Any shipped policy under any batching rule, with budgets small enough to matter."""
    rule = BATCHINGS[draw(st.sampled_from(sorted(BATCHINGS)))]
    reserve: Any = draw(st.sampled_from(["static", "optimistic"]))
    tokens, running = draw(st.sampled_from([3, 8, 64])), draw(st.sampled_from([2, 16]))
    batching = rule(max_batched_tokens=tokens, max_running=running, reserve=reserve)
    if batching.refuses(CAPACITY):
        # A rule that refuses what is longer than its budget: here every prompt is to be served.
        batching = rule(max_batched_tokens=64, max_running=running, reserve=reserve)
    return attrs.evolve(LOCAL_POLICIES[draw(st.sampled_from(sorted(LOCAL_POLICIES)))], batching=batching)


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=30)
SENT = st.lists(st.tuples(st.integers(0, 2), PROMPTS, st.integers(1, 12), st.booleans()), min_size=1, max_size=10)


def send(engine: Engine, client: int, prompt: list[int], output: int, exact: bool) -> Answer:
    """A request of so many output tokens, or one that may stop early."""
    if exact:
        request = engine.request(f"client-{client}", prompt, output + 2)
        return engine.submit(request, prompt, output_tokens=output)
    return engine.ask(f"client-{client}", prompt, output, sampling=Sampling(stop_tokens=frozenset(range(20))))


def wanted(prompt: list[int], output: int, exact: bool) -> list[int]:
    """What such a request has to be answered."""
    tokens = answer_of(prompt, output)
    if exact:
        return tokens
    stop = next((i for i, token in enumerate(tokens) if token < 20), output)
    return tokens[: stop + 1]


def engine_of(policy: Any, executor: Executor | None = None, **options: Any) -> Engine:
    """An engine with room for `CAPACITY` tokens, whose clock ticks."""
    return Engine(policy, executor or FakeExecutor(), **{"kv_capacity_tokens": CAPACITY, "now_ns": Ticks(), **options})


def load(engine: Engine, sent: list[Any], steps_between: int = 1, gone: Container[int] = ()) -> list[Answer]:
    """Send requests with some steps between them; after those with a number in `gone` an earlier one is cancelled."""
    answers = []
    for i, each in enumerate(sent):
        answers.append(send(engine, *each))
        for _ in range(steps_between):
            engine.step()
        if i in gone:
            engine.cancel(i // 2)
    return answers


def check_tokens(answers: list[Answer], sent: list[Any]) -> None:
    """Each answer has the tokens of its prompt alone: all of them if it finished, and otherwise the first ones."""
    for answer, (_, prompt, output, exact) in zip(answers, sent, strict=True):
        expected = wanted(prompt, output, exact)
        assert answer.tokens == (expected if answer.outcome == "finished" else expected[: len(answer.tokens)])


@given(composed(), SENT, st.sampled_from([1, 2, 5]), st.booleans())
def test_every_request_gets_its_own_tokens(
    policy: ComposedPolicy, sent: list[Any], steps_between: int, pauses: bool
) -> None:
    """Under any policy, batching and reservation rule, also with pauses, each answer is that of its prompt alone,
    and ends once.

    Outputs end where a stop token, the declared length or a given length says, and nobody intervenes.
    """
    executor, ends = FakeExecutor(), Ends()
    engine = engine_of(RandomPauses(policy) if pauses else policy, executor, listeners=[ends])
    answers = load(engine, sent, steps_between)
    engine.run_until_idle()
    check_tokens(answers, sent)
    for answer, (_, prompt, output, exact) in zip(answers, sent, strict=True):
        fits = len(prompt) + output + 2 * exact <= CAPACITY
        assert answer.outcome == ("finished" if fits else "rejected")
        assert fits or "worker 0 holds 40 in all" in answer.reason
    assert ends.ended == Counter(answer.request_id for answer in answers)
    assert not engine.guard.interventions
    assert engine.executor_failures == 0
    assert not executor.contexts
    assert not engine.answers


@attrs.frozen
class AskedEachStep(LocalPolicy[Any]):
    """The policy inside, whose plans hold for one step."""

    inner: ComposedPolicy

    def init(self) -> Any:
        return self.inner.init()

    def observe(self, state: Any, event: Event) -> Any:
        return self.inner.observe(state, event)

    def decide(self, state: Any, view: WorkerView) -> tuple[StepPlan, Any]:
        plan, state = self.inner.decide(state, view)
        return msgspec.structs.replace(plan, valid_steps=1), state


def timeless(event: Event) -> tuple[Any, ...]:
    """An event without its time."""
    values = {name: getattr(event, name) for name in event.__struct_fields__ if name != "time_ns"}
    request = values.pop("request", None)
    return type(event), request and request.id, tuple(values.items())


@given(composed(), SENT, st.sampled_from([1, 2, 5, 9]), st.integers(0, 9))
def test_leaping_is_stepping(policy: ComposedPolicy, sent: list[Any], steps_between: int, gone: int) -> None:
    """Whether the policy is asked at each step or only when its plan says so, the same happens in the same order."""
    heard = []
    for asked in (policy, AskedEachStep(policy)):
        ends = Ends()
        engine = engine_of(asked, block_keys=BlockKeys(4, secret=b"fixed"), listeners=[ends])
        load(engine, sent, steps_between, [gone])
        engine.run_until_idle()
        heard.append([timeless(event) for event in ends.events])
        assert not engine.guard.interventions
    assert heard[0] == heard[1]


def test_leaps_ask_the_policy_less_often() -> None:
    """A plan that stays valid is repeated: a long decode costs one decision, and the same steps as without."""
    engine = engine_of(FCFS(), kv_capacity_tokens=4096)
    engine.ask("alone", [1, 2, 3], 1000)
    engine.run_until_idle()
    assert engine.times.steps == 1000
    assert engine.times.decisions == 2


def test_a_request_that_is_none_is_refused() -> None:
    """Each kind of bad request raises an error that says what is wrong, and leaves no trace."""
    engine = engine_of(FCFS())
    with pytest.raises(ValueError, match="tokens are 0 to 96"):
        engine.ask("a", [VOCABULARY], 3)
    request, unknown = engine.request("a", [1, 2], 3), engine.block_keys.request(0, 5, [1, 2], 3)
    for bad, prompt, output, message in (
        (request, [1], None, "a prompt of 2 tokens, and 1 are given"),
        (request, [1, 2], 4, "1 to max_output_tokens = 3 tokens, not 4"),
        (unknown, [1, 2], None, "of client 5; 1 are known"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.submit(bad, prompt, output_tokens=output)
    assert not engine.step()
    answer = engine.submit(request, [1, 2])
    for outcome in (None, "finished"):
        assert answer.outcome == outcome
        with pytest.raises(ValueError, match="request 0 was submitted before"):
            engine.submit(request, [1, 2])
        engine.run_until_idle()


FAILURES = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from(["execute", "follow", "submit", "tokens", "close"])), max_size=4
)


@given(composed(), SENT, FAILURES, st.booleans(), st.integers(0, 12))
def test_every_request_ends_once_whatever_the_executor_does(
    policy: ComposedPolicy, sent: list[Any], fails: list[tuple[int, str]], spare: bool, gone: int
) -> None:
    """Executors that die in any call, one after the other, with or without one that lives in the end.

    Each request ends once, what it was answered are its own tokens, and a rejected one is told why.
    """
    executors = iter([*(FailingExecutor(*each) for each in fails), *([FakeExecutor()] if spare else [])])
    ends = Ends()

    def another() -> FakeExecutor:
        made = next(executors, None)
        if made is None:
            raise ExecutorDiedError("no more machines")
        return made

    engine = engine_of(policy, next(executors, FakeExecutor()), make_executor=another, listeners=[ends])
    answers = load(engine, sent, gone=[gone])
    engine.run_until_idle()
    check_tokens(answers, sent)
    for answer in answers:
        assert answer.outcome is not None
        if answer.outcome == "rejected":
            assert "holds 40 in all" in answer.reason or "executor" in answer.reason
    assert ends.ended == Counter(answer.request_id for answer in answers)
    assert not engine.guard.interventions
    assert engine.executor_failures <= len(fails)
    assert not engine.answers


def test_an_executor_that_fails_without_a_spare() -> None:
    """What was open is rejected with the reason, and so is what comes later."""
    engine = engine_of(FCFS(), FailingExecutor(3))
    answers = [engine.ask("a", [1, 2, 3], 10) for _ in range(3)]
    engine.run_until_idle()
    answers.append(engine.ask("a", [1], 1))
    for answer in answers:
        assert answer.outcome == "rejected"
        assert answer.reason == "worker 0 has no executor any more: ExecutorDiedError('out of memory')"
    assert not engine.step()


def test_a_request_that_kills_every_executor() -> None:
    """At the third failure since anything finished, what is in the batch goes, so that the others are served."""

    class Allergic(FakeExecutor):
        def execute(self, plan: Any) -> dict[int, int]:
            if any(96 in self.contexts[request_id] for request_id, _ in plan.chunks):
                raise ExecutorDiedError("out of memory")
            return super().execute(plan)

    engine = engine_of(FCFS(batching=BATCHINGS["chunked"](64, 1)), Allergic(), make_executor=Allergic)
    poison = engine.ask("a", [96, 2, 3], 10)
    others = [engine.ask("a", [1, 2, i], 3) for i in range(3)]
    engine.run_until_idle()
    assert engine.executor_failures == 3
    assert poison.outcome == "rejected"
    assert "failed 3 times" in poison.reason
    assert [answer.outcome for answer in others] == ["finished"] * 3


def test_callers_that_raise_or_go_during_a_step() -> None:
    """A caller whose callback raises is cancelled; one that cancels another, or asks again, does it between steps."""
    ends = Ends()
    engine = engine_of(FCFS(), listeners=[ends])
    heard: list[tuple[str, int | None]] = []
    more: list[Answer] = []

    def raises(token: int) -> None:
        raise RuntimeError("the socket is closed")

    def ends_another(token: int) -> None:
        engine.cancel(other.request_id)
        heard.append(("first", token))

    def asks_again(answer: Answer) -> None:
        more.append(engine.ask("b", [1], 2))

    broken = engine.ask("a", [1, 2], 5, on_token=raises)
    first = engine.ask("a", [3, 4], 2, on_token=ends_another, on_end=asks_again)
    other = engine.ask(
        "a", [5], 5, on_token=lambda token: heard.append(("other", token)), on_end=lambda _: heard.append(("end", None))
    )
    engine.run_until_idle()
    assert broken.outcome == other.outcome == "cancelled"
    assert first.outcome == more[0].outcome == "finished"
    assert [token for who, token in heard if who == "first"] == first.tokens
    # What was produced before the caller went is told, the end comes last, and once.
    assert [who for who, _ in heard if who != "first"] == ["other", "end"]
    assert set(ends.ended.values()) == {1}


def test_a_listener_that_raises_is_not_called_again() -> None:
    """The engine serves on, and other listeners hear everything."""
    calls: list[int] = []

    def raises(events: list[Event]) -> None:
        calls.append(1)
        raise RuntimeError("full")

    ends = Ends()
    engine = engine_of(FCFS(), listeners=[raises, ends])
    engine.ask("a", [1], 3)
    engine.run_until_idle()
    assert len(calls) == 1
    assert ends.ended == {0: 1}


def test_a_weight_is_told_and_a_closed_engine_takes_nothing() -> None:
    """A weight reaches the policy; closing cancels what is open, and whoever comes later is told."""
    executor = FakeExecutor()
    engine = engine_of(VTC(), executor, kv_capacity_tokens=100)
    engine.configure_client("gold", 3)
    assert list(engine.policy_state.gate.share) == [1]
    engine.configure_client("free", 1)
    assert [client.weight for client in engine.clients.all] == [3, 1]
    answer = engine.ask("gold", [1, 2], 50)
    engine.step()
    engine.close()
    assert answer.outcome == "cancelled"
    assert executor.closed
    assert "the engine was closed" in engine.ask("gold", [1, 2], 5).reason
