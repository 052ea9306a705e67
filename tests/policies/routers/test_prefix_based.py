"""The routers that only follow prefixes: the longest one wherever it is, and the oracle's partition."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.events import Evicted, WorkerLeft
from fairsched.policies.routers import LMetric, LongestPrefixRouter, OraclePartition
from tests.support.clusters import request, view_of

CAPACITY = 100


def test_the_longest_prefix_wins_whatever_the_load() -> None:
    """A prefix stays where it was first, however long that queue grows; a new one goes to the shortest queue."""
    router = LongestPrefixRouter()
    dispatch, state = router.route(router.init(), request(0, (1, 2, 3)), view_of(3, 2, 2))
    assert dispatch.worker == 1
    dispatch, state = router.route(state, request(1, (1, 2, 4)), view_of(0, 1_000, 0))
    assert dispatch.worker == 1
    dispatch, state = router.route(state, request(2, (5,)), view_of(0, 1_000, 0))
    assert dispatch.worker == 0
    for gone in (Evicted(0, 1, 0, request(0, (1, 2, 3)).prompt, 0, 3), WorkerLeft(0, 1)):
        assert router.route(router.observe(state, gone), request(3, (1, 2, 3)), view_of(0, 0, 0))[0].worker == 0


def test_a_worker_that_cannot_hold_it_comes_last() -> None:
    """The holder is too small for a longer prompt; if all are too small, nothing is learnt."""
    router = LongestPrefixRouter()
    _, state = router.route(router.init(), request(0, (1,) * 6), view_of(0))
    small, large = WorkerLoad(0, 0, 0, 0, 9, 9), WorkerLoad(1, 5, 0, 0, 99, 99)
    assert router.route(state, request(1, (1,) * 9), ClusterView(0, (small, large)))[0].worker == 1
    dispatch, after = router.route(state, request(1, (1,) * 9), ClusterView(0, (small,)))
    assert (dispatch.worker, after) == (0, state)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=12), st.integers(1, 3))
def test_tokens_missed_times_requests_decide(drawn: list[tuple[int, int]], workers: int) -> None:
    """Each request goes where (tokens - longest common prefix with what was sent there) x (requests + 1) is least, then
    to the fewest requests, then to the lowest id."""
    sent: list[list[tuple[int, ...]]] = [[] for _ in range(workers)]
    router = LMetric()
    state = router.init()
    for i, (length, document) in enumerate(drawn):
        asked = (document,) * length
        missed = [
            1 + length - max([min(length, len(e)) for e in there if e and e[0] == document] or [0]) for there in sent
        ]
        expected = min(range(workers), key=lambda w: (missed[w] * (len(sent[w]) + 1), len(sent[w]), w))
        dispatch, state = router.route(state, request(i, asked), view_of(*map(len, sent)))
        assert dispatch.worker == expected
        sent[expected].append(asked)


def test_what_never_came_is_not_held_for_ever() -> None:
    """Prompts that were given up are forgotten, the oldest first, once they are more than twice the worker."""
    router = LongestPrefixRouter()
    state = router.init()
    for i in range(60):
        _, state = router.route(state, request(i, (100 + i,) * 9), view_of(0))
    assert state.index.held_tokens(0) <= 2 * CAPACITY
    assert state.index.match(request(0, (159,) * 9).prompt).levels
    assert not state.index.match(request(0, (100,) * 9).prompt).levels


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=30), st.integers(1, 4))
def test_a_part_of_many_has_one_worker(drawn: list[tuple[int, int]], workers: int) -> None:
    """All requests about a document of 20 tokens go to one worker, and no worker has more than the mean and a group."""
    requests = [
        request(i, (document,) * 20 + tuple(1_000 + 20 * i + k for k in range(rest)))
        for i, (document, rest) in enumerate(drawn)
    ]
    oracle = OraclePartition().informed(requests, workers)
    homes: dict[int, set[int]] = {}
    work, groups = Counter[int](), Counter[int]()
    for asked, (document, rest) in zip(requests, drawn, strict=True):
        dispatch, _ = oracle.route(oracle.init(), asked, view_of(*([0] * workers)))
        homes.setdefault(document, set()).add(dispatch.worker)
        groups[document] += rest + 3
        work[dispatch.worker] += rest + 3
    assert all(len(where) == 1 for where in homes.values())
    for document, where in homes.items():
        work[next(iter(where))] += 20
        groups[document] += 20
    assert max(work.values()) <= sum(groups.values()) / workers + max(groups.values())


def test_what_all_share_is_no_part() -> None:
    """A short system prompt before every document parts no requests; one that shares nothing is a part alone."""
    system = (7,)
    requests = [request(i, (*system, *((i % 2 + 1,) * 5), 100 + i)) for i in range(4)] + [request(4, (9,) * 5)]
    oracle = OraclePartition.of(requests, 5)
    assert oracle.assigned[0] == oracle.assigned[2]
    assert oracle.assigned[1] == oracle.assigned[3]
    assert len({oracle.assigned[0], oracle.assigned[1], oracle.assigned[4]}) == 3


def test_a_long_end_of_one_s_own_is_no_part() -> None:
    """Questions that are longer than their document, each of another request, stay with the document."""
    requests = [request(i, (1,) * 5 + tuple(range(100 * i, 100 * i + 8))) for i in range(1, 5)]
    assert len(set(OraclePartition.of(requests, 4).assigned.values())) == 1


def test_the_unforeseen_joins_the_shortest_queue() -> None:
    """A request that the oracle did not know, and one whose worker is gone."""
    oracle = OraclePartition.of([request(0, (1,))], 1)
    assert oracle.route(oracle.init(), request(9, (1,)), view_of(3, 1))[0].worker == 1
    elsewhere = ClusterView(0, view_of(3, 4, 1).workers[1:])
    assert oracle.route(oracle.init(), request(0, (1,)), elsewhere)[0].worker == 2


def test_nothing_is_parted_without_workers() -> None:
    """An error that says so."""
    with pytest.raises(ValueError, match="at least one part"):
        OraclePartition.of([], 0)
