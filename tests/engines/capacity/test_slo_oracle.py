"""The nine-SLO oracle."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.analysis import EventTables, Outcomes
from fairsched.engines.capacity import RequestTimes, SlowdownLimits, judge, nine_slos
from fairsched.engines.simulation import Simulator
from fairsched.engines.workloads import generate
from fairsched.model.latency import PRESETS
from fairsched.model.request import Workload
from fairsched.policies.catalog import FCFS
from fairsched.policies.routers import RoundRobin

H100 = PRESETS["llama-2-70b-h100"]


def _times(ttft: list[float], tbt: list[float], e2e: list[float]) -> RequestTimes:
    return RequestTimes(*(np.array(column, dtype=np.float64) for column in (ttft, tbt, e2e)))


def _outcomes(jobs: Workload, workers: int) -> Outcomes:
    events = EventTables()
    Simulator(jobs, FCFS(), RoundRobin(), H100, workers=workers, on_events=events.add).run()
    return Outcomes(jobs, events.whole())


def test_nine_targets() -> None:
    """There are nine checks: three metrics at three percentiles, and one that is missed misses all."""
    same = _times([1.0] * 100, [1.0] * 100, [1.0] * 100)
    verdict = nine_slos(same, same)
    assert [(c.metric, c.percentile, c.limit) for c in verdict.checks] == [
        *(("ttft", 50, 2.0), ("ttft", 90, 3.0), ("ttft", 99, 6.0)),
        *(("tbt", 50, 1.25), ("tbt", 90, 1.5), ("tbt", 99, 5.0)),
        *(("e2e", 50, 1.25), ("e2e", 90, 1.5), ("e2e", 99, 5.0)),
    ]
    assert verdict.met
    # 2 of 100 at 5.1 are above the 98th place: only P99 of TBT sees them.
    slow = nine_slos(_times([1.0] * 100, [1.0] * 98 + [5.1] * 2, [1.0] * 100), same)
    assert [(c.metric, c.percentile) for c in slow.checks if not c.met] == [("tbt", 99)]
    assert not slow.met
    assert slow.text == "P99 TBT slowdown 5.1 exceeds 5"


@given(
    st.lists(st.floats(0.1, 10.0), min_size=1, max_size=60),
    st.sampled_from((0.5, 1.0, 2.0)),
    st.randoms(use_true_random=False),
)
def test_percentiles_occur(slowdowns: list[float], scale: float, rng: object) -> None:
    """A percentile is a slowdown that occurred, with at least that share of the requests at or below it."""
    ones = [scale] * len(slowdowns)
    measured = [scale * slowdown for slowdown in slowdowns]
    for check in nine_slos(_times(measured, measured, measured), _times(ones, ones, ones)).checks:
        ratios = np.array(measured) / scale
        assert check.slowdown in ratios
        assert (ratios <= check.slowdown).mean() * 100 >= check.percentile - 1e-9
        assert (ratios < check.slowdown).mean() * 100 < check.percentile


def test_alone_is_not_slowed_down() -> None:
    """A simulated request alone on the reference has slowdown 1 exactly in each metric."""
    jobs = generate("azure-chat", requests=20, rate=0.01, arrivals="poisson", cv=1.0, seed=3)
    verdict = judge(_outcomes(jobs, 1), H100)
    assert {check.slowdown for check in verdict.checks if check.metric != "ttft"} == {1.0}
    # Prompts beyond a step's 2,048 tokens are cut in chunks here, so their first token is later than a whole prompt's.
    assert verdict.checks[0].slowdown == 1.0


def test_load_is_seen() -> None:
    """A fleet that is overloaded is refused, and enough workers for the same requests are accepted."""
    jobs = generate("azure-chat", requests=300, rate=40.0, arrivals="poisson", cv=1.0, seed=1)
    assert not judge(_outcomes(jobs, 1), H100).met
    assert judge(_outcomes(jobs, 40), H100).met


def test_unfinished_are_missed() -> None:
    """A request that never finished is slowed down without limit, so dropping requests does not pass."""
    reference = _times([1.0] * 3, [1.0] * 3, [1.0] * 3)
    verdict = nine_slos(_times([1.0, 1.0, inf], [1.0, 1.0, inf], [1.0, 1.0, inf]), reference)
    assert not verdict.met
    assert verdict.worst.slowdown == inf


def test_single_tokens_have_no_gap() -> None:
    """An output of one token counts for TTFT and E2E, and not for TBT."""
    times = RequestTimes.of(np.array([4.0, 4.0]), np.array([4.0, 10.0]), np.array([1, 4]))
    np.testing.assert_array_equal(times.tbt, [nan, 2.0])
    assert nine_slos(times, times).met
    alone = RequestTimes.of(np.array([4.0]), np.array([4.0]), np.array([1]))
    assert [check.slowdown for check in nine_slos(alone, alone).checks[3:6]] == [0.0] * 3


def test_bad_input() -> None:
    """Other requests, none, or limits that fall with the percentile are refused, each with its figures."""
    one, two = _times([1.0], [1.0], [1.0]), _times([1.0] * 2, [1.0] * 2, [1.0] * 2)
    with pytest.raises(ValueError, match="the same requests, at least one: 1 are measured, 2 referred to"):
        nine_slos(one, two)
    with pytest.raises(ValueError, match="0 are measured, 0 referred to"):
        nine_slos(_times([], [], []), _times([], [], []))
    with pytest.raises(ValueError, match=r"limits of tbt .* not \(2.0, 1.5, 5.0\)"):
        SlowdownLimits(tbt=(2.0, 1.5, 5.0))
