"""Slots for LoRA adapters: how long a request waits for one, which go past it, and who refuses what."""

from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.engines.simulation import Cluster, simulate
from fairsched.engines.workloads import generate, load_trace, save_workload
from fairsched.engines.workloads.fleet import Restart, WorkerSpec
from fairsched.model.decision import Admission, StepPlan
from fairsched.model.events import Rejected
from fairsched.model.machine import PRESETS
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.model.worker import InfeasiblePlanError, WorkerState, transitions
from fairsched.policies.catalog import DLPM, FCFS, DLPMInBatch
from fairsched.policies.gates import BandGate, DeficitGate, HierarchicalGate, InBatchGate
from fairsched.policies.guarantees.relation import KernelRelation
from fairsched.policies.local import ComposedPolicy
from tests.support.policy_play import Play

ARRIVALS = st.lists(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.integers(0, 3)), max_size=2), max_size=25
)
"""Before each step the adapters of requests that come, what each declares, and how much earlier it ends."""


def with_slots(policy: ComposedPolicy, slots: int, capacity: int = 2_000) -> Play:
    """A worker with so many slots."""
    return Play(policy, capacity, adapter_slots=slots)


def left(play: Play) -> dict[str, int]:
    """For each loaded adapter the most tokens that a running request of it may still produce."""
    found: dict[str, int] = {}
    for request_id, run in play.worker.running.items():
        request = run.waiting.request
        done = play.worker.in_flight[request_id].decoded_tokens(play.worker.clock)
        assert isinstance(request.adapter, str)
        found[request.adapter] = max(found.get(request.adapter, 0), request.max_output_tokens - done)
    return found


@given(coming=ARRIVALS, slots=st.integers(1, 3))
def test_the_first_that_lacks_a_slot_has_one_in_time(coming: list[list[tuple[str, int, int]]], slots: int) -> None:
    """In order of arrival: within as many decode steps as the adapter that is done first may still produce tokens."""
    play, bound, first = with_slots(FCFS(), slots), 0, -1
    for step in count():
        for adapter, output_max, early in coming[step] if step < len(coming) else ():
            play.arrive(prompt=1, output=max(output_max - early, 1), output_max=output_max, adapter=adapter)
        if step >= len(coming) and not play.worker.queue and not play.worker.running:
            return
        waits = min(play.worker.queue, default=-1)
        if waits >= 0 and play.worker.lacks_slot(play.worker.queue[waits].request):
            bound = min(left(play).values()) if waits != first else bound - 1
            first = waits
            assert bound >= 1
        play.step()


def test_requests_of_loaded_adapters_go_past_but_for_the_one_that_drains() -> None:
    """Of two adapters the one with less to produce drains, and no request of it enters until it is gone."""
    play = with_slots(FCFS(), 2)
    for adapter, output in (("short", 4), ("long", 9)):
        play.arrive(prompt=1, output=output, adapter=adapter)
    play.step()
    rare, short, long = (play.arrive(prompt=1, output=9, adapter=adapter) for adapter in ("rare", "short", "long"))
    none = play.arrive(prompt=1, output=9)
    assert play.admitted() == [long, none]
    view = play.worker.view(play.now_ns)
    assert play.policy.wait_reason(play.state, view, rare) == "adapter"
    play.step(3)
    assert play.finished() == [0]
    assert play.admitted() == [rare]
    play.step()
    assert play.policy.wait_reason(play.state, play.worker.view(play.now_ns), short) == "adapter"


def test_what_was_produced_is_not_to_come() -> None:
    """Of nine tokens seven are produced, and of five none: the adapter that declared more drains."""
    play = with_slots(FCFS(), 2)
    play.arrive(prompt=1, output=9, adapter="old")
    play.step(6)
    play.arrive(prompt=1, output=5, adapter="new")
    play.step()
    play.arrive(prompt=1, output=9, adapter="rare")
    new = [play.arrive(prompt=1, output=9, adapter=adapter) for adapter in ("old", "new")][1]
    assert play.admitted() == [new]


@pytest.mark.parametrize("policy", [DLPM(), DLPMInBatch(gate=InBatchGate(quantum=20, context_tokens=4))])
def test_a_client_in_credit_is_not_kept_out_by_slots_of_debtors(policy: ComposedPolicy) -> None:
    """Two clients whose long answers have both slots, and a third with another adapter: all are served."""
    play = with_slots(policy, 2)
    for client in (0, 1):
        for _ in range(4):
            play.arrive(client, prompt=2, output=60, adapter=f"of {client}")
    play.step(3)
    rare = play.arrive(2, prompt=2, output=5, adapter="rare")
    steps = 0
    while play.worker.queue or play.worker.running:
        play.step()
        steps += 1
        assert steps < 1_000
    assert rare in play.finished()


DEFICITS = {
    "flat": DLPM(gate=DeficitGate(quantum=9)),
    "in batch": DLPMInBatch(gate=InBatchGate(quantum=9)),
    "organisations": DLPM(gate=HierarchicalGate(quantum=9)),
    "bands": DLPM(gate=BandGate(quantum=9)),
}


