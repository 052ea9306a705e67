"""A bypass budget as policies keep it: whom it lets in, when, and that D-request holds of every run and is attained."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.model.events import Admitted, Cancelled, Event, Preempted
from fairsched.model.plan import Admission, StepPlan
from fairsched.model.request import Prompt
from fairsched.model.serialization import StateError
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM, LPM, ShortestPromptFirst
from fairsched.policies.gates import DeficitGate, OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.local.state_transfer import migrate
from fairsched.policies.orders import LongestPrefix, ShortestPrompt
from fairsched.policies.registry import LOCAL_POLICIES, parameters, with_parameters
from tests.support.policy_play import Play

ONE_SEAT = Chunked(max_running=1)


def with_budget(
    policy: type[ComposedPolicy], order: type[LongestPrefix | ShortestPrompt], budget: int | None, **changes: Any
) -> ComposedPolicy:
    """The policy with a budget."""
    made: Any = policy
    return made(order=order(budget), **changes)  # type: ignore[no-any-return]


lpm = partial(with_budget, LPM, LongestPrefix)
dlpm = partial(with_budget, DLPM, LongestPrefix)
shortest = partial(with_budget, ShortestPromptFirst, ShortestPrompt)
MADE = {"lpm": lpm, "dlpm": dlpm, "shortest-prompt": shortest}


def entered(play: Play) -> list[int]:
    """Who was admitted, in order."""
    return [event.request_id for event in play.events if isinstance(event, Admitted)]


def arrive(play: Play, *prompts: Prompt | int, client: int = 0) -> list[int]:
    """Requests of one output token come, one after the other; their ids."""
    return [play.arrive(client, prompt, 1) for prompt in prompts]


# --- CE5 and the witness ----------------------------------------------------------------------------------------------

COLD = Prompt.from_keys([-1, -2, -3, -4, -5, -6], block_tokens=1, tokens=6)


def warm(number: int) -> Prompt:
    """Matches five tokens of any other."""
    return Prompt.from_keys([1, 2, 3, 4, 5, 10 + number], block_tokens=1, tokens=6)


def ce5(policy: ComposedPolicy, steps: int) -> tuple[Play, int]:
    """The stream of CE5: a warm request comes in every step, one cold one in the second; the play and its id."""
    play = Play(policy, 8)
    cold = -1
    for step in range(steps):
        arrive(play, warm(step))
        if step == 1:
            (cold,) = arrive(play, COLD)
        play.step()
    return play, cold


@pytest.mark.parametrize("make", [lpm, dlpm])
@pytest.mark.parametrize("budget", [None, 0, 1, 4, 16])
def test_ce5_s_stream_is_served_within_the_budget(make: Any, budget: int | None) -> None:
    """The cold request that CE5 starves enters after exactly b younger ones and the one older that waited with it;
    without a budget it waits for all of 60 steps, in each of which another enters."""
    play, cold = ce5(make(budget), 60)
    if budget is None:
        assert cold not in entered(play)
        assert len(entered(play)) == 60
    else:
        assert entered(play).index(cold) - entered(play).index(0) == 1 + 1 + budget


@given(name=st.sampled_from(sorted(MADE)), budget=st.integers(0, 6), older=st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_the_bound_is_attained(name: str, budget: int, older: int) -> None:
    """With `older` requests that the order prefers, and a stream of such, exactly b + older enter before r."""
    by_size = name == "shortest-prompt"
    play = Play(MADE[name](budget, batching=ONE_SEAT), 1_000)
    preferred: Iterator[Prompt | int] = (1 if by_size else warm(number) for number in count())
    # The first one fills the cache.
    arrive(play, next(preferred))
    play.step()
    arrive(play, *islice(preferred, older))
    (r,) = arrive(play, 9 if by_size else COLD)
    arrive(play, *islice(preferred, budget + 3))
    play.step(older + budget + 2)
    assert entered(play).index(r) == 1 + budget + older


# --- every run --------------------------------------------------------------------------------------------------------


class Watch:
    """Counts, from events alone, what D-request speaks of, and compares it after each."""

    def __init__(self, budget: int, group: Any) -> None:
        self.budget, self.group = budget, group
        self.waits: dict[int, tuple[Any, int, int, int]] = {}
        """By request: its group, how many were let in since it came, how many older ones waited then and came back."""

    def came(self, request: int, client: int) -> None:
        """A request joins, or comes back."""
        group = self.group(client)
        for other, (theirs, let_in, older, back) in self.waits.items():
            if theirs == group and other > request:
                self.waits[other] = theirs, let_in, older, back + 1
        older = sum(theirs == group and other < request for other, (theirs, *_) in self.waits.items())
        self.waits[request] = group, 0, older, 0

    def saw(self, event: Event) -> None:
        """An event of the worker."""
        if isinstance(event, Admitted):
            group, let_in, older, back = self.waits.pop(event.request_id)
            assert let_in <= self.budget + older + back
            for other, (theirs, count, ahead, returned) in self.waits.items():
                if theirs == group:
                    self.waits[other] = theirs, count + 1, ahead, returned
        elif isinstance(event, Cancelled):
            self.waits.pop(event.request_id, None)
        elif isinstance(event, Preempted):
            self.came(event.request_id, event.client)


@given(
    name=st.sampled_from(sorted(MADE)),
    budget=st.integers(0, 3),
    reserve=st.sampled_from(["static", "optimistic"]),
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("arrive"), st.integers(0, 1), st.integers(0, 3), st.integers(1, 6), st.integers(1, 5)),
            st.tuples(st.just("step"), st.integers(1, 4)),
            st.tuples(st.just("cancel"), st.integers(0, 30)),
        ),
        min_size=20,
        max_size=60,
    ),
)
def test_d_request_holds_of_every_run(name: str, budget: int, reserve: Any, moves: list[tuple[Any, ...]]) -> None:
    """Arrivals, cancellations, preemptions, chunks and caps: never more than b + older + back before anybody."""
    changes: dict[str, Any] = {"batching": Chunked(max_batched_tokens=5, max_running=3, reserve=reserve)}
    if name == "dlpm":
        changes["gate"] = DeficitGate(quantum=3)
    policy = MADE[name](budget, **changes)
    play = Play(policy, 16)
    watch = Watch(budget, lambda client: client if policy.gate.grouped else 0)
    for kind, *what in moves:
        seen = len(play.events)
        if kind == "arrive":
            client, family, length, output = what
            prompt = Prompt.from_keys([family * 10 + i for i in range(length)] + [1_000 + play.count])
            watch.came(play.arrive(client, prompt, output), client)
        elif kind == "step":
            play.step(what[0])
        else:
            alive = sorted({*play.worker.queue, *play.worker.running})
            if alive:
                play.cancel(alive[what[0] % len(alive)])
        for event in play.events[seen:]:
            watch.saw(event)


# --- mechanics --------------------------------------------------------------------------------------------------------


def test_a_budget_of_none_or_more_than_ever_waits_changes_nothing() -> None:
    """The default is no budget; a huge one lets in the same, in the same order."""
    assert {parameters(policy).get("bypass_budget") for policy in LOCAL_POLICIES.values()} == {None}
    assert entered(ce5(lpm(None), 30)[0]) == entered(ce5(lpm(10_000), 30)[0])


def test_each_client_has_its_own_budget() -> None:
    """Under a gate only requests of the same client count; without one everybody's do."""
    for gate, expected in ((DeficitGate(quantum=1_000), [1, 2, 3, 0]), (OpenGate(), [1, 0, 2, 3])):
        play = Play(shortest(1, gate=gate, batching=ONE_SEAT))
        arrive(play, 9)
        arrive(play, 1, 1, 1, client=1)
        play.step(4)
        assert entered(play) == expected


