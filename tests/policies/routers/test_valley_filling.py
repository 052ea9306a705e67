"""Valley filling in a cluster: requests reach a worker at their start, clients that do not wait keep their bound."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import fairsched as fs
from fairsched.engines.simulation import simulate_events
from fairsched.engines.workloads import generate
from fairsched.engines.workloads.fleet import Crash
from fairsched.model.events import NOWHERE, Arrived, Finished
from fairsched.model.machine import PRESETS
from fairsched.model.request import Workload
from fairsched.policies.catalog import DLPM
from fairsched.policies.routers import ValleyFilling

PRESET, S = PRESETS["llama-3.2-3b-a10g"], 10**9


def deferrable(jobs: Workload, every: int) -> Workload:
    """Return the workload with requests of negative priority, each `every`th."""
    marked = tuple(
        replace(job, request=replace(job.request, priority=-(i % every == 0))) for i, job in enumerate(jobs.jobs)
    )
    return replace(jobs, jobs=marked)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=6),
    st.integers(0, 30),
    st.integers(1, 4),
    st.sampled_from([(), (Crash(0, 3 * S, 2 * S),)]),
)
def test_requests_reach_a_worker_at_their_start(
    pieces: list[tuple[int, int]], defer_s: int, every: int, changes: tuple[Crash, ...]
) -> None:
    """To the nanosecond, whatever happens at the workers, one of which may crash: what was sent there is sent again at
    once."""
    at, prices = 0, ["0:3"]
    for gap, price in pieces:
        at += gap
        prices.append(f"{at}:{price}")
    router = ValleyFilling(prices="+".join(prices), defer_s=defer_s)
    jobs = deferrable(generate("azure-chat", requests=20, rate=4, arrivals="poisson"), every)
    events = simulate_events(jobs, DLPM(), router, PRESET, workers=2, changes=changes)
    first: dict[int, int] = {}
    for event in events:
        if isinstance(event, Arrived) and event.worker != NOWHERE:
            first.setdefault(event.request.id, event.time_ns)
    assert first == {job.request.id: router.start_ns(job.request, job.request.arrival_ns) for job in jobs.jobs}
    assert sum(isinstance(event, Finished) for event in events) == len(jobs.jobs)


def test_a_gate_keeps_its_bound_behind_a_valley() -> None:
    """All that may wait comes at one moment, and clients differ by no more than DLPM's gate lets them."""
    jobs = deferrable(generate("azure-chat", requests=200, rate=8, arrivals="poisson"), 2)
    router = ValleyFilling(prices="0:9+20:1", defer_s=60)
    (run,) = fs.compare(jobs, [DLPM(quantum=512)], [router]).runs
    assert run.gap.cost <= (run.service_gap_bound or 0)
    assert run.measures.finished == len(jobs.jobs)


@pytest.mark.parametrize(
    ("prices", "said"),
    [
        ("", "prices are SECONDS:PRICE"),
        ("0:1+x:2", "in whole numbers, not '0:1\\+x:2'"),
        ("0:-1", "in whole numbers"),
        ("5:1", "ascend from 0, not as in '5:1'"),
        ("0:1+5:2+5:3", "ascend from 0"),
        ([(0, 1)], "as text, not list"),
    ],
)
def test_what_is_no_curve_is_refused(prices: Any, said: str) -> None:
    """With the value, and what it should be."""
    with pytest.raises(ValueError, match=said):
        ValleyFilling(prices=prices)
