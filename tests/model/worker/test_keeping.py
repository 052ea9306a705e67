"""The KV of a call that others of its program follow is kept for a while, and gives way to whatever needs memory."""

from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from fairsched.engines.analysis import replay
from fairsched.engines.simulation import simulate_events
from fairsched.engines.workloads.fleet import WorkerSpec
from fairsched.model.events import Admitted, Event
from fairsched.model.request import Job, Prompt, Workload
from fairsched.policies.routers import RoundRobin
from tests.support.logs import RUNS, Case, build, write
from tests.support.scenarios import UNIT, job, policy, world

CAPACITY = 12


def prompt(number: int) -> Prompt:
    """Four tokens that no other prompt shares."""
    return Prompt.from_keys([10 * number + i for i in range(4)])


def followed(call: Job) -> Job:
    """The call, as one that another of its program follows."""
    return replace(call, request=replace(call.request, downstream_levels=1))


def served(calls: list[Job], keep_ns: int) -> list[Event]:
    """What happens at a worker that keeps so long."""
    spec = WorkerSpec(UNIT, CAPACITY, keep_ns=keep_ns)
    return simulate_events(world(calls), policy("fcfs"), RoundRobin(), UNIT, workers=[spec])


def admissions(events: list[Event]) -> dict[int, Admitted]:
    """By request."""
    return {event.request_id: event for event in events if isinstance(event, Admitted)}


BETWEEN = [job(number, 1, 10 * number, prompt(number), 1) for number in (1, 2, 3)]
"""Other prompts, the last of which needs memory that only a cached one can give up."""
AGAIN = job(4, 0, 40, prompt(0), 1)


@pytest.mark.parametrize(("keep_ns", "cached"), [(0, 0), (5, 0), (30, 3)])
def test_a_program_finds_its_kv_again_within_the_time(keep_ns: int, cached: int) -> None:
    """Three others came in between: by plain LRU its prompt is the one that goes."""
    events = served([followed(job(0, 0, 0, prompt(0), 1)), *BETWEEN, AGAIN], keep_ns)
    assert admissions(events)[4].cached_prefix_tokens == cached


def test_the_last_call_of_a_program_is_not_kept() -> None:
    """Nothing follows it."""
    assert admissions(served([job(0, 0, 0, prompt(0), 1), *BETWEEN, AGAIN], 30))[4].cached_prefix_tokens == 0


def test_what_is_kept_gives_way_to_what_needs_memory() -> None:
    """A request that needs the whole worker enters as early as if nothing were kept."""
    whole = job(9, 1, 10, CAPACITY - 1, 1)
    first = followed(job(0, 0, 0, prompt(0), 1))
    times = [admissions(served([first, whole], keep_ns))[9].time_ns for keep_ns in (0, 1_000_000)]
    assert times[0] == times[1]


@given(RUNS)
@settings(max_examples=15)
def test_a_log_of_a_worker_that_keeps_replays(run: tuple[Workload, Case]) -> None:
    """It says how long, so the same prompts are evicted again."""
    workload, case = run
    jobs = tuple(followed(each) if each.request.id % 2 else each for each in workload.jobs)
    with TemporaryDirectory() as folder:
        written = write(Path(folder) / "log", replace(workload, jobs=jobs), attrs.evolve(case, keep_ns=70))
        assert replay(written.path, build).equal
