"""What a policy tells its gate: every event once, with what it says, so that accounts and reservations add up."""

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from fairsched.model import events as ev
from fairsched.model.pricing import Rates
from fairsched.model.request import Prompt, Request
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM, VTC
from fairsched.policies.gates import CounterGate, DeficitGate, HierarchicalGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import ShortestRemaining
from tests.support.policy_play import Play

CAP = 40
CAPPED = DLPM(gate=DeficitGate(Rates(1, 2), quantum=100, in_flight_cap_tokens=CAP))
COUNTER = VTC(gate=CounterGate(Rates(1, 2)))


def request(number: int, client: int, prompt: int = 9, output: int = 4) -> Request:
    """A request that comes at time 0."""
    return Request(number, client, 0, Prompt(prompt), output)


def observed(policy: ComposedPolicy, *events: Any) -> Any:
    """The state after these events, in which every invariant holds all along."""
    state = policy.init()
    for event in events:
        state = policy.observe(state, event)
        policy.check(state)
    return state


def begun(*clients: int) -> Iterator[ev.Event]:
    """Requests 0, 1, ... of these clients came, and the first of them runs: 9 tokens to compute, 4 to come."""
    yield from (ev.Arrived(0, 0, request(number, client)) for number, client in enumerate(clients))
    yield ev.Admitted(0, 0, 0, clients[0], 9, 0, 4)


def accounts(state: Any) -> tuple[list[int], list[int]]:
    """Deficits and what is in flight."""
    return state.gate.q.tolist(), state.gate.in_flight.tolist()


def test_each_settlement_is_of_what_the_one_before_said() -> None:
    """9 were planned, 5 and then 7 are computed: 7 are charged; and what is left uncomputed is counted from there."""
    settled = [ev.Settled(0, 0, 0, 0, 5), ev.Settled(0, 0, 0, 0, 7)]
    expected = [91, 95, 93]
    for count, deficit in enumerate(expected):
        assert accounts(observed(CAPPED, *begun(0), *settled[:count])) == ([deficit], [13])
    # A counter charges prompts whole: nothing settles.
    assert observed(COUNTER, *begun(0), *settled).gate.c.tolist() == [9]


@pytest.mark.parametrize("kind", [ev.Cancelled, ev.Migrated], ids=lambda kind: kind.__name__)
def test_what_was_not_computed_is_given_back_and_no_more(kind: Any) -> None:
    """Of 9 tokens 3 are left: whether its caller gave up or it went to another worker, 6 stay charged, and nothing is
    reserved any more; one that waited gets nothing, and one that had computed all of them gets nothing."""
    gone = kind(0, 0, 0, 0, True, 3, 0)
    assert accounts(observed(CAPPED, *begun(0, 0), gone)) == ([94], [0])
    assert accounts(observed(CAPPED, *begun(0, 0), kind(0, 0, 0, 0, True, 0, 0))) == ([91], [0])
    assert accounts(observed(CAPPED, *begun(0, 0), kind(0, 0, 1, 0, False, 0, 0))) == ([91], [13])
    # Another client waits at 0: the counter gives back what was not computed, too.
    assert observed(COUNTER, *begun(0, 1), gone).gate.c.tolist() == [6, 0]


def test_outputs_and_holding_are_charged_to_their_clients() -> None:
    """At the rate of an output token, whichever client it is."""
    events = [ev.Decoded(1, 0, 3, (0, 1), (3, 2)), ev.Held(1, 0, (1,), (5,))]
    assert accounts(observed(CAPPED, *begun(0, 1), *events))[0] == [91 - 6, 100 - 4 - 10]
    assert observed(COUNTER, *begun(0, 1), *events).gate.c.tolist() == [9 + 6, 4 + 10]


