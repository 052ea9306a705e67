"""One deficit for all workers: what is kept and what is given up, in runs of small clusters where every step counts."""

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.engines.analysis import assumption_monitor, run_charging
from fairsched.engines.simulation import Simulator
from fairsched.engines.workloads.fleet import Change, Crash, Restart
from fairsched.model.algebra import NO_GROUP, NO_SCORE
from fairsched.model.events import Admitted, Arrived, Cancelled, Event, Finished, Migrated, Rejected
from fairsched.model.monitor import together
from fairsched.model.request import Client, Workload
from fairsched.model.service import anywhere, backlogs, charges, concatenate, service_gap, tables
from fairsched.policies.base import AnyRouter, Limits, Router, SharesCredit
from fairsched.policies.gates import DeficitGate, GlobalDeficitGate
from fairsched.policies.gates.credit_ledger import CreditLedger
from fairsched.policies.gates.shared import GlobalState
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES, with_parameters
from fairsched.policies.routers import JoinShortestQueue, PerClientRoundRobin, Random, RoundRobin
from fairsched.policies.vectors import dense, grown
from tests.support.logs import hash_of
from tests.support.scenarios import UNIT, job, world

CAPACITY = 12
ENDS = (Finished, Rejected, Cancelled)
Rows = list[tuple[int, int, int, int]]
"""Requests as (client, arrival, prompt, output)."""


def shared(**params: object) -> ComposedPolicy:
    """The policy with a small quantum and these parameters."""
    given = {"quantum": "5", **{name: str(value) for name, value in params.items()}}
    return with_parameters(LOCAL_POLICIES["dlpm-global"], given)


@attrs.frozen
class ByClient(Router[None]):
    """Every client has a worker of its own: the case in which local credit means nothing."""

    def init(self) -> None:
        return None

    def route(self, state: None, request: Any, view: Any) -> Any:
        """Worker (client modulo workers)."""
        return PerClientRoundRobin().route(PerClientRoundRobin().init(), request, view)[0], None


ROUTERS = (RoundRobin(), PerClientRoundRobin(), JoinShortestQueue(), Random(), ByClient())

jobs = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(1, 6), st.integers(1, 6)), min_size=2, max_size=30
)


def made(rows: Rows) -> Workload:
    """A workload of these requests."""
    return world(job(i, client, at, prompt, output) for i, (client, at, prompt, output) in enumerate(rows))


def play(
    workload: Workload, policy: ComposedPolicy, router: AnyRouter, workers: int, changes: tuple[Change, ...] = ()
) -> tuple[list[Event], Simulator]:
    """The events of a run in which every step takes one nanosecond, and the simulator in its last state."""
    events: list[Event] = []
    size: dict[str, Any] = {"workers": workers, "kv_capacity_tokens": CAPACITY}
    simulator = Simulator(workload, policy, router, UNIT, on_events=events.extend, changes=changes, **size)
    simulator.run()
    return events, simulator


def limits_of(policy: ComposedPolicy, workers: int) -> Limits:
    """What bounds rest on, on so many workers."""
    return attrs.evolve(policy.guarantee.limits(CAPACITY, CAPACITY), workers=workers)


def bound_of(policy: ComposedPolicy, clients: tuple[Client, ...], workers: int) -> int:
    """D2-global, or D2-stale, on so many workers; -1 where nothing is promised."""
    bound = policy.guarantee.service_gap_bound(clients, limits_of(policy, workers))
    return -1 if bound is None else bound


def cluster_gap(workload: Workload, policy: ComposedPolicy, events: list[Event]) -> int:
    """The largest difference of all workers' service between two clients that waited anywhere."""
    trace = concatenate([tables(events)])
    charging = run_charging(policy, workload.clients)
    assert charging is not None
    return service_gap(*anywhere(charges(trace, charging), backlogs(trace))).cost


def check_run(workload: Workload, policy: ComposedPolicy, events: list[Event], simulator: Simulator) -> None:
    """The gap is within the bound, and each request ended once, none by a refusal; when the run is over nobody waits
    anywhere, and true deficits, less what nobody told, are in range."""
    assert cluster_gap(workload, policy, events) <= bound_of(policy, workload.clients, len(simulator.workers))
    assert sorted(e.request_id for e in events if isinstance(e, ENDS)) == list(range(len(workload.jobs)))
    assert not any(isinstance(event, Rejected) for event in events)
    assert policy.shared_credit is not None
    credit = simulator.pool.credit
    state: GlobalState = policy.shared_credit.snapshot(credit)
    if isinstance(credit, CreditLedger):
        unsent = sum(grown(each, len(state.places), 0) for each in credit.unsent.values())
        state = replace(state, q=state.q - unsent)
    policy.gate.check(state)
    assert not state.places.any()


