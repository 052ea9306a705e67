"""Drift: what counts as a shift, when it is seen, and that nothing else is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.capacity.search import DriftDetector
from fairsched.model.request import Job, Prompt, Request

SECOND_NS = 1_000_000_000
DETECTOR = DriftDetector(window_us=10_000_000, change_percent=30, requests_min=5)

Phase = tuple[int, int, int, int]
"""Windows of ten seconds, requests in each, and tokens of a prompt and an output."""


def shifts(phases: list[Phase]) -> list[tuple[int, tuple[str, ...], int]]:
    """When fleets are planned again, with what changed, and the requests of the window that they are planned for.

    Requests come at equal distances, phase after phase; the first of each window comes when it begins.
    """
    jobs, window = list[Job](), 0
    for windows, requests, prompt, output in phases:
        for _ in range(windows):
            times = [(window * requests + i) * 10 * SECOND_NS // requests for i in range(requests)]
            jobs += [Job(Request(0, 0, at, Prompt(prompt), output), output) for at in times]
            window += 1
    first, *found = DETECTOR.plans(jobs)
    assert first[:2] == (10 * SECOND_NS, ())
    return [(at_ns, changed, window.requests) for at_ns, changed, window in found]


rates = st.integers(5, 50)
lengths = st.integers(1, 5_000)


@given(rates, rates, lengths, lengths, lengths, lengths)
def test_a_change_is_found_exactly_when_it_exceeds_the_share(
    rate: int, later_rate: int, prompt: int, later_prompt: int, output: int, later_output: int
) -> None:
    """One shift, at the end of the first window that differs, and it names what differs by more than 30 %."""
    found = shifts([(2, rate, prompt, output), (3, later_rate, later_prompt, later_output)])
    pairs = ("rate", rate, later_rate), ("prompt", prompt, later_prompt), ("output", output, later_output)
    expected = tuple(name for name, old, new in pairs if 100 * abs(new - old) > 30 * old)
    assert found == ([(30 * SECOND_NS, expected, later_rate)] if expected else [])


def test_slow_change_adds_up() -> None:
    """Windows are compared with the one that the plan is for, so a change of 20 % at a time is found at the second."""
    found = shifts([(1, 10, 100, 10), (1, 10, 120, 10), (1, 10, 144, 10), (1, 10, 172, 10), (1, 10, 172, 10)])
    assert found == [(30 * SECOND_NS, ("prompt",), 10)]


def test_few_requests_have_no_mean() -> None:
    """Two windows of four requests are never compared; four after forty are a change of the rate, and of nothing
    else."""
    assert not shifts([(1, 4, 100, 10), (2, 4, 900, 90)])
    assert shifts([(1, 40, 100, 10), (2, 4, 900, 90)]) == [(20 * SECOND_NS, ("rate",), 4)]


@pytest.mark.parametrize("bad", [{"window_us": 0}, {"change_percent": -1}, {"requests_min": 0}])
def test_parameters_are_positive(bad: dict[str, int]) -> None:
    """A window of no length, or a share below zero, is refused by name."""
    with pytest.raises(ValueError, match=next(iter(bad))):
        DriftDetector(**bad)
