"""What LARRY's and SAL's rows do to a workload: arrivals come at the rate that is meant, controls change sizes."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.workloads import at_rate, generate
from fairsched.model.request import Workload
from fairsched.reproduce.papers.larry import A100, CHAT, equal_prompts, loaded, saturation
from fairsched.reproduce.runs import alike

BURSTS = [generate(CHAT, requests=200, rate=5.0, arrivals="functions", seed=seed) for seed in range(5)]


def _times(jobs: Workload) -> list[int]:
    return [job.request.arrival_ns for job in jobs.jobs]


@given(st.sampled_from(BURSTS), st.floats(1e-3, 1e6))
def test_arrivals_come_at_exactly_the_rate(jobs: Workload, rate: float) -> None:
    """Requests over the span are the rate, each gap keeps its share of the span to a nanosecond, sizes stay."""
    stretched = at_rate(jobs, rate)
    before, after = _times(jobs), _times(stretched)
    assert after[0] == 0
    assert after[-1] == round(200 * 10**9 / Fraction(rate))
    factor = Fraction(after[-1], before[-1] - before[0])
    gaps = zip(pairwise(before), pairwise(after), strict=True)
    assert all(abs((b - a) * factor - (d - c)) < 1 for (a, b), (c, d) in gaps)
    assert [(job.request.prompt, job.output_tokens) for job in stretched.jobs] == [
        (job.request.prompt, job.output_tokens) for job in jobs.jobs
    ]


def test_arrivals_at_one_time_cannot_be_stretched() -> None:
    """Requests without a span are refused, since no factor gives them a rate."""
    with pytest.raises(ValueError, match="no span"):
        at_rate(generate(CHAT, requests=1), 1.0)


@pytest.mark.parametrize("seed", [0, 1])
def test_load_is_the_share_of_what_the_seed_saturates_at(seed: int) -> None:
    """The rate that arrives, not only the one that is asked for, is the share of the saturation of these requests."""
    low, high = loaded(CHAT, A100, seed, 300, (0.5, 1.0))
    for jobs, load in ((low, 0.5), (high, 1.0)):
        arriving = 300 * 1e9 / (_times(jobs)[-1] - _times(jobs)[0])
        assert arriving == pytest.approx(load * saturation(jobs, A100), rel=1e-3)


def test_controls_make_sizes_equal_and_keep_the_tokens() -> None:
    """No prompt (and no output) is shorter than another, and there are as many tokens to the half of one a request."""
    jobs = BURSTS[0]
    prompts, requests = equal_prompts(jobs), alike(jobs)
    assert len({job.request.prompt_tokens for job in prompts.jobs}) == 1
    assert [job.output_tokens for job in prompts.jobs] == [job.output_tokens for job in jobs.jobs]
    assert len({(job.request.prompt_tokens, job.output_tokens) for job in requests.jobs}) == 1
    for tokens in (lambda job: job.request.prompt_tokens, lambda job: job.output_tokens):
        assert abs(sum(map(tokens, jobs.jobs)) - sum(map(tokens, requests.jobs))) <= len(jobs.jobs) / 2
    assert _times(requests) == _times(prompts) == _times(jobs)
