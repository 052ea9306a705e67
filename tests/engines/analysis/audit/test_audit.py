"""Audits: what they find in a log of ours is what was measured, and in an access log what slow definitions say."""

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.analysis import Recorder, run_charging
from fairsched.engines.analysis.audit import Audit, without_service
from fairsched.engines.analysis.audit.findings import fair_division, findings
from fairsched.engines.analysis.audit.logs import policy_if_there, workload_of_log
from fairsched.engines.analysis.audit.reconstruct import evidence_of
from fairsched.engines.analysis.audit.run_log import read_run_log
from fairsched.engines.logs import LogHeader
from fairsched.engines.logs.access import Columns, read_access_log
from fairsched.engines.simulation import Cluster, limits_of
from fairsched.model.pricing import COMMON
from fairsched.model.request import Workload
from fairsched.policies.local import ComposedPolicy
from tests.engines.gateway.window.test_log import STEPS, World
from tests.engines.serving.test_log import FAILS, serve
from tests.engines.serving.test_loop import SENT, composed
from tests.support.access_logs import GOOD, LINES, MS, Line, Slow, logged, write
from tests.support.logs import RUNS, Case, build
from tests.support.logs import write as write_run


def audited(path: Path, starved_ms: int = 5, window_ms: int = 10, **options: Any) -> Audit:
    """An audit of an access log."""
    log = read_access_log(path)
    return findings(
        evidence_of(log, **{"apart_ns": MS} | options), starved_after_ns=starved_ms * MS, window_ns=window_ms * MS
    )


def audit_of(lines: list[Line], seed: int | None = None, **options: Any) -> Audit:
    """An audit of an access log of these lines."""
    with TemporaryDirectory() as folder:
        return audited(write(Path(folder) / "access.jsonl", lines, seed), **options)


def charged_by_client(found: Audit) -> list[int]:
    """What all requests of each client were charged."""
    calls = found.evidence.calls
    asked = np.zeros(len(found.clients), dtype=np.int64)
    np.add.at(asked, calls.client, calls.cost)
    costs: list[int] = asked.tolist()
    return costs


# --- logs of ours -----------------------------------------------------------------------------------------------------


@given(run=RUNS)
def test_a_run_logs_audit_is_what_was_compared(run: tuple[Workload, Case]) -> None:
    """Gap, bound, scope and each client's outcomes are those that `compare` reports for the run.

    A log sums up decode runs.  So of equally large gaps one that starts later may be named, and it does not say in
    which order the decode steps of several workers came, on which the gap over all workers depends.
    """
    workload, case = run
    with TemporaryDirectory() as folder:
        written = write_run(Path(folder) / "log.jsonl", workload, case)
        evidence, again = read_run_log(written.path, build)
    recorder = Recorder(workload)
    recorder.record(written.events)
    policy = case.build()
    cluster = Cluster(case.latency, case.workers, case.kv_capacity_tokens)
    bound = policy.guarantee.service_gap_bound(workload.clients, limits_of(workload, cluster, policy))
    result = recorder.result(policy=case.policy, charging=run_charging(policy, workload.clients), workers=case.workers)
    found = findings(evidence)
    assert attrs.evolve(found.gap, start_ns=0) == attrs.evolve(result.gap, start_ns=0)
    if case.workers == 1:
        assert found.cluster_gap == result.cluster_gap
    assert evidence.bound == bound
    for client in found.clients:
        measures = result.clients[client.name]
        assert (client.requests, client.finished) == (measures.requests, measures.finished)
        assert client.failed == measures.rejected + measures.cancelled
        assert client.latency_us == measures.latency_us
    # Every charge is a request's.
    assert charged_by_client(found) == [client.service for client in found.clients]
    assert {job.request.id for job in again.jobs} <= {job.request.id for job in workload.jobs}


