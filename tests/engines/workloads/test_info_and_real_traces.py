"""What is told about a workload; the public traces (where they are at hand) and `azure-chat` are what is published."""

import json
from pathlib import Path

import numpy as np
import pytest

from fairsched.engines.workloads import generate, load_trace, render_info, trace_info
from fairsched.model.request import Client, Job, Prompt, Request, Workload

TRACES = Path(__file__).parents[3].parent / "shared" / "traces"


def real(name: str) -> Path:
    """A public trace, or the test is skipped."""
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand")
    return path


def test_figures_of_a_small_workload_by_hand() -> None:
    """Counts, rates, shares and hits are those one counts on paper."""

    def job(index: int, client: int, arrival_s: int, keys: list[int], after: tuple[int, ...] = ()) -> Job:
        prompt = Prompt.from_keys(keys, block_tokens=10, tokens=10 * len(keys) + 5)
        request = Request(id=index, client=client, arrival_ns=arrival_s * 10**9, prompt=prompt, max_output_tokens=9)
        return Job(request=request, output_tokens=index + 1, after=after, program=0 if after else None)

    jobs = (job(0, 0, 0, [1, 2]), job(1, 1, 1, [1, 3]), job(2, 1, 1, [1, 2, 3], after=(0,)), job(3, 1, 4, [9]))
    info = trace_info(Workload("by-hand", jobs, (Client(0, "a"), Client(1, "b", 2)), ("a note",)))
    assert (info["requests"], info["independent_requests"], info["duration_s"]) == (4, 3, 4.0)
    assert info["arrivals_per_s"] == 3 / 4
    assert info["interarrival_cv"] == pytest.approx(0.5)  # gaps 1 and 3: mean 2, deviation 1
    assert info["prompt_tokens"]["total"] == 25 + 25 + 35 + 15
    assert info["prompt_tokens"]["max"] == 35
    assert info["output_tokens"]["mean"] == 2.5
    assert list(info["clients"]) == ["b", "a"]
    assert info["clients"]["b"] == {"requests": 3, "share": 0.75, "weight": 2, "prompt_tokens": 75, "output_tokens": 9}
    # Blocks with the partial last ones: 3 + 3 + 4 + 2; hits: 0 + 1 + 2 + 0.
    assert info["prefix"] == {
        "block_tokens": [10],
        "blocks": 12,
        "shared_blocks_ratio": 3 / 12,
        "shared_tokens_ratio": 30 / 100,
        "distinct_tokens": 70,
    }
    assert info["programs"] == 1
    text = render_info(info)
    assert "by-hand: 4 requests from 2 clients" in text
    assert info["notes"] == ["a note"]


@pytest.mark.parametrize("name", ["demo", "ce1", "multi-turn"])
def test_info_is_json_and_text(name: str) -> None:
    """The figures are plain JSON values, and their text has lengths of prompts and outputs."""
    info = trace_info(generate(name))
    assert json.loads(json.dumps(info)) == info
    text = render_info(info)
    assert f"max {info['prompt_tokens']['max']:,} tokens" in text
    assert f"max {info['output_tokens']['max']:,} tokens" in text


def test_one_request_is_enough() -> None:
    """Rates and spreads that one arrival does not have are None, not errors."""
    info = trace_info(generate("ce1", steps=1, limit=1))
    assert info["arrivals_per_s"] is None
    assert info["interarrival_cv"] is None
    assert render_info(info)


def test_the_azure_trace() -> None:
    """19,366 requests in 58 minutes with mean context 1,155 and mean output 211."""
    path = real("azure-2023-conv.csv")
    workload = load_trace(path)
    info = trace_info(workload)
    assert info["requests"] == 19_366
    assert round(info["duration_s"] / 60) == 58
    assert round(info["prompt_tokens"]["mean"]) == 1_155
    assert round(info["output_tokens"]["mean"]) == 211
    assert info["prefix"] is None
    assert info["max_output_tokens"]["max"] == 1_000


def test_the_mooncake_trace() -> None:
    """12,031 requests, mean input 12,035 and output 343; an infinite cache hits 36.6 % of blocks."""
    info = trace_info(load_trace(real("mooncake-conversation.jsonl")))
    assert info["requests"] == 12_031
    assert round(info["prompt_tokens"]["mean"]) == 12_035
    assert round(info["output_tokens"]["mean"]) == 343
    assert info["prefix"]["blocks"] == 288_500
    assert round(info["prefix"]["shared_blocks_ratio"], 3) == 0.366


def test_the_arena_trace() -> None:
    """1,500 requests of 27 clients over 600 s, 296 of them by the busiest."""
    info = trace_info(load_trace(real("vtc-arena.csv")))
    assert (info["requests"], len(info["clients"])) == (1_500, 27)
    assert info["duration_s"] == 600.0
    assert next(iter(info["clients"].values()))["requests"] == 296


def lengths_of(workload: Workload) -> tuple["np.ndarray[tuple[int], np.dtype[np.int64]]", ...]:
    """Prompt and output tokens of all requests."""
    prompts = np.array([job.request.prompt.tokens for job in workload.jobs])
    return prompts, np.array([job.output_tokens for job in workload.jobs])


def test_azure_chat_has_the_traces_means_and_medians() -> None:
    """Over 20,000 requests means are within 5 % of the trace's 1,155 and 211, medians of 1,020 and 129."""
    prompts, outputs = lengths_of(generate("azure-chat", requests=20_000))
    assert prompts.mean() == pytest.approx(1_155, rel=0.05)
    assert outputs.mean() == pytest.approx(211, rel=0.05)
    assert np.median(prompts) == pytest.approx(1_020, rel=0.05)
    assert np.median(outputs) == pytest.approx(129, rel=0.05)


def test_azure_code_has_the_traces_means_and_medians() -> None:
    """Over 20,000 requests means are within 5 % of the trace's 2,048 and 27.9, medians of 1,469 and 13."""
    prompts, outputs = lengths_of(generate("azure-code", requests=20_000))
    assert prompts.mean() == pytest.approx(2_048, rel=0.05)
    assert outputs.mean() == pytest.approx(27.9, rel=0.05)
    assert np.median(prompts) == pytest.approx(1_469, rel=0.05)
    assert np.median(outputs) == 13


def test_outputs_depend_on_prompts_as_in_the_trace() -> None:
    """Mean outputs of each quarter of the prompts are within 10 % of the trace's."""
    theirs = lengths_of(load_trace(real("azure-2023-conv.csv")))
    ours = lengths_of(generate("azure-chat", requests=20_000))
    limits = np.percentile(theirs[0], [25, 50, 75])
    for quarter in range(4):
        means = [outputs[np.digitize(prompts, limits) == quarter].mean() for prompts, outputs in (ours, theirs)]
        assert means[0] == pytest.approx(means[1], rel=0.1)
