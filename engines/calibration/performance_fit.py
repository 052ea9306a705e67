"""Aladdin's lines by least squares, with what they miss: memory, prefill and decode from what was timed.

Source: Aladdin, equations 1 to 5, which states errors of 4, 5 and 1 % for its lines of prefill, decode and memory.
Each line is fitted on relative errors, since a short iteration should be as well known as a long one.  What is fitted
are the steps of an engine.  The times of a latency model with more terms, or of a published profile, are brought to
Aladdin's terms in the same way.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fairsched.engines.calibration.least_squares import Floats, non_negative
from fairsched.model.machine import DecodePiece, LatencyModel, Performance

PROMPTS = (32, 64, 128, 256, 512, 1024, 2048)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (64, 128, 256, 512, 1024, 2048)
"""What a latency model is asked: prompts in one iteration, requests that decode, and the context of each."""

PUBLISHED_PROMPTS = (128, 512, 1024, 2048, 4096)
PUBLISHED_BATCHES = (1, 4, 16, 64)
PUBLISHED_CONTEXTS = (512, 2048)
"""What a published profile is asked: prompts alone, and batches that decode over so much context each."""

Estimate = Callable[..., Any]
"""`aiconfigurator.cli.api.cli_estimate`, or what answers like it: `ttft` and `tpot` in milliseconds."""


@attrs.frozen
class Iteration:
    """Something that was timed: `prompts` computed whole, or `batch` requests decoding over `context_tokens`."""

    ns: float
    prompts: tuple[int, ...] = ()
    batch: int = 0
    context_tokens: int = 0


@attrs.frozen
class LineErrors:
    """How far a line is from what was timed, relative: on average, and at worst with its sign."""

    points: int
    mean: float
    worst: float


@attrs.frozen
class PerformanceFit:
    """Lines with integer coefficients, and the errors of each; `kv` is None where no memory was measured."""

    performance: Performance
    prefill: LineErrors
    decode: LineErrors
    kv: LineErrors | None = None


def fit_performance(iterations: Iterable[Iteration], memory: Sequence[tuple[int, int]] = ()) -> PerformanceFit:
    """Return the lines nearest to what was timed.  `memory` has (tokens, what they took); without it KV is counted in
    tokens.

    Raises `ValueError` with fewer than two iterations that only prefill, or three that only decode.
    """
    every = list(iterations)
    prefills = [each for each in every if each.prompts and not each.batch]
    decodes = [each for each in every if each.batch and not each.prompts]
    if len(prefills) < 2 or len(decodes) < 3:
        raise ValueError(
            f"{len(prefills)} iterations of prefill and {len(decodes)} of decode were timed; lines need 2 and 3"
        )
    prefill_x = _columns([(sum(each.prompts), 1) for each in prefills])
    decode_x = _columns([(each.context_tokens, each.batch, 1) for each in decodes])
    prefill, prefill_errors = _line(prefill_x, [each.ns for each in prefills])
    decode, decode_errors = _line(decode_x, [each.ns for each in decodes])
    kv, kv_errors = [1, 0], None
    if memory:
        kv, kv_errors = _line(_columns([(tokens, 1) for tokens, _ in memory]), [float(took) for _, took in memory])
    return PerformanceFit(Performance(*prefill, *decode, *kv), prefill_errors, decode_errors, kv_errors)


def asked(latency: LatencyModel, prompts: Sequence[int] = PROMPTS) -> list[Iteration]:
    """Return what a latency model says of a grid of iterations, none with more KV than a worker has."""
    found = []
    for tokens in prompts:
        for count in (1, 2, 4):
            if tokens * count <= latency.kv_capacity_tokens:
                found.append(Iteration(latency.step_ns([(tokens, 0)] * count, 0, 0), (tokens,) * count))
    for batch in BATCHES:
        for each in CONTEXTS:
            if batch * each <= latency.kv_capacity_tokens:
                ns = latency.decode_ns(batch, batch * each)
                found.append(Iteration(ns, batch=batch, context_tokens=batch * each))
    return found


def fit_scaling(times: Sequence[tuple[int, float]]) -> tuple[float, float, LineErrors]:
    """Equation 5 from (accelerators, ns): a / N + b, and its errors.

    Computation k4 / N + c4 and communication k (N - 1) / N together are (k4 - k) / N + (c4 + k): a line in 1 / N, from
    which neither can be told.  Raises `ValueError` with fewer than two sizes.
    """
    if len({size for size, _ in times}) < 2:
        raise ValueError("how iterations shrink with a worker's size takes two sizes")
    x = _columns([(1 / size, 1) for size, _ in times])
    a, b = _solved(x, np.array([ns for _, ns in times]))
    return a, b, _errors(x @ np.array([a, b]), np.array([ns for _, ns in times]))


def scaled_latency(sizes: Mapping[int, LatencyModel], accelerators: int) -> LatencyModel:
    """Return a worker of a size that was not timed: equation 5 through the lines of those that were, by accelerators.

    Each coefficient is a / N + b, and KV a line in N, as each accelerator adds its memory and the weights take theirs
    once.  How far that is from a size that was timed can be seen by leaving it out.  Raises `ValueError` with
    fewer than two sizes, and `ValueError` if there is no memory left for KV.
    """
    lines = {n: fit_performance(asked(latency)).performance for n, latency in sizes.items()}

    def at(name: str) -> int:
        a, b, _ = fit_scaling([(n, float(max(getattr(p, name), 1))) for n, p in lines.items()])
        return max(round(a / accelerators + b), 0)

    of_size = Performance(**{field.name: at(field.name) for field in attrs.fields(Performance)})
    slope, constant = np.polyfit(list(sizes), [latency.kv_capacity_tokens for latency in sizes.values()], 1)
    capacity = round(slope * accelerators + constant)
    timed = ", ".join(f"{latency.name} ({n})" for n, latency in sizes.items())
    name = f"{accelerators} GPUs by equation 5"
    if capacity < 1:
        raise ValueError(f"{name}: from {timed}, the weights leave no memory for KV")
    return _latency(of_size, name, timed, capacity, accelerators)


def _latency(lines: Performance, name: str, source: str, kv_capacity_tokens: int, gpus: int) -> LatencyModel:
    """Return the latency model whose steps take what the lines say."""
    piece = DecodePiece(1, max(lines.decode_constant_ns, 1), lines.context_token_ns, lines.request_ns)
    prefill = lines.prefill_constant_ns, lines.prefill_token_ns
    return LatencyModel(name, source, *prefill, 0, (piece,), kv_capacity_tokens, gpus)


def from_aiconfigurator(
    estimate: Estimate,
    model: str,
    system: str,
    *,
    kv_capacity_tokens: int,
    tensor_parallel: int = 1,
) -> tuple[LatencyModel, PerformanceFit]:
    """Return the latency model of a published profile, and what its lines miss of the profile.

    AIConfigurator and its tables are under Apache-2.0.  The tables are times of single operations (matrix products,
    attention, communication), which the package itself puts together to the time of a step; it is asked for prompts and
    batches of several sizes, and lines are drawn through its answers.

    `model` and `system` are AIConfigurator's names, as "Qwen/Qwen3-8B" and "h100_sxm"; a worker has `tensor_parallel`
    GPUs and room for `kv_capacity_tokens`.  `estimate` is the package's `cli_estimate`, since it is not imported here.
    """
    options: dict[str, Any] = {"backend_name": "vllm", "tp_size": tensor_parallel, "osl": 2}
    iterations = []
    for tokens in PUBLISHED_PROMPTS:
        answer = estimate(model, system, mode="static_ctx", batch_size=1, isl=tokens, **options)
        iterations.append(Iteration(1e6 * answer.ttft, prompts=(tokens,)))
    for batch in PUBLISHED_BATCHES:
        for context in PUBLISHED_CONTEXTS:
            answer = estimate(model, system, mode="static_gen", batch_size=batch, isl=context, **options)
            iterations.append(Iteration(1e6 * answer.tpot, batch=batch, context_tokens=batch * (context + 1)))
    fit = fit_performance(iterations)
    name = f"{model.rpartition('/')[2].lower()}-{system}-tp{tensor_parallel}"
    source = f"AIConfigurator's tables of {model} on {system}, vllm, {tensor_parallel} GPUs a worker"
    lines = attrs.evolve(fit.performance, prefill_constant_ns=max(fit.performance.prefill_constant_ns, 1))
    return _latency(lines, name, source, kv_capacity_tokens, tensor_parallel), fit


def _columns(rows: Sequence[Sequence[float]]) -> Floats:
    return np.array(rows, dtype=np.float64)


def _line(x: Floats, values: Sequence[float]) -> tuple[list[int], LineErrors]:
    """Whole coefficients, none below 0, and the errors of what they say."""
    y = np.array(values, dtype=np.float64)
    whole = [round(value) for value in _solved(x, y)]
    return whole, _errors(x @ np.array(whole, dtype=np.float64), y)


def _solved(x: Floats, y: Floats) -> list[float]:
    """Return coefficients of least relative error, none below 0."""
    found: list[float] = non_negative(x / y[:, None], np.ones(len(y))).tolist()
    return found


def _errors(said: Floats, y: Floats) -> LineErrors:
    relative = said / y - 1
    return LineErrors(len(y), float(np.abs(relative).mean()), float(relative[np.abs(relative).argmax()]))