@given(composed(), SENT, st.lists(st.integers(0, 9), max_size=3), FAILS)
@settings(max_examples=40)
def test_a_live_engines_log_is_audited(
    policy: ComposedPolicy, sent: list[Any], gone: list[int], fails: list[int]
) -> None:
    """Clients that come later, callers who give up, weights that change and lost memory: every request ends in one way,
    and every charge is a request's."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "live.jsonl"
        serve(path, policy, sent, gone, fails)
        evidence, workload = read_run_log(path, build)
        configured = b'["ClientConfigured"' in path.read_bytes()
    found = findings(evidence)
    assert sum(client.requests for client in found.clients) == len(sent) == len(workload.jobs)
    assert all(client.finished + client.failed == client.requests for client in found.clients)
    assert charged_by_client(found) == [client.service for client in found.clients]
    assert any("Weights changed" in note for note in found.notes) <= configured


@given(STEPS, st.sampled_from(["fcfs+deficit", "vtc", "dlpm"]))
@settings(max_examples=40, deadline=None)
def test_a_gateways_log_is_audited(steps: list[Any], name: str) -> None:
    """Each charge is a call's, or for what it holds, and no call passed the gate."""
    with TemporaryDirectory() as folder:
        world = World(Path(folder), name)
        for step in steps:
            world.step(*step)
        world.recorded.drain(world.window)
        evidence, _ = read_run_log(world.log, policy_if_there)
        found = findings(evidence)
        assert sum(client.requests for client in found.clients) == world.count
        held = world.window.usage.hold_tokens
        for i, (client, cost) in enumerate(zip(found.clients, charged_by_client(found), strict=True)):
            assert client.unfinished or client.service == cost + COMMON.output * held[i]
        assert "GateRespected" not in found.broken_assumptions()
        if evidence.bound is not None and "MemReserve" not in found.broken_assumptions():
            assert found.within_bound


def test_a_policy_that_is_not_there_costs_only_the_bound(tmp_path: Path) -> None:
    """A log of a policy that cannot be had is audited all the same, and says what is missing."""

    def no_policy(header: LogHeader) -> None:
        return None

    path = _run(tmp_path, "dlpm", {"quantum": "30"})
    with_policy, without = (findings(read_run_log(path, made)[0]) for made in (build, no_policy))
    assert with_policy.evidence.bound is not None
    assert without.evidence.bound is None
    assert without.within_bound is None
    assert "dlpm is not to be had here" in without.notes[-1]
    assert [c.requests for c in without.clients] == [c.requests for c in with_policy.clients]


def _run(folder: Path, policy: str, params: dict[str, str], complete: bool = True) -> Path:
    from fairsched.engines.workloads import generate
    from fairsched.model.machine import DEFAULT_PRESET, PRESETS

    case = Case(policy, params, kv_capacity_tokens=132_000, latency=PRESETS[DEFAULT_PRESET])
    return write_run(folder / "log.jsonl", generate("demo", limit=60), case, complete).path


# --- access logs ------------------------------------------------------------------------------------------------------


