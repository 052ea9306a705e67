"""Length predictors: what they are right about, and what of the truth they tell."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.logs import LogWriter, RunInfo
from fairsched.engines.simulation import Bucketed, Oracle, Predictor, predictor, simulate_events
from fairsched.engines.simulation.predictors import PREDICTORS, MeanOutput, NoPredictor
from fairsched.engines.workloads import WorkloadError
from fairsched.model.events import Arrived, Event, Finished
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.catalog import FCFS
from fairsched.policies.routers import RoundRobin
from tests.support.logs import LATENCY

LIMIT = 1_000
OUTPUTS = st.integers(1, LIMIT)


def job(i: int, output: int, prompt: int = 4, at_ns: int = 0) -> Job:
    """A job of client 0 that may produce up to `LIMIT` tokens."""
    return Job(Request(i, 0, at_ns, Prompt(prompt), LIMIT), output)


def played(jobs: Sequence[Job], by: Predictor | None) -> tuple[Workload, list[Event]]:
    """A workload of these jobs, and the events of its run on one worker."""
    workload = Workload("by hand", tuple(jobs), (Client(0, "a"),))
    return workload, simulate_events(workload, FCFS(), RoundRobin(), LATENCY, kv_capacity_tokens=4_000, predictor=by)


def predicted(jobs: Sequence[Job], by: Predictor | None) -> dict[int, int | None]:
    """What policies were told of each request."""
    _, events = played(jobs, by)
    return {event.request.id: event.request.predicted_output_tokens for event in events if isinstance(event, Arrived)}


@pytest.mark.parametrize("accuracy", [0.0, 0.25, 0.75, 1.0])
def test_the_stated_accuracy_holds(accuracy: float) -> None:
    """Of 4,000 requests the right bucket is told for the stated share, to within 2 per cent, and else a neighbour."""
    by = Bucketed(accuracy=accuracy)
    off = []
    for i in range(4_000):
        output = 1 + i * 7919 % LIMIT
        told = by.start().of(job(i, output))
        assert told is not None
        off.append((told - 1) // 100 - (output - 1) // 100)
    assert set(off) <= {-1, 0, 1}
    assert abs(off.count(0) / len(off) - accuracy) <= 0.02
    # Both neighbours are told, as often as each other but for the first and last bucket.
    assert abs(off.count(1) - off.count(-1)) <= 0.1 * len(off)


@given(i=st.integers(0, 10**9), output=OUTPUTS, seed=st.integers(0, 2**70))
def test_the_right_bucket_never_says_too_little(i: int, output: int, seed: int) -> None:
    """With an accuracy of 1 the prediction is at least the output, and by less than a bucket more."""
    told = Bucketed(accuracy=1.0, seed=seed).of(job(i, output))
    assert told is not None
    assert output <= told < output + 100


@given(i=st.integers(0, 10**9), output=OUTPUTS, other=OUTPUTS, accuracy=st.floats(0, 1), seed=st.integers(0, 99))
def test_buckets_tell_nothing_but_the_bucket(i: int, output: int, other: int, accuracy: float, seed: int) -> None:
    """Two outputs of one bucket are predicted alike, again in another run, and only ends of buckets are told."""
    by = Bucketed(accuracy=accuracy, seed=seed)
    told = by.start().of(job(i, output))
    assert told == by.start().of(job(i, output))
    assert told is not None
    assert told % 100 == 0
    if (output - 1) // 100 == (other - 1) // 100:
        assert told == by.of(job(i, other))


def test_outputs_beyond_the_buckets() -> None:
    """They are in the last bucket, which goes up to the declared limit; one bucket is always right."""
    assert Bucketed(accuracy=1.0, buckets=3).of(job(0, 900)) == LIMIT
    assert Bucketed(accuracy=0.0, buckets=1).of(job(0, 3)) == LIMIT
    # The only neighbour of the first of two buckets is the second, and the other way round.
    assert Bucketed(accuracy=0.0, buckets=2).of(job(0, 3)) == LIMIT
    assert Bucketed(accuracy=0.0, buckets=2).of(job(0, 900)) == 100


@given(outputs=st.lists(OUTPUTS, min_size=1, max_size=6), others=st.lists(OUTPUTS, min_size=6, max_size=6))
def test_only_an_oracle_tells_the_truth_of_what_has_not_finished(outputs: list[int], others: list[int]) -> None:
    """Of requests that come together only the oracle says anything that depends on their outputs beyond their
    buckets: history and none say the same whatever the outputs will be."""
    jobs = [job(i, output) for i, output in enumerate(outputs)]
    changed = [job(i, output) for i, output in zip(range(len(outputs)), others, strict=False)]
    for by in (MeanOutput(), NoPredictor()):
        assert predicted(jobs, by) == predicted(changed, by) == dict.fromkeys(range(len(jobs)))
    assert predicted(jobs, Oracle()) == dict(enumerate(outputs))


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3_000), st.sampled_from((3, 4, 40)), st.integers(1, 60)), min_size=1, max_size=12
    )
)
def test_history_knows_what_has_finished_and_no_more(rows: list[tuple[int, int, int]]) -> None:
    """Each prediction is the mean of the outputs that finished before the request came, of prompts with as many
    binary digits if there are any, and nothing at first."""
    rows = sorted(rows)
    jobs = [job(i, output, prompt, 10**6 * at_ms) for i, (at_ms, prompt, output) in enumerate(rows)]
    _, events = played(jobs, MeanOutput())
    done: list[tuple[int, int]] = []
    for event in events:
        if isinstance(event, Finished):
            one = jobs[event.request_id]
            done.append((one.request.prompt.tokens.bit_length(), one.output_tokens))
        elif isinstance(event, Arrived):
            digits = event.request.prompt.tokens.bit_length()
            known = [output for of, output in done if of == digits] or [output for _, output in done]
            told = event.request.predicted_output_tokens
            assert told is None if not known else told is not None and abs(told - sum(known) / len(known)) <= 0.5


def test_without_a_predictor_the_workloads_own_predictions_stay() -> None:
    """A trace's predictions are what policies are told, unless a predictor is named, be it `none`."""
    own = job(0, 5)
    own = Job(Request(0, 0, 0, own.request.prompt, LIMIT, predicted_output_tokens=77), 5)
    assert predicted([own], None) == {0: 77}
    assert predicted([own], NoPredictor()) == {0: None}


