"""A machine is found from its log alone, what the log cannot tell is said, and a log of something else is refused."""

import json
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from fairsched.engines.calibration.from_log import UNLIMITED, LogFit, LogMachine, MachineSearch, fit_log
from fairsched.engines.calibration.from_log.machine import Played
from fairsched.engines.calibration.from_log.observed import MOSTLY, Observed, halves, observed, produced, stretch_from
from fairsched.engines.calibration.least_squares import non_negative
from fairsched.engines.logs.access import read_access_log
from fairsched.engines.simulation import latency_model
from fairsched.model.machine import decoded, encoded
from tests.support.engines.log_machines import changed, drawn, written

CHUNKED = LogMachine((3e6, 150e3, 20e3, 4e6, 1000, 800e3), max_running=8, max_batched_tokens=256)
FIRST = attrs.evolve(CHUNKED, times=(6e6, 60e3, 0, 9e6, 300, 400e3), rule="eager-prefill", max_running=12)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a machine with chunked prefill."""
    return written(tmp_path_factory.mktemp("logs") / "chunked.jsonl", CHUNKED, seed=2, count=360, rate=7)


@pytest.fixture(scope="module")
def fitted(log: Path) -> LogFit:
    """The machine that is found from it."""
    return fit_log(read_access_log(log))


def check(found: LogFit, true: LogMachine) -> None:
    """Check that what the log is said to tell is so: step times within 10 % of the true ones, and settings equal; of
    the other settings the true one is among those that are said to do as well."""
    assert found.machine.workers == true.workers
    for parameter, value in zip(found.parameters, true.times, strict=False):
        if parameter.known:
            assert parameter.value == pytest.approx(value, rel=0.1), parameter
    known = {parameter.name for parameter in found.parameters if parameter.known}
    assert {"prefill_token_ns", "decode_constant_ns"} <= known
    for parameter in found.parameters:
        alike = (getattr(found.machine, parameter.name, None), *parameter.others)
        if parameter.name == "rule":
            assert true.rule in alike
        if parameter.name == "max_running":
            limits = [limit for limit in alike if isinstance(limit, int)]
            assert min(limits) <= true.max_running <= max(limits)


def test_a_machine_is_recovered_from_its_log(fitted: LogFit) -> None:
    """Step times that the log tells are within 10 % of the hidden ones, workers, rule, seats and the token budget are
    those of the machine; p50 and p95 of the half that was held out are within 10 %."""
    check(fitted, CHUNKED)
    assert (fitted.machine.max_running, fitted.machine.max_batched_tokens, fitted.machine.rule) == (8, 256, "chunked")
    assert fitted.credible
    assert fitted.worst < 0.1
    assert [error.percent for error in fitted.errors if error.figure == "TTFT"] == [10, 25, 50, 75, 90, 95, 99]


def test_a_machine_that_prefills_first_is_told_from_one_that_mixes(tmp_path: Path) -> None:
    """The rule is found among the rules, on another machine."""
    log = written(tmp_path / "first.jsonl", FIRST, seed=3, count=280, rate=9)
    found = fit_log(read_access_log(log))
    check(found, FIRST)
    assert found.machine.rule == "eager-prefill"
    assert found.credible


def test_memory_that_was_never_full_is_said_to_be_unknown(fitted: LogFit) -> None:
    """No size of memory is claimed, but the least that there is."""
    assert fitted.machine.kv_tokens == UNLIMITED
    assert any(sentence.startswith("The KV memory was never seen full") for sentence in fitted.sentences())


def test_what_prompts_take_is_said_and_where_it_is_extrapolated(fitted: LogFit) -> None:
    """A prompt of 1,000 tokens and one of 10,000 are said to take what the machine's steps take, and that none was as
    long where none was."""
    one, ten = (fitted.latency.step_ns(((tokens, 0),), 0, 0) / 1e6 for tokens in (1_000, 10_000))
    said = fitted.sentences()
    assert (
        f"By the fit a prompt of 1,000 tokens takes {one:,.1f} ms and one of 10,000 tokens takes {ten:,.1f} ms, alone."
        in said
    )
    assert fitted.longest_prompt < 10_000
    assert any(f"has {fitted.longest_prompt:,} tokens: what longer ones take is extrapolated" in each for each in said)


@pytest.mark.parametrize("change", ["shuffled", "limited"])
def test_a_log_of_something_else_is_refused(log: Path, tmp_path: Path, change: str) -> None:
    """Where requests have each other's times, or a limiter holds them before the server, the machine is not credible,
    and `compare` does not take it."""
    found = fit_log(read_access_log(changed(tmp_path / "changed.jsonl", log, change)), requests_max=80)
    assert not found.credible
    assert found.refusal in found.to_json()["reasons"] or "; " in found.refusal  # type: ignore[operator]
    preset = tmp_path / "preset.json"
    preset.write_bytes(encoded(found.document))
    with pytest.raises(ValueError, match="nothing can be concluded from it"):
        latency_model(str(preset))


def test_the_document_is_a_latency_model(fitted: LogFit, tmp_path: Path) -> None:
    """What is written is read, with the server's settings, and `compare` takes it."""
    assert decoded(encoded(fitted.document)) == fitted.document
    assert fitted.document.server is not None
    assert fitted.document.server.params["max_running"] == "8"
    preset = tmp_path / "preset.json"
    preset.write_bytes(encoded(fitted.document))
    assert latency_model(str(preset)) == fitted.latency