@given(lines=LINES, seed=st.integers(0, 2**32))
def test_rows_in_any_order_give_the_same_audit(lines: list[Line], seed: int) -> None:
    """Every figure is the same, however the lines of the log are ordered."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "access.jsonl"
        plain = audited(write(path, lines)).to_json()
        assert audited(write(path, lines, seed)).to_json() == plain


@given(lines=LINES)
def test_service_and_gap_are_those_of_the_definition(lines: list[Line]) -> None:
    """Played event by event, the log has the same service of each client and the same largest gap."""
    found = audit_of(lines)
    slow = Slow.of(lines)
    assert {client.name: client.service for client in found.clients if client.service} == {
        name: amount for name, amount in slow.service().items() if amount
    }
    assert found.gap.cost == slow.gap(sorted({line.client for line in lines}))


@given(lines=LINES, rows_max=st.integers(1, 30))
def test_long_logs_lose_no_service(lines: list[Line], rows_max: int) -> None:
    """Summed up over longer times, every client still gets what it got, none starves more while it decodes, and the
    scope says how long."""
    lines = [attrs.evolve(line, output=line.output + 3, prompt=line.prompt + 1) for line in lines]
    exact, coarse = (audit_of(lines, starved_ms=10, rows_max=most) for most in (1 << 20, rows_max))
    starved, seen = (
        {(each.client, each.start_ns, each.stop_ns) for several in found.starved.values() for each in several}
        for found in (exact, coarse)
    )
    assert seen <= starved
    assert [client.service for client in coarse.clients] == [client.service for client in exact.clients]
    said = any("summed up over" in line for line in coarse.evidence.limits)
    assert said or coarse.gap == exact.gap


@given(lines=LINES, starved_ms=st.integers(2, 20))
def test_starvation_is_that_of_the_definition(lines: list[Line], starved_ms: int) -> None:
    """Each stretch is a time in which its client waited and only others were charged, and none is missed."""
    lines = [attrs.evolve(line, prompt=line.prompt + 1) for line in lines]  # so that each admission is a charge
    found = audit_of(lines, starved_ms=starved_ms)
    slow, origin = Slow.of(lines), min(line.arrival for line in lines)
    expected = set()
    for client in {line.client for line in lines}:
        charged = {now for now, charges, _ in slow.events if charges.get(client)}
        begun: int | None = None
        for now in range(80):
            waits = any(line.client == client and line.arrival <= now < line.over for line in lines)
            if begun is not None and (not waits or now in charged):
                others = [a for t, each, _ in slow.events if begun <= t < now for c, a in each.items() if c != client]
                total = sum(others)
                if now - begun >= starved_ms and total:
                    expected.add((client, begun - origin, now - origin, total))
                begun = None
            if waits and begun is None:
                begun = now
    first = found.evidence.origin_ns
    assert expected == {
        (found.clients[s.client].name, (s.start_ns - first) // MS, (s.stop_ns - first) // MS, s.others_cost)
        for several in found.starved.values()
        for s in several
    }


@given(
    waits=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20)), max_size=5),
    served=st.lists(st.integers(0, 150), max_size=8).map(sorted),
    least=st.integers(1, 12),
)
def test_waits_are_cut_where_somebody_was_served(waits: list[tuple[int, int]], served: list[int], least: int) -> None:
    """What is left of a wait between charges is every maximal stretch without one inside, and no shorter one."""
    start, stop, now = [], [], 0
    for apart, length in waits:
        start.append(now + apart)
        now = now + apart + length
        stop.append(now)
    ints = [np.array(each, dtype=np.int64) for each in (start, stop, served)]
    found = without_service((ints[0], ints[1]), ints[2], least)
    expected = []
    for a, b in zip(start, stop, strict=True):
        edges = [a, *(time for time in served if a < time < b), b]
        expected += [(x, y) for x, y in pairwise(edges) if y - x >= least]
    assert list(zip(*(each.tolist() for each in found), strict=True)) == expected


@given(data=st.data())
def test_a_fair_division_is_max_min(data: st.DataObject) -> None:
    """No client gets more than it asked for, all is given out, and a client with less gets the most by weight."""
    count = data.draw(st.integers(1, 6))
    asked = np.array(data.draw(st.lists(st.integers(0, 50), min_size=count, max_size=count)), dtype=np.float64)
    weights = np.array(data.draw(st.lists(st.integers(1, 4), min_size=count, max_size=count)), dtype=np.float64)
    total = float(data.draw(st.integers(0, 200)))
    fair = fair_division(total, asked, weights)
    assert (fair <= asked + 1e-9).all()
    assert (fair >= 0).all()
    assert fair.sum() == pytest.approx(min(total, asked.sum()))
    short = fair < asked - 1e-6
    if short.any():
        assert (fair / weights).max() <= (fair / weights)[short].min() + 1e-6


@given(lines=LINES, window_ms=st.integers(1, 30))
def test_leads_add_up_to_nothing_and_end(lines: list[Line], window_ms: int) -> None:
    """At any time all leads together are nothing, and when everything was served each of them is."""
    found = audit_of(lines, window_ms=window_ms)
    lead = found.shares.lead
    assert np.abs(lead.sum(axis=1)).max() < 1e-6
    assert np.abs(lead[-1]).max() < 1e-6
    assert all(client.ahead >= 0 <= client.behind for client in found.clients)


def test_who_floods_gains_and_who_waits_loses(tmp_path: Path) -> None:
    """One client is served ten times while another waits: it gets ahead by what is beyond one half."""
    flood = [Line("flood", 10 * k, 1, 5, 10, 5) for k in range(10)]
    path = write(tmp_path / "a.jsonl", [*flood, Line("small", 0, 100, 5, 50, 25)])
    found = audited(path, starved_ms=50)
    assert [found.clients[i].name for i in found.gainers()] == ["flood"]
    assert found.clients[0].ahead == pytest.approx(100, abs=21)
    assert found.clients[0].ahead == pytest.approx(found.clients[1].behind)
    assert found.worst_window_ns(0, True) - found.evidence.origin_ns == 100 * MS
    ((client, (stretch,)),) = found.starved.items()
    assert (found.clients[client].name, stretch.length_ns) == ("small", 100 * MS)
    assert stretch.others_cost == 10 * (10 + 2 * 5)


def test_weights_divide_service(tmp_path: Path) -> None:
    """With weights a client's fair share grows, and the gap is in units by weight."""
    lines = [Line("a", 0, 50, 1, 40, 1), Line("b", 0, 50, 1, 10, 1), Line("b", 0, 20, 1, 10, 1)]
    path = write(tmp_path / "a.jsonl", lines)
    equal, weighted = audited(path), audited(path, weights=[4, 1])
    # At 20 ms b is charged 10, then 2, and at 50 ms a is charged 40 and b 10: from -12 to 18, or from 0 to -48.
    assert (equal.gap.cost, weighted.gap.cost) == (30, 48)
    assert [client.weight for client in weighted.clients] == [4, 1]
    assert [client.service for client in weighted.clients] == [client.service for client in equal.clients]