def test_a_log_has_the_predictions(tmp_path: Any) -> None:
    """A log defines each request with what was predicted of it when it came, so that a replay decides alike."""
    workload, events = played([job(0, 5), job(1, 7, at_ns=10**12)], MeanOutput())
    info = RunInfo("fcfs", {}, "round-robin", 1, 4_000, LATENCY, "by hand")
    with LogWriter(tmp_path / "log.jsonl", "0", info, workload) as writer:
        for event in events:
            writer(event, b"[]")
    text = (tmp_path / "log.jsonl").read_text()
    assert text.count('"predicted_output_tokens":5') == 1
    assert '"predicted_output_tokens":7' not in text


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("orakel", {}, "predictor 'orakel'; did you mean oracle"),
        ("oracle", {"seed": "1"}, "parameter of predictor oracle 'seed'"),
        ("bucketed", {"accuracy": "1.5"}, "accuracy"),
        ("bucketed", {"accuracy": "nan"}, "accuracy"),
        ("bucketed", {"buckets": "0"}, "buckets"),
        ("bucketed", {"seed": "x"}, "bucketed.seed is a whole number"),
    ],
)
def test_bad_names_and_values(name: str, params: dict[str, str], said: str) -> None:
    """What is wrong is named."""
    with pytest.raises(WorkloadError, match=said):
        predictor(name, params)


@given(accuracy=st.floats(0, 1), buckets=st.integers(1, 50), seed=st.integers(0, 99))
def test_a_title_is_what_the_command_line_takes(accuracy: float, buckets: int, seed: int) -> None:
    """A predictor made of its title's text is the same."""
    made: Predictor = Bucketed(accuracy, buckets, seed=seed)
    name, _, params = made.title.partition(":")
    again = predictor(name, dict(pair.split("=") for pair in params.split(",") if pair))
    assert attrs.asdict(again) == attrs.asdict(made)
    assert set(PREDICTORS) == {"oracle", "bucketed", "history", "none"}
