"""Weights and quanta change in the middle of a run, and what is promised holds at every step of it."""

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.simulation import Simulator
from fairsched.engines.simulation.simulated_worker import SimulatedWorker
from fairsched.model.events import Admitted, ClientConfigured, Decoded, Event, Finished
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.model.worker import WorkerState
from fairsched.policies.batching import Chunked
from fairsched.policies.gates import CounterGate, CounterState, DeficitGate, DeficitState
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.local.state_transfer import migrate
from fairsched.policies.orders import Arrival, LongestPrefix
from fairsched.policies.routers import RoundRobin
from fairsched.verify.conformance.strategies import requests
from tests.support.logs import before_decisions
from tests.support.scenarios import UNIT

CAPACITY = 24
CLIENTS = 3
SMALL = Chunked(max_batched_tokens=8, max_running=8)

Change = Callable[["Changing", SimulatedWorker], None]


def deficit(quantum: int, cap: int | None = None) -> ComposedPolicy:
    """Longest prefix under a deficit gate."""
    return ComposedPolicy("dlpm", LongestPrefix(), DeficitGate(quantum=quantum, in_flight_cap_tokens=cap), SMALL)


def counter() -> ComposedPolicy:
    """Arrival under a counter gate."""
    return ComposedPolicy("vtc", Arrival(), CounterGate(), SMALL)


def weight(client: int, value: int) -> Change:
    """A client's weight is set."""

    def change(run: "Changing", worker: SimulatedWorker) -> None:
        run.lowest[client] = min(run.lowest[client], value)
        run.weights[client] = value
        if isinstance(worker.policy_state.gate, DeficitState):
            assert isinstance(run.gate, DeficitGate)
            run.cut(worker, client, value * run.gate.quantum)
        run.publish(worker, [ClientConfigured(run.simulator.loop.now_ns, 0, client, value)])

    return change


def swap(to: ComposedPolicy) -> Change:
    """The same policy with another quantum takes over."""

    def change(run: "Changing", worker: SimulatedWorker) -> None:
        if isinstance(run.gate, DeficitGate) and isinstance(to.gate, DeficitGate):
            for client, weight in enumerate(run.weights):
                run.cut(worker, client, weight * to.gate.quantum)
                run.quantum_max = max(run.quantum_max, weight * to.gate.quantum)
        worker.policy_state = migrate(run.policy, worker.policy_state, to)
        to.check(worker.policy_state)
        run.simulator.pool.policy = run.policy = to

    return change


class Changing:
    """A run of one worker with changes at given times, watched after every event.

    `service` is charged service as the gate of the time charges it, divided by the weight of the time; `lost` is the
    credit that changes cut; `gaps` has, for each pair, the largest difference of service while both were backlogged.
    """

    def __init__(self, workload: Workload, policy: ComposedPolicy, changes: list[tuple[int, Change]]) -> None:
        self.simulator = Simulator(workload, policy, RoundRobin(), UNIT, kv_capacity_tokens=CAPACITY)
        self.policy = policy
        self._publish = self.simulator.pool.publish
        vars(self.simulator.pool)["publish"] = self.publish
        before_decisions(self.simulator, self._change)
        self.changes = sorted(changes, key=lambda change: change[0])
        self.weights, self.lowest = [1] * CLIENTS, [1] * CLIENTS
        self.service = [Fraction(0)] * CLIENTS
        self.lost = [0] * CLIENTS
        self.finished: list[int] = []
        self.quantum_max = getattr(policy.gate, "quantum", 0)
        self.excess: dict[tuple[int, int], Fraction] = {}
        self._since: dict[tuple[int, int], list[tuple[Fraction, int]]] = {}

    @property
    def gate(self) -> Any:
        """The gate of the policy that decides now."""
        return self.policy.gate

    def cut(self, worker: SimulatedWorker, client: int, quantum: int) -> None:
        """A quantum becomes another: credit above it will be gone."""
        q = worker.policy_state.gate.q
        if client < len(q):
            self.lost[client] += max(int(q[client]) - quantum, 0)

    def _change(self, worker: SimulatedWorker) -> None:
        while self.changes and self.changes[0][0] <= self.simulator.loop.now_ns:
            self.changes.pop(0)[1](self, worker)
            self.watch(worker)

    def publish(self, worker: SimulatedWorker, events: list[Event], decided: bool = False) -> None:
        """Count service, let the simulator publish the events, and watch."""
        for event in events:
            if isinstance(event, Admitted):
                whole = event.cached_prefix_tokens if self.gate.charge_rule == "prompt" else 0
                self._serve(event.client, (event.extend_tokens + whole) * self.gate.rates.input)
            elif isinstance(event, Decoded):
                for client, tokens in zip(event.clients, event.tokens, strict=True):
                    self._serve(client, tokens * self.gate.rates.output)
            elif isinstance(event, Finished):
                self.finished.append(event.request_id)
        self._publish(worker, events, decided)
        self.watch(worker)

    def _serve(self, client: int, cost: int) -> None:
        self.service[client] += Fraction(cost, self.weights[client])

    def watch(self, worker: SimulatedWorker) -> None:
        """D-range or V-4.3, with today's quanta and the dearest prices; and the gaps."""
        charge_max = self.gate.charge_max(self.policy.guarantee.limits(CAPACITY, CAPACITY))
        reserved = _reserved(worker.state)
        state = worker.policy_state.gate
        if isinstance(state, DeficitState):
            for i, q in enumerate(state.q.tolist()):
                assert 1 - charge_max <= q - reserved[i] * self.gate.rates.output
                assert q <= self.weights[i] * self.gate.quantum == state.quantum[i]
        else:
            self._watch_counters(worker, state, charge_max, reserved)
        waiting = {waiting.request.client for waiting in worker.state.queue.values()}
        for f, g in combinations(range(CLIENTS), 2):
            if not {f, g} <= waiting:
                self._since.pop((f, g), None)
                continue
            ahead = self.service[f] - self.service[g]
            lost = self.lost[f] + self.lost[g]
            starts = self._since.setdefault((f, g), [])
            starts.append((ahead, lost))
            gap = max(abs(ahead - start) - (lost - lost_then) for start, lost_then in starts)
            self.excess[f, g] = max(self.excess.get((f, g), Fraction(0)), gap)

    def _watch_counters(
        self, worker: SimulatedWorker, state: CounterState, charge_max: int, reserved: list[int]
    ) -> None:
        waiting = {waiting.request.client for waiting in worker.state.queue.values()}
        for i, c in enumerate(state.c.tolist()):
            dearest = state.common // self.lowest[i]
            for j in waiting:
                room = (charge_max - reserved[i] * self.gate.rates.output) * dearest
                assert c - room <= state.c[j]


