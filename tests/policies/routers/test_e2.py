"""E2 against a slow reference that recomputes every cost from all that ever happened, and its corrections one by one.

Ids are those of docs/reference/theorems.md; what is proved and refuted is in tests/verify.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.decision import ClusterView, WorkerLoad
from fairsched.model.events import Admitted, Cached, Cancelled, Event, Evicted, Finished, WorkerJoined, WorkerLeft
from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.model.prefix_cache import PrefixIndex
from fairsched.model.request import Prompt, Request
from fairsched.policies.routers.e2 import E2, E2Printed, E2State, rebalanced, split
from fairsched.policies.routers.e2.cost import Case, Prices
from fairsched.policies.routers.e2.router import Choice
from tests.support.clusters import KEYS, Keys, request

H_NS = 1_000
MODEL = LatencyModel("test", "ours", 7, 3, 2_000, (DecodePiece(1, 40, 2, 5),), 1 << 20)
BATCH = E2.decode_batch
PRICES = Prices.of(MODEL, BATCH)
ROUTER = E2(window_us=1, latency=MODEL, prior_output_tokens=3, scaling="off", decode_share_percent=100)
WORKERS = 3
CAPACITY = 20


def view(now_ns: int = 0, workers: Sequence[int] = range(WORKERS)) -> ClusterView:
    """Workers of equal size."""
    return ClusterView(now_ns, tuple(WorkerLoad(worker, 0, 0, 0, CAPACITY, CAPACITY) for worker in workers))


# --- costs against a reference ----------------------------------------------------------------------------------------


@attrs.define
class Sending:
    """One request as the reference remembers it."""

    worker: int
    at_ns: int
    prefill_ns: int
    prompt_tokens: int
    output_tokens: int | None = None
    open: bool = True


class Reference:
    """All requests ever sent, by id; sums are made anew for every question."""

    def __init__(self) -> None:
        self.sent: dict[int, Sending] = {}

    def load(self, worker: int, now_ns: int, mode: str) -> int:
        """L, by its definition."""
        there = [s for s in self.sent.values() if s.worker == worker]
        recent = [s for s in there if s.at_ns > now_ns - H_NS]
        outputs = [s.output_tokens for s in recent if s.output_tokens is not None] or [3]
        mean = Fraction(sum(outputs), len(outputs))
        counted = recent if mode == "window" else [s for s in there if s.open]
        decoding = sum((Fraction(40 + 5 * BATCH, BATCH) + 2 * s.prompt_tokens for s in counted), Fraction(0)) * mean
        return sum(s.prefill_ns for s in counted) + int(decoding)


@given(
    mode=st.sampled_from(("window", "outstanding")),
    steps=st.lists(
        st.tuples(st.sampled_from(("send", "send", "finish", "cancel", "wait", "leave")), KEYS, st.integers(0, 9)),
        max_size=14,
    ),
)
def test_loads_are_what_their_definition_says(mode: Any, steps: list[tuple[str, Keys, int]]) -> None:
    """After any history the loads that decide are sums over it, made anew; sums that go along lose nothing."""
    router, reference, now_ns = attrs.evolve(ROUTER, load_mode=mode), Reference(), 0
    state = router.init()
    for i, (what, keys, number) in enumerate(steps):
        under_way = sorted(j for j, s in reference.sent.items() if s.open)
        if what == "send":
            asked = request(i, keys, now_ns)
            cached = state.index.match(asked.prompt).blocks_by_worker(WORKERS)
            dispatch, state = router.route(state, asked, view(now_ns))
            missed = asked.prompt.tokens - cached[dispatch.worker]
            prefill = PRICES.prefill_ns(missed, cached[dispatch.worker])
            reference.sent[i] = Sending(dispatch.worker, now_ns, prefill, asked.prompt.tokens)
        elif what == "wait":
            now_ns += 100 * number
        elif what == "leave":
            worker = number % WORKERS
            state = router.observe(state, WorkerLeft(now_ns, worker))
            reference.sent = {j: s for j, s in reference.sent.items() if s.worker != worker}
        elif under_way:
            ended = under_way[number % len(under_way)]
            sending = reference.sent[ended]
            event: Event = Cancelled(now_ns, sending.worker, ended, 0, False, 0, 0)
            if what == "finish":
                event = Finished(now_ns, sending.worker, ended, 0, number + 1)
                sending.output_tokens = number + 1
            sending.open = False
            state = router.observe(state, event)
        router.check(state)
    # Asking once more takes what is too old out of the window.
    _, state = router.route(state, request(99, (9,), now_ns), view(now_ns, workers=[7]))
    case = case_of(router, state, (8,))
    assert list(case.loads) == [reference.load(worker, now_ns, mode) for worker in range(WORKERS)]


def case_of(router: E2, state: E2State, keys: Keys) -> Case:
    """The costs of a prompt in a state."""
    prompt = request(0, keys).prompt
    return router.case(state, prompt, state.index.match(prompt), view().workers)


def told(*holds: tuple[int, Keys]) -> E2State:
    """What the router thinks after workers reported what they cache."""
    state = ROUTER.init()
    for worker, keys in holds:
        prompt = request(0, keys).prompt
        state = ROUTER.observe(state, Cached(0, worker, 0, prompt, prompt.blocks))
    return state


def test_a_model_that_was_given_stays() -> None:
    """The workers' model prices unless the router has one."""
    other = attrs.evolve(MODEL, prefill_token_ns=99)
    assert E2().fitted(MODEL).prices == Prices.of(MODEL, BATCH)
    assert E2(latency=other).fitted(MODEL).latency is other


