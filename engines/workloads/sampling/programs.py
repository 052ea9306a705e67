"""Programs of dependent calls: when each starts, how they become a workload, and what a misbehaving client is called.

Starts come from an arrival process or the gaps of a trace, and rates are multiplied exactly.

Every generator gives each client a random stream of its own, so the well-behaved clients send the same requests at
the same times whatever client 0 does.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from fairsched.engines.workloads.errors import TraceError, WorkloadError
from fairsched.engines.workloads.readers import recognise
from fairsched.engines.workloads.sampling.auto_rate import AutoRate
from fairsched.engines.workloads.sampling.distributions import ArrivalProcess, arrivals_ns
from fairsched.engines.workloads.sampling.tokens import TokenSource
from fairsched.model.request import TOKENS_MAX, Client, Job, Prompt, Request, Workload

GapFile = str | None
"""A trace file of any known format, of which only the times are read; None: a process instead."""

Misbehave = Literal["none", "more-requests", "longer-prefix"]
"""What client 0 does wrong: nothing, or the two kinds of the DLPM paper's evaluation (S1 and S2)."""

Size = Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)]
Number = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Requests = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Spread = Annotated[float, msgspec.Meta(gt=0, le=10)]


def about(text: str) -> msgspec.Meta:
    """Return what help says of a parameter."""
    return msgspec.Meta(description=text)


# Parameters that several generators have.
Clients = Annotated[Number, about("clients")]
RequestRate = Annotated[AutoRate, about("requests a second, or auto: near saturation")]
Arrivals = Annotated[ArrivalProcess, about("arrival process of programs")]
GapSpread = Annotated[Spread, about("coefficient of variation of Gamma gaps")]
Gaps = Annotated[GapFile, about("trace file whose times between arrivals are used")]


class LlmCall(msgspec.Struct, frozen=True):
    """One request of a program; `after` are places of earlier calls of the same program.

    `session` is that of the agent that calls, where it has one of its own beside the program's.
    """

    prompt: Prompt
    output_tokens: int
    after: tuple[int, ...] = ()
    think_ns: int = 0
    session: str | None = None


class Program(msgspec.Struct, frozen=True):
    """Calls of one client that belong together, parents first; the first start at `arrival_ns`."""

    client: int
    arrival_ns: int
    calls: Sequence[LlmCall]
    session: str | None = None


def downstream_levels(calls: Sequence[LlmCall]) -> list[int]:
    """Return for each call how many others have to follow it one after the other: the longest chain that waits for
    it."""
    levels = [0] * len(calls)
    for place in reversed(range(len(calls))):
        for parent in calls[place].after:
            levels[parent] = max(levels[parent], levels[place] + 1)
    return levels


def client_names(clients: int, misbehave: Misbehave = "none") -> list[str]:
    """Return the clients' names, which say that client 0 misbehaves if it does."""
    if misbehave == "none":
        return [f"client-{index}" for index in range(clients)]
    return ["misbehaving", *(f"well-{index}" for index in range(1, clients))]


def streams(seed: int, client: int) -> tuple[np.random.Generator, TokenSource]:
    """Return the client's own random numbers and tokens."""
    return np.random.default_rng((seed, client)), TokenSource(seed, client)


def workload_of(
    name: str, programs: Iterable[Program], clients: Sequence[str], max_output_tokens: int, *, notes: Sequence[str] = ()
) -> Workload:
    """Return the workload of all programs, ids counted in order of arrival, then client.

    `clients` are their names; every call declares `max_output_tokens`.
    """
    jobs: list[Job] = []
    for number, program in enumerate(sorted(programs, key=lambda program: (program.arrival_ns, program.client))):
        first = len(jobs)
        levels = downstream_levels(program.calls)
        for place, call in enumerate(program.calls):
            request = Request(
                id=first + place,
                client=program.client,
                arrival_ns=program.arrival_ns,
                prompt=call.prompt,
                max_output_tokens=max_output_tokens,
                session=call.session or program.session,
                downstream_levels=levels[place],
            )
            jobs.append(
                Job(
                    request=request,
                    output_tokens=call.output_tokens,
                    after=tuple(first + parent for parent in call.after),
                    think_ns=call.think_ns,
                    program=number,
                )
            )
    declared = f"max_output_tokens is {max_output_tokens:,}, the cap the generator draws outputs under."
    known = tuple(Client(id=index, name=client) for index, client in enumerate(clients))
    return Workload(name=name, jobs=tuple(jobs), clients=known, notes=(*notes, declared))


# --- times ------------------------------------------------------------------------------------------------------------


class Timing(NamedTuple):
    """When programs start: `rate` requests a second (auto: see `saturation`), by a process with the coefficient of
    variation `cv` (Gamma only), or with the times between arrivals of the trace file `gaps`."""

    rate: AutoRate
    process: ArrivalProcess
    cv: float
    gaps: GapFile

    def starts_ns(self, rng: np.random.Generator, *, programs: int, requests: int) -> list[int]:
        """Return starts of so many programs, in order, such that requests come at the rate in the long run.

        With `auto` one a second comes: `generate` multiplies the rate by what the workers can do.
        """
        rate = (1.0 if self.rate == "auto" else self.rate) * programs / requests
        if self.gaps is None:
            return arrivals_ns(rng, self.process, rate=rate, count=programs, cv=self.cv)
        return trace_times_ns(Path(self.gaps), rate=rate, count=programs)

    def of(self, rng: np.random.Generator, programs: Sequence[Program]) -> list[Program]:
        requests = sum(len(program.calls) for program in programs)
        times = self.starts_ns(rng, programs=len(programs), requests=requests)
        return [replace(program, arrival_ns=time) for program, time in zip(programs, times, strict=True)]


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


TIME_NS_MAX = 2**60
"""Some 36 years: the latest that a request may come at another rate than a trace's own, so that what is added fits."""


def rate_ratio(rate_scale: float) -> Fraction:
    """Return the factor exactly as its decimal is written.  Raises `WorkloadError` unless it is from 1e-9 to 1e9."""
    if not 1e-9 <= rate_scale <= 1e9:
        raise WorkloadError(f"rate scale: expected a positive finite number, from 1e-9 to 1e9, found {rate_scale}")
    return Fraction(repr(float(rate_scale)))


def scaled_ns(time_ns: int, ratio: Fraction) -> int:
    """Return a time at `ratio` times the rate, rounded down to a nanosecond.  Raises `WorkloadError` beyond
    `TIME_NS_MAX`."""
    scaled = time_ns * ratio.denominator // ratio.numerator
    if scaled > TIME_NS_MAX and ratio < 1:
        years = scaled // (365 * 86_400 * 10**9)
        raise WorkloadError(f"rate scale: a request would come after {years:,} years, of which there are at most 36")
    return scaled


def rate_notes(ratio: Fraction) -> tuple[str, ...]:
    """Return what a report must say about a scaled rate: nothing when it is 1."""
    if ratio == 1:
        return ()
    return (f"Arrival rates are multiplied by {float(ratio):g}; think times and cancellations are as they were.",)
