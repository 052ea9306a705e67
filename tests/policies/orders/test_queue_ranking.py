"""Orders that rank the whole queue, ageing and LARRY: their keys against the scores that they stand for."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.request import TOKENS_MAX, Prompt, Request, Slo
from fairsched.policies.catalog import Ageing
from fairsched.policies.gates import AnyGate, DeficitGate, OpenGate
from fairsched.policies.orders import (
    AgeingOrder,
    EarliestDeadline,
    HolisticShares,
    JustInTime,
    LarryOrder,
    LarryPrintedOrder,
    QueuedRequest,
)
from fairsched.policies.orders.abilities import Columns, RanksQueue
from fairsched.policies.orders.abilities.queue_ranking import AHEAD, EXACT_MAX
from fairsched.policies.orders.ageing import PRIORITY_MAX
from tests.support.policy_play import Play

Row = tuple[int, int, int]
"""A waiting request: its priority or its memory, its arrival in microseconds, and its group."""
CAPACITY = 1_000
PRIORITIES = st.integers(-5, 5) | st.integers(-PRIORITY_MAX, PRIORITY_MAX)


def rows_of(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[list[Row]]:
    """Requests with these priorities or sizes."""
    return st.lists(st.tuples(numbers, st.integers(0, 10**10), st.integers(0, 2)), min_size=1, max_size=90)


def columns_of(rows: list[Row]) -> Columns:
    """Those who wait, in order of arrival; each number is taken for the memory and for the priority."""
    columns = Columns()
    for age, (number, arrival_us, group) in enumerate(sorted(rows, key=lambda row: row[1])):
        columns = columns.added(age, number, arrival_us * 1_000, group, number)
    return columns


def order_of(order: AgeingOrder | LarryOrder, columns: Columns, group: int = 0) -> list[int]:
    """Ages of a group's members in the order in which one decision would admit them."""
    ranking = order.ranking(columns, 3, CAPACITY)
    ages = []
    for _ in range(int((columns.groups == group).sum())):
        ages.append(ranking.best(group))
        ranking.leave(ages[-1], group)
    return ages


def by_score(columns: Columns, number_weight: Fraction, wait_weight: Fraction, group: int = 0) -> list[int]:
    """The same by a score in decreasing order, of so much for the number and for a second of waiting; equals by age."""
    numbers, arrivals_ns, now_ns = columns.memory.tolist(), columns.arrivals_ns.tolist(), 10**14
    scores = {
        age: number_weight * numbers[age] + wait_weight * Fraction(now_ns - arrivals_ns[age], 10**9)
        for age in columns.ages[columns.groups == group].tolist()
    }
    return sorted(scores, key=lambda age: (-scores[age], age))


def by_larry(columns: Columns, alpha: Fraction, sign: int = 1, group: int = 0) -> list[int]:
    """By the paper's score, with memory in shares of the capacity."""
    return by_score(columns, Fraction(-sign * len(columns.ages), CAPACITY), alpha, group)


def larry(alpha_milli: int) -> LarryOrder:
    """LARRY with memory in shares of the capacity."""
    return LarryOrder(alpha_milli, memory_unit="capacity")


def test_keys_beyond_64_bits_are_reached() -> None:
    """The path of Python integers is taken for large boosts and alphas, or the properties would show nothing of it."""
    assert EXACT_MAX < 10**15 * 10**10


@given(rows=rows_of(PRIORITIES), boost_milli=st.integers(0, 5_000) | st.integers(0, 10**16), group=st.integers(0, 2))
def test_ageing_s_order_is_that_of_priority_and_wait(rows: list[Row], boost_milli: int, group: int) -> None:
    """P-AGE-1: admitting by the static key is admitting by priority + boost * wait, whatever the time, in every group,
    however large boosts and priorities are; equals by age."""
    columns = columns_of(rows)
    expected = by_score(columns, Fraction(1), Fraction(boost_milli, 1_000), group)
    assert order_of(AgeingOrder(boost_milli), columns, group) == expected


