"""Centralised DLPM: each request ends once whatever happens to workers, deficits stay in range, answers cost."""

from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.engines.simulation import simulate_events
from fairsched.engines.workloads.fleet import Change
from fairsched.model.decision import WorkerLoad
from fairsched.model.events import NOWHERE, Admitted, Arrived, Event, Finished, Rejected
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
COSTS = st.sampled_from((0, 1)), st.sampled_from((0, 700))


@attrs.frozen
class InRange(CentralDLPM):
    """Checks that deficits are in range, too."""

    def check(self, state: CentralState) -> None:
        super().check(state)
        assert all(q >= 1 - CHARGE_MAX for q in state.gate.q)
        assert (state.gate.q <= state.gate.quantum).all()


@settings(deadline=None, max_examples=50)
@given(workloads(span_ns=4_000), *COSTS)
def test_each_request_ends_once_and_deficits_stay_in_range(workload: Workload, trip_us: int, look_ns: int) -> None:
    """1 - U <= q <= Q with the U of all the workers' memory, at every decision; what fits is served."""
    router = watched(InRange, round_trip_us=trip_us, look_ns=look_ns, quantum=QUANTUM)
    events = simulate_events(workload, FCFS(), router, UNIT, workers=WORKERS)
    assert ends(events) == {job.request.id: 1 for job in workload.jobs}
    fits = {j.request.id for j in workload.jobs if j.request.prompt.tokens + j.request.max_output_tokens <= CAPACITY}
    assert not fits & {event.request_id for event in events if isinstance(event, Rejected)}


@settings(deadline=None, max_examples=50)
@given(workloads(span_ns=4_000), *COSTS, CHANGES)
def test_each_request_ends_once_whatever_happens_to_workers(
    workload: Workload, trip_us: int, look_ns: int, changes: list[Change]
) -> None:
    """Workers crash, restart, drain; another joins in the end."""
    router = watched(CentralDLPM, round_trip_us=trip_us, look_ns=look_ns, quantum=QUANTUM)
    events = simulate_events(workload, FCFS(), router, UNIT, workers=WORKERS, changes=changes)
    assert ends(events) == {job.request.id: 1 for job in workload.jobs}


def _events(requests: int, workers: int, trip_us: int, look_ns: int, output: int = 3) -> list[Event]:
    """What happens to requests that come at once, each so large that a worker holds one."""
    jobs = [Job(Request(i, i, 0, Prompt(20), output), output) for i in range(requests)]
    workload = Workload("full", tuple(jobs), tuple(Client(i, str(i)) for i in range(requests)))
    router = CentralDLPM(round_trip_us=trip_us, look_ns=look_ns)
    return simulate_events(workload, FCFS(), router, UNIT, workers=workers)


@given(st.integers(0, 3), st.integers(1, 6))
def test_each_step_waits_for_its_answer(trip_us: int, output: int) -> None:
    """A request alone takes a round trip longer for each of its steps, of which the first computes the prompt."""
    free, asked = (
        next(event.time_ns for event in _events(1, 1, trip, 0, output) if isinstance(event, Finished))
        for trip in (0, trip_us)
    )
    assert asked - free == trip_us * 1_000 * output


def test_workers_are_answered_one_after_the_other() -> None:
    """Three workers that ask at once while nine requests wait: the second waits for two answers, the third for three.

    Each look costs 1 us.  The first step of each begins when its own answer is there.
    """
    events = _events(12, 3, 0, 1_000)
    begins = sorted(event.time_ns for event in events if isinstance(event, Admitted))[:3]
    assert begins[1] - begins[0] == begins[2] - begins[1] == 9 * 1_000


def test_what_waits_makes_answers_slower_and_room_only_then() -> None:
    """Twice the requests that wait, twice the work for an answer; none for a worker without room."""
    router = CentralDLPM(look_ns=10, lookahead=2)
    state, load = router.init(), WorkerLoad(0, 0, 0, 0, 50, CAPACITY)
    for i in range(5):
        state = router.observe(state, Arrived(0, NOWHERE, Request(i, i % 2, 0, Prompt(4), 1)))
        assert router.answer_ns(state, load) == 10 * min(i + 1, 4)
    assert router.answer_ns(state, replace(load, kv_free_tokens=0)) == 0


def test_the_longest_prefix_goes_where_it_is() -> None:
    """Two prompts of one prefix go to one worker, and a third of another to the other, though ids say otherwise."""
    prompts = [Prompt.from_keys(keys) for keys in ([1, 2, 3, 4, 5], [9, 8, 7], [1, 2, 3, 4, 6])]
    jobs: list[Any] = [Job(Request(i, 0, 100 * i, prompt, 2), 2) for i, prompt in enumerate(prompts)]
    workload = Workload("three", tuple(jobs), (Client(0, "a"),))
    events = simulate_events(workload, FCFS(), CentralDLPM(round_trip_us=0, look_ns=0), UNIT, workers=2)
    at = {event.request_id: event.worker for event in events if isinstance(event, Admitted)}
    assert at[0] == at[2] != at[1]