@given(jobs, st.sampled_from(ROUTERS), st.integers(1, 4), st.sampled_from((0, 3, 20)))
@settings(max_examples=50)
def test_gap_over_all_workers_is_bounded(rows: Rows, router: AnyRouter, workers: int, unsent: int) -> None:
    """Whatever routes, wherever clients wait, and however late charges are told; everybody ends once, and no admission
    passes the gate."""
    workload, policy = made(rows), shared(unsent_max=unsent)
    events, simulator = play(workload, policy, router, workers)
    check_run(workload, policy, events, simulator)
    monitor = assumption_monitor(policy, workload.clients, limits_of(policy, workers))
    assert monitor is not None
    monitor.observe_all(events)
    findings = together(monitor.reports())
    assert findings["GateRespected"].violated == (0 if not unsent or workers == 0 else None)
    assert not findings["MemReserve"].violated


@given(jobs, st.booleans())
@settings(max_examples=20)
def test_on_one_worker_it_is_the_deficit_gate(rows: Rows, work: bool) -> None:
    """The same log, whatever is kept."""
    workload = made(rows)
    policies = shared(keeps="work" if work else "fairness"), with_parameters(LOCAL_POLICIES["dlpm"], {"quantum": "5"})
    one, other = (hash_of(play(workload, policy, RoundRobin(), 1)[0]) for policy in policies)
    assert one == other


@given(jobs, st.sampled_from(ROUTERS), st.integers(2, 3), st.integers(0, 20), st.booleans())
@settings(max_examples=30)
def test_workers_that_fail_take_nobodys_credit(
    rows: Rows, router: AnyRouter, workers: int, at_ns: int, crash: bool
) -> None:
    """After a crash or a restart nobody waits for ever, nobody is counted who is gone, and the bound still holds."""
    change: Change = Crash(0, at_ns, 5) if crash else Restart(0, at_ns, 5)
    workload, policy = made(rows), shared()
    events, simulator = play(workload, policy, router, workers, (change,))
    check_run(workload, policy, events, simulator)


# --- what is given up -----------------------------------------------------------------------------------------------


def lopsided(count: int = 60) -> Workload:
    """Client 0 sends only to worker 0, and client 1 only to worker 1, where a request takes four times as long."""
    rows = [job(2 * i, 0, 0, 6, 5) for i in range(count)] + [job(2 * i + 1, 1, 0, 1, 10) for i in range(count)]
    return world(rows, "fg")


def idle_steps(events: list[Event], workload: Workload) -> int:
    """Steps before the first worker ran out of requests in which one ran nothing although a request waited there."""
    clients = {each.request.id: each.request.client for each in workload.jobs}
    waiting, running, idle, before = [0, 0], [0, 0], 0, 0
    for event in events:
        if event.worker >= 0:
            idle += (event.time_ns - before) * sum(bool(w) and not r for w, r in zip(waiting, running, strict=True))
            before = event.time_ns
        if isinstance(event, Arrived):
            waiting[event.worker] += 1
        elif isinstance(event, Admitted):
            waiting[event.worker] -= 1
            running[event.worker] += 1
        elif isinstance(event, Migrated):
            waiting[event.worker] -= 1
        elif isinstance(event, Finished):
            running[event.worker] -= 1
        if not all(any(clients[w] == c for w in clients) for c in (0, 1)):
            break
    return idle


def test_each_choice_keeps_one() -> None:
    """Where each client has a worker of its own: with fairness kept a worker idles and the gap is bounded; with work
    kept none idles and the gap is far over that bound."""
    workload = lopsided()
    fair, busy = shared(), shared(keeps="work")
    bound = bound_of(fair, workload.clients, 2)
    assert bound_of(busy, workload.clients, 2) == -1
    runs = {
        "fairness": (fair, play(workload, fair, ByClient(), 2)[0]),
        "work": (busy, play(workload, busy, ByClient(), 2)[0]),
    }
    gaps = {name: cluster_gap(workload, policy, events) for name, (policy, events) in runs.items()}
    idle = {name: idle_steps(events, workload) for name, (_, events) in runs.items()}
    assert gaps["fairness"] <= bound < gaps["work"] // 2
    assert idle["fairness"] > 50
    assert idle["work"] == 0


# --- copies ---------------------------------------------------------------------------------------------------------


