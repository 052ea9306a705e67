"""Priority groups: which group a request is in, that it only rises, that groups take turns, also under a gate."""

from collections import Counter
from collections.abc import Iterable
from functools import reduce
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.algebra import EXACT, ExactVector
from fairsched.model.events import Arrived, Cached, Cancelled, Evicted, Finished
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import Preble, PreblePrinted
from fairsched.policies.gates import DeficitGate
from fairsched.policies.orders import AGE_BITS, PriorityGroups
from fairsched.policies.orders.abilities.weighted_round_robin import Turn, Turns, chosen, picked

EMPTY = WorkerState(0, 1 << 20).view(0)
ONE_A_STEP = Chunked(max_running=1)


@attrs.frozen
class Told(PriorityGroups):
    """Groups as the requests say themselves."""

    def rank(self, request: Request, cached_tokens: int) -> int:
        return request.priority


def told(i: int, group: int, client: int = 0) -> Arrived:
    """A request of this group comes."""
    return Arrived(0, 0, Request(i, client, 0, Prompt(1), 1, priority=group))


def queued(policy: Preble, groups: Iterable[int]) -> Any:
    """The policy's state when requests of these groups wait."""
    return reduce(policy.observe, (told(i, group) for i, group in enumerate(groups)), policy.init())


def let_in(policy: Preble, state: Any) -> tuple[int, Any]:
    """The one request that is let in now, which ends at once."""
    plan, state = policy.decide(state, EMPTY)
    (admission,) = plan.admit
    return admission.request_id, policy.observe(state, Finished(0, 0, admission.request_id, admission.client, 1))


def turns_of(state: Any) -> Any:
    """Where the round of each queue is."""
    return state.queue.extension(Turns).turns


def group_of(state: Any, request_id: int) -> int:
    """The group in which it waits."""
    return int(state.queue.scores[request_id]) >> AGE_BITS


@pytest.mark.parametrize(
    ("cached", "group", "released"), [(0, 1, 1), (9, 1, 1), (10, 1, 1), (19, 1, 2), (20, 2, 2), (63, 6, 7), (99, 9, 10)]
)
def test_the_cached_share_is_the_group(cached: int, group: int, released: int) -> None:
    """Of ten groups 63 % is the sixth, the paper's example; the released code rounds up (`ceil(10 c / n) - 1` of 0 to
    9, each with a quota of its number and one more: WukLab/preble, `model_rpc.py`)."""
    request = Request(0, 0, 0, Prompt(100), 1)
    assert PriorityGroups().rank(request, cached) == group
    assert PriorityGroups(variant="released").rank(request, cached) == released


@pytest.mark.parametrize(
    ("policy", "groups"), [(Preble(order=PriorityGroups(4)), [1, 3, 3]), (PreblePrinted(), [1, 8, 1])]
)
def test_a_group_may_only_rise(policy: Any, groups: list[int]) -> None:
    """When the prefix is cached, and when it is evicted again: in the released code the group follows down."""
    prompt = Prompt.from_keys([1, 2, 3, 4])
    state = policy.observe(policy.init(), Arrived(0, 0, Request(0, 0, 0, prompt, 1)))
    found = [group_of(state, 0)]
    cached = policy.observe(state, Cached(0, 0, 9, prompt, 4))
    cached = msgspec.structs.replace(cached, cache=cached.cache.release(9))
    found.append(group_of(cached, 0))
    gone = policy.observe(cached, Evicted(0, 0, 9, prompt, 0, 4))
    policy.check(gone)
    assert [*found, group_of(gone, 0)] == groups


@given(st.lists(st.integers(1, 4), min_size=1, max_size=60))
def test_a_round_serves_groups_in_proportion(groups: list[int]) -> None:
    """As long as all four groups wait, ten picks take four, three, two and one; of a group the oldest first."""
    policy = Preble(order=Told(4), batching=ONE_A_STEP)
    state = queued(policy, groups)
    left = Counter(groups)
    order: list[int] = []
    while state.queue.entries:
        whole = all(left[group] >= group for group in range(1, 5)) and len(order) % 10 == 0
        for _ in range(10 if whole else 1):
            request_id, state = let_in(policy, state)
            policy.check(state)
            order.append(request_id)
            left[groups[request_id]] -= 1
        if whole:
            assert Counter(groups[i] for i in order[-10:]) == {4: 4, 3: 3, 2: 2, 1: 1}
    for group in range(1, 5):
        own = [i for i in order if groups[i] == group]
        assert own == sorted(own)


@given(st.integers(-1, 6), st.integers(0, 5), st.sets(st.integers(1, 5), min_size=1))
def test_the_index_finds_whom_the_kernel_chooses(turn: int, taken: int, groups: set[int]) -> None:
    """Wherever a round is: the head that the sorted queue gives is the kernel's choice."""
    policy = Preble(order=Told(5), batching=ONE_A_STEP)
    state = queued(policy, sorted(groups))
    at: Any = Turn(turn, taken)
    state = msgspec.structs.replace(
        state,
        queue=msgspec.structs.replace(state.queue, extensions=state.queue.extended(Turns(turns_of(state).set(0, at)))),
    )
    # Whoever joins makes the head be looked for again.
    state = policy.observe(state, told(9, 1))
    state = policy.observe(state, Cancelled(0, 0, 9, 0, False, 0, 0))
    quota = ExactVector(sorted(groups))
    expected = quota[chosen(EXACT, quota, ExactVector([True] * len(quota)), turn)]
    assert sorted(groups)[let_in(policy, state)[0]] == expected


def test_who_gives_up_takes_no_turn() -> None:
    """Only what is let in counts: where a round is stays as it was when a caller gives up."""
    policy = Preble(order=Told(3), batching=ONE_A_STEP)
    _, state = let_in(policy, queued(policy, (3, 3, 1)))
    after = policy.observe(state, Cancelled(0, 0, 1, 0, False, 0, 0))
    assert turns_of(after) == turns_of(state)
    assert turns_of(state)[0] == picked(Turn(), 3)


def test_under_a_gate_each_client_takes_turns_of_its_own() -> None:
    """Under a deficit gate two clients get as much, and each of them in proportion to its own groups."""
    policy = Preble(order=Told(2), gate=DeficitGate(quantum=1), batching=ONE_A_STEP)
    state = policy.init()
    for i in range(60):
        state = policy.observe(state, told(i, 1 + i // 2 % 2, client=i % 2))
    order: list[int] = []
    for _ in range(18):
        request_id, state = let_in(policy, state)
        order.append(request_id)
    for client in (0, 1):
        own = [1 + i // 2 % 2 for i in order if i % 2 == client]
        assert own == [2, 2, 1] * 3