def test_cancelling_the_oldest_hands_its_turn_to_nobody() -> None:
    """The next oldest was passed over as often as it was, no more: what it may be passed over yet stays."""
    play = Play(shortest(2, batching=ONE_SEAT))
    first, second, *_ = arrive(play, 9, 8, 1, 1)
    play.step(2)
    assert play.admitted() == [first]
    play.cancel(first)
    assert play.admitted() == [second]
    later = Play(shortest(2, batching=ONE_SEAT))
    first, _ = arrive(later, 9, 1)
    later.step()
    (second,) = arrive(later, 8)
    later.cancel(first)
    small = arrive(later, 1)
    assert later.admitted() == small
    assert second in later.worker.queue


def test_a_preempted_request_comes_back_to_its_place() -> None:
    """It is the oldest again, as often passed over as before, and those who came later are behind it."""
    policy = shortest(1, batching=Chunked(reserve="optimistic"))
    play = Play(policy, 12)
    play.arrive(prompt=3, output=6)
    young = play.arrive(prompt=3, output=6)
    play.step(3)
    entry = play.state.flights[young].entry
    assert play.step().preempt == (young,)
    assert play.state.queue.entries[young].position == entry.position == 1
    small = arrive(play, 1, 1, 1, 1)
    assert [play.state.queue.entries[i].position for i in small] == [3, 4, 5, 6]
    play.step(30)
    assert entered(play).index(young, 2) <= entered(play).index(small[1])


