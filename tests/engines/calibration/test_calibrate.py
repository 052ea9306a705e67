"""Calibration finds the model by which an engine's steps were timed, noise or not, and says how far it is off."""

import random

import attrs
import pytest

from fairsched.engines.calibration import Calibration
from fairsched.engines.calibration.calibrator import (
    Admit,
    Calibrator,
    Measured,
    Steps,
    TimedStep,
    TimingScript,
    calibrated,
    fit,
    scenarios,
)
from fairsched.engines.calibration.meter import KINDS, StepSample, StepShape
from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES, with_parameters
from tests.support.engines.fake_executor import VOCABULARY
from tests.support.engines.fake_time import FakeClock, PricedExecutor

CAPACITY, BATCH_MAX, CHUNK_MAX = 1024, 8, 64
TRUE = LatencyModel(
    name="true",
    source="made for tests: every coefficient matters, and batches of two and three are dearer than their neighbours",
    prefill_constant_ns=2_000_000,
    prefill_token_ns=90_000,
    prefill_attention_ps=40_000,
    decode=(
        DecodePiece(1, 3_000_000, 4_000, 300_000),
        DecodePiece(2, 5_500_000, 4_000, 300_000),
        DecodePiece(4, 3_600_000, 4_000, 300_000),
    ),
    kv_capacity_tokens=CAPACITY,
)


@pytest.fixture(autouse=True)
def _uncollected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the garbage, which takes no time of a clock that is not real."""
    monkeypatch.setattr("gc.collect", lambda: 0)


def policy_of(tokens: int) -> ComposedPolicy:
    """First come, first served, with this token budget and outputs that are not reserved."""
    params = {"max_batched_tokens": str(tokens), "max_running": str(BATCH_MAX), "reserve": "optimistic"}
    return with_parameters(LOCAL_POLICIES["fcfs"], params)


def measured(latency: LatencyModel, noise: float, seed: int, repeats: int = 3) -> list[Measured]:
    """The grid on an engine whose steps take the model's time, times a factor with this standard deviation."""
    clock, draw = FakeClock(), random.Random(seed)
    calibrator = Calibrator(
        PricedExecutor(clock, latency, lambda: draw.gauss(1.0, noise)),
        policy_of,
        clock,
        kv_capacity_tokens=CAPACITY,
        vocab_size=VOCABULARY,
        page_tokens=16,
    )
    steps = calibrator.measure(scenarios(CAPACITY, BATCH_MAX, CHUNK_MAX, seed), repeats)
    calibrator.close()
    return steps


def fitted(latency: LatencyModel, noise: float, seed: int, repeats: int = 3) -> Calibration:
    """What calibration makes of it."""
    steps = measured(latency, noise, seed, repeats)
    return calibrated(steps, name="found", source="", kv_capacity_tokens=CAPACITY)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_a_model_is_recovered_from_noise(seed: int, full_budget: bool) -> None:
    """With 4 % of noise on each step, steps that were not fitted are foretold to 3 % of their medians, of each kind."""
    if seed and not full_budget:
        pytest.skip("one seed is enough by day")
    found = fitted(TRUE, 0.04, seed, repeats=5)
    for residual in found.residuals:
        assert residual.points >= 4
        assert residual.mape is not None
        assert residual.mape < 0.03
        assert residual.steps_mape is not None
        assert residual.steps_mape > residual.mape / 2  # The noise of single steps does not go away.
    # Against the truth itself, noise has averaged out.
    shapes = [step.shape for step in measured(TRUE, 0.0, seed + 10, 1)]
    errors = [abs(shape.ns(found.latency) / shape.ns(TRUE) - 1) for shape in shapes]
    assert sum(errors) / len(errors) < 0.015


def test_without_noise_every_coefficient_is_found() -> None:
    """On exact steps the fit gives the coefficients back, nearly to the nanosecond."""
    latency = fitted(TRUE, 0.0, 0, repeats=1).latency
    for name in ("prefill_constant_ns", "prefill_token_ns", "prefill_attention_ps"):
        assert getattr(latency, name) == pytest.approx(getattr(TRUE, name), rel=1e-3), name
    assert [latency.decode_ns(b, 500) for b in (1, 2, 3, 4, 6, 8)] == pytest.approx(
        [TRUE.decode_ns(b, 500) for b in (1, 2, 3, 4, 6, 8)], rel=1e-3
    )


