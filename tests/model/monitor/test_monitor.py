"""The runtime monitor on simulated runs, and on engines that misbehave: assumptions are seen to hold, or to break."""

from collections.abc import Callable, Iterable
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.engines.simulation import Simulator, simulate_events
from fairsched.engines.simulation.simulated_worker import SimulatedWorker
from fairsched.model import events as ev
from fairsched.model.monitor import ClusterMonitor, Finding, Monitor, MonitorReport, Promise, together
from fairsched.model.monitor.guarantee import BoundBreach, Breach
from fairsched.model.request import Client, Prompt, Request, Workload
from fairsched.model.service import CLIENTS_MAX, Charging
from fairsched.model.theorem import ASSUMPTIONS, Theorem
from fairsched.policies.gates import AnyGate, DeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import ROUTERS
from tests.model.monitor.test_assumptions import MORE
from tests.support.authors.allowance import Allowance
from tests.support.authors.least_served import LeastServed
from tests.support.logs import LATENCY, RUNS, Case, before_decisions
from tests.support.scenarios import job, policy, run, world


def promise_of(chosen: ComposedPolicy, workload: Workload, capacity: int) -> Promise:
    """What the policy promises to a workload's clients on a worker of this size."""
    declared = max((each.request.max_output_tokens for each in workload.jobs), default=1)
    held = chosen.guarantee.promise(workload.clients, chosen.guarantee.limits(capacity, declared))
    assert held is not None
    return held


def watched(
    chosen: ComposedPolicy, workload: Workload, capacity: int, events: Iterable[ev.Event], **claimed: Any
) -> list[MonitorReport]:
    """Each worker's report on a run, held to a policy's promise and what is `claimed` besides."""
    held = attrs.evolve(promise_of(chosen, workload, capacity), **claimed)
    monitor = ClusterMonitor(lambda worker: Monitor(held, chosen.guarantee.gate_monitor(), worker=worker))
    monitor.observe_all(events)
    return list(monitor.reports())


def seen(held: Promise, chosen: ComposedPolicy, events: Iterable[ev.Event] = ()) -> MonitorReport:
    """One worker's report on a run, held to a promise."""
    monitor = Monitor(held, chosen.guarantee.gate_monitor())
    monitor.observe_all(events)
    return monitor.report()


# --- what ships -----------------------------------------------------------------------------------------------------

KEPT = ("GateRespected", "ChargesAtLeastOne", "MemReserve", "OutputsBounded", "MemShared", "Capped")
"""What an engine that executes plans, and a policy that checks memory, see to; no crash breaks it."""


def assert_kept(report: MonitorReport) -> None:
    """No gap exceeds its bound, and no lag does unless an assumption is broken, which is none of `KEPT`."""
    for name in KEPT:
        assert not report.assumptions[name].violated, report.assumptions[name]
    assert report.gap_violations == 0
    assert report.lag_violations == 0 or report.violated()