# --- decisions --------------------------------------------------------------------------------------------------------


def choice(router: E2, state: E2State, keys: Keys, workers: Sequence[int] = range(WORKERS)) -> Choice:
    """Where a prompt goes and why."""
    prompt = request(0, keys).prompt
    return router.choose(state, prompt, state.index.match(prompt), view(workers=workers).workers)


def busy(state: E2State, worker: int, times: int = 1) -> E2State:
    """The worker got so many requests that share nothing, and that are 15 tokens long."""
    for i in range(times):
        number = state.history.next_number + 1_000
        asked = request(number, tuple(10 * number + i for i in range(15)))
        _, state = ROUTER.route(state, asked, view(workers=[worker]))
    return state


def test_the_share_that_exploits_can_be_set() -> None:
    """Below the share that is cached a request exploits, from it on it explores."""
    state = told((1, (1, 1, 1)))
    for percent, why in ((0, "exploit"), (49, "exploit"), (50, "explore"), (100, "explore")):
        assert choice(attrs.evolve(ROUTER, exploit_percent=percent), state, (1, 1, 1, 0, 0)).why == why


def test_a_prefix_leaves_a_worker_that_is_too_heavy() -> None:
    """Per source a heavy worker loses a request that costs less at the lightest, and one that costs more stays."""
    state = busy(busy(busy(told((1, (1,) * 6)), 0, 9), 1, 8), 2, 1)
    asked = (1,) * 6
    assert choice(attrs.evolve(ROUTER, rebalancing="off"), state, asked).worker == 1
    moved = choice(ROUTER, state, asked)
    assert (moved.worker, moved.why, moved.cached_tokens) == (2, "rebalance", 0)
    # As printed only the heaviest loses requests, and that is worker 0.
    assert choice(attrs.evolve(ROUTER, rebalancing="heaviest"), state, asked).worker == 1
    # Two loads of hardly anything: the ratio is large, and the difference less than what would be recomputed.
    assert rebalanced(0, 1, [3, 1], 150, "per-source", [3, 9].__getitem__) == 0
    assert rebalanced(0, 1, [3, 1], 150, "heaviest", [3, 9].__getitem__) == 1


def test_a_request_goes_nowhere_where_it_cannot_fit() -> None:
    """The only holder, the lightest and the cheapest are passed over if too small; if all are, nothing is learnt."""
    state = told((0, (1,) * 6))
    small, large = WorkerLoad(0, 0, 0, 0, 8, 8), WorkerLoad(1, 0, 0, 0, 99, 99)
    asked = request(5, (1,) * 6)
    for router in (ROUTER, E2Printed(latency=MODEL)):
        dispatch, after = router.route(state, asked, ClusterView(0, (small, large)))
        assert dispatch.worker == 1
        assert after.history.open[5].worker == 1
        dispatch, after = router.route(state, asked, ClusterView(0, (small,)))
        assert dispatch.worker == 0
        assert not after.history.open


def test_decoding_workers_get_the_prefill() -> None:
    """What explores goes to the worker that decodes most, unless that one is heavy."""
    state = told((1, (1,) * 8))
    for i in range(3):
        _, state = ROUTER.route(state, request(i, (1,) * 8), view(workers=[1]))
        state = ROUTER.observe(state, Finished(0, 1, i, 0, 90))
    decode = attrs.evolve(ROUTER, decode_share_percent=70, rebalancing="off")
    assert choice(decode, state, (4, 4)).why == "decode-heavy"
    assert choice(decode, state, (4, 4)).worker == 1
    assert choice(attrs.evolve(decode, rebalancing="per-source"), state, (4, 4)).why == "explore"
    assert choice(ROUTER, state, (4, 4)).worker == 0


def test_a_prefix_whose_waits_double_gets_a_worker_more() -> None:
    """Waits of 200 ns in one half of H and of 500 in the next: the next request goes to the lightest, and once only."""
    router = attrs.evolve(ROUTER, scaling="on", rebalancing="off")
    state = told((1, (1,) * 8))
    for i, (at_ns, wait_ns) in enumerate(((0, 200), (100, 200), (500, 499))):
        dispatch, state = router.route(state, request(i, (1,) * 8, at_ns), view(at_ns))
        assert dispatch.worker == 1
        state = router.observe(state, Admitted(at_ns + wait_ns, 1, i, 0, 1, 8, 2))
        # A second admission, after a preemption, is no wait.
        state = router.observe(state, Admitted(at_ns + wait_ns + 1, 1, i, 0, 1, 8, 2))
    state = E2State(state.index.advance(999), state.history, state.waits, state.ends)
    assert choice(attrs.evolve(router, scaling="off"), state, (1,) * 8).why == "exploit"
    replicated = choice(router, state, (1,) * 8)
    assert (replicated.why, replicated.worker) == ("replicate", 0)
    dispatch, state = router.route(state, request(9, (1,) * 8, 999), view(999))
    assert dispatch.worker == 0
    assert choice(router, state, (1,) * 8).why == "exploit"
    router.check(state)


