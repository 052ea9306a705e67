"""Ageing: its keys against priority and wait, and what it becomes at the ends."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.request import TOKENS_MAX, Prompt, Request
from fairsched.model.worker import transitions
from fairsched.policies.catalog import Ageing
from fairsched.policies.gates import DeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import AgeingOrder
from fairsched.policies.orders.abilities import Columns
from fairsched.policies.orders.abilities.queue_ranking import EXACT_MAX, PRIORITY_MAX
from tests.support.policy_play import Play

ROWS = st.lists(
    st.tuples(st.integers(-5, 5) | st.integers(-PRIORITY_MAX, PRIORITY_MAX), st.integers(0, 10**10), st.integers(0, 2)),
    min_size=1,
    max_size=80,
)


def columns_of(rows: list[tuple[int, int, int]]) -> Columns:
    """Those who wait, in order of arrival: (priority, arrival in microseconds, group)."""
    columns = Columns()
    for age, (priority, arrival_us, group) in enumerate(sorted(rows, key=lambda row: row[1])):
        columns = columns.added(age, 1, arrival_us * 1_000, group, priority)
    return columns


def order_of(order: AgeingOrder, columns: Columns, group: int) -> list[int]:
    """The ages of a group's members, in the order in which they would be admitted."""
    ranking = order.ranking(columns, 3, 1)
    ages = []
    for _ in range(int((columns.groups == group).sum())):
        ages.append(ranking.best(group))
        ranking.leave(ages[-1], group)
    return ages


@given(rows=ROWS, boost_milli=st.integers(0, 5_000) | st.integers(0, 10**16), group=st.integers(0, 2))
def test_the_order_is_that_of_priority_and_wait(rows: list[tuple[int, int, int]], boost_milli: int, group: int) -> None:
    """P-AGE-1: admitting by the static key is admitting by priority + boost * wait, whatever the time, in every group,
    however large boosts and priorities are; equals by age."""
    columns = columns_of(rows)
    now_us = 10**11
    raised = {
        age: priority + Fraction(boost_milli, 1_000) * Fraction(now_us - arrival_us, 10**6)
        for age, (priority, arrival_us, of) in enumerate(sorted(rows, key=lambda row: row[1]))
        if of == group
    }
    assert order_of(AgeingOrder(boost_milli), columns, group) == sorted(raised, key=lambda age: (-raised[age], age))


def test_keys_beyond_64_bits_are_reached() -> None:
    """The path of Python integers is taken for large boosts, or the property would show nothing of it."""
    assert EXACT_MAX < 10**16 * 10**10


@given(rows=ROWS)
def test_no_boost_is_strict_priority_and_a_large_one_arrival_order(rows: list[tuple[int, int, int]]) -> None:
    """With a boost of 0 priorities alone decide; with one that makes a microsecond worth all levels, arrivals do."""
    columns = columns_of(rows)
    priorities = columns.priorities.tolist()
    members = [age for age in range(len(rows)) if columns.groups[age] == 0]
    assert order_of(AgeingOrder(0), columns, 0) == sorted(members, key=lambda age: (-priorities[age], age))
    apart = [(priority, 7 * i, 0) for i, (priority, _, _) in enumerate(rows)]
    assert order_of(AgeingOrder(10**19), columns_of(apart), 0) == list(range(len(rows)))


def test_priorities_are_of_any_size() -> None:
    """A label beyond the largest counts as the largest, and nothing breaks."""
    assert columns_of([(10**30, 0, 0), (-(10**30), 1, 0)]).priorities.tolist() == [PRIORITY_MAX, -PRIORITY_MAX]
    assert AgeingOrder().rank(Request(0, 0, 0, Prompt(1), 1, priority=10**30), 0) == TOKENS_MAX


@pytest.mark.parametrize("gate", [None, DeficitGate(quantum=1_000)])
def test_a_policy_admits_by_priority_and_wait(gate: DeficitGate | None) -> None:
    """Of three that wait the highest goes first, but for the one that waited long enough for its lower priority."""
    policy: ComposedPolicy = Ageing() if gate is None else Ageing(gate=gate)
    play = Play(policy)
    old = Request(0, 0, 0, Prompt(3), 1, priority=0)
    high = Request(1, 0, 1_500_000_000, Prompt(3), 1, priority=1)
    higher = Request(2, 0, 1_500_000_000, Prompt(3), 1, priority=5)
    for request in (old, high, higher):
        play.worker, events = transitions.arrive(play.worker, request, 1, request.arrival_ns)
        play.tell(events)
    assert play.admitted() == [2, 0, 1]


def test_bad_parameters_are_refused() -> None:
    """A negative boost is an error that names the parameter."""
    with pytest.raises(ValueError, match="boost_milli"):
        AgeingOrder(-1)
