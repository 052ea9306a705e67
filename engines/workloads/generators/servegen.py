"""`servegen:DIR`: ServeGen's clients of a production cluster (Alibaba; Apache-2.0), as its repository keeps them.

DIR is a model's folder, with two files a client: `chunk-N-trace.csv` has for each window of ten minutes the rate and
the law of the gaps between requests (Gamma or Weibull, with shape and scale), and `chunk-N-dataset.json` has
distributions of lengths for some hours each.  Within a window a client sends as many requests as its rate says (a
fraction is rounded up or down by chance), with gaps of its law stretched to the window.  All lengths of a request are
the same quantile of their distributions, as ServeGen draws them.  Prompts share nothing, since the data say nothing of
prefixes.
"""

import csv
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import attrs
import msgspec
import numpy as np
import numpy.typing as npt

from fairsched.engines.workloads.errors import TraceError, WorkloadError
from fairsched.engines.workloads.sampling import LlmCall, Number, Program, Rate, Size, about, workload_of
from fairsched.model.request import TOKENS_MAX, Prompt, Workload

SPAN_S_MAX = 10**7
REQUESTS_MAX = 10**7
LAWS = ("Gamma", "Weibull")
PROMPT = ("input_tokens", "text_tokens")
"""What a prompt's text is called; media come on top, as many as `image_count` and so on say."""
MEDIA = ("image", "audio", "video")

_CHUNK = re.compile(r"chunk-(\d+)-trace\.csv")
_Distribution = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
"""Values, and the probability of each or less."""


@attrs.frozen
class _Window:
    """A stretch of time of one client: when it begins and ends, requests a second, and the law of gaps."""

    start_s: int
    end_s: int
    rate: float
    law: str
    shape: float


@attrs.frozen
class _Client:
    """A client's windows with requests in them, and its lengths by when they begin to hold."""

    number: int
    windows: tuple[_Window, ...]
    starts_s: tuple[int, ...]
    lengths: tuple[Mapping[str, _Distribution], ...]


def servegen(
    *,
    seed: int = 0,
    folder: Annotated[str, about("folder of a model's clients; may stand first: servegen:DIR")] = "",
    start: Annotated[
        int, msgspec.Meta(ge=0, le=SPAN_S_MAX, description="second of the data at which the workload begins")
    ] = 0,
    duration: Annotated[int, msgspec.Meta(ge=1, le=SPAN_S_MAX, description="seconds of the data")] = 600,
    clients: Annotated[Number | None, about("only so many clients, those of the highest rate")] = None,
    rate: Annotated[Rate | None, about("requests a second of all, in the clients' shares; null: the data's")] = None,
    max_output_tokens: Annotated[
        Size | None, about("declared limit of outputs; null: the largest that is drawn")
    ] = None,
) -> Workload:
    """Return the workload of a folder of clients."""
    if not folder:
        raise WorkloadError(
            "workload servegen: expected the folder of a model's clients, as servegen:data/language/m-large"
        )
    asked = sorted(_clients(Path(folder), start, start + duration), key=_requests, reverse=True)[:clients]
    total = sum(map(_requests, asked))
    if not total:
        raise WorkloadError(f"{folder}: no client sends a request from second {start:,} to {start + duration:,}")
    factor = 1.0 if rate is None else rate * duration / total
    if total * factor > REQUESTS_MAX:
        raise WorkloadError(f"{folder}: {total * factor:,.0f} requests are more than {REQUESTS_MAX:,}")
    programs: list[Program] = []
    names: list[str] = []
    for client in asked:
        rng = np.random.default_rng((seed, client.number))
        drawn = [each for window in client.windows for each in _drawn(rng, client, window, factor)]
        for at_ns, prompt, output in drawn:
            output = output if max_output_tokens is None else min(output, max_output_tokens)
            programs.append(Program(len(names), at_ns - start * 10**9, (LlmCall(Prompt(prompt), output),)))
        names += [f"client-{client.number}"] if drawn else []
    if not programs:
        raise WorkloadError(f"{folder}: no request at so low a rate")
    most = max_output_tokens or max(program.calls[0].output_tokens for program in programs)
    note = f"ServeGen's clients of {Path(folder).name}, seconds {start:,} to {start + duration:,} of the data."
    return workload_of("servegen", programs, names, most, notes=(note,))


def _requests(client: _Client) -> float:
    return sum(window.rate * (window.end_s - window.start_s) for window in client.windows)


def _drawn(rng: np.random.Generator, client: _Client, window: _Window, factor: float) -> Iterator[tuple[int, int, int]]:
    """Time in nanoseconds, prompt and output of each request of a window."""
    span_s = window.end_s - window.start_s
    count = int(window.rate * factor * span_s + rng.random())
    draw = rng.gamma if window.law == "Gamma" else rng.weibull
    times = np.cumsum(draw(window.shape, size=count + 1))
    if not (count and times[-1] > 0):
        return
    times_ns = (times[:-1] * (span_s * 1e9 / times[-1])).astype(np.int64) + window.start_s * 10**9
    lengths = client.lengths[max(bisect_right(client.starts_s, window.start_s) - 1, 0)]
    quantiles = rng.random(count)
    drawn = {name: _at(found, quantiles) for name, found in lengths.items()}
    prompts = next(drawn[name] for name in PROMPT if name in drawn)
    for medium in MEDIA:
        counts, sizes = drawn.get(f"{medium}_count"), lengths.get(f"{medium}_tokens")
        if counts is not None and sizes is not None:
            each = _at(sizes, rng.random(int(counts.sum())))
            prompts = prompts + np.bincount(np.repeat(np.arange(count), counts), each, count).astype(np.int64)
    prompts, outputs = (np.clip(found, 1, TOKENS_MAX) for found in (prompts, drawn["output_tokens"]))
    yield from zip(times_ns.tolist(), prompts.tolist(), outputs.tolist(), strict=True)


