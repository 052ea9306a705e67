"""Orders that rank the whole queue, ageing and LARRY: their keys against the scores that they stand for."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.algebra import NO_SCORE
from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.request import TOKENS_MAX, Prompt, Request, Slo
from fairsched.policies import orders
from fairsched.policies.catalog import Ageing
from fairsched.policies.orders import AgeingOrder
from fairsched.policies.orders.abilities import Fronts, Key, RanksByKey
from fairsched.policies.orders.abilities.fronts import CHUNK_MIN, EXACT_MAX, FEW
from fairsched.policies.orders.ageing import PRIORITY_MAX
from tests.support.policy_play import Play

Row = tuple[int, int, int]
"""A waiting request: its priority or its memory, its arrival in microseconds, and its group."""
CAPACITY = 1_000
PRIORITIES = st.integers(-5, 5) | st.integers(-PRIORITY_MAX, PRIORITY_MAX)


def rows_of(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[list[Row]]:
    """Requests with these priorities or sizes."""
    return st.lists(st.tuples(numbers, st.integers(0, 10**10), st.integers(0, 2)), min_size=1, max_size=90)


class Waiting:
    """Those who wait, in order of arrival, under an order: each number is taken for the memory and for the priority."""

    def __init__(self, order: RanksByKey, rows: list[Row]) -> None:
        self.order, self.rows = order, sorted(rows, key=lambda row: row[1])
        self.fronts = Fronts()
        for age in range(len(rows)):
            self.join(age)

    def queued(self, age: int) -> orders.QueuedRequest:
        """The request of that age."""
        number, arrival_us, group = self.rows[age]
        request = Request(age, group, arrival_us * 1_000, Prompt(min(max(number, 1), 5_000)), 1, priority=number)
        return orders.QueuedRequest(request, age, 0)

    def join(self, age: int) -> None:
        """It waits."""
        queued = self.queued(age)
        self.fronts, _ = self.fronts.joined(self.order, queued, queued.request.client, PrefixCache())

    def leave(self, age: int, admitted: bool = True) -> None:
        """It waits no more."""
        queued = self.queued(age)
        self.fronts = self.fronts.left(self.order, queued, 0, queued.request.client, admitted)


def order_of(order: RanksByKey, rows: list[Row], group: int = 0) -> list[int]:
    """Ages of a group's members in the order in which one decision would admit them."""
    waiting = Waiting(order, rows)
    ranking, ages = waiting.fronts.ranking(order, 3, CAPACITY), []
    while ranking.heads[group] != NO_SCORE:
        ages.append(ranking.best(group))
        waiting.leave(ages[-1])
        ranking.leave(waiting.fronts, ages[-1], group)
    return ages


def by_score(rows: list[Row], number_weight: Fraction, wait_weight: Fraction, group: int = 0) -> list[int]:
    """The same by a score in decreasing order, of so much for the number and for a second of waiting; equals by age."""
    now_us = 10**11
    scores = {
        age: number_weight * number + wait_weight * Fraction(now_us - arrival_us, 10**6)
        for age, (number, arrival_us, its) in enumerate(sorted(rows, key=lambda row: row[1]))
        if its == group
    }
    return sorted(scores, key=lambda age: (-scores[age], age))


def by_larry(rows: list[Row], alpha: Fraction, sign: int = 1, group: int = 0) -> list[int]:
    """By the paper's score, with memory in shares of the capacity."""
    return by_score(rows, Fraction(-sign * len(rows), CAPACITY), alpha, group)


def larry(alpha_milli: int) -> orders.LarryOrder:
    """LARRY with memory in shares of the capacity."""
    return orders.LarryOrder(alpha_milli, memory_unit="capacity")


def test_keys_beyond_64_bits_are_reached() -> None:
    """The path of Python integers is taken for large boosts and alphas, or the properties would show nothing of it."""
    assert EXACT_MAX < 10**15 * 10**10


@given(rows=rows_of(PRIORITIES), boost_milli=st.integers(0, 5_000) | st.integers(0, 10**16), group=st.integers(0, 2))
def test_ageing_s_order_is_that_of_priority_and_wait(rows: list[Row], boost_milli: int, group: int) -> None:
    """P-AGE-1: admitting by the static key is admitting by priority + boost * wait, whatever the time, in every group,
    however large boosts and priorities are; equals by age."""
    expected = by_score(rows, Fraction(1), Fraction(boost_milli, 1_000), group)
    assert order_of(AgeingOrder(boost_milli), rows, group) == expected


@given(rows=rows_of(PRIORITIES))
def test_no_boost_is_strict_priority_and_a_large_one_arrival_order(rows: list[Row]) -> None:
    """With a boost of 0 priorities alone decide; with one that makes a microsecond worth all levels, arrivals do."""
    assert order_of(AgeingOrder(0), rows) == by_score(rows, Fraction(1), Fraction(0))
    apart = [(priority, 7 * i, 0) for i, (priority, _, _) in enumerate(rows)]
    assert order_of(AgeingOrder(10**19), apart) == list(range(len(rows)))


def test_priorities_are_of_any_size() -> None:
    """A label beyond the largest counts as the largest, and nothing breaks."""
    play = Play(Ageing())
    for priority in (10**30, -(10**30)):
        play.arrive(prompt=1, output=1, priority=priority)
    entries = play.state.queue.entries.values()
    assert {AgeingOrder().number(queued) for queued in entries} == {-PRIORITY_MAX, PRIORITY_MAX}
    assert play.admitted() == [0, 1]
    assert AgeingOrder().rank(Request(0, 0, 0, Prompt(1), 1, priority=10**30), 0) == TOKENS_MAX


