"""Centralised DLPM: each request ends once whatever happens to workers, deficits stay in range, rounds cost."""

import json
from collections import Counter
from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.changes import Change, Crash, Drain, Join, Restart
from fairsched.engines.simulator import simulate
from fairsched.model.events import Admitted, Cancelled, Event, Finished, Rejected
from fairsched.model.latency import DecodePiece, LatencyModel
from fairsched.model.plan import ClusterPlan
from fairsched.model.pricing import Rates, charge_max_reserved
from fairsched.model.request import Client, Prompt, Request
from fairsched.model.view import ClusterView
from fairsched.model.workload import Job, Workload
from fairsched.policies.dlpm_central import CentralDLPM, CentralState
from fairsched.policies.fcfs import FCFS
from fairsched.verify.strategies import workloads

CAPACITY, WORKERS, QUANTUM = 30, 2, 7
UNIT = LatencyModel(
    name="unit",
    source="made for tests: every step takes 100 ns",
    prefill_constant_ns=100,
    prefill_token_ns=0,
    prefill_attention_ps=0,
    decode=(DecodePiece(1, 100, 0, 0),),
    kv_capacity_tokens=CAPACITY,
)
CHARGE_MAX = charge_max_reserved(Rates(), WORKERS * CAPACITY, CAPACITY - 1)
SYNCS = st.sampled_from((0, 1))


@attrs.frozen
class Watched(CentralDLPM):
    """Checks its state at each decision, and that it decides the same from what was written and read."""

    in_range: bool = True

    def decide(self, state: CentralState, view: ClusterView) -> tuple[ClusterPlan, CentralState]:
        """The decision, looked at from all sides."""
        document = json.loads(json.dumps(self.state_to_json(state)))
        plan, after = super().decide(state, view)
        again, after_again = super().decide(self.state_from_json(document), view)
        assert plan == again
        assert self.state_to_json(after) == self.state_to_json(after_again)
        assert self.state_to_json(state) == document
        self.check(after)
        if self.in_range:
            assert all(q >= 1 - CHARGE_MAX for q in after.gate.q)
            assert (after.gate.q <= after.gate.quantum).all()
        return plan, after


def _ends(events: list[Event]) -> Counter[int]:
    return Counter(event.request_id for event in events if isinstance(event, Finished | Rejected | Cancelled))


@settings(deadline=None, max_examples=50)
@given(workloads(span_ns=4_000), SYNCS)
def test_each_request_ends_once_and_deficits_stay_in_range(workload: Workload, sync_us: int) -> None:
    """1 - U <= q <= Q with the U of all the workers' memory, at every decision; what fits is served."""
    router = Watched(sync_us=sync_us, quantum=QUANTUM)
    events = simulate(workload, FCFS(), router, UNIT, workers=WORKERS)
    assert _ends(events) == {job.request.id: 1 for job in workload.jobs}
    fits = {j.request.id for j in workload.jobs if j.request.prompt.tokens + j.request.max_output_tokens <= CAPACITY}
    assert not fits & {event.request_id for event in events if isinstance(event, Rejected)}


def _changes(draw: tuple[int, int, int]) -> Change:
    kind, worker, at_ns = draw
    return (Crash(worker, at_ns), Crash(worker, at_ns, 500), Restart(worker, at_ns, 500), Drain(worker, at_ns))[kind]


changes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, WORKERS - 1), st.integers(0, 4_000)), max_size=2)


@settings(deadline=None, max_examples=50)
@given(workloads(span_ns=4_000), SYNCS, changes)
def test_each_request_ends_once_whatever_happens_to_workers(
    workload: Workload, sync_us: int, drawn: list[tuple[int, int, int]]
) -> None:
    """Workers crash, restart, drain; another joins in the end."""
    router = Watched(sync_us=sync_us, quantum=QUANTUM, in_range=False)
    happens = [*map(_changes, drawn), Join(4_000)]
    events = simulate(workload, FCFS(), router, UNIT, workers=WORKERS, changes=happens)
    assert _ends(events) == {job.request.id: 1 for job in workload.jobs}


def _two(sync_us: int) -> tuple[int, int]:
    """When the first of two requests that fill a worker ends, and when the second enters."""
    jobs = [Job(Request(i, i, 0, Prompt(20), 10), 10) for i in range(2)]
    workload = Workload("two", tuple(jobs), (Client(0, "a"), Client(1, "b")))
    events = simulate(workload, FCFS(), CentralDLPM(sync_us=sync_us), UNIT)
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
    events = simulate(workload, FCFS(), CentralDLPM(sync_us=0), UNIT, workers=2)
    at = {event.request_id: event.worker for event in events if isinstance(event, Admitted)}
    assert at[0] == at[2] != at[1]
