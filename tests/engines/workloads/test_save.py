"""A workload written as a trace and read back is the same workload."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.workloads import generate, load_trace, save_workload
from fairsched.model.request import Client, Job, Prompt, Request, Slo, Workload

TIMES = st.none() | st.integers(0, 10**13)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Small workloads that use every field, clients numbered by first appearance and each with a request."""
    jobs: list[Job] = []
    arrivals = sorted(draw(st.lists(st.integers(0, 10**13), min_size=1, max_size=6)))
    ids = draw(st.permutations(range(len(arrivals))))
    clients = 0
    for place, (identity, arrival) in enumerate(zip(ids, arrivals, strict=True)):
        client = draw(st.integers(0, clients))
        clients = max(clients, client + 1)
        keys = draw(st.lists(st.integers(0, 2**63 - 1), max_size=3))
        size = draw(st.integers(1, 20))
        output = draw(st.integers(1, 50))
        after = tuple(draw(st.sets(st.sampled_from(ids[:place]), max_size=2))) if place else ()
        request = Request(
            id=identity,
            client=client,
            arrival_ns=arrival,
            prompt=Prompt.from_keys(
                np.array(keys, dtype=np.int64),
                block_tokens=size,
                tokens=len(keys) * size + draw(st.integers(0 if keys else 1, 30)),
            ),
            max_output_tokens=output + draw(st.integers(0, 9)),
            predicted_output_tokens=draw(st.none() | st.integers(1, 99)),
            slo=draw(st.none() | st.builds(Slo, TIMES, TIMES, TIMES)),
            session=draw(st.none() | st.text(min_size=1, max_size=4)),
            priority=draw(st.integers(-5, 5)),
            downstream_levels=draw(st.integers(0, 4)),
        )
        jobs.append(
            Job(
                request=request,
                output_tokens=output,
                after=after,
                think_ns=draw(st.integers(0, 10**10)) if after else 0,
                program=draw(st.integers(0, 3)),
                cancel_after_ns=draw(TIMES),
            )
        )
    names = draw(st.lists(st.text(min_size=1, max_size=5), min_size=clients, max_size=clients, unique=True))
    people = tuple(Client(index, name, draw(st.integers(1, 9))) for index, name in enumerate(names))
    return Workload(name="drawn", jobs=tuple(jobs), clients=people)


@given(workload=workloads())
def test_reading_inverts_writing(workload: Workload) -> None:
    """Jobs and clients come back exactly, to the nanosecond and the last key."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "saved.jsonl"
        save_workload(workload, path)
        read = load_trace(path)
    assert read.clients == workload.clients
    assert read.jobs == workload.jobs


def test_a_generated_workload_survives(tmp_path: Path) -> None:
    """A saved generator's workload is recognised by content and has the same jobs."""
    made = generate("llm-judge", clients=3, articles=2, misbehave="more-requests")
    save_workload(made, tmp_path / "judge.jsonl")
    read = load_trace(tmp_path / "judge.jsonl")
    names = [made.clients[job.request.client].name for job in made.jobs]
    assert [read.clients[job.request.client].name for job in read.jobs] == names
    assert [(job.request.prompt, job.after, job.program) for job in read.jobs] == [
        (job.request.prompt, job.after, job.program) for job in made.jobs
    ]
