"""Whatever a policy does the engine keeps serving and says so: every request ends once, with its own tokens."""

import time
from collections import Counter
from typing import Any

import attrs
import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from fairsched.engines.serving import Engine
from fairsched.engines.serving.guard.guard import Cause, from_history
from fairsched.engines.serving.guard.history import history
from fairsched.model.events import Admitted, Arrived, Decoded, Finished
from fairsched.model.serialization import digest
from fairsched.model.worker import WorkerState
from fairsched.policies.base import AnyLocalPolicy
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM, FCFS, VTC
from fairsched.policies.gates import DeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.local.state_transfer import keep_debts
from fairsched.policies.orders import PromptsFirst, Regroups
from fairsched.policies.orders.abilities import Promotes, TakesBatches
from fairsched.policies.orders.shortest_prefill import CountsWaits
from fairsched.policies.registry import LOCAL_POLICIES
from fairsched.verify.conformance import worker_invariants
from fairsched.verify.conformance.strategies import worker_states
from tests.engines.serving.test_loop import SENT, Ends, check_tokens, composed, engine_of, load, timeless
from tests.support.engines.fake_executor import FakeExecutor, answer_of
from tests.support.policies import misbehaving
from tests.support.policies.misbehaving import Absent, Deaf, Misbehaving, Sleeping, Way

COUNTS = Promotes | TakesBatches | CountsWaits | PromptsFirst
"""Orders that count how long each waits or how often it was preempted, or take a batch: a present does not tell it."""


def serve(policy: AnyLocalPolicy, requests: int = 12, **options: Any) -> tuple[Engine, Ends]:
    """Serve some requests of three clients, and check that each got its tokens and ended once."""
    ends = Ends()
    engine = engine_of(policy, listeners=[ends], **{"kv_capacity_tokens": 60, "fallback": FCFS(), **options})
    sent = []
    for i in range(requests):
        prompt = [i % 3] * 6 + [i % 5] * (1 + i % 7)
        sent.append((prompt, engine.ask(f"client-{i % 3}", prompt, 4 + i % 9)))
    engine.run_until_idle()
    for prompt, answer in sent:
        assert answer.outcome == "finished"
        assert answer.tokens == answer_of(prompt, len(answer.tokens))
    assert ends.ended == Counter(range(requests))
    assert engine.executor_failures == 0
    engine.close()
    return engine, ends


