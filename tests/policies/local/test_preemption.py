"""Who waits takes the place of who runs: when, of whom, and that it ends."""

from collections import Counter
from typing import Any, ClassVar

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.engines.simulation import simulate_events
from fairsched.model.events import Preempted
from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.model.request import TOKENS_MAX, Prompt, Request, Workload
from fairsched.policies.batching import BATCHINGS, Reserve
from fairsched.policies.catalog import TRAIL
from fairsched.policies.gates import AnyGate, DeficitGate, InBatchGate, OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.local.standings import NOT_KNOWN
from fairsched.policies.orders import (
    Order,
    ShortestPredicted,
    ShortestRemaining,
    SkipJoin,
)
from fairsched.policies.routers import RoundRobin
from fairsched.verify.conformance.strategies import workloads
from tests.support.policy_play import Play

RESERVES: tuple[Reserve, ...] = ("static", "optimistic")
LEVELS = SkipJoin(quantum_us=2, step_us=2, promote_ms=1, prefill_token_ns=1_000, prefill_constant_us=0)
"""A prompt token takes 1, a step 2, and level 0 lasts for 2."""
ORDERS: tuple[Order, ...] = (
    ShortestRemaining(60),
    ShortestPredicted(starve_steps=3, period_steps=2),
    SkipJoin(quantum_us=1, step_us=3, promote_ms=1, prefill_token_ns=500, prefill_constant_us=0),
)
"""Orders that displace, with parameters of the size of a small world."""
LATENCY = LatencyModel("test", "made for tests", 30, 7, 1_500, (DecodePiece(1, 50, 1, 2),), 40)


def played(order: Order, gate: AnyGate | None = None, capacity: int = 100, **batching: Any) -> Play:
    """A worker under the order."""
    rule = BATCHINGS["chunked"](**{"max_batched_tokens": 50, "max_running": 4, **batching})
    return Play(ComposedPolicy("displaces", order, gate or OpenGate(), rule), capacity)


def preempted(play: Play) -> list[int]:
    """Who was preempted, in order."""
    return [event.request_id for event in play.events if isinstance(event, Preempted)]


@pytest.mark.parametrize("reserve", RESERVES)
def test_who_has_less_left_takes_the_place(reserve: Reserve) -> None:
    """For want of a seat: the step takes the long one out and lets the short one in, and it finishes before."""
    play = played(ShortestRemaining(50), max_running=1, reserve=reserve)
    long = play.arrive(output=20)
    play.step(2)
    short = play.arrive(output=3)
    plan = play.step()
    assert (plan.preempt, [admission.request_id for admission in plan.admit]) == ((long,), [short])
    play.step(40)
    assert play.finished() == [short, long]


@pytest.mark.parametrize("reserve", RESERVES)
def test_memory_is_made_by_those_behind(reserve: Reserve) -> None:
    """For want of memory: of those behind, the one that stands last goes first, and no more than are needed."""
    play = played(ShortestRemaining(90), capacity=43 if reserve == "optimistic" else 70, reserve=reserve)
    longest, middle, other = (play.arrive(prompt=10, output=output) for output in (14, 12, 10))
    play.step()
    short = play.arrive(prompt=20, output=2)
    plan = play.step()
    assert plan.preempt == ((longest,) if reserve == "static" else (longest, middle))
    assert [admission.request_id for admission in plan.admit] == [short]
    play.step(60)
    assert set(play.finished()) == {longest, middle, other, short}


def test_nobody_is_taken_out_in_vain() -> None:
    """Where those behind are not enough, they run on."""
    play = played(ShortestRemaining(90), capacity=40)
    play.arrive(prompt=10, output=15)
    play.arrive(prompt=4, output=8)
    play.step()
    play.arrive(prompt=25, output=9)
    assert play.step(3).preempt == ()
    play.step(60)
    assert preempted(play) == []
    assert len(play.finished()) == 3


