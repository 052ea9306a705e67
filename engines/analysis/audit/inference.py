"""First tokens of calls that do not stream, inferred from calls that do. Read `first_tokens` first.

A proxy sees the first token of a call only if the call streams.  Of one that does not, the log has the arrival, the end
and the number of output tokens.  An engine that batches continuously gives every running request one token a step.  So
a call that does not stream is taken to produce its tokens at the speed that streaming calls of the same model had on
the same worker at the same time, back from its end: what is left before the first of them is its wait.  Where no
streaming call was running, the speed is their mean while about as many calls were at the server.

**The error** is measured.  Of each streaming call the first token is inferred from four fifths of the others and held
against the one that the log has.  Errors grow with the length of an answer, and calls that do not stream may have
longer ones.  So each inferred call gets a *margin*: what 95 % of the errors at its length were below; beyond the
lengths that streamed, in proportion; twice that of the cruder speed while no streaming call was running.  Nothing is
inferred of a model with fewer than `STREAMING_MIN` streaming calls, or where the mean margin is more than `MARGIN_MAX`
of the mean latency of the calls that it is for.
"""

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.logs.access import UNKNOWN, AccessLog
from fairsched.model.service import Ints

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

STREAMING_MIN = 50
"""So many calls of a model must stream before anything is inferred from them."""
MARGIN_MAX = 0.5
"""A mean margin above this share of the mean latency is too much."""
ONE_PIECE_TOKENS = 16
"""No engine makes so many tokens at once: an answer whose first token came at its end came in one piece.  Where a log
has one of so many tokens, it has the end in place of a first token for all that came in one piece."""
_WORKER_MIN = 20
"""So many streaming calls of a worker tell its own speed; with fewer, those of all workers do."""
_UNSEEN = 2
"""Margins are so many times larger where no streaming call was running."""
_LEAST_NS = 1_000
"""No inferred time is exact."""
_FOLDS = 5
_PART = 25
_PARTS_MAX = 8


@attrs.frozen
class Inference:
    """What was done about the calls of one model without a first token, and how sure that is.

    Of `calls` such calls, first tokens were inferred from `streaming` others (`done`), or not, and `reason` says why.
    `error_p50_us` and `error_p95_us` are absolute errors on streaming calls that were held out; `margin_us` is the mean
    margin of the inferred calls; `wait_p99_us` and `wait_p99_inferred_us` are the p99 wait of the streaming calls as
    the log has it, and as it would have been inferred.
    """

    model: str | None
    calls: int
    streaming: int
    done: bool
    reason: str = ""
    error_p50_us: float | None = None
    error_p95_us: float | None = None
    margin_us: float | None = None
    wait_p99_us: float | None = None
    wait_p99_inferred_us: float | None = None

    def to_json(self) -> dict[str, Any]:
        return attrs.asdict(self)


@attrs.frozen(eq=False)
class FirstTokens:
    """The first token of each row: `first_ns` is UNKNOWN where it is neither told nor inferred.

    `margin_ns` is the error to be allowed for; 0 where the log has the first token.
    """

    first_ns: Ints
    margin_ns: Ints
    inferences: tuple[Inference, ...]


def first_tokens(log: AccessLog) -> FirstTokens:
    """Return the first tokens that the log has, and those that can be inferred.  O(n log n)."""
    at_end = log.first_ns == log.end_ns
    at_end &= bool((at_end & (log.output >= ONE_PIECE_TOKENS)).any())
    told = (log.first_ns != UNKNOWN) & (log.streamed != 0) & ~at_end
    # An answer of one token is complete with its first.
    single = ~told & (log.output == 1)
    first = np.where(told, log.first_ns, np.where(single, log.end_ns, UNKNOWN))
    margin = np.zeros_like(first)
    asked = ~told & (log.output > 1)
    found = []
    for model in np.unique(log.model[asked]).tolist():
        of_model = log.model == model
        rows = np.flatnonzero(asked & of_model)
        known = np.flatnonzero(told & of_model & (log.output > 1) & (log.end_ns > log.first_ns))
        name = None if model == UNKNOWN else log.models[model]
        if len(known) < STREAMING_MIN:
            reason = f"{len(known):,} calls stream, and it takes {STREAMING_MIN}"
            found.append(Inference(name, len(rows), len(known), False, reason))
            continue
        said, inferred, margins = _infer(log, known, rows)
        found.append(attrs.evolve(said, model=name))
        if said.done:
            first[rows], margin[rows] = inferred, margins
    return FirstTokens(first, margin, tuple(found))