@given(rows=rows_of(PRIORITIES))
def test_no_boost_is_strict_priority_and_a_large_one_arrival_order(rows: list[Row]) -> None:
    """With a boost of 0 priorities alone decide; with one that makes a microsecond worth all levels, arrivals do."""
    columns = columns_of(rows)
    assert order_of(AgeingOrder(0), columns) == by_score(columns, Fraction(1), Fraction(0))
    apart = [(priority, 7 * i, 0) for i, (priority, _, _) in enumerate(rows)]
    assert order_of(AgeingOrder(10**19), columns_of(apart)) == list(range(len(rows)))


def test_priorities_are_of_any_size() -> None:
    """A label beyond the largest counts as the largest, and nothing breaks."""
    play = Play(Ageing())
    for priority in (10**30, -(10**30)):
        play.arrive(prompt=1, output=1, priority=priority)
    columns = play.state.queue.extension(Columns)
    assert columns is not None
    assert columns.own.tolist() == [PRIORITY_MAX, -PRIORITY_MAX]
    assert AgeingOrder().rank(Request(0, 0, 0, Prompt(1), 1, priority=10**30), 0) == TOKENS_MAX


@pytest.mark.parametrize("gate", [OpenGate(), DeficitGate(quantum=1_000)])
def test_a_policy_admits_by_priority_and_wait(gate: AnyGate) -> None:
    """Of three that wait the highest goes first, but for the one that waited long enough for its lower priority."""
    play = Play(Ageing(gate=gate))
    for arrival_ns, priority in ((0, 0), (1_500_000_000, 1), (1_500_000_000, 5)):
        play.now_ns = arrival_ns
        play.arrive(prompt=3, output=1, priority=priority)
    assert play.admitted() == [2, 0, 1]


@given(rows=rows_of(st.integers(1, CAPACITY)), alpha_milli=st.integers(0, 5_000), group=st.integers(0, 2))
def test_larry_s_order_is_that_of_the_score(rows: list[Row], alpha_milli: int, group: int) -> None:
    """P-LAR-1: admitting by the static key is admitting by the score, as corrected and as printed, in every group."""
    columns, alpha = columns_of(rows), Fraction(alpha_milli, 1_000)
    assert order_of(larry(alpha_milli), columns, group) == by_larry(columns, alpha, 1, group)
    printed = LarryPrintedOrder(alpha_milli, memory_unit="capacity")
    assert order_of(printed, columns, group) == by_larry(columns, alpha, -1, group)


