"""Centralised DLPM: each request ends once whatever happens to workers, deficits stay in range, rounds cost."""

from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.fleet import Change
from fairsched.engines.simulation import simulate_events
from fairsched.model.events import Admitted, Finished, Rejected
from fairsched.model.pricing import Rates, charge_max_reserved
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.catalog import FCFS
from fairsched.policies.routers import CentralDLPM
from fairsched.policies.routers.central import CentralState
from fairsched.verify.conformance.strategies import workloads
from tests.support.clusters import CHANGES, ends, watched
from tests.support.scenarios import latency_of

CAPACITY, WORKERS, QUANTUM = 30, 2, 7
UNIT = latency_of(100, kv_capacity_tokens=CAPACITY)
CHARGE_MAX = charge_max_reserved(Rates(), WORKERS * CAPACITY, CAPACITY - 1)
SYNCS = st.sampled_from((0, 1))


@attrs.frozen
class InRange(CentralDLPM):
    """Checks that deficits are in range, too."""

    def check(self, state: CentralState) -> None:
        super().check(state)
        assert all(q >= 1 - CHARGE_MAX for q in state.gate.q)
        assert (state.gate.q <= state.gate.quantum).all()


@settings(deadline=None, max_examples=50)
@given(workloads(span_ns=4_000), SYNCS)
def test_each_request_ends_once_and_deficits_stay_in_range(workload: Workload, sync_us: int) -> None:
    """1 - U <= q <= Q with the U of all the workers' memory, at every decision; what fits is served."""
    router = watched(InRange, sync_us=sync_us, quantum=QUANTUM)
    events = simulate_events(workload, FCFS(), router, UNIT, workers=WORKERS)
    assert ends(events) == {job.request.id: 1 for job in workload.jobs}
    fits = {j.request.id for j in workload.jobs if j.request.prompt.tokens + j.request.max_output_tokens <= CAPACITY}
    assert not fits & {event.request_id for event in events if isinstance(event, Rejected)}


@settings(deadline=None, max_examples=50)
@given(workloads(span_ns=4_000), SYNCS, CHANGES)
def test_each_request_ends_once_whatever_happens_to_workers(
    workload: Workload, sync_us: int, changes: list[Change]
) -> None:
    """Workers crash, restart, drain; another joins in the end."""
    router = watched(CentralDLPM, sync_us=sync_us, quantum=QUANTUM)
    events = simulate_events(workload, FCFS(), router, UNIT, workers=WORKERS, changes=changes)
    assert ends(events) == {job.request.id: 1 for job in workload.jobs}


def _two(sync_us: int) -> tuple[int, int]:
    """When the first of two requests that fill a worker ends, and when the second enters."""
    jobs = [Job(Request(i, i, 0, Prompt(20), 10), 10) for i in range(2)]
    workload = Workload("two", tuple(jobs), (Client(0, "a"), Client(1, "b")))
    events = simulate_events(workload, FCFS(), CentralDLPM(sync_us=sync_us), UNIT)
    first = next(event.time_ns for event in events if isinstance(event, Finished))
    return first, [event.time_ns for event in events if isinstance(event, Admitted)][1]


def test_room_stays_empty_for_one_to_two_round_trips() -> None:
    """And for no time without a price."""
    free, entered = _two(0)
    assert free == entered
    for sync_us in (1, 3, 10):
        free, entered = _two(sync_us)
        assert sync_us * 1_000 <= entered - free <= 2 * sync_us * 1_000


def test_the_longest_prefix_goes_where_it_is() -> None:
    """Two prompts of one prefix go to one worker, and a third of another to the other, though ids say otherwise."""
    prompts = [Prompt.from_keys(keys) for keys in ([1, 2, 3, 4, 5], [9, 8, 7], [1, 2, 3, 4, 6])]
    jobs: list[Any] = [Job(Request(i, 0, 100 * i, prompt, 2), 2) for i, prompt in enumerate(prompts)]
    workload = Workload("three", tuple(jobs), (Client(0, "a"),))
    events = simulate_events(workload, FCFS(), CentralDLPM(sync_us=0), UNIT, workers=2)
    at = {event.request_id: event.worker for event in events if isinstance(event, Admitted)}
    assert at[0] == at[2] != at[1]