def left_queue(log: AccessLog) -> Mask:
    """Return whether the log has the time at which each request left the queue, and not only its first token."""
    known: Mask = (log.served_ns != UNKNOWN) & (log.served_ns != log.first_ns)
    return known


def _infer(log: AccessLog, known: Ints, rows: Ints) -> tuple[Inference, Ints, Ints]:
    """Return what is said of the inference, the first tokens of `rows`, and their margins, from the calls `known`."""
    estimate, by_level = np.zeros((2, len(known)))
    for fold in range(_FOLDS):
        held = np.arange(len(known)) % _FOLDS == fold
        estimate[held], _, by_level[held] = _estimated(log, known[~held], known[held])
    truth = log.first_ns[known]
    length = log.output[known]
    errors, level_errors = np.abs(estimate - truth), np.abs(by_level - truth)
    inferred, covered, _ = _estimated(log, known, rows)
    margins = covered * _margins(length, errors, log.output[rows])
    # Where no streaming call was running, the error is that of going by the level alone; there it was not measured.
    margins += (1 - covered) * _UNSEEN * _margins(length, level_errors, log.output[rows])
    latency = float((log.end_ns - log.arrival_ns)[rows].mean())
    share = float(margins.mean()) / latency if latency else 1.0
    waits = log.arrival_ns[known]
    said = Inference(
        model=None,
        calls=len(rows),
        streaming=len(known),
        done=share <= MARGIN_MAX,
        reason=""
        if share <= MARGIN_MAX
        else f"the error would be {100 * share:.0f} % of their latency, and {100 * MARGIN_MAX:.0f} % is the limit",
        error_p50_us=_percentile(errors, 50) / 1e3,
        error_p95_us=_percentile(errors, 95) / 1e3,
        margin_us=float(margins.mean()) / 1e3,
        wait_p99_us=_percentile(truth - waits, 99) / 1e3,
        wait_p99_inferred_us=_percentile(estimate - waits, 99) / 1e3,
    )
    return said, np.rint(inferred).astype(np.int64), np.maximum(np.ceil(margins), _LEAST_NS).astype(np.int64)


def _percentile(values: npt.NDArray[Any], percent: int) -> float:
    return float(np.percentile(values, percent, method="inverted_cdf"))


