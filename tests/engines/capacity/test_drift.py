"""Drift: what counts as a shift, when it is seen, and that nothing else is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.capacity import DriftDetector, DriftState, Shift
from fairsched.model.serialization import from_json, to_json

SECOND_NS = 1_000_000_000
DETECTOR = DriftDetector(window_us=10_000_000, change_percent=30, requests_min=5)

Phase = tuple[int, int, int, int]
"""Windows of ten seconds, requests in each, and tokens of a prompt and an output."""


def arrivals(phases: list[Phase]) -> list[tuple[int, int, int]]:
    """Requests at equal distances, phase after phase; the first of each window comes when it begins."""
    made, window = [], 0
    for windows, requests, prompt, output in phases:
        for _ in range(windows):
            made += [((window * requests + i) * 10 * SECOND_NS // requests, prompt, output) for i in range(requests)]
            window += 1
    return made


def shifts(phases: list[Phase], detector: DriftDetector = DETECTOR) -> list[Shift]:
    """All shifts that are found."""
    state, found = detector.init(), []
    for request in arrivals(phases):
        state, shift = detector.observe(state, *request)
        if shift is not None:
            found.append(shift)
    return found


rates = st.integers(5, 50)
lengths = st.integers(1, 5_000)


@given(rates, lengths, lengths, st.integers(3, 6))
def test_an_even_workload_never_shifts(requests: int, prompt: int, output: int, windows: int) -> None:
    """Equal windows are no shift."""
    assert not shifts([(windows, requests, prompt, output)])


@given(rates, rates, lengths, lengths, lengths, lengths)
def test_a_change_is_found_exactly_when_it_exceeds_the_share(
    rate: int, later_rate: int, prompt: int, later_prompt: int, output: int, later_output: int
) -> None:
    """One shift, at the end of the first window that differs, and it names what differs by more than 30 %."""
    found = shifts([(2, rate, prompt, output), (3, later_rate, later_prompt, later_output)])
    pairs = ("rate", rate, later_rate), ("prompt", prompt, later_prompt), ("output", output, later_output)
    expected = tuple(name for name, old, new in pairs if 100 * abs(new - old) > 30 * old)
    assert [shift.changed for shift in found] == ([expected] if expected else [])
    assert all(shift.at_ns == 30 * SECOND_NS for shift in found)
    assert all(shift.after.requests == later_rate for shift in found)


def test_slow_change_adds_up() -> None:
    """Windows are compared with the one that the plan is for, so a change of 20 % at a time is found at the second."""
    found = shifts([(1, 10, 100, 10), (1, 10, 120, 10), (1, 10, 144, 10), (1, 10, 172, 10), (1, 10, 172, 10)])
    assert [(shift.at_ns, shift.changed) for shift in found] == [(30 * SECOND_NS, ("prompt",))]


def test_few_requests_have_no_mean() -> None:
    """Two windows of four requests are never compared; four after forty are a change of the rate, and of nothing
    else."""
    assert not shifts([(1, 4, 100, 10), (2, 4, 900, 90)])
    (shift,) = shifts([(1, 40, 100, 10), (2, 4, 900, 90)])
    assert shift.changed == ("rate",)


@given(st.lists(st.tuples(st.integers(0, 8 * SECOND_NS), lengths, lengths), min_size=2, max_size=60))
def test_a_state_survives_json(gaps: list[tuple[int, int, int]]) -> None:
    """Any history can be stopped, written, read and continued, with the same shifts."""
    whole = part = DETECTOR.init()
    at_ns = 0
    for gap, prompt, output in gaps:
        at_ns += gap
        whole, one = DETECTOR.observe(whole, at_ns, prompt, output)
        part, other = DETECTOR.observe(from_json(DriftState, to_json(part)), at_ns, prompt, output)
        assert one == other
    assert whole == part


def test_a_request_out_of_order_is_an_error() -> None:
    """A request before the window under way has no window."""
    state, _ = DETECTOR.observe(DETECTOR.init(), 50 * SECOND_NS, 10, 1)
    with pytest.raises(ValueError, match="comes before the window from 50000000000 ns"):
        DETECTOR.observe(state, SECOND_NS, 10, 1)


@pytest.mark.parametrize("bad", [{"window_us": 0}, {"change_percent": -1}, {"requests_min": 0}])
def test_parameters_are_positive(bad: dict[str, int]) -> None:
    """A window of no length, or a share below zero, is refused by name."""
    with pytest.raises(ValueError, match=next(iter(bad))):
        DriftDetector(**bad)
