"""The gate inside the batch: which requests stand still, for how long, which are taken out, and what that promises."""

from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import msgspec
import numpy as np
import pytest
from hypothesis import settings

from fairsched.engines.simulation import simulate_events
from fairsched.engines.workloads.fleet import WorkerSpec
from fairsched.model import worker as transitions
from fairsched.model.algebra import NO_SCORE, NUMPY
from fairsched.model.decision import Host
from fairsched.model.events import Event, Finished, Paused, Preempted
from fairsched.model.monitor import Monitor
from fairsched.model.request import Client, Prompt, Request, Workload
from fairsched.model.worker import InfeasiblePlanError, WorkerState
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM, DLPMInBatch
from fairsched.policies.gates import InBatchGate, interpreter
from fairsched.policies.gates.deficit import refill_due, refill_rounds
from fairsched.policies.gates.in_batch import forgive
from fairsched.policies.guarantees import GateMonitor
from fairsched.policies.local import ComposedPolicy, pausing
from fairsched.policies.orders import LongestPrefix
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS, local_policy
from fairsched.policies.routers import RoundRobin
from fairsched.verify.conformance import WorkerPlay, check_local_policy
from tests.support.scenarios import UNIT, job, world

CLIENTS, RUNNING = 3, 6
CALLERS = tuple(Client(i, str(i)) for i in range(CLIENTS))
WHOLE_BATCHES = ("s3", "pia")
GATE = InBatchGate(quantum=5)


def policy_of(gate: InBatchGate) -> ComposedPolicy:
    """The gate over the longest prefix, in small steps of few requests."""
    return ComposedPolicy("tried", LongestPrefix(), gate, Chunked(max_batched_tokens=8, max_running=RUNNING))


def faults(policy: ComposedPolicy, seed: int, host_tokens: int = 0) -> set[str]:
    """What a policy does in a random run that the kernels, interpreted beside it, do not say, and "paused" and "out"
    where requests are paused and taken out.

    Raises `AssertionError` where requests wait or stand still and nothing is computed for many steps.
    """
    rng, came, idle = Random(seed), 0, 0
    play = WorkerPlay(policy, WorkerState(0, 40, host=Host(host_tokens)))
    rules: Any = interpreter(GATE)
    monitor, found, done = GateMonitor(rules, GATE.charging, skips=False), set[str](), set[str]()

    def follow(events: list[Event]) -> None:
        found.update(text.partition(" ")[0] for text in map(monitor.observe, events) if text)
        if play.state.gate.q.tolist() != list(rules.vectors["q"]):
            found.add("charges")

    for now_ns in range(120):
        for _ in range(rng.randint(0, 2) if now_ns < 60 and rng.random() < 0.4 else 0):
            request = Request(came, rng.randrange(CLIENTS), now_ns, Prompt(rng.randint(1, 6)), rng.randint(1, 14))
            follow(play.arrive(request, request.max_output_tokens, now_ns))
            came += 1
        before = {client: rules.may_decode(client) for client in range(len(play.state.gate.q))}
        owes, depth = play.state.gate.q.tolist(), GATE.depth(play.state.gate)
        plan = play.decide(now_ns)
        out = {*plan.preempt, *plan.swap_out}
        done |= {name for name, some in (("paused", plan.pause), ("out", out)) if some}
        if any(owes[play.worker.in_flight[request_id].client] > -depth for request_id in out):
            found.add("takes out")
        at = play.worker.clock
        try:
            begun = transitions.begin(play.worker, plan, now_ns)
        except InfeasiblePlanError:
            return found | done | {"refused"}
        follow(play.follow(begun, decided=True))
        for flight in play.worker.in_flight.values():
            if flight.clock_paused is not None and before[flight.client] and rules.may_decode(flight.client):
                found.add("pauses" if flight.request_id in plan.pause else "keeps")
        follow(play.follow(transitions.finish(play.worker, plan, 1, now_ns)))
        idle = 0 if play.worker.clock > at or plan.chunks or not play.worker.in_flight else idle + 1
        assert idle < 20, "nothing is computed"
    return found | done


@pytest.mark.parametrize("host_tokens", [0, 30])
def test_the_gate_does_what_its_kernels_say(host_tokens: int) -> None:
    """Deficits are the interpreter's after every event; a client that owes enough stands still, others never do, and
    only those are taken out."""
    runs = [faults(policy_of(GATE), seed, host_tokens) for seed in range(24)]
    assert set().union(*runs) == {"paused", "out"}