@pytest.mark.parametrize(("percent", "taken_out"), [(0, 0), (30, 0), (31, 1), (100, 1)])
def test_the_limit_of_trail(percent: int, taken_out: int) -> None:
    """What has produced 3 of 10 is displaced if c is more than 30 %; with c = 0 nobody is."""
    play = played(ShortestRemaining(percent), max_running=1)
    play.arrive(output=10)
    play.step(3)
    play.arrive(output=2)
    play.step(20)
    assert len(preempted(play)) == taken_out
    assert len(play.finished()) == 2


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_batch_that_is_formed_once_displaces_nobody(batching: str) -> None:
    """Under FasterTransformer's rule nobody enters before the batch is over; under all others the short one does."""
    rule = BATCHINGS[batching](max_running=1)
    play = Play(TRAIL(order=ShortestRemaining(100), batching=rule))
    play.arrive(output=10)
    play.step()
    play.arrive(output=2)
    play.step()
    assert preempted(play) == ([] if batching == "request-level" else [0])


def test_who_starves_is_promoted_for_a_period() -> None:
    """The long one waits 5 steps behind short ones, runs for 3 before another short one takes its place."""
    play = played(ShortestPredicted(starve_steps=5, period_steps=3), max_running=1)
    play.arrive(output=2)
    long = play.arrive(output=20)
    running = 0
    for step in range(14):
        if step % 2:
            play.arrive(output=2)
        play.step()
        running += long in play.worker.in_flight
        assert step >= 4 or not running
        if long in preempted(play):
            break
    assert running == 3
    ranks = [ShortestPredicted().rank_after(Request(0, 0, 0, Prompt(1), TOKENS_MAX), 0, it) for it in (True, False)]
    assert ranks == [0, -TOKENS_MAX]


def test_a_leap_ends_where_a_period_does() -> None:
    """Nobody is to come or go: the plan stands until the waiting one is promoted, or the running one no longer is."""
    play = played(ShortestPredicted(starve_steps=9, period_steps=3), max_running=1)
    play.arrive(output=20)
    play.step()
    play.arrive(output=30)
    assert play.decide().valid_steps == 9
    play.step(4)
    assert play.decide().valid_steps == 5


def test_who_was_served_is_displaced_from_below() -> None:
    """A prompt of 3 joins level 1, which lasts for 4: after one more step of 2 it is lower, and a prompt of 2, which
    joins level 0, need not wait for that; a prompt of 4 has to."""
    for prompt, steps in ((2, 0), (4, 1)):
        play = played(LEVELS, max_running=1)
        play.arrive(prompt=3, output=10)
        play.step()
        play.arrive(prompt=prompt, output=1)
        waited = 0
        while not preempted(play):
            play.step()
            waited += 1
        assert waited == steps + 1


@given(
    order=st.sampled_from(ORDERS),
    prompt=st.integers(1, 40),
    predicted_tokens=st.integers(1, 30),
    generated=st.integers(1, 30),
    promoted_steps=st.none() | st.integers(0, 40),
)
def test_who_is_displaced_waits_behind(
    order: Any, prompt: int, predicted_tokens: int, generated: int, promoted_steps: int | None
) -> None:
    """A standing is never below the rank with which the request would wait, and stands as long as it is said to."""
    request = Request(0, 0, 0, Prompt(prompt), 30, predicted_tokens)
    standing = order.preemption_rank(request, generated, promoted_steps)
    assert standing is None or standing >= order.rank_after(request, generated, False)
    for step in range(min(order.preemption_rank_steps(request, generated, promoted_steps) or 40, 40)):
        later = order.preemption_rank(
            request, generated + step, promoted_steps if promoted_steps is None else promoted_steps + step
        )
        assert later is None or (standing is not None and later >= standing)


def with_predictions(workload: Workload, drawn: st.DataObject) -> Workload:
    """Some requests with a prediction, right or wrong."""
    jobs = []
    for job in workload.jobs:
        prediction = drawn.draw(st.none() | st.integers(1, 12))
        jobs.append(replace(job, request=replace(job.request, predicted_output_tokens=prediction)))
    return replace(workload, jobs=tuple(jobs))


