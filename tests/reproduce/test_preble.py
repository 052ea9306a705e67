"""What Preble's rows change of a workload: its prefixes and its clients, and nothing else."""

from collections import Counter

import pytest

from fairsched.engines.workloads import generate, trace_info
from fairsched.reproduce.papers.preble import LONG_S, RATES, SHORT_S, STEADY, TWO, WORKLOADS, steady, unshared


@pytest.mark.parametrize("name", ["toolbench", "agent", "programming"])
def test_the_control_takes_the_shared_prefixes_and_nothing_else(name: str) -> None:
    """No block hits an infinite cache any more; lengths, times and dependencies are as they were."""
    jobs = WORKLOADS[name](TWO, 0, 5)
    alone = unshared(jobs, seed=0)
    assert trace_info(jobs)["prefix"]["shared_blocks_ratio"] > 0.4
    assert trace_info(alone)["prefix"]["shared_blocks_ratio"] == 0
    for one, other in zip(jobs.jobs, alone.jobs, strict=True):
        assert one.request.prompt_tokens == other.request.prompt_tokens
        assert (one.request.arrival_ns, one.after, one.output_tokens) == (
            other.request.arrival_ns,
            other.after,
            other.output_tokens,
        )


def test_only_what_is_due_after_the_caches_have_filled_is_counted() -> None:
    """A third of requests with times of their own come first; a call is due a pause after the one before it."""
    jobs = steady(WORKLOADS["toolbench"](TWO, 0, 15))
    counts = Counter(jobs.clients[job.request.client].name for job in jobs.jobs)
    assert counts[STEADY] / len(jobs.jobs) == pytest.approx(2 / 3, abs=0.01)
    times = [[job.request.arrival_ns for job in jobs.jobs if job.request.client == one] for one in (0, 1)]
    assert max(times[0]) < min(times[1])
    chained = steady(generate("agent", tasks=2, steps=48, think_s=10, rate=1_000))
    by_id = {job.request.id: job for job in chained.jobs}
    for job in chained.jobs:
        if job.after:
            assert job.request.client >= by_id[job.after[0]].request.client
    assert {job.request.client for job in chained.jobs} == {0, 1}


@pytest.mark.parametrize("name", WORKLOADS)
def test_requests_come_at_the_paper_s_rates(name: str) -> None:
    """Over a run's seconds as many requests are due as the axis says, within a fifth (of few: three deviations)."""
    rps = RATES[name][-1]
    jobs = WORKLOADS[name](TWO, 1, rps).jobs
    seconds = SHORT_S if name in ("toolbench", "agent") else LONG_S
    due: dict[int, int] = {}
    for job in jobs:
        due[job.request.id] = job.think_ns + max((due[one] for one in job.after), default=job.request.arrival_ns)
    within = sum(time < seconds * 1e9 for time in due.values())
    expected = rps * seconds
    assert within == pytest.approx(expected, abs=max(0.2 * expected, 3 * expected**0.5))
