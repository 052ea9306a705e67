"""`azure-chat` has the lengths of Azure's conversation trace."""

from pathlib import Path

import numpy as np
import pytest

from fairsched.engines.workloads import generate, load_trace
from fairsched.model.request import Workload

TRACE = Path(__file__).parents[3].parent / "shared" / "traces" / "azure-2023-conv.csv"


def lengths_of(workload: Workload) -> tuple["np.ndarray[tuple[int], np.dtype[np.int64]]", ...]:
    """Prompt and output tokens of all requests."""
    prompts = np.array([job.request.prompt.tokens for job in workload.jobs])
    return prompts, np.array([job.output_tokens for job in workload.jobs])


def test_means_and_medians_are_the_traces() -> None:
    """Over 20,000 requests means are within 5 % of the trace's 1,155 and 211, medians of 1,020 and 129."""
    prompts, outputs = lengths_of(generate("azure-chat", requests=20_000))
    assert prompts.mean() == pytest.approx(1_155, rel=0.05)
    assert outputs.mean() == pytest.approx(211, rel=0.05)
    assert np.median(prompts) == pytest.approx(1_020, rel=0.05)
    assert np.median(outputs) == pytest.approx(129, rel=0.05)


@pytest.mark.skipif(not TRACE.exists(), reason="the trace is not here")
def test_outputs_depend_on_prompts_as_in_the_trace() -> None:
    """Mean outputs of each quarter of the prompts are within 10 % of the trace's."""
    ours, theirs = lengths_of(generate("azure-chat", requests=20_000)), lengths_of(load_trace(TRACE))
    limits = np.percentile(theirs[0], [25, 50, 75])
    for quarter in range(4):
        means = [outputs[np.digitize(prompts, limits) == quarter].mean() for prompts, outputs in (ours, theirs)]
        assert means[0] == pytest.approx(means[1], rel=0.1)
