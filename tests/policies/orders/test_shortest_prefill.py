"""Orders by tokens to prefill and waits: each admission is the one that the definitions name."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import RequestLevel
from fairsched.policies.catalog import HRRN, ShortestPrefillFirst
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import HighestResponseRatio, QueuedRequest
from fairsched.policies.orders.shortest_prefill import TokensAdmitted
from fairsched.verify.conformance import WorkerPlay, admitted

Rank = Callable[[int, int], float]


@pytest.mark.parametrize(
    ("policy", "rank"),
    [
        (HRRN(batching=RequestLevel(max_running=1)), lambda waited, tokens: -waited / tokens),
        (
            ShortestPrefillFirst(ageing_percent=50, batching=RequestLevel(max_running=1)),
            lambda waited, tokens: tokens - waited / 2,
        ),
    ],
)
@given(rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=14))
def test_the_least_rank_is_let_in(policy: ComposedPolicy, rank: Rank, rows: list[tuple[int, int, int]]) -> None:
    """One request a step, of a document and a rest of its own: its size is what no earlier one left in the cache, its
    wait the sizes of those let in since it came; of equals the oldest is next."""
    play, clock, cached = WorkerPlay(policy, WorkerState(0, 1_000)), 0, set[int]()
    came: dict[int, int] = {}

    def tokens(i: int) -> int:
        _, document, own = rows[i]
        return own + (0 if document in cached else 8)

    due = [sum(gap for gap, *_ in rows[: i + 1]) for i in range(len(rows))]
    for step in range(due[-1] + len(rows) + 1):
        for i in (i for i, at in enumerate(due) if at == step):
            _, document, own = rows[i]
            keys = (*[document] * 8, *range(100 + 20 * i, 100 + 20 * i + own))
            play.arrive(Request(i, 0, step, Prompt.from_keys(keys, tokens=8 + own), 1), 1, step)
            came[i] = clock
        for i in admitted(play.step(step)):
            assert i == min(came, key=lambda j: (rank(clock - came[j], tokens(j)), j))
            clock += tokens(i)
            cached.add(rows[i][1])
            del came[i]
    assert not came


def test_a_preempted_request_keeps_its_wait() -> None:
    """It comes back with the tag that it had, a new one has what was let in by then."""
    entry = QueuedRequest(Request(0, 0, 0, Prompt(4), 1), 0, 0, tag=3)
    waits = TokensAdmitted(Map({0: 8}))
    for preemptions, tag in ((1, 3), (0, 8)):
        came = msgspec.structs.replace(entry, preemptions=preemptions)
        assert waits.joined(HighestResponseRatio(), came, 0, PrefixCache())[1].tag == tag
