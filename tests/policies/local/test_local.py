"""What composed policies do, behaviour by behaviour, each on the smallest worker that shows it."""

from typing import Any

import attrs
import pytest

from fairsched.model import events
from fairsched.model.decision import Admission
from fairsched.model.events import Admitted, Decoded, Prefilled
from fairsched.model.request import Prompt, Request
from fairsched.model.serialization import StateError
from fairsched.policies.batching import BATCHINGS, Batching, Chunked, EagerPrefill, IterationLevel, RequestLevel
from fairsched.policies.catalog import DLPM, FCFS, LPM, VTC, ShortestPromptFirst
from fairsched.policies.gates import DeficitGate
from fairsched.policies.local import ComposedPolicy, PredictedBatches
from fairsched.policies.registry import LOCAL_POLICIES
from tests.support.policy_play import Play


def keys(*names: int) -> Prompt:
    """A prompt of one-token blocks."""
    return Prompt.from_keys(names)


# --- order ----------------------------------------------------------------------------------------------------------


CONTINUOUS = {name: policy for name, policy in LOCAL_POLICIES.items() if not isinstance(policy, PredictedBatches)}
"""Policies that let requests in beside those that run."""


IN_LINE = {
    name: policy
    for name, policy in CONTINUOUS.items()
    if name not in ("trail", "learning-to-rank", "splitwise-machine", "dlpm-printed")
}
"""Those of them that do not rank by outputs, for which the small request is the first, make no room by force, and let a
client that comes back keep its credit."""


@pytest.mark.parametrize("policy", IN_LINE.values(), ids=IN_LINE)
def test_first_that_does_not_fit_stops_the_line(policy: ComposedPolicy) -> None:
    """A request that does not fit is not passed over by a smaller one of the same client behind it."""
    play = Play(attrs.evolve(policy, batching=Chunked()), 24)
    play.arrive(prompt=8, output=4)
    play.step()
    large, small = [play.arrive(prompt=9, output=4), play.arrive(prompt=10, output=4)], play.arrive(prompt=10, output=1)
    assert play.worker.view(1).kv_free_tokens == 12  # room for the small one
    assert play.admitted() == []
    reasons = [play.policy.wait_reason(play.state, play.worker.view(1), one) for one in (*large, small)]
    assert sorted(reasons) == ["memory", "order", "order"]
    assert reasons[-1] == "order"


@pytest.mark.parametrize(("policy", "admitted"), [(FCFS(), [0, 1, 2, 3]), (ShortestPromptFirst(), [1, 3, 2, 0])])
def test_order_by_age_or_prompt(policy: ComposedPolicy, admitted: list[int]) -> None:
    """FCFS admits in order of arrival, whatever the sizes; fewest prompt tokens first, then the older."""
    play = Play(policy)
    for prompt in (9, 3, 5, 3):
        play.arrive(prompt=prompt)
    assert play.admitted() == admitted


def test_longest_prefix_order() -> None:
    """Longest cached prefix first, then the older; the order follows what is cached."""
    play = Play(LPM())
    play.arrive(prompt=keys(1, 2, 3, 4), output=1)
    play.step()
    cold, short, long, other = (play.arrive(prompt=keys(*p)) for p in [(7, 7), (1, 2, 9), (1, 2, 3, 8), (6, 6)])
    assert play.admitted() == [long, short, cold, other]
    assert [a.cached_prefix_tokens for a in play.decide().admit] == [3, 2, 0, 0]


