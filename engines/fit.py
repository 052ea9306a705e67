"""From timed steps to a latency model: non-negative least squares on the relative error of each step.

Prefill and mixed steps are fitted together, pure decode steps by themselves.  A decode step's cost is a slope in the
context and, in the batch size, a line through knots: matrix products step with the number of rows, so that batches of
7 may cost more than batches of 8.  How many knots there are is chosen by cross-validation: more of them must predict
scripts that they have not seen better than fewer do.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import attrs
import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from fairsched.engines.meter import StepShape
from fairsched.model.latency import DecodePiece, LatencyModel, MixedStep

Floats = npt.NDArray[np.float64]

FOLDS = 5
GAIN_MIN = 0.05
"""More knots must lower the error on unseen scripts by at least this share of it."""


class Point(NamedTuple):
    """A step and its typical duration.  Points of one scenario are held out together."""

    shape: StepShape
    ns: float
    scenario: int


class FitError(ValueError):
    """Too little was measured to say what a step costs."""


def fit(points: Sequence[Point], *, name: str, source: str, kv_capacity_tokens: int) -> LatencyModel:
    """The latency model nearest to the points.  Raises `FitError` without pure prefill and pure decode steps."""
    prefills = [point for point in points if point.shape.chunks]
    decodes = [point for point in points if not point.shape.chunks]
    mixed = [point for point in prefills if point.shape.batch]
    if not decodes or len(mixed) == len(prefills):
        raise FitError(
            f"{len(prefills) - len(mixed)} pure prefill and {len(decodes)} pure decode steps were measured; "
            "both are needed"
        )
    constant, chunk, token, context, attention, *added = _whole(_solved(_prefill_rows(prefills), _ns(prefills)))
    return LatencyModel(
        name=name,
        source=source,
        prefill_constant_ns=max(constant, 1),
        prefill_token_ns=token,
        prefill_attention_ps=attention,
        decode=_pieces(decodes),
        kv_capacity_tokens=kv_capacity_tokens,
        prefill_chunk_ns=chunk,
        prefill_context_ns=context,
        mixed=MixedStep(*added) if mixed else None,
    )


def _ns(points: Sequence[Point]) -> Floats:
    return np.array([point.ns for point in points])


def _solved(rows: Floats, ns: Floats) -> Floats:
    """Coefficients of least relative error, none below zero."""
    relative = rows / ns[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0] = 1.0
    solution: Floats = nnls(relative / scale, np.ones(len(ns)))[0] / scale
    return solution


def _whole(solution: Floats) -> list[int]:
    return [round(value) for value in solution.tolist()]


# --- steps that prefill ---------------------------------------------------------------------------------------------


def _prefill_rows(points: Sequence[Point]) -> Floats:
    """What each coefficient is multiplied with: five of every step that prefills, and three that decoding adds."""
    rows = []
    for point in points:
        chunks, batch, context = point.shape
        products = sum(n * (before + n) for n, before in chunks)
        before = sum(before for _, before in chunks)
        tokens = sum(n for n, _ in chunks)
        rows.append((1, len(chunks), tokens, before, products / 1e3, batch > 0, context, batch))
    return np.array(rows, dtype=np.float64)


# --- steps that only decode -----------------------------------------------------------------------------------------


def _pieces(points: Sequence[Point]) -> tuple[DecodePiece, ...]:
    knots = _knots(points)
    *values, context = _solved(_decode_rows(points, knots), _ns(points)).tolist()
    # Beyond the last knot it goes on as between the last two.
    slopes = [(v - u) / (b - a) for (a, u), (b, v) in pairwise(zip(knots, values, strict=True))]
    slopes.append(slopes[-1] if slopes else 0.0)
    pieces = [_piece(*bend, context) for bend in zip(knots, values, slopes, strict=True)]
    bends = pieces[:1]
    for piece in pieces[1:]:
        if attrs.evolve(piece, batch_min=bends[-1].batch_min) != bends[-1]:
            bends.append(piece)
    return tuple(bends)


def _piece(knot: int, value: float, slope: float, context: float) -> DecodePiece:
    """The line from a knot on, with no coefficient below zero.

    No step takes no time: a leap divides by the duration of its first step.
    """
    request = min(max(slope, 0.0), value / knot)
    return DecodePiece(knot, max(round(value - request * knot), 1), round(context), round(request))


def _decode_rows(points: Sequence[Point], knots: Sequence[int]) -> Floats:
    """For each knot how near the batch size is to it (linear between two), and the context."""
    batch = np.array([point.shape.batch for point in points], dtype=np.float64)
    context = np.array([point.shape.context_tokens for point in points], dtype=np.float64)
    near = [np.interp(batch, knots, unit) for unit in np.eye(len(knots))]
    return np.stack([*near, context], axis=1)


def _knots(points: Sequence[Point]) -> list[int]:
    """Batch sizes at which the line may bend; the first is 1."""
    sizes = sorted({1} | {point.shape.batch for point in points})
    doubling = [size for i, size in enumerate(sizes) if i == 0 or size.bit_length() > sizes[i - 1].bit_length()]
    chosen = sorted({1, sizes[-1]})
    error = _error(points, chosen)
    for finer in (sorted({*doubling, sizes[-1]}), sizes):
        lower = _error(points, finer)
        if lower < error * (1 - GAIN_MIN):
            chosen, error = finer, lower
    return chosen


def _error(points: Sequence[Point], knots: Sequence[int]) -> float:
    """Mean relative error on scripts that were held out, each once."""
    rows, ns = _decode_rows(points, knots), _ns(points)
    of = np.array([point.scenario for point in points])
    scenarios = np.unique(of)
    folds = min(FOLDS, len(scenarios))
    errors = []
    for fold in range(folds):
        held_out = np.isin(of, scenarios[fold::folds])
        if held_out.all():
            held_out = ~held_out  # One script is all there is.
        said = rows[held_out] @ _solved(rows[~held_out], ns[~held_out])
        errors.extend((np.abs(said - ns[held_out]) / ns[held_out]).tolist())
    return float(np.mean(errors)) if errors else 0.0
