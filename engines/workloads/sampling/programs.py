"""Programs of dependent calls put together to a workload, and what a misbehaving client is called.

Every generator gives each client a random stream of its own, so the well-behaved clients send the same requests at
the same times whatever client 0 does.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np

from fairsched.engines.workloads.sampling.auto_rate import AutoRate
from fairsched.engines.workloads.sampling.distributions import ArrivalProcess
from fairsched.engines.workloads.sampling.tokens import TokenSource
from fairsched.model.request import TOKENS_MAX, Client, Job, Prompt, Request, Workload

GapFile = str | None
"""A trace file of any known format, of which only the times are read; None: a process instead."""

Misbehave = Literal["none", "more-requests", "longer-prefix"]
"""What client 0 does wrong: nothing, or the two kinds of the DLPM paper's evaluation (S1 and S2)."""

Size = Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)]
Number = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Spread = Annotated[float, msgspec.Meta(gt=0, le=10)]

# Parameters that several generators have.
Clients = Annotated[Number, msgspec.Meta(description="clients")]
RequestRate = Annotated[AutoRate, msgspec.Meta(description="requests a second, or auto: near saturation")]
Arrivals = Annotated[ArrivalProcess, msgspec.Meta(description="arrival process of programs")]
GapSpread = Annotated[Spread, msgspec.Meta(description="coefficient of variation of Gamma gaps")]
Gaps = Annotated[GapFile, msgspec.Meta(description="trace file whose times between arrivals are used")]


class Call(msgspec.Struct, frozen=True):
    """One request of a program; `after` are places of earlier calls of the same program."""

    prompt: Prompt
    output_tokens: int
    after: tuple[int, ...] = ()
    think_ns: int = 0


class Program(msgspec.Struct, frozen=True):
    """Calls of one client that belong together, parents first; the first start at `arrival_ns`."""

    client: int
    arrival_ns: int
    calls: Sequence[Call]
    session: str | None = None


def downstream_levels(calls: Sequence[Call]) -> list[int]:
    """For each call how many others have to follow it one after the other: the longest chain that waits for it."""
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
    """The client's own random numbers and tokens."""
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
                session=program.session,
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