def test_the_same_log_gives_the_same_machine(log: Path) -> None:
    """Nothing is left to chance."""
    once, again = (fit_log(read_access_log(log), requests_max=30, workers=1) for _ in range(2))
    assert once == again


def test_workers_that_the_log_names_are_counted(tmp_path: Path) -> None:
    """Where the log says which worker had a request, each has its own requests, and one worker's times are found."""
    rows = []
    for seed in (1, 2, 3):
        part = written(tmp_path / "part.jsonl", CHUNKED, seed=seed, count=100, rate=7)
        rows += [json.loads(line) | {"upstream": f"w{seed}"} for line in part.read_text().splitlines()]
    log = tmp_path / "all.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: row["start_us"])))
    found = fit_log(read_access_log(log))
    check(found, attrs.evolve(CHUNKED, workers=3))


def test_a_log_of_nothing_is_refused_in_one_line(tmp_path: Path) -> None:
    """Fewer than four requests are no log of a machine; the message says how many there were."""
    log = written(tmp_path / "few.jsonl", CHUNKED, seed=1, count=2, rate=7)
    with pytest.raises(ValueError, match="2 requests with a prompt and an output"):
        fit_log(read_access_log(log))


# --- the pieces -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(5, 30))
def test_least_squares_without_negative_coefficients(seed: int, width: int, height: int) -> None:
    """The solution is the one that scipy finds."""
    rng = np.random.default_rng(seed)
    rows, values = rng.normal(size=(height, width)), rng.normal(size=height)
    assert non_negative(rows, values) == pytest.approx(nnls(rows, values)[0], abs=1e-6)


@given(st.integers(0, 1000), st.lists(st.integers(0, 10**11), min_size=1, max_size=5))
def test_tokens_in_a_stretch_are_those_of_each_request(seed: int, at: list[int]) -> None:
    """The sum over requests, each with its tokens evenly between its first and its end, at any time."""
    some = drawn(seed, 12, 5)
    rng = np.random.default_rng(seed)
    some = attrs.evolve(some, ttft=rng.integers(1, 10**9, 12), latency=rng.integers(10**9, 10**10, 12))
    weights = rng.random(12)
    found = produced(some, weights, np.array(at))
    for time, total in zip(at, found.tolist(), strict=True):
        share = np.clip((time - some.arrival - some.ttft) / (some.latency - some.ttft), 0, 1)
        assert total == pytest.approx(float((weights * (some.output - 1) * share).sum()), abs=1e-3)


def test_the_half_that_judges_begins_with_the_load_of_the_half_that_fits(log: Path) -> None:
    """Requests under way at the middle are there, and are not judged; each request is judged in one half."""
    whole = observed(read_access_log(log))
    first, second = halves(whole)
    assert int(first.judged.sum()) + int(second.judged.sum()) == len(whole) == 360
    under_way = second.of(~second.judged)
    begin = whole.arrival[180]
    assert bool(np.all(under_way.arrival + under_way.latency > begin))


def served(seed: int, rate: float) -> Observed:
    """Return a log of the machine with chunked prefill."""
    asked = drawn(seed, 80, rate)
    said = Played(asked).on(CHUNKED)
    return attrs.evolve(asked, ttft=said.ttft, latency=said.latency)


@settings(max_examples=8)
@given(st.integers(0, 100), st.sampled_from([5.0, 12.0, 40.0]), st.integers(10, 50))
def test_a_stretch_is_served_as_it_was_within_the_log(seed: int, rate: float, start: int) -> None:
    """However much waits when a stretch begins, the machine serves what counts in it in as long as in the whole log,
    within a second and a tenth: what ran already has no prompt, and prompts that come later hold up all that ended
    while there are any."""
    found = stretch_from(served(seed, rate), start, 30)
    assert found.judged.sum() == 30
    said = Played(found).on(CHUNKED)
    ends = found.arrival + found.latency
    early = found.judged & (ends <= np.percentile(ends[found.judged], MOSTLY))
    for took, logged, rows in ((said.ttft, found.ttft, found.judged), (said.latency, found.latency, early)):
        assert (np.abs(took - logged)[rows] <= 1e9 + 0.1 * logged[rows]).all()


@settings(max_examples=8)
@given(st.integers(0, 100), st.sampled_from([5.0, 40.0]), st.floats(0.7, 1.4))
def test_a_machine_is_set_to_the_pace_of_a_log(seed: int, rate: float, pace: float) -> None:
    """Whatever its pace was, latencies are in all as long as in the log, within 3 %."""
    seen = served(seed, rate)
    search = MachineSearch(seen, lambda _: None)
    found = search.played.on(search.paced(CHUNKED.slower(pace)))
    assert found.latency.sum() == pytest.approx(seen.latency.sum(), rel=0.03)


@pytest.mark.usefixtures("by_night")
def test_a_machine_of_real_vllm() -> None:
    """The log of vLLM on a CPU core, of constant speed: p50 and p95 of the half that was held out are within 10 %, and
    the limit of requests and the rule are the true ones."""
    found = fit_log(read_access_log(Path(__file__).parent / "samples" / "vllm-cpu.jsonl.gz"))
    assert found.credible
    assert found.worst < 0.1
    assert (found.machine.workers, found.machine.max_running, found.machine.rule) == (1, 8, "chunked")