def test_a_due_request_waits_for_its_prefix_and_is_not_passed() -> None:
    """While somebody computes the prefix of the oldest, which is due, nobody else of its queue goes past it."""
    for budget, expected in ((None, [0, 2]), (0, [0])):
        play = Play(lpm(budget))
        for keys in ((1, 2, 3), (1, 2, 4), (5, 6)):
            play.arrive(prompt=Prompt.from_keys(keys), output=3)
        assert play.admitted() == expected
        play.step(2)
        assert sorted(entered(play)) == [0, 1, 2]


def test_it_says_that_an_older_one_goes_first() -> None:
    """Whoever the order prefers and a budget holds back waits for `bypass`."""
    for budget, large_waits_for, small_waits_for in ((0, "budget", "bypass"), (None, "order", "budget")):
        play = Play(shortest(budget, batching=ONE_SEAT))
        play.arrive(prompt=4, output=5)
        play.step()
        large, small = play.arrive(prompt=9), play.arrive(prompt=1)
        view = play.worker.view(1)
        assert play.policy.wait_reason(play.state, view, large) == large_waits_for
        assert play.policy.wait_reason(play.state, view, small) == small_waits_for


# --- states and parameters --------------------------------------------------------------------------------------------


def waiting_play(policy: ComposedPolicy) -> Play:
    """Two were let in past the oldest, which waits with two more."""
    play = Play(policy)
    arrive(play, 9, 1, 1, 2, 2)
    play.step(2)
    return play


def test_a_state_is_read_under_another_budget() -> None:
    """The counts are kept, so a smaller budget is due at once; and JSON gives the same state."""
    play = waiting_play(shortest(4, batching=ONE_SEAT))
    document = json.loads(json.dumps(play.policy.state_to_json(play.state)))
    same = play.policy.state_from_json(document)
    assert play.policy.state_to_json(same) == document
    for budget, head in ((2, 0), (3, 3)):
        policy = shortest(budget, batching=ONE_SEAT)
        state = policy.state_from_json(document)
        policy.check(state)
        assert state.queue.best(0).request.id == head


@pytest.mark.parametrize(("old", "new"), [(None, 3), (3, None)])
def test_a_state_without_counts_is_no_state_with_them(old: int | None, new: int | None) -> None:
    """Nobody counted: the error says so."""
    play = waiting_play(shortest(old))
    document = play.policy.state_to_json(play.state)
    with pytest.raises(StateError, match="a bypass budget"):
        shortest(new).state_from_json(document)


@pytest.mark.parametrize("old", [None, 2, 9])
@pytest.mark.parametrize("new", [None, 0, 2])
def test_a_swap_takes_who_waits_along(old: int | None, new: int | None) -> None:
    """After a migration every invariant holds, those that run included, and everybody is served."""
    play = waiting_play(shortest(old, batching=Chunked(max_running=2)))
    for policy in (shortest(new, batching=ONE_SEAT), dlpm(new)):
        again = Play(policy)
        again.worker, again.count, again.now_ns = play.worker, play.count, play.now_ns
        again.state = migrate(play.policy, play.state, policy)
        policy.check(again.state)
        (later,) = arrive(again, 1)
        again.step(8)
        assert later in again.finished()
        assert not again.worker.queue


def test_parameter_is_read_from_text() -> None:
    """A whole number from 0 or none; who orders by arrival has no such parameter."""
    for name in ("lpm", "dlpm", "shortest-prompt", "dlpm-printed"):
        for text, value in (("4", 4), ("none", None)):
            policy = with_parameters(LOCAL_POLICIES[name], {"bypass_budget": text})
            assert parameters(policy)["bypass_budget"] == value
        with pytest.raises(ValueError, match="at least 0, not -1"):
            with_parameters(LOCAL_POLICIES[name], {"bypass_budget": "-1"})
    with pytest.raises(ValueError, match="unknown parameter of policy vtc"):
        with_parameters(LOCAL_POLICIES["vtc"], {"bypass_budget": "4"})


def test_theorems_come_with_the_budget() -> None:
    """An order promises D-request of every policy that has it, and nothing without."""
    assert LongestPrefix().theorems == ()
    assert [theorem.id for theorem in LongestPrefix(0).theorems][-1] == "D-request"


def test_admission_is_as_planned() -> None:
    """What a due request computes is charged as anybody's: its own prefix only."""
    play = Play(lpm(0))
    arrive(play, Prompt.from_keys((1, 2, 3)))
    play.step()
    cold, hot = arrive(play, Prompt.from_keys((7, 8)), Prompt.from_keys((1, 2, 9)))
    plan: StepPlan = play.decide()
    assert plan.admit == (Admission(cold, 0, 2, 0, 1), Admission(hot, 0, 1, 2, 1))
