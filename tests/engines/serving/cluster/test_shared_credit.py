"""Live workers that share credit decide as simulated ones do, and lose neither a request nor a debt when one dies."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.serving.cluster import LiveCluster, Processes, Recipe
from fairsched.engines.serving.cluster.member import Timeouts
from fairsched.engines.serving.cluster.worker import Cadence, Start
from fairsched.model.events import Admitted, Event
from fairsched.model.request import Client
from fairsched.policies.batching import Chunked
from fairsched.policies.gates import GlobalDeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS
from tests.engines.serving.cluster.test_cluster import DEATHS, clustered, gate_passed, played
from tests.engines.serving.test_loop import SENT, Ends
from tests.support.engines.fake_executor import FakeExecutor, answer_of
from tests.support.faults.flaky_workers import Death
from tests.support.faults.timed_workers import LiveWorld, simulated, specs_of

CAPACITY = 40
CLIENTS = (Client(0, "a", 2), Client(1, "b"), Client(2, "c"))
SMALL = Chunked(max_batched_tokens=8, max_running=4)


def shared(**parameters: Any) -> ComposedPolicy:
    """One deficit for all workers, small enough to matter."""
    policy = LOCAL_POLICIES["dlpm-global"]
    return attrs.evolve(policy, gate=GlobalDeficitGate(quantum=5, **parameters), batching=SMALL)


POLICIES = {
    "shared": shared(),
    "shared, keeps work": shared(keeps="work"),
    "shared, told late": shared(unsent_max=30),
    "shared, capped": shared(in_flight_cap_tokens=32),
    "fcfs": attrs.evolve(LOCAL_POLICIES["fcfs"], batching=SMALL),
    "dlpm": attrs.evolve(LOCAL_POLICIES["dlpm"], batching=SMALL),
    "vtc": attrs.evolve(LOCAL_POLICIES["vtc"], batching=SMALL),
}
ASKED = st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(1, 12))
BURSTS = st.lists(st.lists(ASKED, min_size=1, max_size=12), min_size=1, max_size=3)


def by_worker(events: list[Event]) -> dict[int, list[Event]]:
    """What each worker told, in its order."""
    told: dict[int, list[Event]] = {}
    for event in events:
        told.setdefault(event.worker, []).append(event)
    return told


@pytest.mark.parametrize("name", POLICIES)
@given(BURSTS, st.integers(1, 3), st.sampled_from(["round-robin", "join-shortest-queue", "d2lpm"]))
@settings(max_examples=25)
def test_live_workers_decide_as_simulated_ones(name: str, bursts: list[Any], workers: int, router: str) -> None:
    """The same requests, under any of these policies and routers, on workers whose steps take the same time: every
    event of every worker is the simulator's, at the same nanosecond, and so is the credit that is left."""
    policy, placing = POLICIES[name], ROUTERS[router]
    world = LiveWorld(policy, placing, specs_of(workers, CAPACITY), CLIENTS)
    world.run(bursts)
    expected, simulator = simulated(world, policy, placing)
    assert by_worker(world.events) == by_worker(expected)
    if world.cluster.shared_credit is not None:
        sharing = policy.shared_credit
        assert sharing is not None
        live, there = world.cluster.shared_credit.value, simulator.pool.credit
        for worker in range(workers):
            assert sharing.seen_to_json(live, worker) == sharing.seen_to_json(there, worker)


WILD = st.lists(st.tuples(SENT, st.integers(0, 6)), min_size=1, max_size=4)


@pytest.mark.parametrize("name", [name for name in POLICIES if name.startswith("shared")])
@given(WILD, DEATHS, st.integers(1, 3), st.sampled_from(["round-robin", "join-shortest-queue", "llumnix", "d2lpm"]))
@settings(max_examples=40)
def test_whoever_dies_the_credit_is_that_of_the_reports(
    name: str, bursts: list[Any], deaths: list[Death | None], workers: int, router: str
) -> None:
    """Workers that die while they decide, compute or wait for credit, come and drain; requests that move, and callers
    who leave: each request ends once with its own tokens, no worker waits for ever, each sees the one credit
    when it decides, and no gate is passed by."""
    policy, ends = POLICIES[name], Ends()
    cluster, start = clustered(
        policy, deaths, router=ROUTERS[router], workers=workers, workers_max=4, listeners=[ends], pace=Cadence(60.0, 1)
    )
    sent = played(cluster, bursts)
    assert ends.ended == Counter(dict.fromkeys(sent, 1))
    capped = policy.gate.refuses(CAPACITY) is not None
    for request in sent.values():
        assert request.answer is not None
        if not (capped and request.answer.outcome == "rejected"):
            request.check()
    shared_credit = cluster.shared_credit
    assert shared_credit is not None
    places = shared_credit.sharing.snapshot(shared_credit.value).places
    assert not places.any()
    for state in cluster.policy_states:
        policy.check(state)
    assert not any(worker.host.engine.guard.interventions for worker in start.started)
    gate_passed(policy, ends.events)


def kill_one_of_two(start: Start) -> None:
    """Serve a load with workers in other processes, one of which is killed: requests end once, and the one deficit goes
    on with what was reported."""
    policy, ends = shared(), Ends()
    cluster = LiveCluster(
        policy,
        ROUTERS["join-shortest-queue"],
        start,
        kv_capacity_tokens=CAPACITY,
        listeners=[ends],
        timeouts=Timeouts(silent_s=600.0, start_s=600.0),
    )

    def until(so: Callable[[], bool]) -> None:
        for _ in range(200_000):
            if so():
                return
            cluster.step()
        pytest.fail(f"this hangs: {cluster.answers}, {cluster.status}")

    until(lambda: all(status.phase == "serving" for status in cluster.status))
    answers = [cluster.ask(f"client-{i % 2}", [i % 3, 1, i % 5], 12) for i in range(24)]
    until(lambda: len(ends.ended) >= 6)
    victim = max(cluster.status, key=lambda status: status.requests).process_id
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    until(lambda: not cluster.answers)
    assert cluster.deaths == 1
    assert ends.ended == Counter(range(24))
    for answer in answers:
        assert (answer.outcome, answer.tokens) == ("finished", answer_of(answer.prompt_ids, 12))
    gate_passed(policy, ends.events)
    served = {event.worker for event in ends.events if isinstance(event, Admitted)}
    assert served == {0, 1}
    cluster.close()


def test_workers_in_processes_share_one_deficit() -> None:
    """What workers are told of it travels, and a process that is killed takes no debt along that it reported."""
    kill_one_of_two(Processes(Recipe(shared(), FakeExecutor, CAPACITY)))