def _reserved(worker: WorkerState) -> list[int]:
    """Output tokens that each client's running requests may still produce."""
    reserved = [0] * CLIENTS
    for request_id, flight in worker.in_flight.items():
        waiting = worker.running[request_id].waiting
        produced = 0 if flight.clock_start is None else 1 + worker.clock - flight.clock_start
        reserved[flight.client] += waiting.request.max_output_tokens - waiting.generated_tokens - produced
    return reserved


@st.composite
def loads(draw: st.DrawFn) -> Workload:
    """Up to thirty requests of three clients within a few steps, so that most wait most of the time."""
    drawn = draw(st.lists(requests(0, 0, CLIENTS, output_tokens_max=10), min_size=4, max_size=30))
    arrivals = sorted(draw(st.lists(st.integers(0, 60), min_size=len(drawn), max_size=len(drawn))))
    jobs = tuple(
        Job(msgspec.structs.replace(request, id=i, arrival_ns=at), draw(st.integers(1, request.max_output_tokens)))
        for i, (request, at) in enumerate(zip(drawn, arrivals, strict=True))
    )
    return Workload("load", jobs, tuple(Client(i, f"client-{i}") for i in range(CLIENTS)))


TIMES = st.integers(0, 90)
WEIGHTS = st.builds(weight, st.integers(0, CLIENTS - 1), st.integers(1, 4))
QUANTA = st.integers(1, 40)


def _run(load: Workload, policy: ComposedPolicy, changes: list[tuple[int, Change]]) -> Changing:
    run = Changing(load, policy, changes)
    run.simulator.run()
    # Every request ended once.
    assert sorted(run.finished) == list(range(len(load.jobs)))
    return run


@given(loads(), QUANTA, st.lists(st.tuples(TIMES, QUANTA), max_size=6))
def test_a_gap_survives_changes_of_the_quantum(load: Workload, first: int, quanta: list[tuple[int, int]]) -> None:
    """D-change: D-range for today's quantum at every step, and the gap is D-4.1's for the largest one beside the credit
    that changes cut."""
    run = _run(load, deficit(first), [(at, swap(deficit(quantum))) for at, quantum in quanta])
    charge_max = run.gate.charge_max(run.policy.guarantee.limits(CAPACITY, CAPACITY))
    assert all(excess <= 2 * (run.quantum_max + charge_max - 1) for excess in run.excess.values())


@given(loads(), QUANTA, st.lists(st.tuples(TIMES, WEIGHTS), max_size=6))
def test_deficits_stay_in_range_while_weights_change(
    load: Workload, quantum: int, changes: list[tuple[int, Change]]
) -> None:
    """D-change: D-range for today's quanta at every step, whatever weights do."""
    _run(load, deficit(quantum), changes)


@given(loads(), st.lists(st.tuples(TIMES, WEIGHTS), max_size=6))
def test_a_gap_of_counters_survives_changes_of_weights(load: Workload, changes: list[tuple[int, Change]]) -> None:
    """V-change: V-4.3 and V-4.4 with U at the dearest price that a client ever paid, service at the prices of its
    time."""
    run = _run(load, counter(), changes)
    charge_max = run.gate.charge_max(run.policy.guarantee.limits(CAPACITY, CAPACITY))
    for (f, g), excess in run.excess.items():
        assert excess <= Fraction(charge_max, run.lowest[f]) + Fraction(charge_max, run.lowest[g])


def _forget(run: Changing, worker: SimulatedWorker) -> None:
    """What a swap must not do: every debt is forgiven."""
    state = worker.policy_state
    gate = msgspec.structs.replace(state.gate, q=np.minimum(state.gate.q * 0, state.gate.quantum))
    worker.policy_state = msgspec.structs.replace(state, gate=gate)


def test_a_swap_that_forgets_debts_is_found_out() -> None:
    """Of two backlogged clients the order prefers one, whose prefix is cached.  Swapped at every step, the gap stays in
    the bound; were debts forgotten each time, it would not."""
    prefix = Prompt.from_keys(range(8))
    jobs = [Job(Request(i, i % 2, 0, prefix if i % 2 else Prompt(3), 3), 3) for i in range(120)]
    load = Workload("two", tuple(jobs), tuple(Client(i, f"client-{i}") for i in range(CLIENTS)))
    kept = _run(load, deficit(4), [(at, swap(deficit(4))) for at in range(400)])
    forgotten = _run(load, deficit(4), [(at, _forget) for at in range(400)])
    charge_max = kept.gate.charge_max(kept.policy.guarantee.limits(CAPACITY, CAPACITY))
    assert 0 < kept.excess[0, 1] <= 2 * (4 + charge_max - 1) < forgotten.excess[0, 1]