@given(rows=rows_of(st.integers(1, CAPACITY)), alpha_milli=st.integers(0, 5_000), group=st.integers(0, 2))
def test_larry_s_order_is_that_of_the_score(rows: list[Row], alpha_milli: int, group: int) -> None:
    """P-LAR-1: admitting by the static key is admitting by the score, as corrected and as printed, in every group."""
    alpha = Fraction(alpha_milli, 1_000)
    assert order_of(larry(alpha_milli), rows, group) == by_larry(rows, alpha, 1, group)
    printed = orders.LarryPrintedOrder(alpha_milli, memory_unit="capacity")
    assert order_of(printed, rows, group) == by_larry(rows, alpha, -1, group)


@given(rows=rows_of(st.integers(1, CAPACITY)), alpha_milli=st.integers(1, 10**15))
def test_keys_beyond_64_bits_are_exact(rows: list[Row], alpha_milli: int) -> None:
    """However large alpha is, the order is that of the score."""
    assert order_of(larry(alpha_milli), rows) == by_larry(rows, Fraction(alpha_milli, 1_000))


@pytest.mark.parametrize(
    ("order", "bad"),
    [
        (AgeingOrder, {"boost_milli": -1}),
        (orders.LarryOrder, {"alpha_milli": -1}),
        (orders.LarryOrder, {"memory_unit": "bytes"}),
    ],
)
def test_bad_parameters_are_refused(order: type, bad: dict[str, object]) -> None:
    """A negative boost or alpha and an unknown unit are errors that name the parameter."""
    with pytest.raises(ValueError, match=next(iter(bad))):
        order(**bad)


RANKED = (
    *(
        larry(3),
        larry(0),
        larry(10**6),
        orders.LarryPrintedOrder(3, memory_unit="tokens"),
        AgeingOrder(20),
        AgeingOrder(0),
    ),
    *(orders.EarliestDeadline(), orders.JustInTime(), orders.HolisticShares()),
)


@given(order=st.sampled_from(RANKED), groups=st.sampled_from((1, 3, 9)), late=st.booleans(), seed=st.integers(0, 2**32))
def test_fronts_have_the_first_of_every_group(order: RanksByKey, groups: int, late: bool, seed: int) -> None:
    """Whatever joins, is admitted, gives up or comes back, the first of each group's front is the first of all that
    wait in it, with its key, and fronts are short."""
    rng = np.random.default_rng(seed)
    fronts = Fronts()
    waiting: dict[int, orders.QueuedRequest] = {}
    gone: list[orders.QueuedRequest] = []
    for i in range(6 * CHUNK_MIN):
        if waiting and i > 3 * CHUNK_MIN and rng.random() < 0.5:
            queued = waiting.pop(int(rng.choice(list(waiting))))
            fronts = fronts.left(order, queued, 0, queued.request.client, admitted=bool(rng.random() < 0.5))
            gone.append(queued)
        elif gone and rng.random() < 0.2:
            fronts = joined(fronts, order, waiting, gone.pop())
        else:
            slo = Slo(ttft_ns=int(rng.integers(10**6))) if rng.random() < 0.7 else None
            # One that comes from another worker may be the youngest here, and have waited longest.
            arrival_ns = 0 if late and i > 2 * CHUNK_MIN and rng.random() < 0.2 else 10**9 + i * 10**6 + 7 * i
            prompt, priority = Prompt(int(rng.integers(1, 50))), int(rng.integers(3))
            made = Request(i, int(rng.integers(groups)), arrival_ns, prompt, 9, slo=slo, priority=priority)
            fronts = joined(fronts, order, waiting, orders.QueuedRequest(made, i, 0, tag=int(rng.integers(50))))
        if i % 5:
            continue
        ranking, key = fronts.ranking(order, groups, CAPACITY), order.keys(len(waiting), CAPACITY)
        since_ns = min(queued.request.arrival_ns for queued in waiting.values())
        found: dict[int, list[tuple[int, int]]] = {}
        for age, queued in waiting.items():
            wait_us = (queued.request.arrival_ns - since_ns) // 1_000
            found.setdefault(queued.request.client, []).append((key(wait_us, order.number(queued)), age))
        firsts = {group: min(each) for group, each in found.items()}
        heads = [-firsts[group][0] if group in firsts else NO_SCORE for group in range(groups)]
        assert ranking.heads.tolist() == heads
        assert {group: ranking.best(group) for group in firsts} == {group: age for group, (_, age) in firsts.items()}
    there = [(queued, queued.request.client, 0) for _, queued in sorted(waiting.items())]
    fronts.check(order, there, PrefixCache())
    kept = sum(len(run.front) for line in fronts.kept.lines.values() for run in line)
    assert late or kept < len(waiting)


def joined(
    fronts: Fronts, order: RanksByKey, waiting: dict[int, orders.QueuedRequest], queued: orders.QueuedRequest
) -> Fronts:
    """The fronts after a request joined."""
    waiting[queued.age] = queued
    return fronts.joined(order, queued, queued.request.client, PrefixCache())[0]


def test_keys_of_many_at_once_that_are_no_whole_numbers_are_refused() -> None:
    """With more groups than a few, keys are found by columns, and the error names the order."""

    class Halves(AgeingOrder):
        name = "halves"

        def keys(self, waiting: int, kv_capacity_tokens: int) -> Key:
            return lambda wait_us, number: number / 2

    waiting = Waiting(Halves(), [(1, i, i) for i in range(2 * FEW)])
    with pytest.raises(ValueError, match="order halves ranked 8 requests by 8 keys of float64: each has an int64"):
        waiting.fronts.ranking(waiting.order, 2 * FEW, CAPACITY)