def test_a_bend_is_made_only_where_it_pays() -> None:
    """Steps on one line in the batch size give one piece, however many sizes were seen."""
    line = attrs.evolve(TRUE, decode=(DecodePiece(1, 3_000_000, 4_000, 200_000),))
    assert len(fitted(line, 0.0, 0, repeats=1).latency.decode) == 1


@pytest.mark.nightly
@pytest.mark.usefixtures("by_night")
def test_noise_makes_no_bend() -> None:
    """Steps around one line give one piece."""
    line = attrs.evolve(TRUE, decode=(DecodePiece(1, 3_000_000, 4_000, 200_000),))
    assert len(fitted(line, 0.05, 1).latency.decode) == 1


def test_held_out_steps_are_not_fitted() -> None:
    """Whatever the held-out scripts say, the coefficients stay; only the residuals notice."""
    steps = measured(TRUE, 0.0, 0, 1)
    slower = [
        attrs.evolve(step, samples=tuple(s._replace(total_ns=2 * s.total_ns) for s in step.samples))
        if step.held_out
        else step
        for step in steps
    ]
    one = calibrated(steps, name="x", source="", kv_capacity_tokens=CAPACITY)
    other = calibrated(slower, name="x", source="", kv_capacity_tokens=CAPACITY)
    assert one.latency == other.latency
    assert [residual.mape for residual in other.residuals] == pytest.approx([0.5, 0.5, 0.5], abs=0.01)
    assert [residual.kind for residual in other.residuals] == list(KINDS)


def test_the_scheduler_has_its_share() -> None:
    """What is not the executor's is the scheduler's: here deciding takes 2 of 10 parts, and the books 1."""
    shape = StepShape(((16, 0),), 0, 0)
    decode = StepShape((), 2, 40)
    steps = [Measured(0, False, of, (StepSample(of, 1000, 700, 200),)) for of in (shape, decode)]
    found = calibrated(steps, name="x", source="", kv_capacity_tokens=CAPACITY)
    assert found.decide_share == pytest.approx(0.2)
    assert found.books_share == pytest.approx(0.1)


def test_too_little_is_an_error() -> None:
    """Without a pure decode step, or without a pure prefill step, there is nothing to fit."""
    prefill = TimedStep(StepShape(((16, 0),), 0, 0), 1e6, 0)
    decode = TimedStep(StepShape((), 2, 40), 1e6, 0)
    for points in ([prefill], [decode], [TimedStep(StepShape(((16, 0),), 2, 40), 1e6, 0), decode]):
        with pytest.raises(ValueError, match="both are needed"):
            fit(points, name="x", source="", kv_capacity_tokens=CAPACITY)


def test_a_script_that_changes_is_an_error() -> None:
    """A policy that does other steps in another repeat cannot be timed, and is told so."""
    calls = 0

    def fickle(tokens: int) -> ComposedPolicy:
        nonlocal calls
        calls += 1
        return policy_of(tokens + calls)

    clock = FakeClock()
    calibrator = Calibrator(
        PricedExecutor(clock, TRUE), fickle, clock, kv_capacity_tokens=CAPACITY, vocab_size=VOCABULARY, page_tokens=16
    )
    with pytest.raises(ValueError, match="script 'one'"):
        calibrator.measure([TimingScript("one", (Admit((60,)), Steps(8)))], 2)


@pytest.mark.parametrize(("capacity", "batch_max", "chunk_max"), [(16, 2, 1), (64, 8, 512), (100_000, 256, 2048)])
def test_scripts_fit_any_engine(capacity: int, batch_max: int, chunk_max: int) -> None:
    """Prompts are inside the capacity, batches inside their limit, and two scripts are held out, whatever the sizes."""
    made = scenarios(capacity, batch_max, chunk_max, 0)
    assert sum(script.held_out for script in made) == 2
    for script in made:
        prompts = [tokens for action in script.actions if isinstance(action, Admit) for tokens in action.prompts]
        assert prompts
        assert all(1 <= tokens < capacity for tokens in prompts)
    assert scenarios(capacity, batch_max, chunk_max, 0) == made
    assert scenarios(capacity, batch_max, chunk_max, 1) != made
