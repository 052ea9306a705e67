"""The serving loop: every request ends exactly once with the tokens that are its own, whatever the policy does."""

from collections import Counter
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.executor import Sampling
from fairsched.engines.serving import Engine
from fairsched.engines.serving_answers import Answer
from fairsched.model.events import Cancelled, Event, Finished, Rejected
from fairsched.policies.batching import BATCHINGS
from fairsched.policies.fcfs import FCFS
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES
from tests.engines.fake_executor import VOCABULARY, FakeExecutor, answer_of

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
    batching = rule(draw(st.sampled_from([3, 8, 64])), draw(st.sampled_from([2, 16])), reserve)
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


@given(composed(), SENT, st.sampled_from([1, 2, 5]))
@settings(max_examples=150)
def test_every_request_gets_its_own_tokens(policy: ComposedPolicy, sent: list[Any], steps_between: int) -> None:
    """Under any policy, batching and reservation rule each answer is that of its prompt alone, and ends once.

    Outputs end where a stop token, the declared length or a given length says, and nobody intervenes.
    """
    executor, ends = FakeExecutor(), Ends()
    engine = Engine(policy, executor, kv_capacity_tokens=CAPACITY, listeners=[ends], now_ns=Ticks())
    answers = []
    for each in sent:
        answers.append(send(engine, *each))
        for _ in range(steps_between):
            engine.step()
    engine.run_until_idle()
    for answer, (_, prompt, output, exact) in zip(answers, sent, strict=True):
        if len(prompt) + output + 2 * exact > CAPACITY:
            assert answer.outcome == "rejected"
            assert "worker 0 holds 40 in all" in answer.reason
        else:
            assert answer.outcome == "finished"
            assert answer.tokens == wanted(prompt, output, exact)
    assert ends.ended == Counter(answer.request_id for answer in answers)
    assert not engine.guard.interventions
    assert engine.executor_failures == 0
    assert not executor.contexts
    assert not engine.answers


def test_leaps_ask_the_policy_less_often() -> None:
    """A plan that stays valid is repeated: a long decode costs one decision, and the same steps as without."""
    engine = Engine(FCFS(), FakeExecutor(), kv_capacity_tokens=4096, now_ns=Ticks())
    engine.ask("alone", [1, 2, 3], 1000)
    engine.run_until_idle()
    assert engine.times.steps == 1000
    assert engine.times.decisions == 2


def test_a_request_that_is_none_is_refused() -> None:
    """Each kind of bad request raises an error that says what is wrong, and leaves no trace."""
    engine = Engine(FCFS(), FakeExecutor(), kv_capacity_tokens=100)
    with pytest.raises(ValueError, match="tokens are 0 to 96"):
        engine.ask("a", [VOCABULARY], 3)
    request = engine.request("a", [1, 2], 3)
    with pytest.raises(ValueError, match="a prompt of 2 tokens, and 1 are given"):
        engine.submit(request, [1])
    with pytest.raises(ValueError, match="1 to max_output_tokens = 3 tokens, not 4"):
        engine.submit(request, [1, 2], output_tokens=4)
    stranger = engine.block_keys.request(0, 5, [1, 2], 3)
    with pytest.raises(ValueError, match="of client 5; 1 are known"):
        engine.submit(stranger, [1, 2])
    assert not engine.step()
    answer = engine.submit(request, [1, 2])
    with pytest.raises(ValueError, match="request 0 was submitted before"):
        engine.submit(request, [1, 2])
    engine.run_until_idle()
    assert answer.outcome == "finished"
    with pytest.raises(ValueError, match="request 0 was submitted before"):
        engine.submit(request, [1, 2])
