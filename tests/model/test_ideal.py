"""The ideal machine: it works off all that there is, in equal parts, and finishes programs by virtual finish times."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.service import ideal_finishes

PROGRAMS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=7)


def plainly(programs: list[tuple[int, int]], rate: int) -> list[Fraction]:
    """The same from one event to the next, with what each program still needs."""
    left = {number: Fraction(cost) for number, (_, cost) in enumerate(programs)}
    ends = [Fraction(0)] * len(programs)
    now = Fraction(0)
    while left:
        there = [number for number in left if programs[number][0] <= now]
        later = [programs[number][0] for number in left if programs[number][0] > now]
        if not there:
            now = Fraction(min(later))
            continue
        each = Fraction(rate, len(there))
        spans = [min(left[number] for number in there) / each, *([min(later) - now] if later else [])]
        for number in there:
            left[number] -= min(spans) * each
        now += min(spans)
        for number in there:
            if not left[number]:
                del left[number]
                ends[number] = now
    return ends


@given(PROGRAMS, st.integers(1, 5))
def test_it_finishes_programs_when_equal_parts_have_worked_them_off(programs: list[tuple[int, int]], rate: int) -> None:
    """As the plain rule does; and those with the earlier virtual finish time no later than others."""
    found = ideal_finishes(programs, rate)
    assert [each.time for each in found] == plainly(programs, rate)
    for one in found:
        for other in found:
            assert one.virtual > other.virtual or one.time <= other.time


@given(PROGRAMS, st.integers(1, 5), st.tuples(st.integers(0, 12), st.integers(1, 9)))
def test_a_virtual_finish_time_does_not_depend_on_what_comes_later(
    programs: list[tuple[int, int]], rate: int, late: tuple[int, int]
) -> None:
    """It is known when the program arrives."""
    last = max(arrival for arrival, _ in programs) + late[0]
    more = ideal_finishes([*programs, (last, late[1])], rate)
    assert [each.virtual for each in more[:-1]] == [each.virtual for each in ideal_finishes(programs, rate)]


@pytest.mark.parametrize(("programs", "rate"), [([(0, 1)], 0), ([(0, 1), (0, 0)], 1), ([(0, 0)], 1)])
def test_costs_and_rates_are_positive(programs: list[tuple[int, int]], rate: int) -> None:
    """The error names them; a program by itself is finished when the virtual clock, from 0, says its cost."""
    with pytest.raises(ValueError, match=rf"of rate {rate}, and costs \[.*: all at least 1"):
        ideal_finishes(programs, rate)
    [found] = ideal_finishes([(3, 4)], 2)
    assert found.virtual == 4
    assert found.time == 5
    assert ideal_finishes([(0, 1)], 1)[0].time == 1
