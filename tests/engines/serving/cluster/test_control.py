"""Policies that hold requests or move them, in a live cluster: what they decide is done, and no request is lost."""

from collections import Counter
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.serving.cluster.cluster import NoWorkerError
from fairsched.engines.serving.cluster.worker import Cadence
from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch, Migration
from fairsched.model.events import NOWHERE, Admitted, Arrived, Cancelled, Event, Finished, WorkerDraining
from fairsched.model.request import Request
from fairsched.model.worker.state import NO_TRANSIT
from fairsched.policies.base import ClusterPolicy, Router
from fairsched.policies.catalog import FCFS
from fairsched.policies.registry import CLUSTER_POLICIES
from fairsched.policies.routers import ValleyFilling
from tests.engines.serving.cluster.test_cluster import DEATHS, Sent, act_on, clustered, played
from tests.engines.serving.test_loop import SENT, Ends
from tests.support.engines.fake_executor import answer_of
from tests.support.faults.flaky_workers import Death

HOLDS = sorted(name for name, policy in CLUSTER_POLICIES.items() if not isinstance(policy, Router))


@pytest.mark.parametrize("name", HOLDS)
@given(st.lists(st.tuples(SENT, st.integers(0, 6)), min_size=1, max_size=3), DEATHS, st.integers(1, 3))
@settings(max_examples=10)
def test_requests_that_a_policy_holds_end_once(
    name: str, bursts: list[Any], deaths: list[Death | None], workers: int
) -> None:
    """Under every policy that dispatches later, with workers that die, come and drain and callers who leave: each
    request ends once with its own tokens, and the policy is told of each that comes."""
    ends, now = Ends(), Beats()
    cluster, _ = clustered(
        FCFS(),
        deaths,
        router=CLUSTER_POLICIES[name],
        workers=workers,
        workers_max=4,
        listeners=[ends],
        pace=Cadence(60.0, 1),
        now_ns=now,
    )
    sent = played(cluster, bursts)
    assert ends.ended == Counter(dict.fromkeys(sent, 1))
    for request in sent.values():
        request.check()
    came = {event.request.id for event in ends.events if isinstance(event, Arrived) and event.worker == NOWHERE}
    assert came == set(sent)


