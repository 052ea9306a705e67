"""LARRY's order: its keys against the paper's score, what it becomes at the ends, and what changes it."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.policies.orders import LarryOrder, LarryPrintedOrder
from fairsched.policies.orders.abilities import Columns
from fairsched.policies.orders.abilities.queue_ranking import AHEAD, EXACT_MAX

CAPACITY = 1_000
ROWS = st.lists(st.tuples(st.integers(1, CAPACITY), st.integers(0, 10**10), st.integers(0, 2)), min_size=1, max_size=90)


def columns_of(rows: list[tuple[int, int, int]]) -> Columns:
    """Those who wait, in order of arrival: (memory, arrival in microseconds, group)."""
    columns = Columns()
    for age, (memory, arrival_us, group) in enumerate(sorted(rows, key=lambda row: row[1])):
        columns = columns.added(age, memory, arrival_us * 1_000, group)
    return columns


def order_of(order: LarryOrder, columns: Columns, group: int = 0) -> list[int]:
    """Ages of a group's members in the order in which one decision would admit them."""
    ranking = order.ranking(columns, 3, CAPACITY)
    members = int((columns.groups == group).sum())
    ages = []
    for _ in range(members):
        ages.append(ranking.best(group))
        ranking.leave(ages[-1], group)
    return ages


def by_score(columns: Columns, alpha: Fraction, sign: int, group: int = 0) -> list[int]:
    """The same by the paper's score, in decreasing order: shares of the capacity, waits in seconds, equals by age."""
    queue, now_ns = len(columns.ages), 10**14
    scores = {
        age: -sign * queue * Fraction(memory, CAPACITY) + alpha * Fraction(now_ns - arrival_ns, 10**9)
        for age, memory, arrival_ns, of in zip(
            *(column.tolist() for column in (columns.ages, columns.memory, columns.arrivals_ns, columns.groups)),
            strict=True,
        )
        if of == group
    }
    return sorted(scores, key=lambda age: (-scores[age], age))


@given(rows=ROWS, alpha_milli=st.integers(0, 5_000), group=st.integers(0, 2))
def test_the_order_is_that_of_the_score(rows: list[tuple[int, int, int]], alpha_milli: int, group: int) -> None:
    """P-LAR-1: admitting by the static key is admitting by the score, as corrected and as printed, in every group."""
    columns = columns_of(rows)
    alpha = Fraction(alpha_milli, 1_000)
    assert order_of(LarryOrder(alpha_milli, memory_unit="capacity"), columns, group) == by_score(
        columns, alpha, 1, group
    )
    assert order_of(LarryPrintedOrder(alpha_milli, memory_unit="capacity"), columns, group) == by_score(
        columns, alpha, -1, group
    )


@given(rows=ROWS, alpha_milli=st.integers(1, 10**15))
def test_keys_beyond_64_bits_are_exact(rows: list[tuple[int, int, int]], alpha_milli: int) -> None:
    """However large alpha is, the order is that of the score."""
    columns = columns_of(rows)
    assert order_of(LarryOrder(alpha_milli, memory_unit="capacity"), columns) == by_score(
        columns, Fraction(alpha_milli, 1_000), 1
    )


