"""A policy that takes over in the middle of a load owes nobody more and forgives nobody anything."""

from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from fairsched.model.pricing import Rates
from fairsched.model.request import Prompt
from fairsched.policies.base import LocalPolicy
from fairsched.policies.batching import BATCHINGS, Chunked
from fairsched.policies.gates import AnyGate, CounterGate, DeficitGate, InBatchState, KernelGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.local.state_transfer import MigrationError, migrate
from fairsched.policies.orders import NO_PLACE, DownstreamLevels
from fairsched.policies.registry import LOCAL_POLICIES
from fairsched.verify.conformance.local import PolicyMachine, World
from tests.support.policy_play import Play

DLPM, VTC, FCFS, LPM = (LOCAL_POLICIES[name] for name in ("dlpm", "vtc", "fcfs", "lpm"))


def deficit(quantum: int = 6, **changes: Any) -> ComposedPolicy:
    """DLPM with a gate of this quantum."""
    return attrs.evolve(DLPM, gate=DeficitGate(quantum=quantum, **changes))


def small(policy: ComposedPolicy, batching: str, reserve: Any) -> ComposedPolicy:
    """The policy with budgets of the size of a tiny world."""
    gate = policy.gate
    if isinstance(gate, DeficitGate):
        gate = attrs.evolve(gate, quantum=5)
    return attrs.evolve(policy, gate=gate, batching=BATCHINGS[batching](8, 4, reserve))


POLICIES = [
    *(small(policy, "chunked", "static") for policy in LOCAL_POLICIES.values()),
    small(DLPM, "eager-prefill", "static"),
    small(VTC, "request-level", "static"),
    small(DLPM, "chunked", "optimistic"),
    small(LPM, "iteration-level", "optimistic"),
    attrs.evolve(small(DLPM, "chunked", "static"), gate=DeficitGate(quantum=40)),
    attrs.evolve(small(DLPM, "chunked", "static"), gate=DeficitGate(quantum=5, in_flight_cap_tokens=12)),
]


class Swapping(PolicyMachine):
    """The battery of every policy, with another policy taking over now and then."""

    policy = POLICIES[0]
    world = World()

    @rule(index=st.integers(0, len(POLICIES) - 1))
    def swap(self, index: int) -> None:
        """Another policy takes over, unless it says that something would be lost."""
        before = self.encoded(self.state)
        try:
            taken = migrate(self.policy, self.state, POLICIES[index])
        except MigrationError:
            return
        # The old state is as it was, and what was kept of it may not be decided on by another policy.
        assert self.encoded(self.state) == before
        self.policy, self.state, self.saved = POLICIES[index], taken, []
        self.restart()


@pytest.mark.nightly
def test_policies_that_take_over_at_any_moment_conform(full_budget: bool) -> None:
    """Through swaps at random moments: pure, folded, feasible, kept, and every request ends once."""
    examples = 400 if full_budget else 40
    run_state_machine_as_test(Swapping, settings=settings(max_examples=examples, stateful_step_count=30))


def owed(play: Play) -> list[int]:
    """What clients owe (below zero) or may spend under a deficit gate."""
    return [int(q) for q in play.state.gate.q]


def under(policy: ComposedPolicy) -> Play:
    """Three clients in the middle of a load: 0 in debt by what it decoded, 1 in credit, 2 of weight 2 about to come."""
    play = Play(policy, 60)
    play.configure(2, 2)
    play.arrive(0, prompt=9, output=12)
    play.arrive(0, prompt=4, output=9)
    play.arrive(1, prompt=3, output=9)
    play.step(7)
    return play


def swapped(play: Play, to: ComposedPolicy) -> Any:
    """The state after a swap; the play goes on with it."""
    play.state = migrate(play.policy, play.state, to)
    play.policy = to
    to.check(play.state)
    return play.state


@pytest.mark.parametrize("before", ["fcfs", "vtc", "dlpm"])
def test_a_gate_inside_the_batch_takes_over(before: str) -> None:
    """It knows the longest request that runs, and it decides with a state that can be kept; the longest that was ever
    let in stays when it takes over from itself."""
    play = under(small(LOCAL_POLICIES[before], "chunked", "static"))
    runs = [flight.kv_tokens for flight in play.state.flights.values()]
    inside = small(LOCAL_POLICIES["dlpm-in-batch"], "chunked", "static")
    state = swapped(play, inside)
    assert runs
    assert state.gate.longest == max(runs)
    assert type(inside.state_from_json(inside.state_to_json(state)).gate) is InBatchState
    play.step(40)
    assert not play.state.flights
    assert swapped(play, inside).gate.longest == max(runs)