class Beats:
    """A clock on which every look takes 10 ms, so that a policy with a rhythm is asked soon."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 10_000_000
        return self.now_ns


@attrs.frozen
class Keeps(ClusterPolicy[int]):
    """Holds every request; of those with an even number it says where they go, to a worker that is not there."""

    name = "keeps"
    state_type = int
    odd: bool = True

    def observe(self, state: int, event: Event) -> int:
        return state + (isinstance(event, Arrived) and event.worker == NOWHERE)

    def decide(self, state: int, view: ClusterView) -> tuple[ClusterPlan, int]:
        return ClusterPlan(() if self.odd else tuple(Dispatch(i, 99) for i in range(state))), state


def test_what_a_policy_never_sends_goes_to_the_shortest_queue() -> None:
    """When nothing else can happen the guard sends it, and counts a stall; no request waits for ever."""
    cluster, _ = clustered(FCFS(), [], router=Keeps())
    answers = [cluster.ask("a", [i, 1], 3) for i in range(4)]
    cluster.run_until_idle()
    assert [answer.outcome for answer in answers] == ["finished"] * 4
    assert cluster.router.interventions["stalled"] == 1


def test_what_may_wait_is_sent_when_the_policy_wakes() -> None:
    """Though nothing else happens, and while it waits another request comes and goes; no stall is counted."""
    ends = Ends()
    router = ValleyFilling(prices="0:2+1:1", defer_s=5)
    cluster, _ = clustered(FCFS(), [], router=router, listeners=[ends], now_ns=Beats())
    waits, goes = cluster.ask("a", [1, 1], 3, priority=-1), cluster.ask("a", [2, 1], 3)
    cluster.run_until_idle()
    assert [waits.outcome, goes.outcome] == ["finished"] * 2
    assert [event.request_id for event in ends.events if isinstance(event, Finished)] == [1, 0]
    assert not cluster.router.interventions


def test_a_dispatch_to_no_worker_goes_to_the_shortest_queue() -> None:
    """And a caller who leaves while the policy holds the request is told of to the policy."""
    ends = Ends()
    cluster, _ = clustered(FCFS(), [], router=Keeps(odd=False), listeners=[ends])
    answers = [cluster.ask("a", [i, 1], 3) for i in range(4)]
    assert cluster.cancel(2)
    cluster.run_until_idle()
    assert [answer.outcome for answer in answers] == ["finished", "finished", "cancelled", "finished"]
    assert [event.worker for event in ends.events if isinstance(event, Cancelled)] == [NOWHERE]
    assert not cluster.router.interventions


# --- drained by policy ------------------------------------------------------------------------------------------------


@attrs.frozen
class MovesAway(Router[Any]):
    """Round robin; what a worker has when it begins to drain is sent elsewhere, with the KV of what was admitted.

    Its state: which worker comes next, the place of each request and whether it was admitted there, and what drains.
    """

    name = "moves-away"

    def init(self) -> Any:
        return 0, {}, None

    def route(self, state: Any, request: Request, view: ClusterView) -> tuple[Dispatch, Any]:
        turn, places, drains = state
        return Dispatch(request.id, view.workers[turn % len(view.workers)].worker), (turn + 1, places, drains)

    def observe(self, state: Any, event: Event) -> Any:
        turn, places, drains = state
        if isinstance(event, Arrived):
            places = places | {event.request.id: (event.worker, bool(event.kv_tokens))}
        elif isinstance(event, Admitted):
            places = places | {event.request_id: (event.worker, True)}
        return turn, places, event.worker if isinstance(event, WorkerDraining) else drains

    def decide(self, state: Any, view: ClusterView) -> tuple[ClusterPlan, Any]:
        turn, places, drains = state
        others = [load.worker for load in view.workers if load.worker != drains]
        leaving = sorted((i, kv) for i, (worker, kv) in places.items() if worker == drains)
        moves = [Migration(i, drains, others[i % len(others)], with_kv=kv) for i, kv in leaving if others]
        return ClusterPlan((), tuple(moves)), (turn, places, None)


def test_a_drain_while_all_others_are_full_loses_no_request() -> None:
    """Requests wait at the worker that drains until there is room, and the last worker cannot drain."""
    ends = Ends()
    cluster, start = clustered(FCFS(), [], router=MovesAway(), listeners=[ends], pace=Cadence(60.0, 1))
    cluster.step()
    answers = [cluster.ask("a", [i, 1, 2, 3, 4, 5], 30) for i in range(8)]
    for _ in range(3):
        cluster.step()
    assert all(worker.host.engine.state.free < 36 for worker in start.alive)
    cluster.drain_worker(0)
    with pytest.raises(NoWorkerError, match="last one"):
        cluster.drain_worker(1)
    cluster.run_until_idle()
    for answer in answers:
        assert (answer.outcome, answer.tokens) == ("finished", answer_of(answer.prompt_ids, 30))
    assert [status.worker for status in cluster.status] == [1]
    assert ends.ended == Counter(range(8))


@given(st.lists(st.tuples(SENT, st.integers(0, 6)), min_size=1, max_size=3), DEATHS, st.sampled_from([2, 3]), st.data())
@settings(max_examples=60)
def test_whoever_dies_or_leaves_in_a_drain_each_request_ends_once(
    bursts: list[Any], deaths: list[Death | None], workers: int, data: st.DataObject
) -> None:
    """Workers killed and callers who give up while requests move from a worker that drains."""
    ends = Ends()
    cluster, start = clustered(
        FCFS(), deaths, router=MovesAway(), workers=workers, workers_max=4, listeners=[ends], pace=Cadence(60.0, 1)
    )

    def drains(act: int, sent: dict[int, Sent]) -> None:
        act_on(cluster, 1, sent)
        for request_id in sorted(cluster.moves):
            if data.draw(st.booleans()) and not sent[request_id].gone:
                sent[request_id].gone = True
                assert cluster.cancel(request_id)

    sent = played(cluster, bursts, drains)
    assert ends.ended == Counter(dict.fromkeys(sent, 1))
    for request in sent.values():
        request.check()
    for worker in start.alive:
        state = worker.host.engine.state
        assert state.transit == NO_TRANSIT
        assert state.used == state.promised == 0