def threshold(columns: Columns) -> Fraction | None:
    """alpha*: the least alpha above which the order is first come first served; None if no alpha is enough."""
    queue, pairs = len(columns.ages), []
    rows = list(zip(columns.memory.tolist(), (columns.arrivals_ns // 1_000).tolist(), strict=True))
    for later, (memory_j, arrival_j) in enumerate(rows):
        for memory_i, arrival_i in rows[:later]:
            if memory_i > memory_j:
                if arrival_i == arrival_j:
                    return None
                pairs.append(Fraction((memory_i - memory_j) * 10**6 * queue, (arrival_j - arrival_i) * CAPACITY))
    return max(pairs, default=Fraction(-1))


@given(rows=st.lists(st.tuples(st.integers(1, CAPACITY), st.integers(0, 10**5), st.just(0)), min_size=1, max_size=6))
def test_first_come_first_served_exactly_above_the_threshold(rows: list[tuple[int, int, int]]) -> None:
    """P-LAR-2: from just above alpha* on the order is that of arrival, just below it is not; requests that came at one
    instant with different sizes are never served in order by any alpha, if the larger is the older."""
    columns = columns_of(rows)
    limit, ages = threshold(columns), list(range(len(rows)))
    if limit is None:
        assert order_of(LarryOrder(10**15, memory_unit="capacity"), columns) != ages
        return
    above = int(limit * 1_000) + 1 if limit >= 0 else 0
    assert order_of(LarryOrder(above, memory_unit="capacity"), columns) == ages
    below = -(-limit * 1_000 // 1) - 1
    if below >= 0:
        assert order_of(LarryOrder(int(below), memory_unit="capacity"), columns) != ages


def test_alpha_of_a_thousand_is_not_arrival_order() -> None:
    """F-LAR-2: with a hundred waiting, 4,000 tokens of difference and a tenth of a second between two arrivals it takes
    an alpha of 4,000,000 in tokens, and 250,000 in blocks."""
    rows = [(4_001, 0, 0), (1, 100_000, 0), *((4_001, 10**9 + i, 0) for i in range(98))]
    columns = columns_of(rows)
    for unit, alpha in (("tokens", 4_000_000), ("blocks", 250_000)):
        first = [
            LarryOrder(milli, memory_unit=unit).ranking(columns, 1, CAPACITY).best(0)  # type: ignore[arg-type]
            for milli in (1_000 * 1_000, 1_000 * alpha - 1, 1_000 * alpha + 1)
        ]
        assert first == [1, 1, 0]


def test_the_printed_equation_serves_large_prompts_first() -> None:
    """F-LAR-3: of two that came together the larger goes first as printed, and the smaller as meant."""
    columns = columns_of([(2, 0, 0), (1, 0, 0)])
    assert columns.memory[LarryPrintedOrder().ranking(columns, 1, CAPACITY).best(0)] == 2
    assert columns.memory[LarryOrder().ranking(columns, 1, CAPACITY).best(0)] == 1


@given(rows=ROWS, gone=st.integers(0, 89))
def test_columns_are_what_joined_and_did_not_leave(rows: list[tuple[int, int, int]], gone: int) -> None:
    """Joining and leaving give the columns of those who are there, in order of age, and change nothing that was."""
    columns = columns_of(rows)
    gone %= len(rows)
    before = columns.ages.copy()
    left = columns.removed(gone)
    assert left.settled().ages.tolist() == [age for age in range(len(rows)) if age != gone]
    back = left.added(gone, int(columns.memory[gone]), int(columns.arrivals_ns[gone]), int(columns.groups[gone]))
    assert all(np.array_equal(getattr(back, name), getattr(columns, name)) for name in Columns.__struct_fields__)
    assert np.array_equal(columns.ages, before)


def test_more_than_are_put_in_order_at_once() -> None:
    """A group larger than what is sorted at a time comes out in order to its end."""
    columns = columns_of([(1 + 7 * i % 13, i, 0) for i in range(4 * AHEAD + 1)])
    assert order_of(LarryOrder(memory_unit="capacity"), columns) == by_score(columns, Fraction(1), 1)


@pytest.mark.parametrize("bad", [{"alpha_milli": -1}, {"memory_unit": "bytes"}])
def test_bad_parameters_are_refused(bad: dict[str, object]) -> None:
    """A negative alpha and an unknown unit are errors that name the parameter."""
    with pytest.raises(ValueError, match=next(iter(bad))):
        LarryOrder(**bad)  # type: ignore[arg-type]


def test_exact_keys_are_needed_somewhere() -> None:
    """The path of Python integers is taken for large alphas, or the test of it would show nothing."""
    assert EXACT_MAX < 10**15 * 10**10
