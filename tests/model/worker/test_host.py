"""KV goes to host memory and comes back: what the books say, what cannot be, and what is lost with a worker."""

from collections.abc import Callable

import pytest

from fairsched.model.decision import Admission, Host, StepPlan
from fairsched.model.events import Admitted, Event, HostLost, Preempted, SwappedIn, SwappedOut, Transferred
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import InfeasiblePlanError, Step, WorkerState, transitions, violations
from fairsched.model.worker.batch import evict
from fairsched.verify.conformance import worker_invariants

PROMPT = Prompt(10, 4, b"a" * 8 + b"b" * 8)
"""Ten tokens, of which two blocks of four can be cached."""


def running(host_tokens: int = 50, prompt: Prompt = PROMPT, steps: int = 3, capacity: int = 40) -> WorkerState:
    """A worker on which request 0 has produced as many tokens as it took steps, into memory that was not reserved."""
    state = WorkerState(0, capacity, host=Host(host_tokens))
    state, _ = transitions.arrive(state, Request(0, 0, 0, prompt, 9), 9, 0)
    state = step(state, admitting(state, 0, prompt.tokens))[0]
    for _ in range(steps - 1):
        state = step(state, StepPlan())[0]
    return state


def admitting(state: WorkerState, request_id: int, extend: int, swap_in: bool = False) -> StepPlan:
    """A plan that lets a request in, with its whole prefill or with its KV from the host."""
    waiting = state.queue[request_id]
    cached = state.cache.cached_tokens(waiting.request.prompt)
    admission = Admission(request_id, waiting.request.client, extend, cached, 0)
    chunks = () if swap_in else ((request_id, extend),)
    return StepPlan(admit=(admission,), chunks=chunks, swap_in=(request_id,) if swap_in else ())


def step(state: WorkerState, plan: StepPlan) -> tuple[WorkerState, list[Event]]:
    """A step that the view finds possible, with every invariant before and after its computation."""
    assert not violations(plan, state.view(0))
    begun, events = transitions.begin(state, plan, 0)
    worker_invariants.check(begun)
    done, more = transitions.finish(begun, plan, 1, 1)
    worker_invariants.check(done)
    return done, events + more


def test_there_and_back() -> None:
    """Its KV but the last token goes out, is free on the device a step later, and comes back but for one token."""
    state = running()
    free = state.free
    begun, events = transitions.begin(state, StepPlan(swap_out=(0,)), 5)
    assert [type(event) for event in events] == [SwappedOut, Preempted]
    assert events[0] == SwappedOut(5, 0, 0, 0, 12)
    # While it is copied, its memory is taken, and the prefix that it shares stays pinned.
    assert begun.free == free
    assert begun.cache.pins
    assert dict(begun.host.kv) == {0: 12}
    state, events = transitions.finish(begun, StepPlan(swap_out=(0,)), 1, 6)
    assert events == [Transferred(6, 0, 12, 0)]
    assert state.free == state.capacity
    assert not state.cache.pins

    plan = admitting(state, 0, 1, swap_in=True)
    state, events = step(state, plan)
    # Eight tokens of its prompt are cached still, and need not be moved.
    assert [type(event) for event in events] == [SwappedIn, Admitted, Transferred]
    assert events[0] == SwappedIn(0, 0, 0, 0, 4)
    assert (state.in_flight[0].remaining_tokens, state.host.used_tokens) == (1, 0)
    state, _ = step(state, StepPlan(chunks=((0, 1),)))
    for _ in range(5):
        state, events = step(state, StepPlan())
    assert not state.running
    assert state.free == state.capacity


def test_an_evicted_prefix_comes_back_too() -> None:
    """All KV was copied, so the cache may lose the prompt meanwhile; then all of it is moved, and none computed."""
    state, _ = step(running(), StepPlan(swap_out=(0,)))
    events: list[Event] = []
    state = evict(state, 8, 0, events)
    assert events
    state, events = step(state, admitting(state, 0, 1, swap_in=True))
    assert events[0] == SwappedIn(0, 0, 0, 0, 12)
    assert state.in_flight[0].remaining_tokens == 1


def test_who_is_let_in_without_it_computes_again() -> None:
    """A plan need not use what is on the host; then that is free at once."""
    state, _ = step(running(), StepPlan(swap_out=(0,)))
    state, events = step(state, admitting(state, 0, 5))
    assert not any(isinstance(event, SwappedIn) for event in events)
    assert state.host == Host(50)


def test_what_cannot_be() -> None:
    """Each is said by the view's predicate, and refused by the worker, whose state stays as it was."""
    state = running()
    gone, _ = step(state, StepPlan(swap_out=(0,)))
    back = admitting(gone, 0, 1, swap_in=True)
    waiting, _ = transitions.arrive(running(capacity=60), Request(1, 0, 0, Prompt(3), 2), 2, 0)
    impossible = {
        "has 12 tokens and 11 are free": (running(host_tokens=11), StepPlan(swap_out=(0,))),
        "there is no host": (running(host_tokens=0), StepPlan(swap_out=(0,))),
        "does not run": (state, StepPlan(swap_out=(7,))),
        "is swapped out twice": (state, StepPlan(swap_out=(0, 0))),
        "is preempted and swapped out": (state, StepPlan(preempt=(0,), swap_out=(0,))),
        "has nothing on the host": (waiting, admitting(waiting, 1, 3, swap_in=True)),
        "is not admitted": (gone, StepPlan(swap_in=(0,))),
        "computes before its KV has come": (gone, StepPlan(admit=back.admit, chunks=((0, 1),), swap_in=(0,))),
    }
    for what, (worker, plan) in impossible.items():
        assert violations(plan, worker.view(0)), what
        with pytest.raises(InfeasiblePlanError, match=r"request|worker"):
            transitions.begin(worker, plan, 0)


@pytest.mark.parametrize("leave", [transitions.cancel, transitions.depart])
@pytest.mark.parametrize("under_way", [False, True])
def test_who_gives_up_frees_the_host(leave: Callable[[WorkerState, int, int], Step], under_way: bool) -> None:
    """While it waits, and in the middle of the transfer: the rest of that ends as planned."""
    state, _ = transitions.begin(running(), StepPlan(swap_out=(0,)), 0)
    if not under_way:
        state, _ = transitions.finish(state, StepPlan(swap_out=(0,)), 1, 1)
    state, _ = leave(state, 0, 1)
    worker_invariants.check(state)
    assert state.host.free_tokens == 50
    if under_way:
        state, _ = transitions.finish(state, StepPlan(), 1, 1)
    assert state.free == state.capacity
    assert state.host == Host(50)


@pytest.mark.parametrize("under_way", [False, True])
def test_a_worker_that_fails_loses_its_host(under_way: bool) -> None:
    """Its process had both memories: who waits keeps what it has produced, and computes it again."""
    begun, _ = transitions.begin(running(), StepPlan(swap_out=(0,)), 0)
    state = begun if under_way else transitions.finish(begun, StepPlan(), 1, 1)[0]
    lost, events = transitions.lose(state, 2)
    worker_invariants.check_lost(state, lost)
    assert events[0] == HostLost(2, 0)
    assert lost.queue[0].generated_tokens == 3


def test_a_worker_that_fails_while_kv_comes_back_has_an_empty_host() -> None:
    """The place that would have been free on the host when it had come is free at once."""
    gone, _ = step(running(), StepPlan(swap_out=(0,)))
    state, _ = transitions.begin(gone, admitting(gone, 0, 1, swap_in=True), 1)
    lost, events = transitions.lose(state, 2)
    worker_invariants.check_lost(state, lost)
    assert events[0] == HostLost(2, 0)
