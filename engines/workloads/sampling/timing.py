"""When each program of a workload starts, and at which rate: a process, or the times between arrivals of a trace."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from fairsched.engines.workloads.arrivals import ArrivalProcess, arrivals_ns
from fairsched.engines.workloads.errors import TraceError
from fairsched.engines.workloads.formats import recognise
from fairsched.engines.workloads.programs import Program
from fairsched.engines.workloads.saturation import AutoRate

GapFile = str | None
"""A trace file of any known format, of which only the times are read; None: a process instead."""


class Timing(NamedTuple):
    """When programs start: `rate` requests a second (auto: see `saturation`), by a process with the coefficient of
    variation `cv` (Gamma only), or with the times between arrivals of the trace file `gaps`."""

    rate: AutoRate
    process: ArrivalProcess
    cv: float
    gaps: GapFile

    def starts_ns(self, rng: np.random.Generator, *, programs: int, requests: int) -> list[int]:
        """Starts of so many programs, in order, such that requests come at the rate in the long run.

        With `auto` one a second comes: `engines.workloads.generate` multiplies the rate by what the workers can do.
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