@given(which=st.sampled_from(sorted(DEFICITS)), coming=ARRIVALS, slots=st.integers(1, 2))
def test_clients_that_lack_a_slot_hold_no_other_back(
    which: str, coming: list[list[tuple[str, int, int]]], slots: int
) -> None:
    """While all other clients that wait lack slots, one that needs none is served at once, whatever credit they have;
    a policy that only observes the admissions has the same gate, and so has what is proved of it."""
    policy = DEFICITS[which]
    play, relation = with_slots(policy, slots), policy.guarantee.relation()
    seen, state = 0, policy.init()
    assert isinstance(relation, KernelRelation)
    for step in range(3 * len(coming) + 9):
        for adapter, output_max, early in coming[step] if step < len(coming) else ():
            client = "abcd".index(adapter)
            named = {"adapter": adapter} if client else {}
            play.arrive(client, prompt=3, output=max(output_max - early, 1), output_max=output_max, **named)
        queue = [waiting.request for waiting in play.worker.queue.values()]
        free = [request.id for request in queue if request.client == 0]
        lacking = all(play.worker.lacks_slot(request) for request in queue if request.client)
        plan = play.step()
        assert not (free and lacking) or any(admission.request_id in free for admission in plan.admit)
        for event in play.events[seen:]:
            state = policy.observe(state, event)
            relation.observe(event)
            assert relation.refused is None
        seen = len(play.events)
        assert relation.difference(state) is None
        assert policy.state_to_json(state) == policy.state_to_json(play.state)


@pytest.mark.parametrize("field", ["adapter_slots", "adapter_load_ns", "keep_ns", "host_capacity_tokens"])
@pytest.mark.parametrize("value", [-1, 1.5])
def test_a_worker_has_whole_numbers_of_what_it_has(field: str, value: Any) -> None:
    """Times too, so that runs are the same everywhere."""
    with pytest.raises(ValueError, match=f"{field} is a whole number of at least 0"):
        WorkerSpec(PRESETS["llama-3.2-3b-a10g"], **{field: value})


def test_a_worker_without_slots_refuses_a_request_that_names_an_adapter() -> None:
    """The reason names request, adapter and worker; a request without an adapter is served."""
    worker = WorkerState(3, 100)
    _, events = transitions.arrive(worker, Request(0, 0, 0, Prompt(4), 4, adapter="law"), 4, 0)
    (refused,) = events
    assert isinstance(refused, Rejected)
    assert refused.reason == "request 0 needs adapter law, worker 3 has no adapter slots"
    with pytest.raises(ValueError, match="request 0: an adapter has a name"):
        Request(0, 0, 0, Prompt(4), 4, adapter="")


def test_a_plan_beyond_the_slots_cannot_be_begun() -> None:
    """Whatever policy made it: the worker says which adapter, and of how many slots."""
    worker = WorkerState(0, 100, adapter_slots=1)
    for i, adapter in enumerate(("law", "art")):
        worker, _ = transitions.arrive(worker, Request(i, 0, 0, Prompt(4), 4, adapter=adapter), 4, 0)
    plan = StepPlan(admit=tuple(Admission(i, 0, 4, 0, 4) for i in (0, 1)), chunks=((0, 4), (1, 4)))
    with pytest.raises(InfeasiblePlanError, match="request 1 needs adapter art, and running requests have others in"):
        transitions.begin(worker, plan, 0)


@given(adapters=st.lists(st.sampled_from("abcd"), min_size=1, max_size=12), slots=st.integers(1, 3))
def test_a_step_waits_for_each_adapter_that_it_loads(adapters: list[str], slots: int) -> None:
    """One request at a time: loads are what a cache of so many slots misses that lets go what was used longest ago."""
    jobs = [Job(Request(i, 0, 0, Prompt(4), 2, adapter=adapter), 2) for i, adapter in enumerate(adapters)]
    workload, latency, spans = Workload("one by one", jobs, (Client(0, "c"),)), Cluster().latency, list[float]()
    for load_ns in (0, 1_000_000):
        spec = WorkerSpec(latency, adapter_slots=slots, adapter_load_ns=load_ns)
        run = simulate(workload, FCFS(max_running=1), cluster=Cluster(latency, (spec,)))
        spans.append(run.measures.makespan_us)
    load = lru_cache(slots)(str)
    for adapter in adapters:
        load(adapter)
    assert spans[1] - spans[0] == pytest.approx(1_000 * load.cache_info().misses)


def _waits_for_loads(*changes: Restart) -> float:
    """Return how many loads of a second delay the second of two requests of one adapter."""
    jobs = [Job(Request(i, 0, i * 10 * 10**9, Prompt(4), 2, adapter="a"), 2) for i in range(2)]
    workload, latency, spans = Workload("two", jobs, (Client(0, "c"),)), Cluster().latency, list[float]()
    for load_ns in (0, 10**9):
        spec = WorkerSpec(latency, adapter_slots=1, adapter_load_ns=load_ns)
        run = simulate(workload, "fcfs", cluster=Cluster(latency, (spec,), changes=changes))
        spans.append(run.measures.makespan_us)
    return (spans[1] - spans[0]) / 1e6


def test_what_a_worker_loaded_is_lost_with_its_memory() -> None:
    """A restart between two requests of one adapter; without it the second finds it loaded."""
    assert _waits_for_loads() == 0
    assert _waits_for_loads(Restart(0, 5 * 10**9)) == pytest.approx(1)


def test_adapters_are_in_files_of_workloads_and_in_the_simulator(tmp_path: Path) -> None:
    """A workload is read as it was written; with slots it is served, without all that name an adapter are rejected."""
    made = generate("demo")
    jobs = tuple(
        replace(job, request=replace(job.request, adapter=f"of {job.request.client}")) if job.request.client else job
        for job in made.jobs[:60]
    )
    path = tmp_path / "adapters.jsonl"
    save_workload(replace(made, jobs=jobs), path)
    workload = load_trace(path)
    assert [job.request.adapter for job in workload.jobs] == [job.request.adapter for job in jobs]
    plain = sum(not job.request.adapter for job in jobs)
    latency = Cluster().latency
    for slots, served in ((2, len(jobs)), (0, plain)):
        run = simulate(workload, "dlpm", cluster=Cluster(latency, (WorkerSpec(latency, adapter_slots=slots),)))
        assert run.measures.finished == served
