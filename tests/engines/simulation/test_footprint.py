"""What one more costs a policy is what its state shows, and no policy that ships remembers each request for ever."""

import gc
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar

import attrs
import pytest

from benchmarks.scaling.states import KEPT, state_costs
from fairsched.model.decision import ClusterView, Dispatch
from fairsched.model.events import Event, Finished
from fairsched.model.request import Request
from fairsched.policies.base import Router
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS

HOARDED = 1_000
WINDOWED = {"e2", "e2-printed"}
"""Routers that remember the requests of the last minutes."""


@attrs.frozen
class Hoarder(Router[Any]):
    """Keeps so many bytes, in a pair, of each request that finished."""

    name: ClassVar[str] = "hoarder"
    state_type: ClassVar[Any] = tuple

    def route(self, state: Any, request: Request, view: ClusterView) -> tuple[Dispatch, Any]:
        return Dispatch(request.id, view.workers[0].worker), state

    def observe(self, state: Any, event: Event) -> Any:
        return (state, bytes(HOARDED)) if isinstance(event, Finished) else state


@pytest.fixture
def collected_alone() -> Iterator[None]:
    """Let collections look at what the test makes alone: of all that the suite keeps in its process each takes a part
    of a second."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("collected_alone")
def test_a_policy_that_keeps_something_of_each_request_is_noticed() -> None:
    """To some bytes: a thousand, and what Python adds; nothing of those that wait, a part for each cached block."""
    found = {cost.kept: cost.bytes_each for cost in state_costs(Hoarder(), (64, 128, 256))}
    assert tuple(found) == KEPT
    assert HOARDED < found["ended request"] < HOARDED + 200
    assert found["client"] == pytest.approx(found["ended request"], abs=16)
    assert found["cached block"] == pytest.approx(found["ended request"] / 32, abs=1)
    assert found["waiting request"] == pytest.approx(0, abs=1)


@pytest.mark.usefixtures("collected_alone")
@pytest.mark.parametrize("name", [*LOCAL_POLICIES, *(name for name in ROUTERS if name not in WINDOWED)])
def test_nothing_is_kept_of_a_request_that_has_ended(name: str) -> None:
    """By any policy that ships, but for routers that look back for some minutes."""
    policy = ROUTERS[name] if name in ROUTERS else LOCAL_POLICIES[name]
    [ended] = state_costs(policy, (20, 70), kinds=("ended request",))
    assert abs(ended.bytes_each) < 8


def test_what_other_threads_take_and_free_is_not_counted() -> None:
    """A thread that does both all the time moves what a state is said to take by less than one of its lists."""
    over = threading.Event()
    # A collection takes as long as others wait before they ask for their turn.
    large = [[i] for i in range(500_000)]

    def churn() -> None:
        held: list[list[object]] = []
        while not over.wait(0.0005):
            held = [] if len(held) > 20 else [*held, [object() for _ in range(1_000)]]

    [alone] = state_costs(LOCAL_POLICIES["fcfs"], (30, 31), kinds=("ended request",))
    thread = threading.Thread(target=churn)
    thread.start()
    try:
        [beside] = state_costs(LOCAL_POLICIES["fcfs"], (30, 31), kinds=("ended request",))
    finally:
        over.set()
        thread.join()
    assert large
    assert beside.bytes == pytest.approx(alone.bytes, abs=8_000)


@pytest.mark.usefixtures("collected_alone")
@pytest.mark.parametrize("name", sorted(WINDOWED))
def test_what_is_kept_for_some_minutes_shows(name: str) -> None:
    """The exception is one: such a router would fail the test above."""
    ended = next(cost for cost in state_costs(ROUTERS[name], (30, 90)) if cost.kept == "ended request")
    assert ended.bytes_each > 50


@pytest.mark.usefixtures("collected_alone")
def test_memory_is_of_what_the_policy_keeps() -> None:
    """A request that waits takes more than a client's credit, and a cached block more than its key; FCFS has no
    clients."""
    dlpm, fcfs = (
        {cost.kept: cost for cost in state_costs(LOCAL_POLICIES[name], (50, 200))} for name in ("dlpm", "fcfs")
    )
    assert 8 < dlpm["client"].bytes_each < dlpm["waiting request"].bytes_each < 2_000
    assert 8 <= dlpm["cached block"].bytes_each < 100
    assert fcfs["client"].bytes_each == pytest.approx(0, abs=2)
    for cost in (*dlpm.values(), *fcfs.values()):
        assert cost.sizes == (50, 200)
        assert min(cost.decision_us) > 0
    assert all(fewer < more for fewer, more in pairwise(dlpm["waiting request"].bytes))
