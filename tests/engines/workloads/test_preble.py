"""Preble's five workloads have the statistics of its Table 1, and a mixture has those of its parts."""

from collections import Counter
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.cli import main
from fairsched.engines.workloads import WorkloadError, generate, trace_info
from fairsched.engines.workloads.sampling.distributions import spread_lengths, zipf_counts
from fairsched.model.request import Workload

# Preble, Table 1: prompt, output, shared prefix, key portion in the prompt, requests sharing one; mean and deviation.
TABLE = {
    "toolbench": ((1_835, 742), (43, 16), 0.85, 0.76, (39, 64)),
    "agent": ((2_285, 471), (16, 13), 0.97, 0.76, (48, 8)),
    "programming": ((3_871, 1_656), (190, 343), 0.97, 0.78, (126, 2_157)),
    "video-qa": ((9_865, 5_976), (4, 1.5), 0.88, 0.99, (8.6, 2)),
    "loogle": ((23_474, 6_105), (16, 9.9), 0.91, 0.94, (18, 8.6)),
}
# The demonstration's sharers grow with the data set: the deviation is that of 4,000 problems.
WHOLE: dict[str, dict[str, Any]] = {"programming": {"problems": 4_000}}


@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name in TABLE for seed in range(1 if name in WHOLE else 2)]
)
def test_the_statistics_are_the_table_s(name: str, seed: int) -> None:
    """Prompts within 1 % (deviation 3 %), outputs and their deviation 5 %, shared tokens within a point, the key
    portion's part of a prompt within 3 points, sharers of a key portion within 2 % (deviation 10 %)."""
    prompt, output, shared, portion, sharers = TABLE[name]
    made = generate(name, seed=seed, **WHOLE.get(name, {}))
    info = trace_info(made)
    prompts = [job.request.prompt_tokens for job in made.jobs]
    outputs = [job.output_tokens for job in made.jobs]
    assert np.mean(prompts) == pytest.approx(prompt[0], rel=0.01)
    assert np.std(prompts) == pytest.approx(prompt[1], rel=0.03)
    assert np.mean(outputs) == pytest.approx(output[0], rel=0.05)
    assert np.std(outputs) == pytest.approx(output[1], rel=0.05)
    assert info["prefix"]["shared_tokens_ratio"] == pytest.approx(shared, abs=0.01)
    keys = info["key_portions"]
    assert keys["prompt_ratio_mean"] == pytest.approx(portion, abs=0.03)
    assert keys["sharers_mean"] == pytest.approx(sharers[0], rel=0.02)
    assert keys["sharers_sd"] == pytest.approx(sharers[1], rel=0.10)


def test_tools_are_as_popular_as_zipf_says() -> None:
    """With an exponent of 1.1 the busiest of 60 tools has 1 / (1 + 2^-1.1 + ... + 60^-1.1) of the requests."""
    busiest = trace_info(generate("toolbench", zipf=1.1))["key_portions"]["sharers_max"]
    share = 1 / sum(rank**-1.1 for rank in range(1, 61))
    # The apportionment gives the rarest tools their one request first.
    assert busiest / 2_340 == pytest.approx(share, rel=0.03)
    equal = trace_info(generate("toolbench", zipf=0))["key_portions"]
    assert (equal["sharers_max"], equal["sharers_sd"]) == (39, 0)


def test_requests_may_be_fixed_instead() -> None:
    """`requests` are shared out over the documents, and fewer requests than documents are refused."""
    keys = trace_info(generate("toolbench", documents=30, requests=300))["key_portions"]
    assert (keys["count"], keys["sharers_mean"]) == (30, 10)
    with pytest.raises(WorkloadError, match="3 requests cannot be about 30 documents"):
        generate("toolbench", documents=30, requests=3)


def test_a_video_is_everybody_s_or_one_client_s() -> None:
    """`owners` decides whether questions about one document come from one client or from all."""

    def owners(workload: Workload) -> set[int]:
        asked: dict[bytes, set[int]] = {}
        for job in workload.jobs:
            # The first block behind the system prompt of 16 tokens.
            asked.setdefault(job.request.prompt.keys[8:16], set()).add(job.request.client)
        assert len(asked) == 5
        return {len(clients) for clients in asked.values()}

    assert owners(generate("video-qa", documents=5, sharers=100, clients=4)) == {1}
    assert owners(generate("video-qa", documents=5, sharers=100, clients=4, owners="everybody")) == {4}