@pytest.mark.parametrize(
    "end",
    [
        ev.Finished(1, 0, 0, 0, 4),
        ev.Cancelled(1, 0, 0, 0, True, 0, 1),
        ev.Migrated(1, 0, 0, 0, True, 0, 1),
        ev.Preempted(1, 0, 0, 0, 2, 0),
        ev.WorkerLeft(1, 0),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_request_that_leaves_the_batch_gives_back_what_it_reserved(end: ev.Event) -> None:
    """All of it, whatever it produced, and once; its deficit stays as it was."""
    state = observed(CAPPED, *begun(0, 0, 1), end)
    assert accounts(state) == ([91, 100], [0, 0])
    assert not state.flights


def test_a_client_leaves_the_gates_queue_with_its_last_request() -> None:
    """Whether it is admitted, cancelled, moved or rejected; while another waits, it has not left."""
    ends = {
        "admitted": ev.Admitted(1, 0, 1, 1, 9, 0, 4),
        "cancelled": ev.Cancelled(1, 0, 1, 1, False, 0, 0),
        "migrated": ev.Migrated(1, 0, 1, 1, False, 0, 0),
        "rejected": ev.Rejected(1, 0, 1, 1, "too large"),
    }
    for name, end in ends.items():
        state = observed(COUNTER, *begun(0, 1), end)
        assert state.gate.last == 1, name
        state = observed(COUNTER, *begun(0, 1), ev.Arrived(0, 0, request(2, 1)), end)
        assert state.gate.last == 0, name
    # A request that was never queued changes nothing.
    state = observed(COUNTER, *begun(0), ev.Rejected(1, 0, 7, 1, "too large"))
    assert state.gate.last == 0


def test_a_client_waits_once_however_many_of_its_requests_do() -> None:
    """Groups count their clients that wait, and not requests; what is left of the queue when some leave, too."""
    policy = DLPM(gate=HierarchicalGate(quantum=50))
    acme = ev.ClientConfigured(0, 0, 0, 1, (("acme", 1),))
    came = [acme, *(ev.Arrived(0, 0, request(number, 0)) for number in range(3))]
    assert observed(policy, *came).gate.below.tolist() == [0, 1, 1]
    assert observed(policy, *came, ev.Cancelled(1, 0, 1, 0, False, 0, 0)).gate.below.tolist() == [0, 1, 1]
    gone = [ev.Cancelled(1, 0, number, 0, False, 0, 0) for number in range(3)]
    assert observed(policy, *came, *gone).gate.below.tolist() == [0, 0, 0]
    entered = [ev.Admitted(1, 0, number, 0, 9, 0, 4) for number in range(3)]
    assert observed(policy, *came, *entered).gate.below.tolist() == [0, 0, 0]


# --- decisions ------------------------------------------------------------------------------------------------------


def chunked(policy: ComposedPolicy, **rule: Any) -> ComposedPolicy:
    """The policy under chunks of this size."""
    return attrs.evolve(policy, batching=Chunked(**rule))


@pytest.mark.parametrize("policy", [DLPM(), VTC()], ids=lambda policy: policy.name)
def test_memory_is_reserved_to_the_token(policy: ComposedPolicy) -> None:
    """A request of 9 + 4 tokens enters where 13 are free, and not where 12 are; the plan promises all of its output."""
    for free, entered in ((13, 1), (12, 0)):
        play = Play(policy, 20 + free)
        play.arrive(0, prompt=16, output=4)
        play.step()
        play.arrive(0, prompt=9, output=4)
        plan = play.decide()
        assert [(each.extend_tokens, each.reserved_output_tokens) for each in plan.admit] == [(9, 4)] * entered


def test_a_plan_counts_on_memory_once() -> None:
    """Two requests enter in one decision: what the first takes the second has not."""
    play = Play(chunked(DLPM(), max_batched_tokens=50), 25)
    for client in range(2):
        play.arrive(client, prompt=9, output=4)
    assert len(play.decide().admit) == 1
    play = Play(chunked(DLPM(), max_batched_tokens=50), 26)
    for client in range(2):
        play.arrive(client, prompt=9, output=4)
    assert len(play.decide().admit) == 2


def test_a_cap_counts_prompt_and_declared_output() -> None:
    """A third request of 13 is within a cap of 39 and not of 38; another client's passes it by."""
    for cap, expected in ((39, [0, 1, 2, 3]), (38, [0, 1, 3])):
        play = Play(DLPM(gate=DeficitGate(quantum=100, in_flight_cap_tokens=cap)), 200)
        for client in (0, 0, 0, 1):
            play.arrive(client, prompt=9, output=4)
        assert play.admitted() == expected
        play.step()
        assert play.state.gate.in_flight.tolist() == [13 * (len(expected) - 1), 13]


def test_a_client_in_credit_at_its_cap_holds_back_a_refill() -> None:
    """Client 1 owes, client 0 waits in credit for its cap: no refill is due, and none is let in."""
    play = Play(DLPM(gate=DeficitGate(quantum=20, in_flight_cap_tokens=13)), 200)
    play.arrive(0, prompt=9, output=4)
    play.arrive(1, prompt=3, output=4)
    play.step()
    play.tell([ev.Decoded(play.now_ns, 0, 1, (1,), (8,))])
    play.arrive(0, prompt=9, output=4)
    play.arrive(1, prompt=2, output=4)
    assert play.state.gate.q.tolist() == [20 - 9 - 2, 20 - 3 - 2 - 16]
    assert play.admitted() == []
    reasons = [play.policy.wait_reason(play.state, play.worker.view(1), number) for number in (2, 3)]
    assert reasons == ["cap", "gate"]


def displacing(gate: DeficitGate, **rule: Any) -> Play:
    """A worker where requests of less output take the place of others of their client."""
    order = ShortestRemaining(100)
    return Play(ComposedPolicy("displaces", order, gate, Chunked(**{"max_batched_tokens": 50, **rule})), 200)


def test_a_request_that_displaces_obeys_its_clients_cap() -> None:
    """The longest gives way, and that is not enough under the cap: the other one gives way, too."""
    for cap, victims in ((30, (0, 1)), (31, (0,))):
        play = displacing(DeficitGate(quantum=1000, in_flight_cap_tokens=cap), max_running=2)
        play.arrive(0, prompt=10, output=10)
        play.arrive(0, prompt=2, output=8)
        play.step()
        play.arrive(0, prompt=20, output=1)
        plan = play.decide()
        assert (plan.preempt, [each.request_id for each in plan.admit]) == (victims, [2])


def test_a_client_in_credit_displaces_its_own_requests_and_no_others() -> None:
    """Whatever waits of a client in debt, and however long another client's request is that runs."""
    play = displacing(DeficitGate(quantum=30), max_running=2)
    play.arrive(0, prompt=20, output=1)
    play.step()
    long, other = play.arrive(1, prompt=2, output=20), play.arrive(2, prompt=2, output=30)
    play.step()
    play.tell([ev.Decoded(play.now_ns, 0, 1, (0,), (10,))])
    assert play.state.gate.q.tolist() == [30 - 22 - 20, 30 - 4, 30 - 4]
    play.arrive(0, prompt=1, output=1)
    short = play.arrive(1, prompt=1, output=5)
    plan = play.decide()
    assert (plan.preempt, [each.request_id for each in plan.admit]) == ((long,), [short])
    assert other not in plan.preempt
    play = displacing(DeficitGate(quantum=30), max_running=1)
    play.arrive(1, prompt=1, output=1)
    play.step()
    play.arrive(0, prompt=1, output=20)
    play.step()
    play.arrive(1, prompt=1, output=1)
    assert play.state.gate.q.tolist() == [30 - 3, 30 - 3]
    assert play.decide().preempt == ()


def test_what_a_decision_did_is_what_observing_it_does() -> None:
    """The state that a decision returns is the one that its events make, refill and all: also where it displaces."""
    play = displacing(DeficitGate(quantum=3, in_flight_cap_tokens=60), max_running=1)
    play.arrive(0, prompt=10, output=20)
    play.step(3)
    play.arrive(0, prompt=5, output=2)
    before = play.state
    plan, decided = play.policy.decide(before, play.worker.view(play.now_ns))
    assert plan.preempt
    assert plan.admit
    told = play.policy.observe(before, ev.Preempted(3, 0, 0, 0, 3, 0))
    told = play.policy.observe(told, ev.Admitted(3, 0, 1, 0, 5, 0, 2))
    assert play.policy.state_to_json(told) == play.policy.state_to_json(decided)


def test_a_plan_holds_until_credit_memory_or_a_prediction_ends() -> None:
    """Nothing may enter: under the gate for as long as its choice holds, and with outputs that grow for as long as they
    fit, whichever is less."""
    for quantum, capacity, steps in ((20, 30, 6), (60, 16, 9)):
        gate = DeficitGate(Rates(1, 2), quantum=quantum)
        play = Play(chunked(DLPM(gate=gate), max_batched_tokens=50, reserve="optimistic"), capacity)
        play.arrive(0, prompt=6, output=9)
        play.step()
        play.arrive(0, prompt=capacity - 3, output=2)
        assert play.state.gate.q.tolist() == [quantum - 8]
        plan = play.decide()
        assert (plan.admit, plan.valid_steps) == ((), steps)
