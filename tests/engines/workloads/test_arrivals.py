"""Arrival processes and lengths have the rate, the spread and the mean they are asked for."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.workloads import TraceError
from fairsched.engines.workloads.sampling.distributions import ArrivalProcess, arrivals_ns, lengths, uniform_ns
from fairsched.engines.workloads.sampling.programs import trace_times_ns

PROCESSES: list[ArrivalProcess] = ["gamma", "poisson", "bursty", "azure", "functions"]


@pytest.mark.parametrize("process", PROCESSES)
@given(seed=st.integers(0, 100), count=st.integers(1, 200), rate=st.floats(0.01, 1000))
def test_times_are_sorted_and_reproducible(process: ArrivalProcess, seed: int, count: int, rate: float) -> None:
    """As many times as asked for, none negative, in order, and the same for the same seed."""
    drawn = [arrivals_ns(np.random.default_rng(seed), process, rate=rate, count=count, cv=2.0) for _ in range(2)]
    assert drawn[0] == drawn[1] == sorted(drawn[0])
    assert len(drawn[0]) == count
    assert drawn[0][0] >= 0


@pytest.mark.parametrize(
    ("process", "cv", "expected_cv"),
    [("gamma", 0.5, 0.5), ("gamma", 2.0, 2.0), ("gamma", 1.0, 1.0), ("poisson", 9.0, 1.0)],
)
def test_gaps_have_the_rate_and_the_spread(process: ArrivalProcess, cv: float, expected_cv: float) -> None:
    """Mean and coefficient of variation of 40,000 gaps are within 5 % of what was asked for."""
    gaps = np.diff(arrivals_ns(np.random.default_rng(1), process, rate=20.0, count=40_000, cv=cv)) / 1e9
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(expected_cv, rel=0.05)


def test_bursts_keep_the_rate_and_leave_silences() -> None:
    """In the long run the rate holds, and the time without an arrival for a second is far above Poisson's."""
    times = np.array(arrivals_ns(np.random.default_rng(2), "bursty", rate=20.0, count=100_000)) / 1e9
    assert len(times) / times[-1] == pytest.approx(20, rel=0.1)
    gaps = np.diff(times)
    # Half of the time is silence, of which a mean of 5 s leaves most in gaps of more than a second; Poisson has none.
    assert gaps[gaps > 1].sum() / times[-1] > 0.3


def test_functions_minutes_differ_and_seconds_spike() -> None:
    """In the long run the rate holds; minutes and seconds vary as the module says, far more than Poisson's."""
    times = np.array(arrivals_ns(np.random.default_rng(5), "functions", rate=5.0, count=100_000)) / 1e9
    assert len(times) / times[-1] == pytest.approx(5, rel=0.1)
    minutes, seconds = np.bincount((times // 60).astype(int))[:-1], np.bincount(times.astype(int))
    assert 0.3 < minutes.std() / minutes.mean() < 0.5
    assert 3 < seconds.var() / seconds.mean() < 4.5
    gaps = np.diff(times)
    assert gaps.std() / gaps.mean() == pytest.approx(1.3, abs=0.1)


def test_azure_like_gaps_vary_and_drift_as_the_trace_s() -> None:
    """Rate as asked, gaps' coefficient of variation 1.09, counts of 300 arrivals' time as uneven as in the trace.

    In Azure's conversation trace the variance of counts a minute (333 on average) is 16 times their mean; Poisson's is
    the mean.
    """
    times = np.array(arrivals_ns(np.random.default_rng(5), "azure", rate=20.0, count=300_000)) / 1e9
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1.09, rel=0.03)
    counts = np.histogram(times, np.arange(0, times[-1], 333 / 20))[0]
    assert counts.var() / counts.mean() == pytest.approx(16, rel=0.35)


def test_a_trace_s_gaps_are_stretched_and_begin_again(tmp_path: Path) -> None:
    """Times between arrivals keep their proportions at any rate, from the start again where the trace is shorter."""
    path = tmp_path / "arena.csv"
    rows = "".join(f"{i},{second},a,5,5\n" for i, second in enumerate((10, 11, 13)))
    path.write_text("req_id,arrival_s,client,input_tokens,output_tokens\n" + rows)
    assert trace_times_ns(path, rate=2.0, count=5) == [
        round(5 / 7 * seconds * 10**9 / 2) for seconds in (1, 3, 4, 6, 7)
    ]
    path.write_text("req_id,arrival_s,client,input_tokens,output_tokens\n0,4,a,5,5\n1,4,a,5,5\n")
    with pytest.raises(TraceError, match="requests at two times or more, found 2 at one"):
        trace_times_ns(path, rate=2.0, count=5)


def test_uniform_times_fill_their_span() -> None:
    """Times are sorted, inside the span, and as likely early as late."""
    times = uniform_ns(np.random.default_rng(3), span_s=10.0, count=10_000)
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= 10e9
    assert np.mean(times) == pytest.approx(5e9, rel=0.03)


def test_lengths_have_their_mean_and_range() -> None:
    """Log-normal lengths keep mean and spread within 3 %, and never leave their range."""
    drawn = lengths(np.random.default_rng(4), 50_000, mean=200, cv=0.5)
    assert np.mean(drawn) == pytest.approx(200, rel=0.03)
    assert np.std(drawn) / np.mean(drawn) == pytest.approx(0.5, rel=0.03)
    cut = lengths(np.random.default_rng(4), 1_000, mean=200, cv=2.0, low=50, high=256)
    assert min(cut) == 50
    assert max(cut) == 256