@given(
    workload=workloads(block_tokens=2), order=st.sampled_from(ORDERS), reserve=st.sampled_from(RESERVES), data=st.data()
)
def test_leaps_are_steps_and_displacing_ends(
    workload: Workload, order: Order, reserve: Reserve, data: st.DataObject
) -> None:
    """In time, and with predictions: stepping gives the leaps' events, all requests end, and under reserved outputs
    none is displaced as often as it has tokens to produce."""
    workload = with_predictions(workload, data)
    rule = BATCHINGS["chunked"](max_batched_tokens=16, max_running=2, reserve=reserve)
    policy = ComposedPolicy("displaces", order, OpenGate(), rule)
    leapt, stepped = (simulate_events(workload, policy, RoundRobin(), LATENCY, leap=leap) for leap in (True, False))
    others = [[event for event in log if not hasattr(event, "steps")] for log in (leapt, stepped)]
    assert others[0] == others[1]
    displaced = Counter(event.request_id for event in leapt if isinstance(event, Preempted))
    if reserve == "static":
        outputs = {job.request.id: job.output_tokens for job in workload.jobs}
        assert all(times < outputs[request_id] for request_id, times in displaced.items())


@given(
    order=st.sampled_from((*ORDERS, ShortestRemaining(100), SkipJoin(quantum_us=20, step_us=3, promote_ms=1))),
    gate=st.sampled_from((OpenGate(), DeficitGate(quantum=30), InBatchGate(quantum=30))),
    reserve=st.sampled_from(RESERVES),
    seed=st.integers(0, 2**32),
)
def test_what_is_known_of_those_that_run_changes_no_decision(
    order: Order, gate: AnyGate, reserve: Reserve, seed: int
) -> None:
    """In every state of a run the plan is the one that is found when all that run are looked at again, and so is the
    state after it."""
    rng = np.random.default_rng(seed)
    play = played(order, gate, capacity=90, reserve=reserve)
    for _ in range(60):
        for _ in range(int(rng.poisson(0.4))):
            output = int(rng.integers(1, 15))
            guess = {"predicted_output_tokens": int(rng.integers(1, 15))}
            play.arrive(int(rng.integers(2)), int(rng.integers(1, 12)), output, **guess)
        if play.worker.queue and rng.random() < 0.05:
            play.cancel(min(play.worker.queue))
        if play.worker.in_flight and rng.random() < 0.1:
            play.cancel(min(play.worker.in_flight))
        view, state = play.worker.view(play.now_ns), play.state
        one, two = (play.policy.decide(each, view) for each in (state, replace(state, standings=NOT_KNOWN)))
        assert one[0] == two[0]
        assert play.policy.state_to_json(one[1]) == play.policy.state_to_json(two[1])
        play.step()


@attrs.frozen
class Counted(ShortestRemaining):
    """An order that counts how often it is asked how a request stands."""

    asked: ClassVar[list[int]] = []

    def preemption_rank(self, request: Request, generated_tokens: int, promoted_steps: int | None) -> int | None:
        self.asked.append(request.id)
        return super().preemption_rank(request, generated_tokens, promoted_steps)


@pytest.mark.parametrize("running", [4, 40])
def test_a_decision_looks_only_at_what_changed(running: int) -> None:
    """While requests wait that displace none, no request is looked at again, however many run, end or give up; one that
    begins to decode is looked at once."""
    play = played(Counted(100), capacity=100_000, max_running=running, max_batched_tokens=500)
    ids = [play.arrive(output=9 + 20 * i, predicted_output_tokens=5) for i in range(running)]
    play.step()
    waits = [play.arrive(output=9, predicted_output_tokens=90) for _ in range(3)]
    Counted.asked.clear()
    play.step()
    assert sorted(Counted.asked) == ids
    Counted.asked.clear()
    play.step(5)
    assert not Counted.asked
    play.step(2)
    play.cancel(ids[2])
    play.step()
    assert play.finished() == ids[:1]
    assert set(waits[:2]) <= set(play.worker.in_flight)
    play.step(2)
    assert Counted.asked == waits[:2]


def test_a_rank_that_has_risen_is_looked_at_once() -> None:
    """Those that stood behind a request that now waits, and do not any more, are ranked anew, and then known."""
    play = played(Counted(100), capacity=10_000, max_running=2)
    for _ in range(2):
        play.arrive(output=30, predicted_output_tokens=20)
    play.step()
    play.arrive(output=30, predicted_output_tokens=25)
    play.step(10)
    Counted.asked.clear()
    play.arrive(output=15, predicted_output_tokens=15)
    play.step()
    assert sorted(Counted.asked) == [0, 1]
    Counted.asked.clear()
    play.step(3)
    assert not Counted.asked
    assert preempted(play) == []