def _margins(length: Ints, errors: Floats, of: Ints) -> Floats:
    """Return what 95 % of the errors are below at each of the lengths `of`: never less for a longer answer."""
    order = np.argsort(length, kind="stable")
    parts = np.array_split(order, int(np.clip(len(order) // _PART, 1, _PARTS_MAX)))
    lengths = np.array([float(length[part].mean()) for part in parts])
    highest = np.maximum.accumulate([_percentile(errors[part], 95) for part in parts])
    found: Floats = np.interp(of, lengths, highest) * np.maximum(of / lengths[-1], 1.0)
    return found


def _estimated(log: AccessLog, known: Ints, rows: Ints) -> tuple[Floats, Floats, Floats]:
    """Return the first tokens of `rows` by the calls `known`, the share of each one's outputs during which one of these
    ran, and the first tokens by the number of calls at the server alone."""
    estimate, by_level, covered = np.empty((3, len(rows)))
    queued = left_queue(log)
    for worker in np.unique(log.worker[rows]).tolist():
        here = np.flatnonzero(log.worker[rows] == worker)
        of_worker = known[log.worker[known] == worker]
        enough = len(of_worker) >= _WORKER_MIN
        speed = _Speed(log, of_worker if enough else known, log.worker == worker if enough else log.worker >= 0)
        mine = rows[here]
        earliest = np.where(queued, log.served_ns, log.arrival_ns)[mine]
        end, tokens = log.end_ns[mine], log.output[mine] - 1
        estimate[here] = np.clip(speed.back(speed.seen, end, tokens), earliest, end)
        by_level[here] = np.clip(speed.back(speed.by_level, end, tokens), earliest, end)
        covered[here] = speed.covered(estimate[here], end)
    return estimate, covered, by_level


class _Speed:
    """Tokens that a running call has got until each time.

    `seen` is by the mean speed of the streaming calls that ran at each time; where none did, and in `by_level` always,
    by the mean speed there was while about as many calls were at the server.
    """

    def __init__(self, log: AccessLog, known: Ints, calls: Mask) -> None:
        first, end, tokens = log.first_ns[known], log.end_ns[known], log.output[known] - 1
        came, left = log.arrival_ns[calls], log.end_ns[calls]
        grid = np.sort(np.concatenate((came, left, first, end)))  # np.unique takes three times as long
        grid = grid[np.append(True, np.diff(grid) > 0)]
        # Times count from the first of them, for floats to hold them exactly.
        self.origin = int(grid[0])
        self.times = (grid - self.origin).astype(np.float64)
        length = np.diff(self.times)
        running = _stacked(grid, first, end, np.ones(len(known)))
        total = _stacked(grid, first, end, tokens / (end - first))
        ran = running > 0.5
        speed = np.where(ran, total / np.maximum(running, 1.0), 0.0)
        level = _of_level(_stacked(grid, came, left, np.ones(len(came))), speed, length * running)
        self.seen = np.concatenate(([0.0], np.cumsum(np.where(ran, speed, level) * length)))
        self.by_level = np.concatenate(([0.0], np.cumsum(level * length)))
        self.busy = np.concatenate(([0.0], np.cumsum(length * ran)))

    def back(self, produced: Floats, end: Ints, tokens: Ints) -> Floats:
        """Return when a call that ends then had so many tokens less; no sooner than anything in the log."""
        at = np.interp(end - self.origin, self.times, produced) - tokens
        found: Floats = np.interp(at, produced, self.times) + self.origin
        return found

    def covered(self, start: Floats, end: Ints) -> Floats:
        """Return the share of each time during which a streaming call ran."""
        busy = np.interp(end - self.origin, self.times, self.busy)
        busy -= np.interp(start - self.origin, self.times, self.busy)
        found: Floats = np.clip(busy / np.maximum(end - start, 1.0), 0.0, 1.0)
        return found


def _stacked(grid: Ints, start: Ints, stop: Ints, amount: Floats) -> Floats:
    """Return the sum of the amounts that are there between each two times of the grid."""
    begun, ended = (np.bincount(np.searchsorted(grid, when), amount, len(grid)) for when in (start, stop))
    total: Floats = np.cumsum(begun - ended)[:-1]
    return total


def _of_level(level: Floats, speed: Floats, weight: Floats) -> Floats:
    """Return the mean speed at about each level, by `_PARTS_MAX` groups of levels with equal weight."""
    order = np.argsort(level, kind="stable")
    order = order[weight[order] > 0.5]
    before = np.cumsum(weight[order]) - weight[order]
    part = (before * (_PARTS_MAX / weight[order].sum())).astype(np.int64)
    sums = [np.bincount(part, values * weight[order]) for values in (level[order], speed[order], np.ones(len(order)))]
    there = sums[2] > 0
    found: Floats = np.interp(level, sums[0][there] / sums[2][there], sums[1][there] / sums[2][there])
    return found