def test_what_is_due_is_given_or_forgiven_at_once() -> None:
    """Inside the batch a settled state is what the kernels make of it, and the state itself where they change
    nothing."""
    random, changed = Random(3), 0
    for _ in range(300):
        debt, clients = random.choice([1, 3, 8]), random.choice([1, 2, 3])
        gate = InBatchGate(quantum=5)
        state: Any = msgspec.structs.replace(gate.init(), longest=debt)
        heads = np.full(clients, NO_SCORE, np.int64)
        for client in range(clients):
            state = gate.configured(state, client, random.choice([1, 2]))
            if random.random() < 0.8:
                state = gate.joined(state, client, heads, False)
        owed = [random.choice([-debt, -debt - 2, 1 - debt, 0, 4]) for _ in range(clients)]
        state = msgspec.structs.replace(state, q=np.array(owed) * state.known)
        heads[state.known & np.array([random.random() < 0.4 for _ in range(clients)])] = 1
        waits = heads != NO_SCORE
        if refill_due(NUMPY, state.q, waits):
            q = refill_rounds(NUMPY, state.q, waits, state.known, state.quantum)
        else:
            q = forgive(NUMPY, state.q, waits, state.known, debt)
        settled = gate.settled_up(state, heads)
        assert settled.q.tolist() == q.tolist()
        same = q.tolist() == state.q.tolist()
        changed += not same
        assert (settled is state) is same or waits.any()
    assert 0 < changed < 300


class _WrongClient(InBatchGate):
    def may_decode(self, state: Any) -> Any:
        return np.roll(super().may_decode(state), 1)


class _ChargesPaused(InBatchGate):
    def decoded(self, state: Any, clients: tuple[int, ...], tokens: tuple[int, ...]) -> Any:
        charged = super().decoded(state, clients, tokens)
        stand = ~super().may_decode(state)
        return msgspec.structs.replace(charged, q=charged.q - stand)


class _LooksTooLate(InBatchGate):
    def may_decode(self, state: Any) -> Any:
        return state.q > -self.depth(state) - 3


