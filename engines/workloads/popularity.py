"""How often each of several documents is asked about, and lengths that keep a table's mean and spread however few.

A table says what all requests of a data set are like; a workload has a few dozen documents.  Drawn at random, those
would miss the table by chance, so counts are apportioned and lengths are quantiles: the seed decides which document
gets which length, not what the lengths are.
"""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from fairsched.engines.workloads.errors import WorkloadError


def zipf_counts(total: int, documents: int, exponent: float) -> list[int]:
    """`total` requests over `documents`, the k-th in proportion to 1 / k^exponent (0: equal shares), none left out.

    Largest remainders over the requests that are left when each has one.  Raises `WorkloadError` on fewer requests
    than documents.
    """
    if total < documents:
        raise WorkloadError(f"{total:,} requests cannot be about {documents:,} documents: each needs at least one")
    shares = np.arange(1, documents + 1, dtype=np.float64) ** -exponent
    ideal = np.maximum(shares / shares.sum() * total, 1.0) - 1
    ideal *= (total - documents) / (ideal.sum() or 1.0)
    counts = np.floor(ideal).astype(np.int64)
    left = total - documents - int(counts.sum())
    counts[np.argsort(counts - ideal, kind="stable")[:left]] += 1
    whole: list[int] = (counts + 1).tolist()
    return whole


def spread_lengths(
    rng: np.random.Generator, counts: Sequence[int], *, mean: float, sd: float, low: int = 1
) -> list[int]:
    """A length for each document, such that over requests (`counts[i]` of document i) they have this mean and spread.

    Log-normal quantiles in random order, moved and stretched to fit, then cut at `low`.
    """
    number = len(counts)
    cv = sd / mean
    spread = NormalDist(0, float(np.sqrt(np.log1p(cv**2))))
    shape = np.exp([spread.inv_cdf((place + 0.5) / number) for place in range(number)])
    shape = shape[rng.permutation(number)]
    centre = np.average(shape, weights=counts)
    width = np.sqrt(np.average((shape - centre) ** 2, weights=counts)) or 1.0
    sizes: list[int] = np.maximum(np.rint(mean + (shape - centre) * (sd / width)), low).astype(np.int64).tolist()
    return sizes