@pytest.mark.parametrize(
    ("way", "cause"),
    [
        (misbehaving.raises, "exception"),
        (misbehaving.overcommits, "infeasible"),
        (misbehaving.duplicates, "infeasible"),
        (misbehaving.preempts_and_admits, "infeasible"),
        (misbehaving.forgets, "stalled"),
        (misbehaving.thrashes, "thrash"),
        (misbehaving.leaps, "infeasible"),
        (misbehaving.talks, "infeasible"),
        (misbehaving.strangers, "infeasible"),
        (misbehaving.swaps, "infeasible"),
        (misbehaving.fetches, "infeasible"),
        (misbehaving.pauses, "stalled"),
        (misbehaving.stops_and_goes, "thrash"),
        (misbehaving.wakes, "infeasible"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_policy_that_always_misbehaves(way: Way, cause: Cause) -> None:
    """Its decisions are refused and counted by cause, and after eight in a row it is set aside, which is said."""
    engine, _ = serve(Misbehaving(VTC(batching=Chunked(4)), (way,)))
    counted = engine.guard.interventions
    assert counted[cause] >= 1
    assert set(counted) <= {cause, "set-aside"}
    assert engine.guard.last_error
    if counted["set-aside"]:
        assert counted[cause] >= 8
        assert str(engine.guard.set_aside).startswith(cause)
    # These ways are now and then as they should be.
    sometimes = (misbehaving.duplicates, misbehaving.thrashes, misbehaving.fetches)
    pausing = (misbehaving.pauses, misbehaving.stops_and_goes, misbehaving.wakes)
    assert counted["set-aside"] or way in sometimes + pausing


def test_without_a_fallback_the_last_resort_serves() -> None:
    """Even with no fallback, and with one that fails too, everybody is served, one after the other."""
    engine, ends = serve(Misbehaving(VTC(), (misbehaving.raises,)))
    together = max_running(ends)
    engine, ends = serve(Misbehaving(VTC(), (misbehaving.raises,)), fallback=None)
    assert max_running(ends) == 1 < together
    broken = Misbehaving(FCFS(), (misbehaving.talks,))
    engine, ends = serve(Misbehaving(VTC(), (misbehaving.raises,)), fallback=broken)
    assert engine.guard.interventions["fallback"] > 0
    assert max_running(ends) == 1


def max_running(ends: Ends) -> int:
    """The most requests that ran at once."""
    running = most = 0
    for event in ends.events:
        running += isinstance(event, Admitted) - isinstance(event, Finished)
        most = max(most, running)
    return most


@pytest.mark.parametrize("kind", [Arrived, Admitted, Decoded, Finished])
def test_a_policy_that_cannot_be_told(kind: type) -> None:
    """Once deaf, its state is made anew from what waits and runs, and it decides on; always deaf, it is set aside."""
    engine, _ = serve(Deaf(VTC(), (None,), kind=kind))
    if kind is not Admitted:  # Its own admissions a policy is not told.
        assert engine.guard.interventions == {"observe": 1}
    assert engine.guard.set_aside is None
    engine.policy.check(engine.policy_state)
    engine, _ = serve(Deaf(VTC(), (misbehaving.raises,), kind=kind, times=10**9))
    assert engine.guard.set_aside is not None


def test_a_policy_that_loses_requests() -> None:
    """Requests that the policy does not know of are served by the fallback when nothing else is left to do."""
    engine, _ = serve(Absent(VTC(), (None,)))
    assert engine.guard.interventions["stalled"] + engine.guard.interventions["observe"] > 0


def test_a_policy_that_never_returns() -> None:
    """With a time budget the fallback serves while the policy thinks; what it decides too late is thrown away."""
    sleeper = Sleeping(VTC(), (None,))
    engine, _ = serve(sleeper, decision_budget_ns=1_000_000)
    assert engine.guard.interventions["late"] > 0
    assert set(engine.guard.interventions) == {"late"}
    assert engine.guard.set_aside is None  # It was asked once, and that was one failure.
    sleeper.wake.set()


def test_a_policy_that_returns_late() -> None:
    """Its late call is interrupted, what it has seen is kept, and then it decides again and knows everything."""
    sleeper = Sleeping(VTC(), (None,))
    ends = Ends()
    engine = engine_of(sleeper, kv_capacity_tokens=60, fallback=FCFS(), decision_budget_ns=50_000_000, listeners=[ends])
    for i in range(30):
        engine.ask(f"client-{i % 3}", [i % 3] * 6, 4 + i % 9)
    while len(ends.ended) < 5:
        engine.step()
    assert engine.guard.interventions["late"] > 0
    sleeper.wake.set()
    while engine.guard.busy:
        time.sleep(0.001)
    engine.run_until_idle()
    assert ends.ended == Counter(range(30))
    assert engine.guard.set_aside is None
    known = engine.policy_state
    assert known.decisions > 0
    sleeper.inner.check(known.inner)
    assert not known.inner.flights
    engine.close()


def test_a_policy_within_its_budget() -> None:
    """A thread of its own changes nothing about a policy that answers in time: same plans, same state."""
    engine, ends = serve(VTC())
    timed, timed_ends = serve(VTC(), decision_budget_ns=10**12)
    assert not timed.guard.interventions
    assert digest(timed.policy_state.gate) == digest(engine.policy_state.gate)
    assert [timeless(event) for event in timed_ends.events] == [timeless(event) for event in ends.events]


def test_a_replaced_policy_knows_what_waits() -> None:
    """After `replace_policy` without a state the new policy is told the present; whoever was set aside is forgotten."""
    engine = engine_of(Misbehaving(VTC(), (misbehaving.raises,)), kv_capacity_tokens=60, fallback=FCFS())
    answers = [engine.ask("a", [i, 1, 2], 10) for i in range(40)]
    while engine.guard.set_aside is None:
        assert engine.step()
    counted = engine.guard.interventions.copy()
    engine.replace_policy(VTC())
    engine.run_until_idle()
    assert engine.guard.interventions == counted
    assert engine.guard.set_aside is None
    assert all(answer.outcome == "finished" for answer in answers)
    engine.policy.check(engine.policy_state)


@given(composed(), SENT, st.integers(0, 12))
def test_a_history_tells_the_present(policy: ComposedPolicy, sent: list[Any], steps: int) -> None:
    """In the middle of any load, a policy that is told only the present knows queue, batch and cache as they are.

    Where no gate remembers debts and no order counts, it decides what the policy decides that saw everything.
    """
    engine = engine_of(policy)
    load(engine, sent)
    for _ in range(steps):
        engine.step()
    told = from_history(policy, None, history(engine.state, engine.clients.all, 10**6))
    policy.check(told)
    worker_invariants.check_copy(told.cache, engine.state.cache)
    known = engine.policy_state
    queue = {i: e.generated_tokens for i, e in known.queue.entries.items()}
    assert {i: e.generated_tokens for i, e in told.queue.entries.items()} == queue
    flights = {i: (f.extend_tokens, f.kv_tokens) for i, f in known.flights.items()}
    assert {i: (f.extend_tokens, f.kv_tokens) for i, f in told.flights.items()} == flights
    if not policy.gate.grouped and not isinstance(policy.order, COUNTS):
        view = engine.state.view(10**6)
        assert policy.decide(told, view)[0] == policy.decide(known, view)[0]


@given(worker_states(), st.sampled_from([FCFS(), VTC(), DLPM()]))
def test_a_history_tells_what_was_preempted(state: WorkerState, policy: ComposedPolicy) -> None:
    """What a request had generated before it lost its memory is known of whoever waits, and of whoever runs again."""
    told = from_history(policy, None, history(state, (), 10**6))
    policy.check(told)
    queued = {i: waiting.generated_tokens for i, waiting in state.queue.items()}
    running = {i: run.waiting.generated_tokens for i, run in state.running.items()}
    target(float(sum(queued.values()) + sum(running.values())))
    assert {i: entry.generated_tokens for i, entry in told.queue.entries.items()} == queued
    assert {i: flight.entry.generated_tokens for i, flight in told.flights.items()} == running


@given(composed(), SENT, st.integers(0, 12), st.booleans())
def test_debts_are_kept_when_a_policy_lost_track(
    policy: ComposedPolicy, sent: list[Any], steps: int, capped: bool
) -> None:
    """A state made anew with `keep_debts` knows the worker's present, and its gate is the one that was lost; what
    an order counts, or takes together of what has come, begins anew."""
    if capped and isinstance(policy.gate, DeficitGate):
        policy = attrs.evolve(policy, gate=attrs.evolve(policy.gate, quantum=9, in_flight_cap_tokens=25))
    engine = engine_of(policy)
    engine.configure_client("client-1", 3)
    load(engine, sent)
    for _ in range(steps):
        engine.step()
    last = engine.policy_state
    told = keep_debts(policy, last, history(engine.state, engine.clients.all, 10**6))
    policy.check(told)
    assert digest(told.gate) == digest(last.gate)
    view = engine.state.view(10**6)
    if not isinstance(policy.order, COUNTS | Regroups):
        assert policy.decide(told, view)[0] == policy.decide(last, view)[0]


@pytest.mark.parametrize("kind", [Arrived, Decoded, Finished])
@pytest.mark.parametrize("policy", [VTC(), DLPM()], ids=["vtc", "dlpm"])
def test_an_engine_keeps_debts_when_its_policy_lost_track(policy: ComposedPolicy, kind: type) -> None:
    """In the middle of a load a policy is deaf once: everybody is served, and it knows everything in the end."""
    inner = attrs.evolve(policy, batching=Chunked(8))

    def rebuild(deaf: Any, last: Any, events: Any) -> Any:
        return misbehaving.Kept(keep_debts(inner, last.inner, events))

    engine, _ = serve(Deaf(inner, (None,), kind=kind), rebuild=rebuild)
    assert engine.guard.interventions == {"observe": 1}
    known = engine.policy_state.inner
    inner.check(known)
    assert not known.queue.entries
    assert not known.flights


BEHAVIOURS = st.lists(st.sampled_from([None, *misbehaving.WAYS]), min_size=1, max_size=6)


@given(
    st.builds(Misbehaving, composed(), BEHAVIOURS.map(tuple), st.booleans()),
    SENT,
    st.lists(st.integers(0, 9), max_size=4),
    st.sampled_from(["fcfs", "lpm", None]),
)
def test_every_request_ends_once_whatever_a_policy_does(
    policy: Misbehaving, sent: list[Any], gone: list[int], fallback: str | None
) -> None:
    """Under any mix of misbehaviour and with callers that give up, each request ends once, with tokens of its own."""
    ends, executor = Ends(), FakeExecutor()
    other = None if fallback is None else attrs.evolve(LOCAL_POLICIES[fallback], batching=policy.inner.batching)
    engine = engine_of(policy, executor, fallback=other, listeners=[ends])
    answers = load(engine, sent, gone=gone)
    engine.run_until_idle()
    check_tokens(answers, sent)
    assert ends.ended == Counter(answer.request_id for answer in answers)
    assert engine.executor_failures == 0
    assert not executor.contexts
