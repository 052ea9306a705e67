"""How many workers it takes: runs with ever more workers until enough requests keep their targets.

The number is doubled until the aim is reached and then halved in, so a result of n workers stands beside one of n - 1
that missed.  Attainment need not rise with every worker (DistServe's search takes it for granted); `Sizing.tried` has
every number that was run, so that a dip is seen.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import numpy as np

from fairsched.engines.analysis import Measures, Recorder
from fairsched.engines.simulation import Cluster, RunSpec
from fairsched.model.request import Workload

Measure = Callable[[int], Measures]


@attrs.frozen
class Sizing:
    """The fewest workers with the aimed attainment (None: not with as many as were allowed), and all that was run."""

    workers: int | None
    tried: Mapping[int, Measures]

    def attainment(self, workers: int) -> float:
        """Return the share of requests that kept their targets with so many workers, one of `tried`."""
        return self.tried[workers].slo_attainment or 0.0


def measured(
    workload: Workload, run: RunSpec, cluster: Cluster, progress: Callable[[int, int], None] | None = None
) -> Measure:
    """Return what a run with so many workers of the cluster's kind measures; `progress` is told workers and ended
    requests."""

    def measure(workers: int) -> Measures:
        fleet = attrs.evolve(cluster, workers=workers)
        recorder = Recorder(workload, latencies=[spec.latency for spec in fleet.all_specs])
        told = None if progress is None else partial(progress, workers)
        run.simulator(workload, fleet, recorder.record, told).run()
        return recorder.result(policy=run.name, workers=workers).measures

    return measure


def largest_need(workload: Workload, capacity: int) -> int:
    """Return the most KV tokens that a request needs; raises `ValueError` where no request fits a worker."""
    needs = [job.request.prompt.tokens + job.request.max_output_tokens for job in workload.jobs]
    if min(needs, default=0) > capacity:
        raise ValueError(f"every request needs more than the {capacity} KV tokens that a worker has")
    return max(needs, default=1)


def fewest(measure: Measure, attainment: float, *, at_least: int = 1, at_most: int = 64) -> Sizing:
    """Return the fewest workers from `at_least` to `at_most` with this attainment, if attainment rises with workers."""
    if not 1 <= at_least <= at_most:
        raise ValueError(f"workers are looked for from {at_least} to {at_most}, which is nothing")
    tried: dict[int, Measures] = {}

    def enough(workers: int) -> bool:
        tried[workers] = measure(workers)
        return (tried[workers].slo_attainment or 0.0) >= attainment

    low, high = at_least - 1, at_least
    while not enough(high):
        if high == at_most:
            return Sizing(None, dict(sorted(tried.items())))
        low, high = high, min(2 * high, at_most)
    found = last_place(low, high, lambda workers: not enough(workers)) + 1
    return Sizing(found, dict(sorted(tried.items())))


def last_place(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the last place from `low`, where it holds, to below `high` at which it holds, if it does up to some place.

    >>> last_place(0, 100, lambda place: place < 42)
    41
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@attrs.frozen
class WorkersLine:
    """Workers against rate by least squares: `slope` workers for a request a second, and `r2`, Pearson's squared."""

    slope: float
    constant: float
    r2: float


def line(points: Sequence[tuple[float, float]]) -> WorkersLine:
    """Return the line through (rate, workers).  Raises `ValueError` with fewer than three points, which any line
    explains."""
    if len(points) < 3:
        raise ValueError(f"a line of workers against rate takes three rates, not {len(points)}")
    x, y = np.array(points, dtype=np.float64).T
    slope, constant = np.polyfit(x, y, 1)
    return WorkersLine(float(slope), float(constant), float(np.corrcoef(x, y)[0, 1] ** 2))