def test_the_later_charges_are_told_the_fewer_messages() -> None:
    """Each step of `unsent_max` saves messages, and the gap stays inside D2-stale."""
    workload = lopsided()
    messages = []
    for unsent in (1, 10, 100, 1_000):
        policy = shared(unsent_max=unsent)
        events, simulator = play(workload, policy, RoundRobin(), 2)
        ledger = simulator.pool.credit
        assert isinstance(ledger, CreditLedger)
        messages.append(ledger.messages)
        assert cluster_gap(workload, policy, events) <= bound_of(policy, workload.clients, 2)
        assert all(int(unsent_of.max()) <= unsent for unsent_of in ledger.unsent.values())
        assert min(int(unsent_of.min()) for unsent_of in ledger.unsent.values()) >= 0
    assert messages == sorted(messages, reverse=True)
    assert messages[0] > 10 * messages[-1]


def test_bounds_by_hand() -> None:
    """On m workers U is m (U_w - 1) + 1, a cap holds for all of them together, and (m - 1) unsent_max is added."""
    clients = (Client(0, "f"), Client(1, "g"))
    alone = bound_of(with_parameters(LOCAL_POLICIES["dlpm"], {"quantum": "5"}), clients, 1)
    assert bound_of(shared(), clients, 1) == alone == 2 * (5 + 2 * (CAPACITY - 1))
    assert bound_of(shared(), clients, 3) == 2 * (5 + 3 * 2 * (CAPACITY - 1))
    assert bound_of(shared(unsent_max=7), clients, 3) == 2 * (5 + 3 * 2 * (CAPACITY - 1) + 2 * 7)
    assert bound_of(shared(in_flight_cap_tokens=6), clients, 3) == 2 * (5 + 2 * 6 - 2)
    assert bound_of(shared(keeps="work"), clients, 3) == -1


@pytest.mark.parametrize("bad", [{"keeps": "both"}, {"unsent_max": "-1"}])
def test_bad_parameters_are_refused(bad: dict[str, str]) -> None:
    """By name and value."""
    with pytest.raises(ValueError, match=next(iter(bad))):
        shared(**bad)


PROMPT, PREMIUM, REGULAR = 512, 0, 1


def admitted(gate: DeficitGate, clients_of: list[list[int]], requests: int) -> list[int]:
    """How many requests of each client two routers admit to one worker that takes one at a time.

    Each router's clients always wait, and the routers are asked in turn."""
    shares = gate if isinstance(gate, SharesCredit) else None
    credit = None if shares is None else shares.credit()
    states: list[Any] = [gate.init(), gate.init()]
    heads = [dense(2, [0, 1], [int(c in waiting) for c in (0, 1)], 1) for waiting in clients_of]
    for head in heads:
        head[head == 0] = NO_SCORE
    served = [0, 0]

    def act(router: int, what: Callable[[Any], Any]) -> None:
        nonlocal credit
        before = states[router] if shares is None else shares.checkout(states[router], credit, router)
        states[router] = what(before)
        if shares is not None:
            credit = shares.commit(credit, states[router], router)
            credit = shares.idle(credit, router) if states[router] is before else credit

    def take(router: int, state: Any) -> Any:
        turn = gate.begin(state, heads[router])
        client = turn.choose(heads[router])
        if client != NO_GROUP:
            turn.admit(client, PROMPT, PROMPT, False)
            served[client] += 1
        return gate.after(state, turn)

    for router, waiting in enumerate(clients_of):
        for client, weight in ((PREMIUM, 4), (REGULAR, 1)):
            act(router, partial(gate.configured, client=client, weight=weight))
        for client in waiting:
            act(router, partial(gate.joined, client=client, heads=heads[router], waited=False))
    router = 0
    while sum(served) < requests:
        act(router, partial(take, router))
        router = 1 - router
    return served


@pytest.mark.parametrize(
    ("gate", "by_both", "by_its_own"),
    [
        (DeficitGate(quantum=PROMPT), [261, 64], [163, 162]),
        (GlobalDeficitGate(quantum=PROMPT), [260, 65], [260, 65]),
        (GlobalDeficitGate(quantum=PROMPT, unsent_max=4 * PROMPT), [260, 65], [260, 65]),
    ],
)
def test_two_routers_keep_weights_only_with_one_deficit(
    gate: DeficitGate, by_both: list[int], by_its_own: list[int]
) -> None:
    """Weights of 4:1 become 1:1 with a deficit in each router, as in Dynamo #15187, and stay 4:1 with one deficit."""
    assert admitted(gate, [[PREMIUM, REGULAR], [PREMIUM, REGULAR]], 325) == by_both
    assert admitted(gate, [[PREMIUM], [REGULAR]], 325) == by_its_own