def test_only_so_many_documents_are_asked_about_at_a_time() -> None:
    """Between the first and the last question about a document come questions about `live` others on average."""
    made = generate("loogle", documents=60, live=6)
    order = [job.request.prompt.keys[8:16] for job in made.jobs]
    spans = [order[::-1].index(key) + order.index(key) for key in set(order)]
    between = len(order) - np.array(spans)
    assert between.max() <= 18 * 8.5
    anywhere = [job.request.prompt.keys[8:16] for job in generate("loogle", documents=60, live=None).jobs]
    assert len(set(anywhere[:180])) > 40 > len(set(order[:180]))


def test_an_agent_s_step_repeats_the_history() -> None:
    """A step is sent after the one before and begins with its prompt; tasks share the system prompt alone."""
    made = generate("agent", tasks=5)
    by_id = {job.request.id: job for job in made.jobs}
    for job in made.jobs:
        if job.after:
            (parent,) = job.after
            assert job.request.prompt.keys.startswith(by_id[parent].request.prompt.keys)
            grown = job.request.prompt_tokens - by_id[parent].request.prompt_tokens
            assert grown > by_id[parent].output_tokens
    firsts = {job.request.prompt.keys for job in made.jobs if not job.after}
    assert len({keys[:8] for keys in firsts}) == 1
    assert len({keys[8:16] for keys in firsts}) == 5


def test_open_tasks_pause_between_steps() -> None:
    """With `think_s` a task's steps but the first come after a pause with that mean, and 20 tasks with pauses of 10 s,
    started at two a second, send two requests a second from the first to the last."""
    made = generate("agent", tasks=20, steps=48, think_s=10, rate=2 * 48)
    pauses = [job.think_ns / 1e9 for job in made.jobs if job.after]
    assert np.mean(pauses) == pytest.approx(10, rel=0.1)
    assert not any(job.think_ns for job in made.jobs if not job.after)
    due: dict[int, float] = {}
    for job in made.jobs:
        start = max((due[one] for one in job.after), default=job.request.arrival_ns / 1e9)
        due[job.request.id] = start + job.think_ns / 1e9
    within = sum(20 <= time < 320 for time in due.values())
    assert within / 300 == pytest.approx(2, rel=0.15)