def reweight(simulator: Simulator) -> None:
    """Let clients' weights change as a run goes on."""

    def change(worker: SimulatedWorker) -> None:
        now_ns = simulator.loop.now_ns
        client = now_ns % len(simulator.workload.clients)
        event = ev.ClientConfigured(now_ns, worker.state.worker, client, 1 + now_ns // 7 % 3)
        simulator.pool.publish(worker, [event])

    before_decisions(simulator, change)


@pytest.mark.parametrize("prepare", [None, reweight])
@given(RUNS)
def test_shipped_policies_hold_what_they_promise(
    prepare: Callable[[Simulator], None] | None, drawn: tuple[Workload, Case]
) -> None:
    """Whatever a simulated run of a shipped gate goes through, the gate is respected, every admission is charged, what
    may still be charged is reserved and within U, and no gap exceeds its bound; without a gate nothing is promised.

    When weights change in the middle of a run the intervals begin anew, and what the gate promises at the new weights
    holds from then on.
    """
    workload, case = drawn
    chosen = case.build()
    if not chosen.gate.grouped:
        assert (
            chosen.guarantee.promise(workload.clients, chosen.guarantee.limits(40, 1)),
            chosen.guarantee.gate_monitor(),
        ) == (None, None)
        return
    events = case.events(workload) if prepare is None else case.events(workload, prepare)
    for report in watched(chosen, workload, case.kv_capacity_tokens, events):
        assert_kept(report)


@given(RUNS, st.sampled_from([Allowance(), LeastServed()]))
def test_gates_of_authors(drawn: tuple[Workload, Case], gate: AnyGate) -> None:
    """A gate that is nothing but an author's kernels is watched by these kernels, under every order and batching rule:
    its own run respects it."""
    workload, case = drawn
    chosen = attrs.evolve(case.build(), gate=gate)
    events = simulate_events(workload, chosen, ROUTERS[case.router], case.latency)
    for report in watched(chosen, workload, case.latency.kv_capacity_tokens, events):
        assert report.assumptions["GateRespected"].violated == 0
        assert report.assumptions["ChargesAtLeastOne"].violated == 0


# --- an engine that does not do as the gate says --------------------------------------------------------------------


def refused(events: Iterable[ev.Event], quantum: int) -> list[int]:
    """The positions of admissions that a deficit gate would not have let in: its rules, client by client.

    Rates are 1 and 2, weights 1; no client has more than a quantum of credit, and when no waiting client has any all
    are refilled.
    """
    q: dict[int, int] = {}
    waits: dict[int, int] = {}
    extend: dict[int, int] = {}
    found = []
    for position, event in enumerate(events):
        match event:
            case ev.Arrived(request=request):
                q.setdefault(request.client, 0)
                waits[request.client] = waits.get(request.client, 0) + 1
            case ev.Preempted():
                waits[event.client] += 1
            case ev.Admitted():
                while all(q[client] <= 0 for client, count in waits.items() if count):
                    q = {client: credit + quantum if credit <= 0 else credit for client, credit in q.items()}
                if q[event.client] <= 0:
                    found.append(position)
                extend[event.request_id] = event.extend_tokens
                q[event.client] -= event.extend_tokens
                waits[event.client] -= 1
            case ev.Settled():
                q[event.client] = min(q[event.client] + extend[event.request_id] - event.extend_tokens, quantum)
            case ev.Decoded():
                for client, tokens in zip(event.clients, event.tokens, strict=True):
                    q[client] -= 2 * tokens
            case ev.Cancelled(was_running=True, uncomputed_tokens=tokens):
                q[event.client] = min(q[event.client] + tokens, quantum) if tokens else q[event.client]
            case ev.Cancelled() | ev.Rejected():
                waits[event.client] -= 1
    return found


@given(RUNS, st.sampled_from([1, 5, 30]))
def test_admissions_past_the_deficit_gate(drawn: tuple[Workload, Case], quantum: int) -> None:
    """On the run of any policy, the admissions that are reported past a deficit gate are those that its rules, written
    out, do not let in; and a bound is exceeded only on a run with some."""
    workload, case = drawn
    jobs = tuple(each for each in workload.jobs if not each.after)
    clients = tuple(Client(each.id, each.name) for each in workload.clients)
    workload = Workload("equal", jobs, clients)
    gate = DeficitGate(quantum=quantum)
    chosen = attrs.evolve(case.build(), gate=gate)
    for worker in range(case.workers):
        events = [event for event in case.events(workload) if event.worker == worker]
        arrived = {event.request.id for event in events if isinstance(event, ev.Arrived)}
        events = [event for event in events if not isinstance(event, ev.Rejected) or event.request_id in arrived]
        watch = chosen.guarantee.gate_monitor()
        assert watch is not None
        told = [position for position, event in enumerate(events) if watch.observe(event) is not None]
        assert told == refused(events, quantum)
        for report in watched(chosen, workload, case.kv_capacity_tokens, events):
            assert report.bound_violations == 0 or report.violated()


# --- each assumption, broken ----------------------------------------------------------------------------------------

CAPACITY = 40


def two(**params: object) -> tuple[ComposedPolicy, Workload]:
    """DLPM, and two clients that send four requests each at once, of four tokens that ask for up to six."""
    chosen = policy(str(params.pop("policy", "dlpm")), **params)
    return chosen, world([job(i, i % 2, 0, 4, 6) for i in range(8)], "fg")


def broken(
    name: str, chosen: ComposedPolicy, workload: Workload, events: Iterable[ev.Event], text: str = ""
) -> Finding:
    """The finding about one assumption, which must be broken first as `text` says and matter to a theorem; nothing else
    may be."""
    [report] = watched(chosen, workload, CAPACITY, events)
    assert set(report.violated()) == {name}
    finding = report.violated()[name]
    assert finding.first is not None
    assert finding.first.worker == 0
    assert text in finding.first.text
    return finding


def first_of(report: MonitorReport, name: str) -> str:
    """How the assumption was broken first."""
    first = report.assumptions[name].first
    assert first is not None
    return first.text


def changed(events: Iterable[ev.Event], request_id: int, **values: int) -> list[ev.Event]:
    """The events with another admission of a request."""
    return [
        replace(event, **values) if isinstance(event, ev.Admitted) and event.request_id == request_id else event
        for event in events
    ]


@pytest.mark.parametrize(("name", "params"), [("dlpm", {"quantum": 1}), ("vtc", {})])
def test_admitted_around_the_gate(name: str, params: dict[str, Any]) -> None:
    """An engine that serves in order of arrival breaks GateRespected as soon as it serves a client without credit, or
    one charged more than another that waits, and the finding names the first such request; the gate's own policy serves
    the same world without."""
    chosen = policy(name, **params)
    workload = world([*(job(i, 0, 0, 9, 9) for i in range(6)), job(6, 1, 0, 9, 9)], "fg")
    text = "request 1 of client 0 is admitted where the gate lets in client 1"
    assert broken("GateRespected", chosen, workload, run(workload, policy("fcfs"), CAPACITY), text).violated == 5
    [report] = watched(chosen, workload, CAPACITY, run(workload, chosen, CAPACITY))
    assert report.violated() == {}


def test_cancelled_while_it_runs() -> None:
    """A caller that gives up in the middle of a prefill gets back what was not computed: NothingRefunded."""
    chosen = policy("dlpm", max_batched_tokens=2)
    impatient = replace(job(0, 0, 0, 20, 4), cancel_after_ns=3)
    workload = world([impatient, job(1, 1, 0, 4, 4)], "fg")
    events = run(workload, chosen, CAPACITY)
    finding = broken("NothingRefunded", chosen, workload, events, "request 0 was cancelled while it ran")
    assert "D-starvation" in finding.theorems
    assert "D-4.1" not in finding.theorems


def test_outputs_that_are_not_reserved() -> None:
    """Where outputs are not reserved, MemReserve is not watched, and OutputsBounded stands for it: it breaks when a
    request produces more than it declared, and when more run than the batching rule lets in."""
    chosen, workload = two(reserve="optimistic", max_running=2)
    events = run(workload, chosen, CAPACITY)
    [report] = watched(chosen, workload, CAPACITY, events)
    assert report.assumptions["MemReserve"].violated is None
    assert "OutputsBounded" in str(report.assumptions["MemReserve"].why)
    assert report.violated() == {}
    longer = [replace(event, output_tokens=9) if isinstance(event, ev.Finished) else event for event in events]
    broken("OutputsBounded", chosen, workload, longer, "request 0 produced 9 tokens and had declared 6")
    wide, _ = two(reserve="optimistic", max_running=16)
    more = run(workload, wide, CAPACITY)[:12]
    broken("OutputsBounded", chosen, workload, more, "3 requests run, and 2 may")


def test_quanta() -> None:
    """Unequal weights break EqualQuanta, which the theorems for any weights do not need, and a quantum of zero breaks
    QuantumPositive."""
    chosen = policy("dlpm")
    workload = replace(world([job(0, 0, 0, 4, 6)], "fg"), clients=(Client(0, "f", 2), Client(1, "g", 1)))
    finding = broken("EqualQuanta", chosen, workload, run(workload, chosen, CAPACITY))
    assert "D-4.1" in finding.theorems
    assert "D-weighted" not in finding.theorems
    held = attrs.evolve(promise_of(chosen, workload, CAPACITY), quanta=(0, 0))
    assert set(seen(held, chosen).violated()) == {"QuantumPositive"}


@pytest.mark.parametrize(
    ("name", "params", "assumption"),
    [("dlpm", {"rejoin": "reset"}, "RejoinKeepsDebt"), ("vtc", {"lift": "none"}, "LiftOnJoin")],
)
def test_configurations_that_break_an_assumption(name: str, params: dict[str, Any], assumption: str) -> None:
    """A variant whose configuration breaks an assumption says so from the start, without any event."""
    chosen = policy(name, **params)
    assert set(seen(promise_of(chosen, world([], "fg"), CAPACITY), chosen).violated()) == {assumption}


def test_each_client_that_comes_prolongs_the_wait_that_is_promised() -> None:
    """A promise that was made to two is one to all that come: of four that wait at once the last has that of four."""
    chosen, _ = two(policy="vtc", max_running=4, max_batched_tokens=20)
    four = world([job(i, i % 4, 0, 10, 8) for i in range(12)], "abcd")
    limits = attrs.evolve(chosen.guarantee.limits(CAPACITY, 8), prompt_tokens_max=10)
    promised = [chosen.guarantee.promise(four.clients[:count], limits, LATENCY) for count in (2, 4)]
    of_two, of_four = (None if each is None else each.worst_wait for each in promised)
    assert of_two is not None
    assert of_four is not None
    assert promised[0] is not None
    report = seen(promised[0], chosen, run(four, chosen, CAPACITY))
    assert report.wait_bound_ns == of_four.admission_ns > of_two.admission_ns
    assert report.wait is not None
    assert report.wait.cost > 0
    assert report.wait_violations == 0


# --- nothing passes in silence --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vtc", "dlpm", "dlpm-printed"])
@pytest.mark.parametrize("reserve", ["static", "optimistic"])
def test_every_assumption_is_listed(name: str, reserve: str) -> None:
    """Each named assumption of the library is either watched, and then counted, or said not to be, with a reason; so
    is each that a theorem of the policy rests on."""
    chosen, workload = two(policy=name, reserve=reserve)
    named = {each.name for each in ASSUMPTIONS}
    held = promise_of(chosen, workload, CAPACITY)
    assert set(held.needed_by()) <= named
    for gate in (chosen.guarantee.gate_monitor(), None):
        monitor = Monitor(held, gate)
        monitor.observe_all(run(workload, chosen, CAPACITY))
        findings = monitor.report().assumptions
        assert set(findings) == named
        assert all((finding.violated is None) == bool(finding.why) for finding in findings.values())
        assert (findings["GateRespected"].violated is None) == (gate is None)


NAMED = st.lists(st.sampled_from("GLW"), unique=True, max_size=2).map(tuple)
OVER = st.none() | st.builds(BoundBreach, st.integers(0, 9), st.just(0), st.just(0), *[st.integers(0, 9)] * 4)


@given(
    st.lists(st.tuples(st.sampled_from([None, 0, 2]), NAMED), max_size=3),
    st.lists(st.tuples(OVER, NAMED, st.integers(0, 3)), min_size=3, max_size=3),
)
def test_a_breach_is_explained_by_a_broken_assumption_of_its_theorems_and_nothing_else(
    found: list[tuple[int | None, tuple[str, ...]]], kinds: list[tuple[BoundBreach | None, tuple[str, ...], int]]
) -> None:
    """The first gap, lag or wait over its bound no theorem of which rests on a broken assumption is the library's."""
    findings = {str(i): Finding(violated, theorems=theorems) for i, (violated, theorems) in enumerate(found)}
    fields: dict[str, Any] = {}
    for kind, (first, theorems, violations) in zip(("gap", "lag", "wait"), kinds, strict=True):
        fields |= {f"first_{kind}": first, f"{kind}_theorems": theorems, f"{kind}_violations": violations}
    report = attrs.evolve(Monitor(Promise(Charging(), (1,), ())).report(), assumptions=findings, **fields)
    broken = {theorem for violated, theorems in found if violated for theorem in theorems}
    unexplained = [first for first, theorems, _ in kinds if first is not None and broken.isdisjoint(theorems)]
    assert report.unexplained == next(iter(unexplained), None)
    assert report.bound_violations == sum(violations for _, _, violations in kinds)


@given(st.lists(st.tuples(st.sets(st.integers(0, 2)), st.sets(st.integers(0, 4))), max_size=4))
def test_a_theorem_needs_what_those_need_that_it_rests_on(theorems: list[tuple[set[int], set[int]]]) -> None:
    """Through however many others; one that is no theorem of the gate adds nothing."""
    rests = [{other for other in on if other < i or other >= len(theorems)} for i, (_, on) in enumerate(theorems)]
    needs: list[set[int]] = []
    for (assumptions, _), on in zip(theorems, rests, strict=True):
        needs.append(assumptions.union(*(needs[other] for other in on if other < len(needs))))
    named = tuple(
        Theorem(str(i), "", "", tuple(ASSUMPTIONS[each] for each in assumptions), rests_on=tuple(map(str, on)))
        for i, ((assumptions, _), on) in enumerate(zip(theorems, rests, strict=True))
    )
    assert Promise(Charging(), (1,), named).needed_by() == {
        ASSUMPTIONS[each].name: tuple(str(i) for i, needed in enumerate(needs) if each in needed)
        for each in set().union(*needs)
    }


BREACHES = st.none() | st.builds(Breach, st.integers(0, 2), st.just(0), st.just(0), st.just("x"))
FINDINGS = st.builds(
    Finding,
    st.none() | st.integers(0, 3),
    BREACHES,
    st.sampled_from([None, "v", "w"]),
    st.sampled_from([None, "m", "n"]),
)


@MORE
@given(st.lists(FINDINGS, max_size=4))
def test_findings_of_several_workers_are_one(findings: list[Finding]) -> None:
    """Over a cluster violations add up, and the first of any worker is the first, of two the lower worker's; what is
    not watched somewhere is judged by the others, and each worker's note is there."""
    findings = [
        attrs.evolve(each, first=each.first and attrs.evolve(each.first, worker=worker))
        for worker, each in enumerate(findings)
    ]
    report = Monitor(Promise(Charging(), (1,), ())).report()
    reports = [attrs.evolve(report, worker=i, assumptions={"A": each}) for i, each in enumerate(findings)]
    watched = [each for each in findings if each.violated is not None]
    firsts = [each.first for each in watched if each.first is not None]
    notes = "; ".join(f"worker {worker}: {each.note}" for worker, each in enumerate(findings) if each.note) or None
    joint = together(reports)
    assert list(joint) == ["A"] * bool(findings)
    for found in joint.values():
        assert found.violated == (sum(each.violated or 0 for each in watched) if watched else None)
        assert found.why == (watched or findings)[0].why
        assert found.first == min(firsts, key=lambda first: (first.time_ns, first.worker), default=None)
        assert found.note == (notes if len(findings) > 1 else findings[0].note)


def test_each_worker_has_a_monitor_of_its_own_and_says_what_it_left_out() -> None:
    """Events of no worker are skipped; clients beyond those that are compared count with each wait and charge."""
    monitors = ClusterMonitor(lambda worker: Monitor(Promise(Charging(), (1,), ()), worker=worker))
    monitors.observe(ev.Cancelled(0, -1, 0, 0, False, 0, 0))
    for client in range(CLIENTS_MAX + 3):
        monitors.observe(ev.Arrived(0, 1, Request(client, client, 0, Prompt(1), 1)))
    monitors.observe_all([ev.Decoded(1, 1, 1, (CLIENTS_MAX,), (1,)), ev.WorkerDraining(2, 1)])
    [report] = monitors.reports()
    assert (report.worker, report.events, report.left_out) == (1, CLIENTS_MAX + 5, 7)
