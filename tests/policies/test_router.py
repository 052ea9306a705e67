"""Routers that look at counts and queues: what each defines, and what every router must do."""

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.plan import ClusterPlan
from fairsched.model.request import Prompt, Request
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies.base import Router
from fairsched.policies.registry import ROUTERS
from fairsched.policies.router import JoinShortestQueue, PerClientRoundRobin, RoundRobin

loads = st.builds(
    WorkerLoad,
    worker=st.just(0),
    waiting_requests=st.integers(0, 3),
    running_requests=st.integers(0, 3),
    waiting_tokens=st.integers(0, 9),
    kv_free_tokens=st.integers(0, 9),
    kv_capacity_tokens=st.integers(9, 12),
)


@st.composite
def cluster_views(draw: st.DrawFn) -> ClusterView:
    """A few workers, whose ids need not be consecutive, with small loads."""
    ids = sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=4)))
    return ClusterView(0, tuple(msgspec.structs.replace(draw(loads), worker=i) for i in ids))


def request(i: int, client: int) -> Request:
    """A request of which only id and client matter."""
    return Request(i, client, 0, Prompt(1), 1)


def route_all(router: Router[Any], views: list[tuple[int, ClusterView]]) -> tuple[list[int], Any]:
    """Workers for a request of each client under each view, and the state after them."""
    state, workers = router.init(), []
    for i, (client, view) in enumerate(views):
        dispatch, state = router.route(state, request(i, client), view)
        assert dispatch.request_id == i
        workers.append(dispatch.worker)
    return workers, state


@pytest.mark.parametrize("router", [*ROUTERS.values(), JoinShortestQueue(measure="tokens")], ids=str)
@given(views=st.lists(st.tuples(st.integers(0, 3), cluster_views()), min_size=1, max_size=12), at=st.integers(0, 12))
def test_every_router(router: Router[Any], views: list[tuple[int, ClusterView]], at: int) -> None:
    """Deterministic, to a worker that is there, holding nothing; its state survives JSON at any moment."""
    workers, last = route_all(router, views)
    assert route_all(router, views) == (workers, last)
    assert all(
        worker in [load.worker for load in view.workers] for worker, (_, view) in zip(workers, views, strict=True)
    )
    _, state = route_all(router, views[:at])
    before = router.state_to_json(state)
    resumed = router.state_from_json(json.loads(json.dumps(before)))
    for i, (client, view) in enumerate(views[at:]):
        one, state = router.route(state, request(i, client), view)
        two, resumed = router.route(resumed, request(i, client), view)
        assert one == two
    assert resumed == state == last
    assert router.decide(last, views[0][1]) == (ClusterPlan(), last)


@given(st.integers(1, 5), st.integers(1, 40), st.data())
def test_round_robin_counts_differ_by_at_most_one(workers: int, count: int, data: st.DataObject) -> None:
    """On a fixed cluster no worker gets two requests more than another; per client, for each client alone."""
    view = ClusterView(0, tuple(WorkerLoad(i, 0, 0, 0, 1, 1) for i in range(workers)))
    clients = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    views = [(client, view) for client in clients]
    _check_even(route_all(RoundRobin(), views)[0], workers)
    placed = route_all(PerClientRoundRobin(), views)[0]
    for client in set(clients):
        _check_even([worker for worker, owner in zip(placed, clients, strict=True) if owner == client], workers)


def _check_even(placed: list[int], workers: int) -> None:
    counts = Counter(placed)
    assert max(counts.values()) - min(counts[i] for i in range(workers)) <= 1


@given(cluster_views())
def test_shortest_queue_is_joined(view: ClusterView) -> None:
    """No worker has fewer requests (or tokens) than the one chosen, and of equals the lowest id is."""
    requests = {w.worker: w.waiting_requests + w.running_requests for w in view.workers}
    tokens = {w.worker: w.waiting_tokens + w.kv_capacity_tokens - w.kv_free_tokens for w in view.workers}
    for router, load in ((JoinShortestQueue(), requests), (JoinShortestQueue(measure="tokens"), tokens)):
        dispatch, _ = router.route(router.init(), request(0, 0), view)
        assert dispatch.worker == min((load[worker], worker) for worker in load)[1]