def test_a_quantum_changes_and_deficits_stay() -> None:
    """Debts stay, credit above the new quantum is cut, weights multiply the new one; nothing else changes."""
    play = under(deficit(30))
    before, old = owed(play), play.state
    assert min(before) < 0 < max(before)
    state = swapped(play, deficit(2))
    assert owed(play) == [min(q, limit) for q, limit in zip(before, [2, 2, 4], strict=True)]
    assert state.gate.quantum.tolist() == [2, 2, 4]
    assert (state.queue.entries, state.flights, state.cache) == (old.queue.entries, old.flights, old.cache)


def test_debts_become_counters_exactly() -> None:
    """A counter is the debt times lcm over the weight, and credit counts as no debt."""
    play = under(deficit(30))
    play.configure(0, 2)
    before = owed(play)
    state = swapped(play, VTC)
    assert state.gate.common == 2
    assert state.gate.share.tolist() == [1, 2, 1]
    assert state.gate.c.tolist() == [max(-q, 0) * share for q, share in zip(before, [1, 2, 1], strict=True)]
    assert max(state.gate.c) > 0


def test_counters_become_debts_to_who_waits_least_served() -> None:
    """The lowest who waits has one unit of credit, the others owe what they are ahead, in cost units rounded up."""
    play = Play(VTC, 60)
    play.configure(1, 3)
    for client in (0, 1, 1, 0, 0, 1, 1):
        play.arrive(client, prompt=8, output=10)
    play.step(5)
    counters, share = play.state.gate.c, play.state.gate.share
    assert set(play.state.queue.queues) == {0, 1}
    lowest = int(counters.min())
    state = swapped(play, deficit(7))
    assert owed(play) == [1 - -(-(int(c) - lowest) // int(s)) for c, s in zip(counters, share, strict=True)]
    assert max(owed(play)) == 1
    assert state.gate.quantum.tolist() == [7, 21]


def test_debt_survives_a_swap_and_the_way_back() -> None:
    """Deficits, counters, deficits: differences of debt between those who owe are what they were."""
    play = under(deficit(3))
    play.arrive(2, prompt=20, output=3)
    before = owed(play)
    swapped(play, VTC)
    swapped(play, deficit(3))
    after = owed(play)
    both = [i for i in range(3) if before[i] <= 0]
    assert len(both) >= 2
    assert len({before[i] - after[i] for i in both}) == 1


def test_who_comes_from_an_open_gate_owes_nothing() -> None:
    """Everybody who is there has one unit of credit or a counter of zero, and weights are told again."""
    play = under(FCFS)
    swapped(play, deficit(5))
    assert owed(play) == [1, 1]
    play.configure(1, 4)
    assert play.state.gate.quantum.tolist() == [5, 20]
    play = under(LPM)
    assert swapped(play, VTC).gate.c.tolist() == [0, 0]


def test_what_runs_is_charged_by_whoever_decides() -> None:
    """A request that was admitted before the swap pays for each token after it, and a refund is the new gate's."""
    play = under(deficit(30))
    running = sorted(play.worker.in_flight)
    swapped(play, VTC)
    before = play.state.gate.c.copy()
    decoding = dict(zip(play.worker.clients, play.worker.counts, strict=True))
    play.step()
    assert len(running) == sum(decoding.values()) > 1
    share = play.state.gate.share
    assert (play.state.gate.c - before).tolist() == [2 * decoding.get(i, 0) * int(share[i]) for i in range(3)]
    for request_id in running:
        if request_id in play.worker.in_flight:
            play.cancel(request_id)
    assert not play.state.flights


def test_a_cap_counts_what_runs_already() -> None:
    """KV promised before the swap is held against the cap of the new gate."""
    play = under(deficit(30))
    promised = [0, 0, 0]
    for flight in play.state.flights.values():
        promised[flight.entry.request.client] += flight.kv_tokens
    assert swapped(play, deficit(30, in_flight_cap_tokens=25)).gate.in_flight.tolist() == promised
    assert sum(promised) > 0


def test_the_queue_is_ranked_anew_and_ages_stay() -> None:
    """Shortest prompt first takes over from first come, first served, and back."""
    play = Play(attrs.evolve(FCFS, batching=Chunked(max_running=1)), 60)
    for prompt in (9, 7, 3, 5):
        play.arrive(0, prompt=prompt)
    shortest = attrs.evolve(LOCAL_POLICIES["shortest-prompt"], batching=Chunked(max_running=1))
    back = play.policy
    swapped(play, shortest)
    assert play.admitted() == [2]
    swapped(play, back)
    assert play.admitted() == [0]
    play.step(40)
    assert sorted(play.finished()) == [0, 1, 2, 3]


def test_groups_of_a_former_order_are_forgotten() -> None:
    """A policy that ranks by what is cached takes over from groups: no request, waiting or running, is in one."""
    play = Play(attrs.evolve(LOCAL_POLICIES["batchllm"], batching=Chunked(max_running=1)), 200)
    for number in range(4):
        play.arrive(0, Prompt.from_keys([7] * 10 + [number]))
    play.step()
    assert {entry.place for entry in play.state.queue.entries.values()} == {0}
    state = swapped(play, attrs.evolve(LOCAL_POLICIES["lpm"], batching=Chunked(max_running=1)))
    entries = [*state.queue.entries.values(), *(flight.entry for flight in state.flights.values())]
    assert [(entry.place, entry.prefix_tokens) for entry in entries] == [(NO_PLACE, 0)] * 4
    play.policy.check(state)


class Own(KernelGate):
    """An author's gate, which says nothing about accounts."""

    state = ("c",)


@attrs.frozen
class Other(LocalPolicy[Any]):
    """A policy that is not composed."""

    def init(self) -> None:
        """Nothing."""

    def observe(self, state: Any, event: Any) -> None:
        """Nothing."""

    def decide(self, state: Any, view: Any) -> Any:
        """Nothing."""


def _with(gate: AnyGate) -> ComposedPolicy:
    return attrs.evolve(DLPM, gate=gate)


REFUSED = {
    "other rates": (deficit(), _with(CounterGate(rates=Rates(1, 4))), "units of 1 an input and 2 an output .* 1 and 4"),
    "a gate without accounts": (deficit(), _with(Own()), "gate kernels does not say how it takes over"),
    "from a gate without accounts": (_with(Own()), FCFS, "gate kernels does not say what its clients owe"),
    "a request over the cap": (deficit(), deficit(in_flight_cap_tokens=5), "would never admit request [01]: "),
    "not composed": (deficit(), Other(), "Other is no composed policy"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_swap_that_would_lose_something_is_refused(name: str) -> None:
    """Each with what would be lost and what to do."""
    old, new, message = REFUSED[name]
    play = Play(deficit(), 60)
    play.arrive(0, prompt=9, output=12)
    play.step()
    play.arrive(0, prompt=4, output=5)
    state = play.state if old.gate.name == "deficit" else old.init()
    with pytest.raises(MigrationError, match=message):
        migrate(old, state, new)


def test_outputs_that_were_not_reserved_stand_in_the_way_of_reserving() -> None:
    """Preempted first, what ran waits, and the swap goes through."""
    optimistic = attrs.evolve(deficit(), batching=Chunked(reserve="optimistic"))
    play = Play(optimistic, 60)
    play.arrive(0, prompt=9, output=12)
    play.step(2)
    with pytest.raises(MigrationError, match="reserves outputs, and 1 requests run without: preempt them first"):
        migrate(optimistic, play.state, deficit())
    assert isinstance(migrate(optimistic, play.state, attrs.evolve(optimistic, gate=CounterGate())).gate.c, np.ndarray)


@pytest.mark.parametrize("name", ["dlpm-bands", "dlpm-hierarchical"])
def test_groups_are_not_made_up(name: str) -> None:
    """A gate that is told who is in which group takes over from none that was not."""
    play = under(deficit(30))
    with pytest.raises(MigrationError, match="start with it"):
        migrate(play.policy, play.state, LOCAL_POLICIES[name])


def test_a_prefill_under_way_is_waited_for_by_an_order_that_does_so() -> None:
    """The prefix that it computes is told to the new policy, and is nothing to one that waits for none."""
    play = Play(attrs.evolve(LPM, batching=Chunked(max_batched_tokens=4)), 60)
    play.arrive(0, Prompt.from_keys(range(9)))
    play.step()
    play.arrive(0, Prompt.from_keys(range(8)))
    for to, waits in ((attrs.evolve(LPM, order=DownstreamLevels()), True), (FCFS, False)):
        state = migrate(play.policy, play.state, to)
        assert bool(state.computing) is waits
        to.check(state)
        assert bool(to.decide(state, play.worker.view(play.now_ns))[0].admit) is not waits
