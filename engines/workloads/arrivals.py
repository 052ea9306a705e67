"""When programs start: Poisson, Gamma and bursty arrival processes, and the lengths that go with them.

All draw from a numpy generator, so a seed decides everything; times are integer nanoseconds.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

ArrivalProcess = Literal["gamma", "poisson", "bursty"]

BURST_S = 5.0
"""Mean length of a burst in seconds, and of the silence after it (ours)."""


def arrivals_ns(
    rng: np.random.Generator, process: ArrivalProcess, *, rate: float, count: int, cv: float = 1.0
) -> list[int]:
    """`count` arrival times in order, at `rate` a second in the long run.

    `poisson`: exponential gaps.  `gamma`: Gamma gaps with coefficient of variation `cv` (1 is Poisson).  `bursty`:
    Poisson at twice the rate during bursts and nothing in between, both of exponential length with mean `BURST_S`.
    """
    if process == "gamma":
        shape = 1 / cv**2
        gaps = rng.gamma(shape, 1 / (rate * shape), size=count)
    elif process == "poisson":
        gaps = rng.exponential(1 / rate, size=count)
    else:
        gaps = _bursty_gaps(rng, rate, count)
    times: list[int] = np.cumsum(np.round(gaps * 1e9).astype(np.int64)).tolist()
    return times


def uniform_ns(rng: np.random.Generator, *, span_s: float, count: int) -> list[int]:
    """`count` arrival times in order, each uniform over `span_s` seconds: a Poisson process given its count."""
    times: list[int] = np.sort(np.round(rng.uniform(0, span_s * 1e9, size=count)).astype(np.int64)).tolist()
    return times


def _bursty_gaps(rng: np.random.Generator, rate: float, count: int) -> npt.NDArray[np.float64]:
    """Gaps on a clock that runs only in bursts, plus every silence that began since the arrival before."""
    busy = np.cumsum(rng.exponential(1 / (2 * rate), size=count))
    ends: list[float] = []
    end = 0.0
    while end <= busy[-1]:
        end += rng.exponential(BURST_S)
        ends.append(end)
    silences = np.concatenate(([0.0], np.cumsum(rng.exponential(BURST_S, size=len(ends)))))
    return np.diff(busy + silences[np.searchsorted(ends, busy)], prepend=0.0)


def lengths(
    rng: np.random.Generator, count: int, *, mean: float, cv: float, low: int = 1, high: int = 1 << 20
) -> list[int]:
    """`count` log-normal lengths in whole tokens with this mean and coefficient of variation, then cut to the range."""
    spread = np.log1p(cv**2)
    drawn = rng.lognormal(np.log(mean) - spread / 2, np.sqrt(spread), size=count)
    whole: list[int] = np.clip(np.rint(drawn), low, high).astype(np.int64).tolist()
    return whole
