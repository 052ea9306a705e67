"""A policy that takes over in the middle of a load owes nobody more and forgives nobody anything."""

from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from fairsched.model.pricing import Rates
from fairsched.policies.base import LocalPolicy
from fairsched.policies.batching import BATCHINGS, Chunked
from fairsched.policies.gates import AnyGate, DeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.local.state_transfer import MigrationError, migrate
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


def test_a_quantum_changes_and_deficits_stay() -> None:
    """Debts stay, credit above the new quantum is cut, weights multiply the new one; nothing else changes."""
    play = under(deficit(30))
    before, old = owed(play), play.state
    assert min(before) < 0 < max(before)
    state = swapped(play, deficit(2))
    assert owed(play) == [min(q, limit) for q, limit in zip(before, [2, 2, 4], strict=True)]
    assert state.gate.quantum.tolist() == [2, 2, 4]
    assert (state.queue.entries, state.flights, state.cache) == (old.queue.entries, old.flights, old.cache)


def test_what_runs_is_charged_by_whoever_decides() -> None:
    """A request that was admitted before the swap pays for each token after it, and a refund is the new gate's."""
    play = under(deficit(30))
    running = sorted(play.worker.in_flight)
    swapped(play, deficit(50))
    before = owed(play)
    decoding = dict(zip(play.worker.clients, play.worker.counts, strict=True))
    play.step()
    assert len(running) == sum(decoding.values()) > 1
    assert [now - then for now, then in zip(owed(play), before, strict=True)] == [
        -2 * decoding.get(i, 0) for i in range(3)
    ]
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
    "other rates": (deficit(), _with(DeficitGate(Rates(1, 4))), "units of 1 an input and 2 an output .* 1 and 4"),
    "another gate": (deficit(), VTC, "owe under gate deficit means nothing to gate counter"),
    "another order": (deficit(), attrs.evolve(DLPM, order=FCFS.order), "ranked by order longest-prefix, and dlpm has"),
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
    with pytest.raises(MigrationError, match=message):
        migrate(old, play.state, new)


def test_outputs_that_were_not_reserved_stand_in_the_way_of_reserving() -> None:
    """Preempted first, what ran waits, and the swap goes through."""
    optimistic = attrs.evolve(deficit(), batching=Chunked(reserve="optimistic"))
    play = Play(optimistic, 60)
    play.arrive(0, prompt=9, output=12)
    play.step(2)
    with pytest.raises(MigrationError, match="reserves outputs, and 1 requests run without: preempt them first"):
        migrate(optimistic, play.state, deficit())
    assert len(migrate(optimistic, play.state, attrs.evolve(optimistic, gate=DeficitGate(quantum=9))).flights) == 1