@given(rows=rows_of(st.integers(1, CAPACITY)), alpha_milli=st.integers(1, 10**15))
def test_keys_beyond_64_bits_are_exact(rows: list[Row], alpha_milli: int) -> None:
    """However large alpha is, the order is that of the score."""
    columns = columns_of(rows)
    assert order_of(larry(alpha_milli), columns) == by_larry(columns, Fraction(alpha_milli, 1_000))


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
def test_first_come_first_served_exactly_above_the_threshold(rows: list[Row]) -> None:
    """P-LAR-2: from just above alpha* on the order is that of arrival, just below it is not; requests that came at one
    instant with different sizes are never served in order by any alpha, if the larger is the older."""
    columns = columns_of(rows)
    limit, ages = threshold(columns), list(range(len(rows)))
    if limit is None:
        assert order_of(larry(10**15), columns) != ages
        return
    assert order_of(larry(int(limit * 1_000) + 1 if limit >= 0 else 0), columns) == ages
    below = -(-limit * 1_000 // 1) - 1
    if below >= 0:
        assert order_of(larry(int(below)), columns) != ages


def test_alpha_of_a_thousand_is_not_arrival_order() -> None:
    """F-LAR-2: with a hundred waiting, 4,000 tokens of difference and a tenth of a second between two arrivals it takes
    an alpha of 4,000,000 in tokens, and 250,000 in blocks."""
    columns = columns_of([(4_001, 0, 0), (1, 100_000, 0), *((4_001, 10**9 + i, 0) for i in range(98))])
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


@given(rows=rows_of(st.integers(1, CAPACITY)), gone=st.integers(0, 89))
def test_columns_are_what_joined_and_did_not_leave(rows: list[Row], gone: int) -> None:
    """Joining and leaving give the columns of those who are there, in order of age, and change nothing that was."""
    columns = columns_of(rows)
    gone %= len(rows)
    before = columns.ages.copy()
    left = columns.removed(gone)
    assert left.settled().ages.tolist() == [age for age in range(len(rows)) if age != gone]
    memory, arrival_ns, group = (int(each[gone]) for each in (columns.memory, columns.arrivals_ns, columns.groups))
    back = left.added(gone, memory, arrival_ns, group, memory)
    assert all(np.array_equal(getattr(back, name), getattr(columns, name)) for name in Columns.__struct_fields__)
    assert np.array_equal(columns.ages, before)


def test_more_than_are_put_in_order_at_once() -> None:
    """A group larger than what is sorted at a time comes out in order to its end."""
    columns = columns_of([(1 + 7 * i % 13, i, 0) for i in range(4 * AHEAD + 1)])
    assert order_of(larry(1_000), columns) == by_larry(columns, Fraction(1))


@pytest.mark.parametrize(
    ("order", "bad"),
    [(AgeingOrder, {"boost_milli": -1}), (LarryOrder, {"alpha_milli": -1}), (LarryOrder, {"memory_unit": "bytes"})],
)
def test_bad_parameters_are_refused(order: type, bad: dict[str, object]) -> None:
    """A negative boost or alpha and an unknown unit are errors that name the parameter."""
    with pytest.raises(ValueError, match=next(iter(bad))):
        order(**bad)


RANKED = (
    *(larry(3), larry(0), larry(10**6), LarryPrintedOrder(3, memory_unit="tokens"), AgeingOrder(20), AgeingOrder(0)),
    *(EarliestDeadline(), JustInTime(), HolisticShares()),
)


@given(order=st.sampled_from(RANKED), groups=st.sampled_from((1, 4)), late=st.booleans(), seed=st.integers(0, 2**32))
def test_those_that_may_be_first_have_the_first_of_every_group(
    order: RanksQueue, groups: int, late: bool, seed: int
) -> None:
    """Whatever joins, is admitted, gives up or comes back, ranking the few that are kept for it finds the first request
    of each group that ranking all of them finds, with the same key."""
    rng = np.random.default_rng(seed)
    columns: Columns = Columns()
    waiting: dict[int, QueuedRequest] = {}
    gone: list[QueuedRequest] = []
    for i in range(3 * AHEAD):
        if waiting and i > 2 * AHEAD and rng.random() < 0.5:
            queued = waiting.pop(int(rng.choice(list(waiting))))
            columns = columns.left(order, queued, 0, queued.request.client, admitted=bool(rng.random() < 0.5))
            gone.append(queued)
        elif gone and rng.random() < 0.2:
            columns = joined(columns, order, waiting, gone.pop())
        else:
            slo = Slo(ttft_ns=int(rng.integers(10**6))) if rng.random() < 0.7 else None
            # One that comes from another worker may be the youngest here, and have waited longest.
            arrival_ns = 0 if late and i > 2 * AHEAD and rng.random() < 0.2 else 10**9 + i * 10**6
            prompt, priority = Prompt(int(rng.integers(1, 50))), int(rng.integers(3))
            made = Request(i, int(rng.integers(groups)), arrival_ns, prompt, 9, slo=slo, priority=priority)
            columns = joined(columns, order, waiting, QueuedRequest(made, i, 0, tag=int(rng.integers(50))))
        if i % 5:
            continue
        whole, few = (order.ranking(each, groups, CAPACITY) for each in (columns.settled(), columns.foremost(order)))
        assert whole.heads.tolist() == few.heads.tolist()
        for group in {queued.request.client for queued in waiting.values()}:
            assert whole.best(group) == few.best(group)
    assert late or len(columns.foremost(order).ages) < columns.waiting


def joined(columns: Columns, order: RanksQueue, waiting: dict[int, QueuedRequest], queued: QueuedRequest) -> Columns:
    """The columns after a request joined."""
    waiting[queued.age] = queued
    return columns.joined(order, queued, queued.request.client, PrefixCache())[0]
