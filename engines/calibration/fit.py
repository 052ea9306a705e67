"""From timed steps to a latency model: non-negative least squares on the relative error of each step.

The model is linear in its coefficients but for the larger constant of a mixed step, which is found by fitting again
until it stays the same.  A decode step costs a slope in the batch size, a slope in the context, and a constant that
may differ from size to size: matrix products go by blocks of rows, so that batches of 7 may cost more than batches of
8.  How many constants there are is chosen by cross-validation: more of them must predict scripts that they have not
seen better than fewer do.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from fairsched.engines.calibration.meter import StepShape
from fairsched.model.latency import DecodePiece, LatencyModel

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

FOLDS = 5
GAIN_MIN = 0.02
"""More constants must lower the error on unseen scripts by at least this share of it."""
_ROUNDING = 1e-6
_ROUNDS_MAX = 8
_PREFILL_CONSTANT, _TOKEN, _PRODUCT, _CONTEXT, _REQUEST, _CONSTANTS = range(6)
"""Columns: the coefficients of prefill, the slopes of decode, and from `_CONSTANTS` on a constant for each piece."""


class TimedStep(NamedTuple):
    """A step and its typical duration.  Points of one scenario are held out together."""

    shape: StepShape
    ns: float
    scenario: int


class FitError(ValueError):
    """Too little was measured to say what a step costs."""


def fit(points: Sequence[TimedStep], *, name: str, source: str, kv_capacity_tokens: int) -> LatencyModel:
    """Return the latency model nearest to the points.  Raises `FitError` without pure prefill and pure decode steps."""
    kinds = [point.shape.kind for point in points]
    if "prefill" not in kinds or "decode" not in kinds:
        raise FitError(
            f"{kinds.count('prefill')} pure prefill and {kinds.count('decode')} pure decode steps were measured; "
            "both are needed"
        )
    steps = _Steps(points)
    starts = _starts(steps)
    whole = [round(value) for value in _solved(steps, starts, np.ones(len(points), dtype=np.bool_)).tolist()]
    return LatencyModel(
        name=name,
        source=source,
        prefill_constant_ns=max(whole[_PREFILL_CONSTANT], 1),
        prefill_token_ns=whole[_TOKEN],
        prefill_attention_ps=whole[_PRODUCT],
        decode=tuple(
            # No step takes no time: a leap divides by the duration of its first step.
            DecodePiece(start, max(constant, 1), whole[_CONTEXT], whole[_REQUEST])
            for start, constant in zip(starts, whole[_CONSTANTS:], strict=True)
        ),
        kv_capacity_tokens=kv_capacity_tokens,
        # What is measured here is an engine on one device.
        gpus=1,
    )


class _Steps:
    """The points as columns."""

    def __init__(self, points: Sequence[TimedStep]) -> None:
        shapes = [point.shape for point in points]
        products = [sum(n * (before + n) for n, before in shape.chunks) for shape in shapes]
        self.ns = np.array([point.ns for point in points])
        self.scenario = np.array([point.scenario for point in points])
        self.tokens = np.array([sum(n for n, _ in shape.chunks) for shape in shapes], dtype=np.float64)
        self.products = np.array(products, dtype=np.float64) / 1e3
        self.batch = np.array([shape.batch for shape in shapes])
        self.context = np.array([shape.context_tokens for shape in shapes], dtype=np.float64)
        self.prefills = self.tokens > 0
        self.mixed = self.prefills & (self.batch > 0)

    def piece(self, starts: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return which piece each step is of."""
        pieces: npt.NDArray[np.int64] = np.searchsorted(starts, np.maximum(self.batch, 1), side="right") - 1
        return pieces


def _rows(steps: _Steps, starts: Sequence[int], from_prefill: Mask) -> Floats:
    """Return what each coefficient is multiplied with; `from_prefill`: whose constant is that of prefill."""
    rows = np.zeros((len(steps.ns), _CONSTANTS + len(starts)))
    rows[:, _PREFILL_CONSTANT] = from_prefill
    rows[:, _TOKEN] = steps.tokens
    rows[:, _PRODUCT] = steps.products
    rows[:, _CONTEXT] = steps.context
    rows[:, _REQUEST] = steps.batch
    rows[np.arange(len(rows)), _CONSTANTS + steps.piece(starts)] = ~from_prefill
    return rows


def _from_prefill(steps: _Steps, starts: Sequence[int], solution: Floats) -> Mask:
    """Whose constant is that of prefill: a mixed step has the larger one."""
    larger = solution[_PREFILL_CONSTANT] >= solution[_CONSTANTS + steps.piece(starts)]
    of_prefill: Mask = steps.prefills & (~steps.mixed | larger)
    return of_prefill


def _solved(steps: _Steps, starts: Sequence[int], kept: Mask) -> Floats:
    """Coefficients of least relative error on the steps that are kept, none below zero."""
    from_prefill, solution = steps.prefills, np.zeros(0)
    for _ in range(_ROUNDS_MAX):
        rows = (_rows(steps, starts, from_prefill) / steps.ns[:, None])[kept]
        scale = np.linalg.norm(rows, axis=0)
        scale[scale == 0] = 1.0
        solution = nnls(rows / scale, np.ones(len(rows)))[0] / scale
        again = _from_prefill(steps, starts, solution)
        if (again == from_prefill).all():
            break
        from_prefill = again
    return solution


def _starts(steps: _Steps) -> list[int]:
    """Batch sizes at which pieces begin, the first 1: one piece, one for each doubling, or one for each size."""
    sizes = sorted({1, *steps.batch[steps.batch > 0].tolist()})
    doubling = [size for i, size in enumerate(sizes) if i == 0 or size.bit_length() > sizes[i - 1].bit_length()]
    # A size at which nothing only decodes has no constant of its own.
    seen = set(steps.batch[~steps.prefills].tolist())
    chosen = [1]
    error = _error(steps, chosen)
    for finer in (doubling, sizes):
        starts = [1, *(size for size in finer[1:] if size in seen)]
        lower = _error(steps, starts)
        if lower < error * (1 - GAIN_MIN) - _ROUNDING:
            chosen, error = starts, lower
    return chosen


def _error(steps: _Steps, starts: Sequence[int]) -> float:
    """Mean relative error of pure decode steps of scripts that were held out, each once."""
    scenarios = np.unique(steps.scenario)
    folds = min(FOLDS, len(scenarios))
    errors: list[float] = []
    for fold in range(folds):
        held_out = np.isin(steps.scenario, scenarios[fold::folds])
        kept = ~held_out if folds > 1 else held_out  # One script is all there is.
        solution = _solved(steps, starts, kept)
        said = _rows(steps, starts, _from_prefill(steps, starts, solution)) @ solution
        judged = held_out & ~steps.prefills
        errors.extend((np.abs(said - steps.ns)[judged] / steps.ns[judged]).tolist())
    return float(np.mean(errors))
