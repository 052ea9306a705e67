"""Random draws: arrival times, lengths, and how often each of several documents is asked about.

All draw from a numpy generator, so a seed decides everything; times are integer nanoseconds.
"""

from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

from fairsched.engines.workloads.errors import WorkloadError

ArrivalProcess = Literal["gamma", "poisson", "bursty", "azure", "functions"]

BURST_S = 5.0
"""Mean length of a burst in seconds, and of the silence after it (ours)."""

AZURE_DRIFT_SD, AZURE_DRIFT_ARRIVALS, AZURE_JITTER_SD = 0.22, 2200, 0.21
"""Our fit to the times between arrivals of Azure's 2023 conversation trace (19,366 requests, 5.53 a second): the
logarithm of its rate wanders with this standard deviation, forgets itself over this many arrivals (400 s), and varies
from gap to gap by the last.  The gaps' coefficient of variation is then that of the trace, 1.09."""

FUNCTIONS_MINUTE_SD, FUNCTIONS_SPIKE_SHARE, FUNCTIONS_SPIKE = 0.35, 0.1, 3.0
"""A stand-in for the arrivals of Azure's Functions traces, whose minutes differ and which have spikes.  The figures are
ours and fitted to nothing: the dataset of 2019 publishes counts a minute, that of 2021 ends and durations of single
invocations, neither a measure of burstiness, and both are too large to come with this library.

In each minute the rate is drawn anew, with this standard deviation of its logarithm, and in a tenth of all stretches of
five seconds it is three times as high.  At 5 requests a second, counts a minute then have a coefficient of variation of
about 0.4, counts a second a variance of 3 to 4 times their mean (Poisson: 1), and gaps one of 1.3.  Azure's 2023 traces
of LLM inference lie on both sides: 0.22, 1.4 and 1.09 for conversations (5.5 requests a second), 1.04, 13 and 13 for
code (2.6).  Times of a real trace, where it is at hand, are taken by `gaps=FILE`."""


_FITS = 30
"""How often lengths that are cut at both ends are stretched again."""


def arrivals_ns(
    rng: np.random.Generator, process: ArrivalProcess, *, rate: float, count: int, cv: float = 1.0
) -> list[int]:
    """`count` arrival times in order, at `rate` a second in the long run.

    `poisson`: exponential gaps.  `gamma`: Gamma gaps with coefficient of variation `cv` (1 is Poisson).  `bursty`:
    Poisson at twice the rate during bursts and nothing in between, both of exponential length with mean `BURST_S`.
    `azure`: Poisson at a rate that wanders as that of Azure's conversation trace does.  `functions`: Poisson at a rate
    that differs from minute to minute and has spikes of five seconds.
    """
    if process == "gamma":
        shape = 1 / cv**2
        gaps = rng.gamma(shape, 1 / (rate * shape), size=count)
    elif process == "poisson":
        gaps = rng.exponential(1 / rate, size=count)
    elif process == "azure":
        gaps = _azure_gaps(rng, rate, count)
    elif process == "functions":
        gaps = _functions_gaps(rng, rate, count)
    else:
        gaps = _bursty_gaps(rng, rate, count)
    times: list[int] = np.cumsum(np.round(gaps * 1e9).astype(np.int64)).tolist()
    return times


def uniform_ns(rng: np.random.Generator, *, span_s: float, count: int) -> list[int]:
    """`count` arrival times in order, each uniform over `span_s` seconds: a Poisson process given its count."""
    times: list[int] = np.sort(np.round(rng.uniform(0, span_s * 1e9, size=count)).astype(np.int64)).tolist()
    return times


def _bursty_gaps(rng: np.random.Generator, rate: float, count: int) -> npt.NDArray[np.float64]:
    """Return gaps on a clock that runs only in bursts, plus every silence that began since the arrival before."""
    busy = np.cumsum(rng.exponential(1 / (2 * rate), size=count))
    ends: list[float] = []
    end = 0.0
    while end <= busy[-1]:
        end += rng.exponential(BURST_S)
        ends.append(end)
    silences = np.concatenate(([0.0], np.cumsum(rng.exponential(BURST_S, size=len(ends)))))
    return np.diff(busy + silences[np.searchsorted(ends, busy)], prepend=0.0)