def test_subtrees_of_a_prefix_that_gets_a_worker_are_split_by_load() -> None:
    """Of subtrees that several requests used, half the load moves: each subtree once, with its next request."""
    router = attrs.evolve(ROUTER, scaling="on", rebalancing="off", window_us=10)
    head, state, now_ns, number = (1,) * 4, E2State(PrefixIndex.empty(10_000)), 0, 0

    def sent(keys: Keys, wait_ns: int, state: E2State) -> tuple[int, E2State]:
        nonlocal number
        number += 1
        dispatch, state = router.route(state, request(number, keys, now_ns), view(now_ns))
        router.check(state)
        admitted = Admitted(now_ns + wait_ns, dispatch.worker, number, 0, 1, len(keys), 2)
        return dispatch.worker, router.observe(state, admitted)

    # Worker 0 gets the head with four subtrees, of which one request in three each is of the first half of H.
    for _ in range(3):
        for tail in (2, 3, 4, 5):
            worker, state = sent((*head, tail), 10, state)
            assert worker == 0
    for _ in range(2):
        _, state = sent(head, 10, state)
    now_ns = 5_000
    _, state = sent(head, 4_999, state)
    assert not state.moves
    # The head gets worker 1, and of its four subtrees of equal load two move.
    worker, state = sent(head, 0, state)
    assert (worker, sorted(state.moves.values())) == (1, [1, 1])
    places = [sent((*head, tail), 0, state) for tail in (2, 3, 4, 5)]
    assert sorted(worker for worker, _ in places) == [0, 0, 1, 1]
    moved = next(tail for tail, (worker, _) in zip((2, 3, 4, 5), places, strict=True) if worker == 1)
    assert choice(router, state, (*head, moved)).why == "split"
    _, state = sent((*head, moved), 0, state)
    assert len(state.moves) == 1
    # A worker that leaves gets nothing more.
    assert not router.observe(state, WorkerLeft(now_ns, 1)).moves


@given(st.lists(st.integers(0, 50), max_size=9), st.integers(0, 200), st.integers(0, 200))
def test_a_split_is_as_even_as_its_largest_subtree(subtrees: list[int], keeps: int, gets: int) -> None:
    """P-E2-7 for more subtrees than it is proved for."""
    given_away = sum(subtrees[i] for i in split(subtrees, keeps, gets))
    apart = abs(keeps + sum(subtrees) - given_away - (gets + given_away))
    assert apart <= max([abs(keeps - gets) - sum(subtrees), *subtrees])


def test_what_workers_hold_is_followed() -> None:
    """Evictions, workers that leave and come back, and prompts that were sent but never computed."""
    state = told((0, (1,) * 6), (1, (1,) * 6))
    prompt = request(0, (1,) * 6).prompt
    state = ROUTER.observe(state, Evicted(1, 0, 0, prompt, 2, 4))
    assert state.index.match(prompt).blocks_by_worker(2) == [2, 6]
    for gone in (WorkerLeft(2, 1), WorkerJoined(2, 1, CAPACITY)):
        assert ROUTER.observe(state, gone).index.match(prompt).blocks_by_worker(2) == [2, 0]
    # A report that comes late tells of an earlier time.
    state = ROUTER.observe(state, Cached(0, 0, 0, prompt, 6))
    assert state.index.match(prompt).blocks_by_worker(2) == [6, 6]
    for i in range(50):
        asked = request(i, (20 + i,) * 9)
        _, state = ROUTER.route(state, asked, view(workers=[2]))
        state = ROUTER.observe(state, Cancelled(2, 2, i, 0, False, 0, 0))
    assert state.index.held_tokens(2) <= CAPACITY + 10


def test_blocks_of_another_size_share_nothing() -> None:
    """A prompt with other blocks than the index has explores, and does not stop the router."""
    state = told((0, (1,) * 6))
    odd = Request(1, 0, 0, Prompt.from_keys((1, 1, 1), block_tokens=2), 2)
    dispatch, after = ROUTER.route(state, odd, view())
    assert dispatch.worker == 0
    assert after.history.open[1].missed_tokens == 6
    after = ROUTER.observe(after, Cached(0, 0, 1, odd.prompt, 3))
    ROUTER.check(ROUTER.observe(after, Evicted(0, 0, 1, odd.prompt, 0, 3)))


@pytest.mark.parametrize("wrong", [{"threshold_percent": 0}, {"load_mode": "x"}, {"rebalancing": "on"}])
def test_values_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    """By name."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        E2(**wrong)
