"""Splitwise's machine: new prompts first, token work yields to them so often and no more."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.events import Preempted
from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.model.request import Prompt, Request
from fairsched.policies.batching import WholePrompts
from fairsched.policies.catalog import SplitwiseMachine
from fairsched.policies.orders import PromptsFirst, QueuedRequest
from tests.support.policy_play import Play

LATENCY = LatencyModel("test", "made for tests", 30, 7, 1_500, (DecodePiece(1, 50, 1, 2),), 40)


def machine(cap: int = 4, tokens: int = 50, running: int = 4) -> SplitwiseMachine:
    """A small one."""
    return SplitwiseMachine(order=PromptsFirst(cap), batching=WholePrompts(tokens, running))


def queued(preemptions: int, kv_tokens: int = 0) -> QueuedRequest:
    """A request in the queue, the KV of so many tokens with it."""
    return QueuedRequest(Request(0, 0, 0, Prompt(4), 8), 0, 1, kv_tokens=kv_tokens, preemptions=preemptions)


@given(st.integers(1, 9))
def test_bands(cap: int) -> None:
    """The capped before new prompts, those before token work, which goes by how often it was preempted; new prompts
    displace all running token work that is not capped, and token work that waits displaces none."""
    order = PromptsFirst(cap)
    capped, new = order.rank_queued(queued(cap), 0), order.rank_queued(queued(0), 0)
    work = [order.rank_queued(queued(0, kv_tokens=4), 0)] + [order.rank_queued(queued(n), 0) for n in range(1, cap)]
    assert capped > new > max(work)
    assert work == sorted(set(work))
    standing = [order.preemption_rank_queued(queued(n), 1, None) for n in range(cap)]
    assert all(yields is not None and max(work) < yields < new for yields in standing)
    assert standing == sorted(set(standing), key=lambda each: each or 0)
    assert order.preemption_rank_queued(queued(cap), 1, None) is None


def test_prompts_are_computed_whole_beside_decodes() -> None:
    """A step takes prompts up to the budget and none in part, and all others decode; a longer prompt goes alone."""
    play = Play(machine(tokens=20, running=8), 1_000)
    first = play.arrive(prompt=4, output=40)
    play.step(2)
    a, b, c, long = (play.arrive(prompt=prompt, output=4) for prompt in (9, 9, 9, 30))
    plan = play.step()
    assert (plan.chunks, plan.decode) == (((a, 9), (b, 9)), True)
    computed = [play.step().chunks for _ in range(10)]
    assert [chunks for chunks in computed if chunks] == [((c, 9),), ((long, 30),)]
    play.step(60)
    assert set(play.finished()) == {first, a, b, c, long}


def test_a_new_prompt_takes_the_place_of_the_youngest_token_work() -> None:
    """For want of memory a new prompt displaces what was preempted least, of equals the youngest."""
    play = Play(machine(), 40)
    old, young = play.arrive(prompt=5, output=10), play.arrive(prompt=5, output=10)
    play.step(2)
    new = play.arrive(prompt=15, output=5)
    plan = play.step()
    assert (plan.preempt, [admission.request_id for admission in plan.admit]) == ((young,), [new])
    play.step(60)
    assert set(play.finished()) == {old, young, new}


@pytest.mark.parametrize("cap", [1, 2, 4])
def test_the_cap_is_attained(cap: int) -> None:
    """Under a stream of prompts that fill the machine a request is preempted as often as the cap says, then runs on."""
    play = Play(machine(cap, running=1), 100)
    victim = play.arrive(prompt=5, output=30)
    for _ in range(3 * cap):
        play.step(4)
        play.arrive(prompt=5, output=2)
    play.step(80)
    preempted = Counter(event.request_id for event in play.events if isinstance(event, Preempted))
    assert preempted[victim] == cap
    assert victim in play.finished()
