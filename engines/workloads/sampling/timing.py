"""When each program of a workload starts: an arrival process or the gaps of a trace, and rates multiplied exactly."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from fairsched.engines.workloads.errors import TraceError, WorkloadError
from fairsched.engines.workloads.readers import recognise
from fairsched.engines.workloads.sampling.auto_rate import AutoRate
from fairsched.engines.workloads.sampling.distributions import ArrivalProcess, arrivals_ns
from fairsched.engines.workloads.sampling.programs import GapFile, Program


class Timing(NamedTuple):
    """When programs start: `rate` requests a second (auto: see `saturation`), by a process with the coefficient of
    variation `cv` (Gamma only), or with the times between arrivals of the trace file `gaps`."""

    rate: AutoRate
    process: ArrivalProcess
    cv: float
    gaps: GapFile

    def starts_ns(self, rng: np.random.Generator, *, programs: int, requests: int) -> list[int]:
        """Starts of so many programs, in order, such that requests come at the rate in the long run.

        With `auto` one a second comes: `generate` multiplies the rate by what the workers can do.
        """
        rate = (1.0 if self.rate == "auto" else self.rate) * programs / requests
        if self.gaps is None:
            return arrivals_ns(rng, self.process, rate=rate, count=programs, cv=self.cv)
        return trace_times_ns(Path(self.gaps), rate=rate, count=programs)

    def of(self, rng: np.random.Generator, programs: Sequence[Program]) -> list[Program]:
        """The programs in their order, each with its start."""
        requests = sum(len(program.calls) for program in programs)
        times = self.starts_ns(rng, programs=len(programs), requests=requests)
        return [
            msgspec.structs.replace(program, arrival_ns=time) for program, time in zip(programs, times, strict=True)
        ]


def trace_times_ns(path: Path, *, rate: float, count: int) -> list[int]:
    """`count` times whose gaps are a trace's first, stretched to `rate` a second; a shorter trace begins again.

    Raises `TraceError`, also where the trace has no two arrivals that differ.
    """
    times_ns = np.array([row.arrival_ns for row in islice(recognise(path).read(path), count + 1)], dtype=np.int64)
    gaps_ns = np.diff(times_ns)
    if not gaps_ns.any():
        raise TraceError(path, None, None, "requests at two times or more", f"{len(times_ns)} at one")
    repeated = np.resize(gaps_ns, count).astype(np.float64)
    stretched = np.cumsum(repeated) * (count * 1e9 / (rate * repeated.sum()))
    result: list[int] = np.rint(stretched).astype(np.int64).tolist()
    return result


def check_limit(limit: int | None) -> None:
    """Raise `WorkloadError` unless `limit` is None or a positive number of requests."""
    if limit is not None and limit < 1:
        raise WorkloadError(f"limit: expected a number of requests of at least 1, found {limit}")


def rate_ratio(rate_scale: float) -> Fraction:
    """The factor exactly as its decimal is written.  Raises `WorkloadError` unless it is positive and finite."""
    if not (isfinite(rate_scale) and rate_scale > 0):
        raise WorkloadError(f"rate scale: expected a positive finite number, found {rate_scale}")
    return Fraction(repr(float(rate_scale)))


def scaled_ns(time_ns: int, ratio: Fraction) -> int:
    """A time at `ratio` times the rate, rounded down to a nanosecond."""
    return time_ns * ratio.denominator // ratio.numerator


def rate_notes(ratio: Fraction) -> tuple[str, ...]:
    """What a report must say about a scaled rate: nothing when it is 1."""
    if ratio == 1:
        return ()
    return (f"Arrival rates are multiplied by {float(ratio):g}; think times and cancellations are as they were.",)