# --- what a log says of its requests ----------------------------------------------------------------------------------


def test_what_came_from_a_cache_is_charged_to_nobody(tmp_path: Path) -> None:
    """Neither when a request is let in nor in all."""
    found = audited(logged(tmp_path, GOOD | {"prompt_tokens": 100, "cached_tokens": 64, "output_tokens": 3}))
    assert found.clients[0].service == 100 - 64 + 2 * 3
    assert found.evidence.calls.cost.tolist() == [100 - 64 + 2 * 3]


def test_what_a_log_cannot_tell_is_said(tmp_path: Path) -> None:
    """Without a first token, a client, a queue or a cache the scope says what follows."""
    row = {"timestamp": 1700000000, "duration": 2.5, "prompt_tokens": 10, "output_tokens": 2}
    found = audited(logged(tmp_path, row))
    said = "\n".join((*found.evidence.limits, *found.notes))
    for part in (
        *(
            "nothing tells when their wait was over: 1",
            "names no clients",
            "is taken for the time of arrival",
            "read as seconds",
        ),
        *("cannot be told apart", "prefix cache is unknown", "not in it", "no bound"),
    ):
        assert part in said
    assert found.clients[0].wait_us_max is None


def test_a_log_becomes_a_workload(tmp_path: Path) -> None:
    """Requests that had an output, in order of arrival from 0, with what they asked for at most."""
    lines = [Line("b", 7, 1, 2, 5, 3), Line("a", 3, 1, 2, 0, 4), Line("c", 0, 1, 2, 5, 3, failed=True)]
    workload = workload_of_log(read_access_log(write(tmp_path / "a.jsonl", lines), Columns({})))
    assert [workload.clients[job.request.client].name for job in workload.jobs] == ["a", "b"]
    assert [job.request.arrival_ns for job in workload.jobs] == [0, 4 * MS]
    assert [(job.request.prompt.tokens, job.output_tokens) for job in workload.jobs] == [(1, 4), (5, 3)]
    assert {job.request.max_output_tokens for job in workload.jobs} == {4}
    assert any("without an output, which are left out: 1" in note for note in workload.notes)