def _without_resumes(changes: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *seen: (changes(*seen)[0], ())


def _of_the_richest(debtors: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(gate: Any, state: Any, view: Any) -> list[int]:
        running = [request_id for request_id, flight in view.in_flight.items() if flight.clock_start is not None]
        return sorted(running, key=lambda i: -state.gate.q[view.in_flight[i].client]) or debtors(gate, state, view)

    return wrong


@pytest.mark.parametrize(
    ("gate", "function", "change", "fault"),
    [
        (_WrongClient, None, None, "pauses"),
        (_ChargesPaused, None, None, "charges"),
        (_LooksTooLate, None, None, "client"),
        (InBatchGate, "_changes", _without_resumes, "keeps"),
        (InBatchGate, "_debtors", _of_the_richest, "takes out"),
    ],
    ids=["pause the wrong client", "charge while paused", "pause too late", "forget to resume", "take out in credit"],
)
def test_a_seeded_bug_is_found(
    gate: type[InBatchGate], function: str | None, change: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is named in one of a few random runs."""
    if function is not None:
        module = __import__("sys").modules[pausing.__name__]
        monkeypatch.setattr(module, function, change(getattr(module, function)))
    tried = policy_of(gate(quantum=5))
    found = set[str]()
    for seed in range(48):
        try:
            found |= faults(tried, seed)
        except (AssertionError, IndexError):
            found.add("stalls")
        if fault in found:
            return
    pytest.fail(f"only {found}")


@pytest.mark.parametrize("reserve", ["static", "optimistic"])
def test_it_conforms(reserve: Any) -> None:
    """The battery for local policies: leaps are steps, what is decided is what is told, and the bound holds."""
    policy = attrs.evolve(policy_of(GATE), batching=Chunked(max_running=RUNNING, reserve=reserve))
    check_local_policy(policy, settings=settings(max_examples=5, stateful_step_count=15, deadline=None))


def test_a_client_that_comes_later_does_not_wait_for_what_runs() -> None:
    """With room for all of the first client's long outputs the plain gate lets the gap grow past the bound that the
    gate inside the batch keeps, which pauses them."""
    jobs = world((*(job(i, 0, 0, 4, 400) for i in range(24)), *(job(100 + i, 1, 50, 4, 40) for i in range(40))))
    gaps, bounds, pauses = [], [], []
    for made in (DLPM, DLPMInBatch):
        plain: Any = made().gate
        gate = attrs.evolve(plain, quantum=20)
        if isinstance(gate, InBatchGate):
            gate = attrs.evolve(gate, context_tokens=404)
        policy = made(gate=gate, batching=Chunked(max_running=12))
        limits = policy.guarantee.limits(5_000, 400)
        promise = policy.guarantee.promise((Client(0, "a"), Client(1, "b")), limits)
        assert promise is not None
        monitor = Monitor(promise, policy.guarantee.gate_monitor())
        events = simulate_events(jobs, policy, RoundRobin(), UNIT, kv_capacity_tokens=5_000)
        monitor.observe_all(events)
        report = monitor.report()
        assert not report.violated()
        assert not report.bound_violations, report.first_gap
        assert report.gap is not None
        gaps.append(report.gap.cost)
        bounds.append(promise.gap_bound)
        pauses.append(sum(isinstance(event, Paused) for event in events))
    assert pauses[0] == 0 < pauses[1]
    assert bounds[1] == 2 * (20 + 2 * 12 + 404 - 1)
    assert gaps[1] <= bounds[1] < gaps[0]


def test_a_lone_client_is_never_paused() -> None:
    """However much it owes, and however many of its own requests wait."""
    jobs = world(job(i, 0, 0, 4, 60) for i in range(30))
    policy = DLPMInBatch(gate=GATE)
    events = simulate_events(jobs, policy, RoundRobin(), UNIT, kv_capacity_tokens=200)
    assert not any(isinstance(event, Paused | Preempted) for event in events)


def test_a_request_longer_than_the_longest_context_is_refused() -> None:
    """Its bound rests on that length."""
    gate = InBatchGate(context_tokens=100)
    assert gate.refuses(100) is None
    assert gate.refuses(101) == "101 tokens are over the longest context of 100"


def crowded() -> Workload:
    """One client has the worker for itself, and when it is full two others come."""
    rng, first = Random(0), [job(i, 0, 0, 5, 30) for i in range(12)]
    later = [job(100 + i, 1 + i % 2, 10 + i, rng.randint(3, 20), rng.randint(1, 30)) for i in range(30)]
    return world([*first, *later])


@pytest.mark.parametrize("name", [name for name in LOCAL_POLICIES if name not in WHOLE_BATCHES])
def test_it_goes_with_every_order_and_batching_rule(name: str) -> None:
    """Every request ends, some are paused, no assumption of its theorems is broken, and the bound holds."""
    made = local_policy(f"{name}+in-batch")
    assert isinstance(made.gate, InBatchGate)
    policy = attrs.evolve(made, gate=attrs.evolve(made.gate, quantum=6))
    events = simulate_events(crowded(), policy, RoundRobin(), UNIT, kv_capacity_tokens=200)
    assert sum(isinstance(event, Finished) for event in events) == 42
    assert any(isinstance(event, Paused) for event in events)
    promise = policy.guarantee.promise(CALLERS, policy.guarantee.limits(200, 30))
    assert promise is not None
    monitor = Monitor(promise, policy.guarantee.gate_monitor())
    monitor.observe_all(events)
    assert not monitor.report().violated()
    assert not monitor.report().bound_violations


def test_an_elastic_cap_is_refused() -> None:
    """It would count other outputs than those that P is the price of."""
    with pytest.raises(ValueError, match="in-batch: cap_holds=contended is not taken"):
        InBatchGate(in_flight_cap_tokens=9, cap_holds="contended")


def test_workers_that_prefill_and_that_decode_keep_the_bound() -> None:
    """Where phases are split each worker has the gate, and requests are taken out where they decode."""
    policy = attrs.evolve(policy_of(GATE), batching=Chunked(max_running=4))
    kinds = tuple(WorkerSpec(UNIT, 200, role=role) for role in ("prefill", "decode"))
    events = simulate_events(crowded(), policy, ROUTERS["d2lpm-split"], UNIT, workers=kinds)
    assert sum(isinstance(event, Finished) for event in events) == 42
    assert {event.worker for event in events if isinstance(event, Preempted)} == {1}
    promise = policy.guarantee.promise(CALLERS, policy.guarantee.limits(200, 30))
    assert promise is not None
    for worker in range(2):
        monitor = Monitor(promise, policy.guarantee.gate_monitor(), worker=worker)
        monitor.observe_all([event for event in events if event.worker == worker])
        assert not monitor.report().violated()
        assert not monitor.report().bound_violations