def _at(found: _Distribution, quantiles: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    values, reached = found
    drawn: npt.NDArray[np.int64] = values[
        np.minimum(np.searchsorted(reached, quantiles * reached[-1], side="right"), len(values) - 1)
    ]
    return drawn


# --- reading ----------------------------------------------------------------------------------------------------------


def _clients(folder: Path, start_s: int, end_s: int) -> Iterator[_Client]:
    """Yield the clients that send something in a span of time.  Raises `TraceError`."""
    try:
        numbers = sorted(int(found[1]) for path in folder.iterdir() if (found := _CHUNK.fullmatch(path.name)))
    except OSError as error:
        raise TraceError(folder, None, None, "a readable folder", (error.strerror or str(error)).lower()) from None
    if not numbers:
        raise TraceError(folder, None, None, "files chunk-N-trace.csv and chunk-N-dataset.json", "none")
    for number in numbers:
        windows = tuple(_windows(folder / f"chunk-{number}-trace.csv", start_s, end_s))
        if windows:
            lengths = _lengths(folder / f"chunk-{number}-dataset.json")
            yield _Client(number, windows, tuple(lengths), tuple(lengths.values()))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TraceError(path, None, None, "a readable file", (error.strerror or str(error)).lower()) from None
    except UnicodeDecodeError:
        raise TraceError(path, None, None, "UTF-8 text", "other bytes") from None


def _windows(path: Path, start_s: int, end_s: int) -> Iterator[_Window]:
    """Yield the windows with requests, cut to a span of time."""
    rows: list[tuple[int, float, str, float]] = []
    for number, values in enumerate(csv.reader(_text(path).splitlines()), 1):
        expected = "second, rate, variation, Gamma or Weibull or nothing, shape, scale"
        try:
            at, rate, _, law, shape, _ = values
            row = (int(at), float(rate), law, float(shape))
        except ValueError:
            raise TraceError(path, number, None, expected, ",".join(values)) from None
        sends = row[1] > 0
        if not 0 <= row[1] <= 1e6 or row[0] < 0 or (sends and (law not in LAWS or not 0 < row[3] < 1e6)):
            raise TraceError(path, number, None, expected, ",".join(values))
        if rows and row[0] <= rows[-1][0]:
            raise TraceError(path, number, None, f"a second after the row before's, {rows[-1][0]}", at)
        rows.append(row)
    ends = [row[0] for row in rows[1:]]
    ends += [2 * rows[-1][0] - rows[-2][0] if len(rows) > 1 else end_s] if rows else []
    for (at_s, rate_there, law, shape_there), until_s in zip(rows, ends, strict=True):
        first, last = max(at_s, start_s), min(until_s, end_s)
        if rate_there > 0 and first < last:
            yield _Window(first, last, rate_there, law, shape_there)


def _lengths(path: Path) -> dict[int, dict[str, _Distribution]]:
    """Return the distributions of lengths by the second from which they hold, in order; empty ones are left out."""
    expected = "by second and kind of length a distribution, as {12: 0.25, 80: 0.75}"
    try:
        document = msgspec.json.decode(_text(path), type=dict[str, dict[str, str]])
        found = {
            int(second): {name: _distribution(text) for name, text in kinds.items() if name != "reason_ratio"}
            for second, kinds in document.items()
            if all(text.strip() != "{}" for text in kinds.values())
        }
    except (msgspec.DecodeError, ValueError) as error:
        raise TraceError(path, None, None, expected, str(error)) from None
    for second, kinds in found.items():
        if "output_tokens" not in kinds or not any(name in kinds for name in PROMPT):
            raise TraceError(path, None, str(second), f"output_tokens, and {' or '.join(PROMPT)}", ", ".join(kinds))
    if not found:
        raise TraceError(path, None, None, expected, "none, of a client that sends requests")
    return dict(sorted(found.items()))


def _distribution(text: str) -> _Distribution:
    """Return what is written as {value: probability, ...}.  Raises `ValueError`."""
    pairs = [pair.split(":") for pair in text.strip().removeprefix("{").removesuffix("}").split(",")]
    values = np.array([int(value) for value, _ in pairs], dtype=np.int64)
    weights = np.array([float(weight) for _, weight in pairs])
    order = np.argsort(values)
    if values.min() < 0 or not (weights >= 0).all() or not 0 < weights.sum() < 1e6:
        raise ValueError(f"values below 0, or no probabilities: {text[:40]}")
    return values[order], np.cumsum(weights[order])