def test_prefix_being_computed_is_waited_for() -> None:
    """Of two cold requests with one prefix the second waits for the first; others and other orders do not wait."""
    for policy, expected in ((LPM(), [0, 2]), (DLPM(), [0]), (FCFS(), [0, 1, 2])):
        play = Play(policy)
        for prompt in (keys(1, 2, 3), keys(1, 2, 4), keys(5, 6)):
            play.arrive(prompt=prompt, output=3)
        assert play.admitted() == expected
        play.step()
    # Under a gate a client offers its best request only, so all of its queue waited; now the prefix is there.
    play = Play(DLPM())
    first, second = play.arrive(prompt=keys(1, 2, 3), output=3), play.arrive(prompt=keys(1, 2, 4))
    play.step()
    assert play.decide().admit == (Admission(second, 0, 1, 2, 2),)
    assert first in play.state.flights


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reserve", "reserved"), [("static", [6, 6]), ("optimistic", [0] * 4)])
def test_a_reservation_is_the_whole_output_or_the_next_token(reserve: Any, reserved: list[int]) -> None:
    """Two requests of 4 + 6 tokens fill 20 tokens of memory, although little is used yet; without reserved outputs four
    enter at once, each with room for its prompt and one token."""
    play = Play(FCFS(batching=Chunked(reserve=reserve)), 20)
    for _ in range(4):
        play.arrive(prompt=4, output=1, output_max=6)
    assert play.admitted() == list(range(len(reserved)))
    assert [a.reserved_output_tokens for a in play.decide().admit] == reserved


def test_preemption_takes_the_youngest_and_keeps_its_output() -> None:
    """When outputs outgrow memory the youngest leaves, keeps what it generated, and comes back before later ones."""
    play = Play(FCFS(batching=Chunked(reserve="optimistic")), 12)
    old, young = play.arrive(prompt=3, output=6), play.arrive(prompt=3, output=6)
    play.step(3)
    late = play.arrive(prompt=1, output=1)
    assert play.step().preempt == (young,)
    assert play.worker.queue[young].generated_tokens == 3
    play.step(20)
    assert [event.request_id for event in play.events if isinstance(event, Admitted)] == [old, young, young, late]
    assert sorted(play.finished()) == [old, young, late]


def test_fully_cached_prompt_fits_a_worker_that_it_fills() -> None:
    """A prompt that is cached whole takes its memory once: its last block is computed again, the copy may go."""
    play = Play(FCFS(), 8)
    play.arrive(prompt=keys(1, 2, 3, 4, 5, 6), output=2)
    play.step(2)
    again = play.arrive(prompt=keys(1, 2, 3, 4, 5, 6), output=2)
    assert play.decide().admit == (Admission(again, 0, 1, 5, 2),)
    play.step(2)
    assert play.finished() == [0, again]


# --- gates ----------------------------------------------------------------------------------------------------------


def test_weight_before_the_first_request() -> None:
    """A client's weight may be set before it or anybody was seen."""
    for policy in LOCAL_POLICIES.values():
        play = Play(policy)
        play.configure(3, 2)
        for client in (0, 1, 3):
            play.arrive(client)
        assert sorted(play.admitted()) == [0, 1, 2]


# --- batching rules -------------------------------------------------------------------------------------------------


def under(rule: Batching) -> Play:
    """FCFS under a rule, with one request that decodes (it has three tokens to go)."""
    play = Play(FCFS(batching=rule))
    play.arrive(prompt=2, output=4)
    play.step()
    return play


def test_chunked_fills_what_decoding_leaves_of_the_budget() -> None:
    """Budget 5, one decodes: four tokens of the first prompt; in the next step the rest and the head of the second."""
    play = under(Chunked(max_batched_tokens=5))
    play.arrive(prompt=6)
    play.arrive(prompt=7)
    plan = play.step()
    assert (plan.chunks, plan.decode) == (((1, 4),), True)
    plan = play.step()
    assert (plan.chunks, plan.decode) == (((1, 2), (2, 2)), True)
    assert [a.request_id for a in plan.admit] == [2]


def test_iteration_level_computes_whole_prompts_beside_decoding() -> None:
    """Whole prompts enter between any two steps, and decoding goes on; only the number of requests is limited."""
    play = under(IterationLevel(max_batched_tokens=5, max_running=3))
    for prompt in (6, 7, 8):
        play.arrive(prompt=prompt)
    plan = play.step()
    assert (plan.chunks, plan.decode) == (((1, 6), (2, 7)), True)


