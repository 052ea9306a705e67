"""Several workloads as one: their programs in random order on one course of arrivals, each with clients of its own."""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from fairsched.engines.workloads.sampling import Timing
from fairsched.model.request import Client, Job, Workload


def mixture(parts: Sequence[Workload], names: Sequence[str], rng: np.random.Generator, timing: Timing) -> Workload:
    """The mixed workload; programs of one part keep their order, and a client is called after its part."""
    programs = [_programs(part.jobs) for part in parts]
    clients: list[Client] = []
    first_client: list[int] = []
    for name, part in zip(names, parts, strict=True):
        first_client.append(len(clients))
        clients += [Client(len(clients) + one.id, f"{name}/{one.name}", one.weight) for one in part.clients]
    turns = rng.permutation(np.repeat(np.arange(len(parts)), [len(each) for each in programs])).tolist()
    requests = sum(len(part.jobs) for part in parts)
    times = timing.starts_ns(rng, programs=len(turns), requests=requests)
    following = [iter(each) for each in programs]
    jobs: list[Job] = []
    for number, (part, time) in enumerate(zip(turns, times, strict=True)):
        calls = next(following[part])
        ids = {job.request.id: len(jobs) + place for place, job in enumerate(calls)}
        for job in calls:
            request = replace(
                job.request,
                id=ids[job.request.id],
                client=first_client[part] + job.request.client,
                arrival_ns=time,
                session=None if job.request.session is None else f"{names[part]}/{job.request.session}",
            )
            after = tuple(ids[parent] for parent in job.after)
            jobs.append(replace(job, request=request, after=after, program=number))
    shares = ", ".join(
        f"{len(part.jobs):,} of {name} ({len(part.jobs) / requests:.0%})"
        for name, part in zip(names, parts, strict=True)
    )
    own = [f"{name}: {note}" for name, part in zip(names, parts, strict=True) for note in part.notes]
    return Workload(
        "mixed", tuple(jobs), tuple(clients), (f"Mixed: {shares}; the parts' own times are replaced.", *own)
    )


def _programs(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs of each program, in order; calls that depend on one another are a program even if they name none."""
    found: list[list[Job]] = []
    of_request: dict[int, list[Job]] = {}
    of_program: dict[int, list[Job]] = {}
    for job in jobs:
        calls: list[Job] | None = of_request[job.after[0]] if job.after else of_program.get(_named(job))
        if calls is None:
            found.append(calls := [])
        calls.append(job)
        of_request[job.request.id] = calls
        of_program.setdefault(_named(job), calls)
    return found


def _named(job: Job) -> int:
    """The program that a job names; one that names none has a negative number of its own."""
    return -1 - job.request.id if job.program is None else job.program
