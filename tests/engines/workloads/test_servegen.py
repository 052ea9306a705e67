"""`servegen:DIR` sends what its clients' files say: so many requests in each window, of lengths that are there."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.workloads import WorkloadError, generate

FOLDER = str(Path(__file__).parent / "servegen")
"""Two clients in ServeGen's format: one of text, one of images that has no lengths in its first hours."""


def test_each_window_has_as_many_requests_as_were_seen() -> None:
    """0.05 a second is 30 requests in ten minutes; a window without a law has none; lengths change when they say."""
    made = generate("servegen", folder=FOLDER, duration=1800)
    assert [client.name for client in made.clients] == ["client-3", "client-7"]
    seen = Counter((job.request.client, job.request.arrival_ns // (600 * 10**9)) for job in made.jobs)
    assert seen == {(0, 0): 30, (0, 2): 60, (1, 0): 12, (1, 1): 12}
    late = [job for job in made.jobs if job.request.client == 0 and job.request.arrival_ns >= 1200 * 10**9]
    assert {(job.request.prompt.tokens, job.output_tokens) for job in late} == {(1000, 5)}
    images = {job.request.prompt.tokens for job in made.jobs if job.request.client == 1}
    assert images == {50 + 256, 50 + 512}
    assert {job.request.max_output_tokens for job in made.jobs} == {20}


@given(seed=st.integers(0, 2**32), start=st.integers(0, 1199), duration=st.integers(20, 600), rate=st.floats(0.5, 5))
@settings(max_examples=40)
def test_a_span_and_a_rate_are_kept(seed: int, start: int, duration: int, rate: float) -> None:
    """All requests lie in the span, which begins at 0, and are as many as the rate says, but for one a window."""
    made = generate("servegen", folder=FOLDER, seed=seed, start=start, duration=duration, rate=rate)
    times = [job.request.arrival_ns for job in made.jobs]
    assert 0 <= times[0] <= times[-1] < duration * 10**9
    assert abs(len(times) - rate * duration) <= 4
    assert made == generate("servegen", folder=FOLDER, seed=seed, start=start, duration=duration, rate=rate)


def test_gaps_follow_their_law() -> None:
    """The coefficient of variation of a client's gaps is that of its Gamma law, 1 / sqrt(shape)."""
    made = generate("servegen", folder=FOLDER, duration=600, clients=1, rate=100.0, seed=5)
    gaps = np.diff([job.request.arrival_ns for job in made.jobs])
    assert len(made.jobs) == 60_000
    assert gaps.std() / gaps.mean() == pytest.approx(0.44**-0.5, rel=0.03)
    outputs = Counter(job.output_tokens for job in made.jobs)
    assert outputs[10] / len(made.jobs) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("chunk-1-trace.csv", "0,0.1,1\n", "row 1: expected second, rate"),
        ("chunk-1-trace.csv", "0,0.1,1,Pareto,1,1\n", "Gamma or Weibull"),
        ("chunk-1-trace.csv", "0,nan,1,Gamma,1,1\n", "row 1: expected second, rate"),
        ("chunk-1-trace.csv", "600,0.1,1,Gamma,1,1\n0,0.1,1,Gamma,1,1\n", "row 2: expected a second after"),
        ("chunk-1-dataset.json", "{}", "of a client that sends requests"),
        ("chunk-1-dataset.json", '{"0": {"input_tokens": "{1: 1.0}"}}', "output_tokens, and"),
        (
            "chunk-1-dataset.json",
            '{"0": {"input_tokens": "{1: -1.0}", "output_tokens": "{1: 1.0}"}}',
            "no probabilities",
        ),
        (
            "chunk-1-dataset.json",
            '{"0": {"input_tokens": "__import__", "output_tokens": "{1: 1.0}"}}',
            "a distribution",
        ),
        ("chunk-1-dataset.json", "[", "by second"),
    ],
)
def test_a_wrong_file_is_named_in_one_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    """What is wrong in a client's files is said with file and place."""
    (tmp_path / "chunk-1-trace.csv").write_text("0,0.1,1,Gamma,1,10\n")
    lengths = {"0": {"input_tokens": "{10: 1.0}", "output_tokens": "{10: 1.0}"}}
    (tmp_path / "chunk-1-dataset.json").write_text(json.dumps(lengths))
    assert generate("servegen", folder=str(tmp_path)).jobs
    (tmp_path / name).write_text(text)
    with pytest.raises(WorkloadError) as raised:
        generate("servegen", folder=str(tmp_path))
    assert name in str(raised.value)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_without_requests_is_refused(tmp_path: Path) -> None:
    """No folder, an empty one, and a span in which no client sends anything."""
    for arguments, said in (
        ({}, "servegen:data"),
        ({"folder": str(tmp_path / "none")}, "a readable folder"),
        ({"folder": str(tmp_path)}, "chunk-N-trace.csv"),
        ({"folder": FOLDER, "start": 9000}, "no client sends a request"),
        ({"folder": FOLDER, "rate": 1e6}, "more than"),
    ):
        with pytest.raises(WorkloadError, match=said):
            generate("servegen", **arguments)
