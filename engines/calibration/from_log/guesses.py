"""First guesses of step times, without a simulation: two regressions on what the log shows.

While a request decodes, its server makes as many steps as the request gets tokens.  What they took is linear in the
step's constant, the tokens of all requests in that time, their context, and the prompts that were computed in that time
(which hold decodes up).  The time to a first token of a request that had to wait for no other is linear in its prompt.
"""

import attrs
import numpy as np

from fairsched.engines.calibration.from_log.observed import Floats, Observed, produced
from fairsched.engines.calibration.least_squares import non_negative
from fairsched.model.service import Ints

_ALONE_MIN = 12
"""So many requests that waited for no other tell what a prompt takes; with fewer, those that waited least do."""
_ROUNDS = 6
_TAIL = 0.4
"""A relative error above this counts less."""
BLOCKS = 20
DRAWS = 40
"""How often, and in how many stretches, a log is drawn again to see how far a guess would move."""


@attrs.frozen
class Guesses:
    """The two regressions, as rows: requests while they decode, and first tokens of those that waited for no other."""

    decoding: Floats
    decoding_ns: Floats
    prompts: Floats
    prompts_ns: Floats

    @classmethod
    def of(cls, seen: Observed, workers: int) -> "Guesses":
        """Return them for a log, if there are so many workers."""
        some = seen.of(seen.streams) if bool(seen.streams.any()) else _as_if_streamed(seen)
        return cls(*_decoding(some, workers), *_prompts(some))

    @property
    def times(self) -> tuple[float, ...]:
        if len(self.decoding) < self.decoding.shape[1]:
            decode = np.zeros(5)
        else:
            decode = np.array(robust(self.decoding, self.decoding_ns))
        constant, token, square = robust(self.prompts, self.prompts_ns)
        if token == 0 and square == 0:
            token, square = float(decode[3]), float(decode[4])
        return (max(constant, 1.0), token, square, max(float(decode[0]), 1.0), float(decode[1]), float(decode[2]))

    def spread(self, seed: int = 0, draws: int = DRAWS) -> Floats:
        """Return the standard deviation of each time over logs that might have been: stretches drawn again."""
        rng = np.random.default_rng(seed)
        drawn = []
        for _ in range(draws):
            decode, prompts = (_blocks(rng, len(rows)) for rows in (self.decoding, self.prompts))
            drawn.append(
                Guesses(
                    self.decoding[decode], self.decoding_ns[decode], self.prompts[prompts], self.prompts_ns[prompts]
                ).times
            )
        found: Floats = np.std(np.array(drawn), axis=0)
        return found


def _blocks(rng: np.random.Generator, count: int) -> Ints:
    """Return places of as many rows, in blocks: what happens in a stretch of time hangs together."""
    size = max(count // BLOCKS, 1)
    starts = rng.integers(0, max(count - size, 0) + 1, -(-count // size))
    found: Ints = (starts[:, None] + np.arange(size)).ravel()[:count]
    return found


def guess(seen: Observed, workers: int) -> tuple[float, ...]:
    """Return the times of a step as `COEFFICIENTS`, if there are so many workers."""
    return Guesses.of(seen, workers).times


def workers_hint(seen: Observed) -> float | None:
    """Return how many workers there seem to be: what a prompt takes, by what it costs one that decodes meanwhile.

    On one worker every prompt holds all decodes up; on several, those of its own worker.
    """
    some = seen.of(seen.streams)
    if len(some) < 2 * _ALONE_MIN:
        return None
    guesses = Guesses.of(some, 1)
    _, prompt, square = robust(guesses.prompts, guesses.prompts_ns)
    token = robust(guesses.decoding, guesses.decoding_ns)[3] if len(guesses.decoding) > 2 * _ALONE_MIN else 0.0
    typical = float(np.median(some.prompt))
    own = prompt + square * typical / 1e3
    return None if token <= 0 or own <= 0 else own / token


def _as_if_streamed(seen: Observed) -> Observed:
    """Return requests of which only the end is known with a first token somewhere: a place to start from."""
    share = seen.prompt / (seen.prompt + 20 * seen.output)
    return attrs.evolve(seen, ttft=(seen.latency * share).astype(np.int64))


def _decoding(some: Observed, workers: int) -> tuple[Floats, Floats]:
    """Return, for each request that decoded for a while, the steps, tokens of context and requests in them, and tokens
    of prompts computed meanwhile, with their products; and the time."""
    first, end = some.arrival + some.ttft, some.arrival + some.latency
    steps = (some.output - 1).astype(np.float64)
    ones = np.ones(len(some))
    context = some.prompt + some.output / 2
    prompt = some.prompt.astype(np.float64)

    def during(weights: Floats) -> Floats:
        return produced(some, weights, end) - produced(some, weights, first)

    def computed(amounts: Floats) -> Floats:
        order = np.argsort(first, kind="stable")
        sums = np.concatenate([[0.0], np.cumsum(amounts[order])])
        ranked = first[order]
        until: Floats = sums[np.searchsorted(ranked, end, side="right")]
        before: Floats = sums[np.searchsorted(ranked, first, side="right")]
        return until - before

    share = 1 / workers
    columns = np.column_stack(
        [
            steps,
            steps * context * (1 - share) + during(context) * share,
            steps * (1 - share) + during(ones) * share,
            computed(prompt) * share,
            computed(prompt * prompt / 1e3) * share,
        ]
    )
    kept = (some.output > 3) & (end > first)
    if (kept & some.judged).sum() >= _ALONE_MIN:  # others may have decoded beside prompts that are not there
        kept &= some.judged
    return columns[kept], (end - first)[kept].astype(np.float64)


def _prompts(some: Observed) -> tuple[Floats, Floats]:
    """Return one, tokens and thousands of products of tokens of prompts that waited for no other; and the time."""
    arrival, first, end = some.arrival, some.arrival + some.ttft, some.arrival + some.latency
    # Others that had arrived and had no first token when this one had its own, or came meanwhile.
    came = np.searchsorted(arrival, first, side="right")
    answered_before = np.searchsorted(np.sort(first), arrival, side="left")
    waited_with = came - answered_before - 1
    there = np.searchsorted(arrival, arrival, side="left") - np.searchsorted(np.sort(end), arrival, side="right")
    # What ran when a stretch began has no first token of its own.
    crowd = waited_with * 1000 + there + np.where(some.judged, 0, np.iinfo(np.int64).max // 2)
    alone = np.flatnonzero(crowd == 0)
    if len(alone) < _ALONE_MIN:
        alone = np.argsort(crowd, kind="stable")[: max(_ALONE_MIN, int(some.judged.sum()) // 8)]
    prompt = some.prompt[alone].astype(np.float64)
    columns = np.column_stack([np.ones(len(alone)), prompt, prompt * prompt / 1e3])
    return columns, np.maximum(some.ttft[alone], 1).astype(np.float64)


def robust(columns: Floats, values: Floats) -> list[float]:
    """Return coefficients, none below 0, of least relative error; large errors count less."""
    rows = columns / values[:, None]
    weights = np.ones(len(rows))
    found = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        found = non_negative(rows * weights[:, None], weights)
        miss = np.abs(rows @ found - 1)
        weights = np.sqrt(np.minimum(1.0, _TAIL / np.maximum(miss, 1e-9)))
    return [float(value) for value in found]