def test_eager_prefill_stops_decoding() -> None:
    """A step prefills whole prompts up to the budget and decodes nothing; a longer one than the budget goes alone."""
    play = under(EagerPrefill(max_batched_tokens=9))
    for prompt in (6, 3, 20):
        play.arrive(prompt=prompt)
    plan = play.step()
    assert (plan.chunks, plan.decode) == (((1, 6), (2, 3)), False)
    plan = play.step()
    assert (plan.chunks, plan.decode) == (((3, 20),), False)
    assert play.step().decode


def test_request_level_waits_for_the_last_of_its_batch() -> None:
    """Nobody enters until the batch is empty; then as many as there are seats."""
    play = under(RequestLevel(max_running=2))
    for _ in range(3):
        play.arrive(output=1)
    for _ in range(3):
        assert play.step().admit == ()
    assert play.finished() == [0]
    assert [a.request_id for a in play.step().admit] == [1, 2]


@pytest.mark.parametrize("rule", BATCHINGS.values(), ids=BATCHINGS)
def test_every_rule_limits_the_batch(rule: type[Batching]) -> None:
    """No more than `max_running` requests run at once."""
    play = Play(FCFS(batching=rule(max_running=2)))
    for _ in range(4):
        play.arrive()
    assert play.admitted() == [0, 1]


# --- states ---------------------------------------------------------------------------------------------------------


def test_state_of_another_policy_is_refused() -> None:
    """A deficit's state is not read as a counter's, and the message says what it is."""
    play = Play(DLPM())
    play.arrive()
    document = play.policy.state_to_json(play.state)
    assert DLPM().state_to_json(DLPM().state_from_json(document)) == document
    with pytest.raises(StateError, match="LocalState"):
        VTC().state_from_json(document)


# --- what is ignored --------------------------------------------------------------------------------------------------


@attrs.frozen
class Observing(FCFS):
    """Observes for itself."""

    def observe(self, state: Any, event: events.Event) -> Any:
        return super().observe(state, event)


@pytest.mark.parametrize("name", LOCAL_POLICIES)
def test_what_is_ignored_changes_no_state(name: str) -> None:
    """Decode steps and prefills that a policy ignores leave the very state; the others change one."""
    policy = LOCAL_POLICIES[name]
    play = Play(policy)
    for number in range(4):
        play.arrive(number % 2, Prompt.from_keys([7] * 5 + [number]), 6)
    changes = set()
    for _ in range(9):
        play.step()
    for event in play.events:
        if isinstance(event, Decoded | Prefilled):
            changes.add(type(event))
    assert changes == {Decoded, Prefilled}
    state = policy.init()
    for event in play.events:
        before, state = state, policy.observe(state, event)
        if type(event) in policy.ignored:
            assert state is before


@pytest.mark.parametrize(
    ("policy", "ignored"),
    [
        (LOCAL_POLICIES["fcfs"], {Decoded, Prefilled}),
        (LOCAL_POLICIES["lpm"], {Decoded}),
        (LOCAL_POLICIES["fastserve"], {Prefilled}),
        (LOCAL_POLICIES["dlpm"], set()),
        (Observing(), set()),
    ],
    ids=lambda each: str(getattr(each, "name", "")),
)
def test_who_ignores_what(policy: ComposedPolicy, ignored: set[type]) -> None:
    """Gates charge decode steps, orders may count them or wait for prefills; who observes for itself is told all."""
    assert policy.ignored == ignored


def test_whether_a_bound_is_promised() -> None:
    """By gates that share, and by none that is open."""
    assert [LOCAL_POLICIES[name].promises_bound for name in ("fcfs", "vtc", "dlpm")] == [False, True, True]
    assert LOCAL_POLICIES["fcfs"].shared_credit is None
    assert LOCAL_POLICIES["dlpm-global"].shared_credit is not None
    assert not LOCAL_POLICIES["dlpm"].pauses
    assert LOCAL_POLICIES["dlpm-in-batch"].pauses


def test_a_request_above_the_cap_is_refused() -> None:
    """Its prompt and its whole output count."""
    policy = DLPM(gate=DeficitGate(in_flight_cap_tokens=9))
    refused = [policy.refuses(Request(0, 0, 0, Prompt(6), output)) is not None for output in (3, 4)]
    assert refused == [False, True]