def test_a_problem_is_sampled_in_parallel() -> None:
    """A problem's samples ask the same at once and depend on nothing; all problems begin with the demonstration."""
    made = generate("programming", problems=6, samples=5)
    for _, calls in groupby(made.jobs, key=lambda job: job.program):
        jobs = list(calls)
        assert len(jobs) == 5
        assert len({job.request.prompt for job in jobs}) == len({job.request.arrival_ns for job in jobs}) == 1
        assert not any(job.after for job in jobs)
    firsts = {job.request.prompt.keys[: 2_752 // 16 * 8] for job in made.jobs}
    assert len(firsts) == 1
    assert len({job.request.prompt for job in made.jobs}) == 6


def test_samples_sent_apart_are_the_same_prompts_at_times_of_their_own() -> None:
    """`sent=apart` asks each prompt as often, in random order; outputs are cut at the longest that is declared."""
    apart = generate("programming", problems=6, samples=5, sent="apart", max_output_tokens=100)
    assert set(Counter(job.request.prompt for job in apart.jobs).values()) == {5}
    assert len({job.request.arrival_ns for job in apart.jobs}) == 30
    assert max(job.output_tokens for job in apart.jobs) == 100
    assert len({job.request.prompt for job in apart.jobs[:5]}) > 1


def test_arrivals_follow_the_rate() -> None:
    """A number is requests a second, whatever the process and however many calls a program has."""
    for made in (
        generate("toolbench", rate=25),
        generate("agent", rate=25, tasks=400, steps=4),
        generate("video-qa", rate=25, arrivals="gamma"),
    ):
        assert len(made.jobs) / (made.jobs[-1].request.arrival_ns / 1e9) == pytest.approx(25, rel=0.15), made.name


def test_a_mixture_keeps_its_parts() -> None:
    """The requests of a mixture are those of its parts, each part's in order, with clients named after the part."""
    params: dict[str, Any] = {"agent.tasks": "4", "toolbench.documents": 5}
    made = generate("mixed", parts="toolbench+agent", **params)
    # A part's seed is its place in the mixture, so that no two parts have tokens in common.
    parts = {
        "toolbench": generate("toolbench", seed=0, documents=5),
        "agent": generate("agent", seed=1, tasks=4),
    }
    for name, part in parts.items():
        own = [job for job in made.jobs if made.clients[job.request.client].name.startswith(f"{name}/")]
        assert [job.request.prompt for job in own] == [job.request.prompt for job in part.jobs]
        assert [job.output_tokens for job in own] == [job.output_tokens for job in part.jobs]
        places = {job.request.id: place for place, job in enumerate(own)}
        expected = {job.request.id: place for place, job in enumerate(part.jobs)}
        assert [[places[p] for p in job.after] for job in own] == [[expected[p] for p in j.after] for j in part.jobs]
    assert len(made.jobs) == sum(len(part.jobs) for part in parts.values())
    order = [made.clients[job.request.client].name.partition("/")[0] for job in made.jobs if not job.after]
    assert sum(one != other for one, other in pairwise(order)) > 2


def test_calls_that_depend_on_one_another_stay_together_in_a_mixture() -> None:
    """Also those of a workload that names no programs."""
    made = generate("mixed", parts="ce1", rate=1)
    assert [job.after for job in made.jobs] == [job.after for job in generate("ce1").jobs]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"parts": "toolbench+toolbench"}, "each once"),
        ({"parts": "toolbench+vdeo-qa"}, "unknown workload 'vdeo-qa'; did you mean video-qa"),
        ({"parts": "mixed"}, "cannot be a part of itself"),
        ({"parts": "loogle", "toolbench.documents": 4}, "unknown part of the mix 'toolbench'"),
        ({"parts": "loogle", "loogle.documnts": 4}, "unknown parameter of workload loogle 'documnts'"),
        ({"parts": "loogle", "loogle.documents": "x"}, "parameter documents"),
    ],
)
def test_mixtures_that_mean_nothing_are_refused(params: dict[str, Any], message: str) -> None:
    """The message names the part and what is wrong with it."""
    with pytest.raises(WorkloadError, match=message):
        generate("mixed", **params)


@given(total=st.integers(1, 3_000), documents=st.integers(1, 200), exponent=st.floats(0, 3))
def test_requests_are_apportioned_whole(total: int, documents: int, exponent: float) -> None:
    """Counts sum to the total, fall with the rank, and leave none out."""
    if total < documents:
        with pytest.raises(WorkloadError):
            zipf_counts(total, documents, exponent)
        return
    counts = zipf_counts(total, documents, exponent)
    assert sum(counts) == total
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] >= 1


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), documents=st.integers(20, 100), exponent=st.floats(0, 1.2))
def test_lengths_fit_the_table_however_popularity_falls(seed: int, documents: int, exponent: float) -> None:
    """Over requests the mean and the spread of lengths are those asked for, where nothing is cut."""
    counts = zipf_counts(documents * 10, documents, exponent)
    sizes = spread_lengths(np.random.default_rng(seed), counts, mean=10_000, sd=500)
    average = np.average(sizes, weights=counts)
    assert average == pytest.approx(10_000, abs=1)
    assert np.sqrt(np.average((np.array(sizes) - average) ** 2, weights=counts)) == pytest.approx(500, abs=2)


def test_a_mixture_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """`mixed:A+B` names the parts without `parts=`, and `B.some-param` is a parameter of B."""
    text = "mixed:video-qa+showcase,rate=3,showcase.duration-s=1,video-qa.documents=4,video-qa.prompt-tokens=900"
    assert main(["trace", text]) == 0
    out = capsys.readouterr().out
    assert "parts=video-qa+showcase, rate=3.0, seed=0, showcase.duration_s=1, video-qa.documents=4" in out
    assert "Mixed: 34 of video-qa (67%), 17 of showcase (33%)" in out