def _azure_gaps(rng: np.random.Generator, rate: float, count: int) -> npt.NDArray[np.float64]:
    """Exponential gaps times the exponential of an autoregressive course and of noise, with mean 1 / rate."""
    kept = float(np.exp(-1 / AZURE_DRIFT_ARRIVALS))
    steps = rng.normal(0, AZURE_DRIFT_SD * np.sqrt(1 - kept**2), size=count).tolist()
    drift = float(rng.normal(0, AZURE_DRIFT_SD))
    course = np.array([drift := kept * drift + step for step in steps])
    logs = course + rng.normal(0, AZURE_JITTER_SD, size=count)
    mean = np.exp((AZURE_DRIFT_SD**2 + AZURE_JITTER_SD**2) / 2) * rate
    gaps: npt.NDArray[np.float64] = rng.exponential(1 / mean, size=count) * np.exp(logs)
    return gaps


def _functions_gaps(rng: np.random.Generator, rate: float, count: int) -> npt.NDArray[np.float64]:
    """Return gaps on a clock that runs by the rate of each stretch of five seconds."""
    work = np.cumsum(rng.exponential(size=count))
    ends = np.zeros(1)
    while ends[-1] <= work[-1]:
        minute = rng.lognormal(-(FUNCTIONS_MINUTE_SD**2) / 2, FUNCTIONS_MINUTE_SD)
        spikes = rng.uniform(size=12) < FUNCTIONS_SPIKE_SHARE
        course = minute * np.where(spikes, FUNCTIONS_SPIKE, 1.0)
        mean = 1 + FUNCTIONS_SPIKE_SHARE * (FUNCTIONS_SPIKE - 1)
        ends = np.concatenate((ends, ends[-1] + np.cumsum(course * rate * 5 / mean)))
    return np.diff(np.interp(work, ends, 5.0 * np.arange(len(ends))), prepend=0.0)


def lengths(
    rng: np.random.Generator, count: int, *, mean: float, cv: float, low: int = 1, high: int = 1 << 20
) -> list[int]:
    """`count` log-normal lengths in whole tokens with this mean and coefficient of variation, then cut to the range."""
    spread = np.log1p(cv**2)
    drawn = rng.lognormal(np.log(mean) - spread / 2, np.sqrt(spread), size=count)
    whole: list[int] = np.clip(np.rint(drawn), low, high).astype(np.int64).tolist()
    return whole


def zipf_counts(total: int, documents: int, exponent: float) -> list[int]:
    """`total` requests over `documents`, the k-th in proportion to 1 / k^exponent (0: equal shares), none left out.

    Raises `WorkloadError` on fewer requests than documents.
    """
    return apportioned(total, np.arange(1, documents + 1, dtype=np.float64) ** -exponent)


def apportioned(total: int, shares: npt.NDArray[np.float64]) -> list[int]:
    """`total` requests in proportion to `shares`, none left out.

    Largest remainders over the requests that are left when each has one.  Raises `WorkloadError` on fewer requests
    than shares.
    """
    documents = len(shares)
    if total < documents:
        raise WorkloadError(f"{total:,} requests cannot be about {documents:,} documents: each needs at least one")
    ideal = np.maximum(shares / shares.sum() * total, 1.0) - 1
    ideal *= (total - documents) / (ideal.sum() or 1.0)
    counts = np.floor(ideal).astype(np.int64)
    left = total - documents - int(counts.sum())
    counts[np.argsort(counts - ideal, kind="stable")[:left]] += 1
    whole: list[int] = (counts + 1).tolist()
    return whole


def spread_lengths(
    rng: np.random.Generator, counts: Sequence[int], *, mean: float, sd: float, low: int = 1, high: int | None = None
) -> list[int]:
    """Return a length for each document, such that over requests (`counts[i]` of document i) they have this mean and
    spread.

    Log-normal quantiles in random order, moved and stretched to fit, then cut at `low`.  Random lengths of a few dozen
    documents would miss the mean and spread by chance; here the seed decides only which document gets which length.
    With `high` they are cut at both ends, and moved and stretched again until they fit.
    """
    number = len(counts)
    cv = sd / mean
    spread = NormalDist(0, float(np.sqrt(np.log1p(cv**2))))
    shape = mean * np.exp([spread.inv_cdf((place + 0.5) / number) for place in range(number)])
    shape = shape[rng.permutation(number)]
    for _ in range(1 if high is None else _FITS):
        centre = np.average(shape, weights=counts)
        width = np.sqrt(np.average((shape - centre) ** 2, weights=counts)) or 1.0
        shape = np.clip(np.rint(mean + (shape - centre) * (sd / width)), low, high)
    sizes: list[int] = shape.astype(np.int64).tolist()
    return sizes
