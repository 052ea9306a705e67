"""Tuning: waits are those of the definition, what is proved bounds them, and the search finds what a grid would."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairsched.engines.analysis import Measures, Summary
from fairsched.engines.capacity import Demand, Tuning, tune_first_token
from fairsched.engines.capacity.first_token import BASES
from fairsched.engines.capacity.point import TunedPoint, simulated
from fairsched.engines.capacity.tuning import SAME, caps_for, quanta_for, search
from fairsched.engines.simulation import Cluster, RunSpec, Simulator, limits_of
from fairsched.model import events as ev
from fairsched.model.machine import PRESETS
from fairsched.model.request import Client, Workload
from fairsched.policies.guarantees import wait_bound_cost
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS, with_parameters
from fairsched.verify.conformance.strategies import workloads
from tests.support.logs import LATENCY

# --- waits and what is proved of them ---------------------------------------------------------------------------------

CAPACITY = 40


def played(workload: Workload, params: dict[str, str], workers: int = 1) -> tuple[RunSpec, Cluster, list[ev.Event]]:
    """A run of DLPM on one worker or several, and its events."""
    policy = with_parameters(LOCAL_POLICIES["dlpm"], params)
    run = RunSpec(policy, "dlpm", params, ROUTERS["round-robin"])
    cluster = Cluster(LATENCY, workers, CAPACITY)
    events: list[ev.Event] = []
    Simulator(
        workload, policy, run.router, LATENCY, workers=workers, kv_capacity_tokens=CAPACITY, on_events=events.extend
    ).run()
    return run, cluster, events


def let_in(events: list[ev.Event]) -> dict[int, list[tuple[int, int]]]:
    """For each client its waits until it was let in, as (length, what all were charged meanwhile)."""
    waiting: dict[int, int] = {}
    since: dict[int, tuple[int, int]] = {}
    queued: set[int] = set()
    charged = 0
    found: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        if event.worker < 0:
            continue
        if isinstance(event, ev.Arrived | ev.Preempted):
            client = event.request.client if isinstance(event, ev.Arrived) else event.client
            queued.add(event.request.id if isinstance(event, ev.Arrived) else event.request_id)
            waiting[client] = waiting.get(client, 0) + 1
            if waiting[client] == 1:
                since[client] = (event.time_ns, charged)
        elif isinstance(event, ev.Admitted):
            start, before = since[event.client]
            found.setdefault(event.client, []).append((event.time_ns - start, charged - before))
            charged += event.extend_tokens
            queued.remove(event.request_id)
            waiting[event.client] -= 1
            since[event.client] = (event.time_ns, charged)
        elif isinstance(event, ev.Cancelled | ev.Rejected | ev.Migrated | ev.Finished):
            if event.request_id in queued:
                queued.remove(event.request_id)
                waiting[event.client] -= 1
                if not waiting[event.client]:
                    start, before = since[event.client]
                    found.setdefault(event.client, []).append((event.time_ns - start, charged - before))
        elif isinstance(event, ev.Decoded):
            charged += 2 * sum(event.tokens)
    return found


def charged_while_busy(events: list[ev.Event]) -> float:
    """Cost units a second over the time in which any request was at the worker."""
    there: set[int] = set()
    busy = charged = last = 0
    for event in events:
        if event.worker < 0:
            continue
        busy += (event.time_ns - last) if there else 0
        last = event.time_ns
        if isinstance(event, ev.Arrived):
            there.add(event.request.id)
        elif isinstance(event, ev.Finished | ev.Cancelled | ev.Rejected):
            there.discard(event.request_id)
        if isinstance(event, ev.Admitted):
            charged += event.extend_tokens
        elif isinstance(event, ev.Decoded):
            charged += 2 * sum(event.tokens)
        elif isinstance(event, ev.Cancelled):
            charged -= event.uncomputed_tokens
    return charged * 1e9 / busy if busy else 0.0


PARAMS = st.fixed_dictionaries(
    {
        "quantum": st.sampled_from(["1", "5", "30"]),
        "in_flight_cap_tokens": st.sampled_from(["none", "24", "32"]),
        "reserve": st.sampled_from(["static", "optimistic"]),
    }
)


@given(workload=workloads(span_ns=400), params=PARAMS)
def test_nobody_waits_longer_than_is_proved(workload: Workload, params: dict[str, str]) -> None:
    """While a client waits and is not let in, no more is charged to all than the bound says."""
    run, cluster, events = played(workload, params)
    policy: Any = run.policy
    bound = wait_bound_cost(policy.gate, workload.clients, limits_of(workload, cluster, policy))
    assert bound is not None
    for waits in let_in(events).values():
        assert max(cost for _, cost in waits) <= bound


@given(workload=workloads(span_ns=400), params=PARAMS)
def test_measured_waits_are_those_of_the_definition(workload: Workload, params: dict[str, str]) -> None:
    """The longest p99 of a client's waits until it is let in is that of the events, played one by one."""
    run, cluster, events = played(workload, params)
    found = simulated(workload, run, cluster, "clients")
    worst = 0
    for waits in let_in(events).values():
        lengths = sorted(length for length, _ in waits)
        worst = max(worst, lengths[(99 * len(lengths) + 99) // 100 - 1])
    given_up = any(isinstance(event, ev.Cancelled) and not event.was_running for event in events)
    if not given_up:  # giving up ends a wait that counts, but is no admission
        assert (found.wait_us.p99 or 0.0) == worst / 1e3
    assert found.rate == pytest.approx(charged_while_busy(events))


@given(workload=workloads(span_ns=400))
def test_the_slowest_of_several_workers_sets_the_rate(workload: Workload) -> None:
    """A proof for any client holds at the rate of the worker where it may wait."""
    run, cluster, events = played(workload, {"quantum": "5"}, workers=2)
    assume(not any(isinstance(event, ev.Cancelled | ev.Rejected) for event in events))
    mine = ([event for event in events if event.worker == worker] for worker in range(2))
    rates = [charged_while_busy(each) for each in mine if any(isinstance(event, ev.Arrived) for event in each)]
    assert simulated(workload, run, cluster, "clients").rate == pytest.approx(min(rates, default=0.0))


def test_the_bound_by_hand() -> None:
    """Three equal clients: R_f and the debt are at most U - 1, and each other gets 2Q + U - 1 and the debt."""
    policy: Any = with_parameters(LOCAL_POLICIES["dlpm"], {"quantum": "10"})
    limits = policy.guarantee.limits(100, 20)
    charge_max = policy.gate.charge_max(limits)
    assert charge_max == 199

    def bound(*weights: int) -> int | None:
        clients = tuple(Client(i, str(i), weight) for i, weight in enumerate(weights))
        return wait_bound_cost(policy.gate, clients, limits)

    assert bound(1) == 198
    assert bound(1, 1, 1) == 198 + 2 * (2 * 10 + 198 + 198)
    # The client of weight 1 waits longest: the other has a quantum of 40, and the debt counts four times.
    assert bound(4, 1) == 198 + 2 * 40 + 198 + 4 * 198


@pytest.mark.parametrize("policy", ["fcfs", "dlpm-hierarchical", "dlpm-printed"])
def test_what_is_not_proved_is_not_promised(policy: str) -> None:
    """Without a gate, of a tree, or where a client that comes back is forgiven its debt, there is no bound."""
    local = LOCAL_POLICIES[policy]
    clients = (Client(0, "a"), Client(1, "b"))
    assert wait_bound_cost(local.gate, clients, local.guarantee.limits(100, 20)) is None


DEMANDS = st.builds(Demand, st.integers(2, 9), st.integers(1, 20_000), st.integers(1, 2_000))


@given(DEMANDS, st.sampled_from(sorted(PRESETS)), st.integers(1, 10**14))
def test_a_first_token_in_time_is_chosen_for_what_it_is_worth(demand: Demand, preset: str, target_ns: int) -> None:
    """The configuration keeps the target by its theorem, and none that rests on less does; where none keeps it, the
    limit to lower is the one of which half leaves the least."""
    found = tune_first_token(target_ns, demand, PRESETS[preset])
    if found.chosen is not None:
        assert found.chosen.first_token_ns <= target_ns
        better = BASES[: BASES.index(found.chosen.basis)]
        assert all(each.first_token_ns > target_ns for each in found.promised if each.basis in better)
        return
    assert all(each.first_token_ns > target_ns for each in found.promised)
    halves = {
        name: min((each.first_token_ns for each in tune_first_token(1, half, PRESETS[preset]).promised), default=None)
        for name, half in demand.halved().items()
    }
    assert found.lowered is None or halves[found.lowered[0]] == found.lowered[1] == min(filter(None, halves.values()))


# --- the search -------------------------------------------------------------------------------------------------------

NOTHING = Summary()
EMPTY = Measures(0, 0, 0, 0, 0.0, None, None, None, *(NOTHING,) * 5, None, 0, None)


@attrs.frozen
class World:
    """A world in which the laws hold: waits and bounds grow with quantum and cap, so does throughput."""

    wait: Callable[[int, int], float]
    throughput: Callable[[int, int], float]
    bound: Callable[[int, int], float]

    def measure(self, quantum: int, cap: int | None) -> TunedPoint:
        """The point there."""
        size = 1_000 if cap is None else cap
        return TunedPoint(
            quantum=quantum,
            cap=cap,
            measures=attrs.evolve(EMPTY, throughput_rps=self.throughput(quantum, size)),
            wait_us=Summary(p99=self.wait(quantum, size)),
            waits_longest="a client",
            gap=0,
            rate=1.0,
            bound_cost=round(self.bound(quantum, size)),
            bound_us=self.bound(quantum, size),
        )


QUANTA, CAPS = quanta_for(1, 1 << 10), caps_for(1_000, 100)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Powers of quantum and cap; small quanta may make all clients wait."""
    a, b, c, d = (draw(st.sampled_from([0.1, 0.3, 0.6, 1.0])) for _ in range(4))
    slow = draw(st.sampled_from([0.0, 20.0, 200.0]))
    return World(
        wait=lambda q, m: q**a * m**b + slow / q,
        throughput=lambda q, m: q ** (c / 10) * m**d,
        bound=lambda q, m: 2.0 * q + 2.0 * m,
    )


@given(world=worlds(), max_wait=st.sampled_from([1.0, 10.0, 60.0, 300.0, 2_000.0, 1e6]))
def test_the_search_finds_what_a_grid_finds(world: World, max_wait: float) -> None:
    """Its best is as good as the best of every quantum with every cap, with fewer runs."""
    runs: list[tuple[int, int | None]] = []

    def measure(quantum: int, cap: int | None) -> TunedPoint:
        runs.append((quantum, cap))
        return world.measure(quantum, cap)

    tuning = search(measure, QUANTA, CAPS, max_wait)
    grid = [world.measure(quantum, cap) for quantum in QUANTA for cap in CAPS]
    kept = [point for point in grid if (point.wait_us.p99 or 0.0) <= max_wait]
    proved = [point for point in kept if (point.bound_us or 0.0) <= max_wait]
    for mine, all_of_them in ((tuning.measured, kept), (tuning.proved, proved)):
        assert (mine is None) == (not all_of_them)
        if mine is not None:
            assert mine in all_of_them
            assert mine.throughput >= SAME * max(point.throughput for point in all_of_them) - 1e-9
    assert len(runs) == len(set(runs)) == len(tuning.points)
    assert len(runs) <= 0.75 * len(grid)


def test_what_promises_more_is_chosen_where_nothing_is_lost() -> None:
    """Where throughput does not depend on the quantum, the smallest is chosen: its bound is the best."""
    world = World(wait=lambda q, m: 1.0, throughput=lambda q, m: 5.0, bound=lambda q, m: 2.0 * q + m)
    tuning = search(world.measure, QUANTA, CAPS, 10.0)
    assert tuning.measured is not None
    assert tuning.measured.quantum == 1
    assert tuning.lost(tuning.measured) == 0


def test_where_nobody_is_served_no_target_is_kept() -> None:
    """No client waits long where every request is rejected; that is no configuration to choose."""
    world = World(wait=lambda q, m: 0.0, throughput=lambda q, m: 0.0, bound=lambda q, m: 0.0)
    tuning = search(world.measure, QUANTA, CAPS, 10.0)
    assert tuning.measured is None
    assert tuning.proved is None


def test_an_interrupt_keeps_what_was_run() -> None:
    """The choice is among the points that were run, and says that it is not complete."""
    world = World(lambda q, m: float(q), lambda q, m: float(q), lambda q, m: float(q))
    runs = 0

    def measure(quantum: int, cap: int | None) -> TunedPoint:
        nonlocal runs
        runs += 1
        if runs > 4:
            raise KeyboardInterrupt
        return world.measure(quantum, cap)

    tuning = search(measure, QUANTA, CAPS, 100.0)
    assert isinstance(tuning, Tuning)
    assert not tuning.complete
    assert len(tuning.points) == 4


def test_ladders() -> None:
    """Caps end at what the largest request needs, and quanta are powers of two within their limits."""
    assert CAPS[0] is None
    assert CAPS[-1] == 100
    assert caps_for(100, 100) == [None]
    assert quanta_for(64, 1_000) == [64, 128, 256, 512]
