"""Routers that look at counts and queues: what each defines, and how they compare.

What is true and false of them is in `verify.proofs.routers.load_based`; what every router must do is in
tests/verify/conformance/test_conformance_router.py.
"""

import math
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from random import Random as Rng

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.policies.base import AnyRouter
from fairsched.policies.draw import draw
from fairsched.policies.registry import ROUTERS, router_parameters, router_with
from fairsched.policies.routers import Freeness, JoinShortestQueue, PowerOfTwo, Random, RoundRobin
from tests.support.clusters import request, view_of

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


def mean_queue(router: AnyRouter, workers: int = 16, steps: int = 90_000) -> float:
    """Mean requests at a worker, where they come and end at exponential times and nine come while ten could end.

    A step is the next thing that could happen anywhere: a request comes, or a worker ends one if it has any.  The first
    third is not counted.
    """
    rng, state, counted = Rng(7), router.init(), 0
    loads = [WorkerLoad(worker, 0, 0, 0, 1, 1) for worker in range(workers)]
    for step in range(steps):
        if rng.random() < 9 / 19:
            dispatch, state = router.route(state, request(step), ClusterView(0, tuple(loads)))
            worker, change = dispatch.worker, 1
        else:
            worker, change = rng.randrange(workers), -1
        there = max(0, loads[worker].waiting_requests + change)
        loads[worker] = WorkerLoad(worker, there, 0, 0, 1, 1)
        if step >= steps // 3:
            counted += sum([load.waiting_requests for load in loads])
    return counted / (steps - steps // 3) / workers


def test_the_more_is_known_the_shorter_queues_are() -> None:
    """P-JSQ-2: at nine tenths of capacity the mean queue of join-shortest-queue, power of two, round robin and random
    each is at least 1.3 times the one before; known figures for 64 workers are 1.04, 2.51, 4.57, 8.49.  Simulated."""
    means = [mean_queue(router) for router in (JoinShortestQueue(), PowerOfTwo(), RoundRobin(), Random())]
    assert all(1.3 * fewer < more for fewer, more in pairwise(means)), means


def test_draws_are_splitmix64() -> None:
    """The first numbers of the published sequence, whatever machine this is."""
    assert [draw(1234567, i, 1 << 64) for i in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@given(st.integers(0, 1 << 70), st.integers(0, 1 << 70), st.integers(1, 1_000))
def test_draws_are_in_range(seed: int, counter: int, count: int) -> None:
    """However large seed and counter are."""
    assert 0 <= draw(seed, counter, count) < count


def placed_by(router: AnyRouter) -> list[int]:
    """The workers of 6,000 requests, where six are equal all the time."""
    state, workers = router.init(), []
    for i in range(6_000):
        dispatch, state = router.route(state, request(i), view_of(*[0] * 6))
        workers.append(dispatch.worker)
    return workers


@pytest.mark.parametrize("router", [Random(), PowerOfTwo()], ids=str)
def test_random_routers_leave_nobody_out(router: AnyRouter) -> None:
    """Six equal workers get a sixth of 6,000 requests each, within a tenth; another seed gives another sequence."""
    placed = placed_by(router)
    counts = Counter(placed)
    if isinstance(router, Random):
        assert all(900 <= counts[i] <= 1_100 for i in range(6))
    else:
        # Of equal pairs the lower id wins: worker i is the lower of 5 - i pairs in 15.
        assert all(abs(counts[i] - 400 * (5 - i)) <= 120 for i in range(6))
    assert placed_by(router_with(router, {"seed": "1"})) != placed


@given(cluster_views())
def test_the_freest_is_chosen(view: ClusterView) -> None:
    """No worker has more free memory a request than the one chosen; one without requests has infinitely much."""

    def freeness(load: WorkerLoad) -> Fraction | float:
        requests = load.waiting_requests + load.running_requests
        return Fraction(load.kv_free_tokens - load.waiting_tokens, requests) if requests else math.inf

    dispatch, _ = Freeness().route(Freeness().init(), request(0), view)
    assert dispatch.worker == min(view.workers, key=lambda load: (-freeness(load), load.worker)).worker


@pytest.mark.parametrize("name", ROUTERS)
def test_parameters_are_set_by_name(name: str) -> None:
    """Every parameter of a router can be given as text, and is what it was when its own value is given."""
    router = ROUTERS[name]
    text = {key: "none" if value is None else str(value) for key, value in router_parameters(router).items()}
    assert router_with(router, text) == router
    with pytest.raises(ValueError, match="unknown parameter of router"):
        router_with(router, {"nothing": "1"})
