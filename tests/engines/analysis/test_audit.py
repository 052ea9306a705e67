"""Audits: what they find in a log of ours is what was measured, and in an access log what slow definitions say."""

import json
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
from fairsched.engines.analysis.audit.findings import findings
from fairsched.engines.analysis.audit.logs import policy_if_there, workload_of_log
from fairsched.engines.analysis.audit.reconstruct import evidence_of
from fairsched.engines.analysis.audit.run_log import read_run_log
from fairsched.engines.analysis.audit.shares import fair_division
from fairsched.engines.logs import LogHeader
from fairsched.engines.logs.access import Columns, Outcome, read_access_log, read_map
from fairsched.engines.simulation import Cluster, limits_of
from fairsched.engines.workloads import TraceError
from fairsched.model.pricing import COMMON
from fairsched.model.request import Workload
from fairsched.policies.local import ComposedPolicy
from tests.engines.gateway.window.test_state_store import STEPS, World
from tests.engines.serving.test_log import FAILS, serve
from tests.engines.serving.test_loop import SENT, composed
from tests.support.access_logs import LINES, MS, Line, Slow, write
from tests.support.logs import RUNS, Case, build
from tests.support.logs import write as write_run


def audited(path: Path, starved_ms: int = 5, window_ms: int = 10, **options: Any) -> Audit:
    """An audit of an access log."""
    log = read_access_log(path)
    return findings(evidence_of(log, **options), starved_after_ns=starved_ms * MS, window_ns=window_ms * MS)


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


def logged(folder: Path, *rows: object) -> Path:
    """An access log of these rows."""
    path = folder / "a.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


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


@given(STEPS, STEPS, st.sampled_from(["fcfs+deficit", "vtc", "dlpm"]))
@settings(max_examples=25, deadline=None)
def test_a_gateways_log_is_audited(before: list[Any], after: list[Any], name: str) -> None:
    """Of a first life and of one that went on from its debts: each charge is a call's, or for what it holds, and no
    call passed the gate."""
    with TemporaryDirectory() as folder:
        for run, steps in enumerate((before, after)):
            world = World(Path(folder), name, f"log{run}.jsonl")
            for step in steps:
                world.step(*step)
            world.recorded.drain(world.window)
            world.kill()
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


def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    """A log without its last line is audited as far as it goes, with a note."""
    path = _run(tmp_path, "fcfs", {}, complete=False)
    found = findings(read_run_log(path, build)[0])
    assert any("no last line" in note for note in found.notes)


def _run(folder: Path, policy: str, params: dict[str, str], complete: bool = True) -> Path:
    from fairsched.engines.workloads import generate
    from fairsched.model.latency import DEFAULT_PRESET, PRESETS

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
    """Summed up over longer times, every client still gets what it got, and the scope says how long."""
    exact, coarse = audit_of(lines), audit_of(lines, rows_max=rows_max)
    assert [client.service for client in coarse.clients] == [client.service for client in exact.clients]
    said = any("summed up over" in line for line in coarse.evidence.limits)
    assert said or coarse.gap == exact.gap


@given(lines=LINES, starved_ms=st.integers(1, 20))
def test_starvation_is_that_of_the_definition(lines: list[Line], starved_ms: int) -> None:
    """Each stretch is a time in which its client waited and only others were charged, and none is missed."""
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


# --- how a log is read ------------------------------------------------------------------------------------------------

LITELLM = {
    "startTime": 1700000000.5,
    "completionStartTime": 1700000001.0,
    "endTime": 1700000002.0,
    "prompt_tokens": 10,
    "completion_tokens": 4,
    "end_user": "",
    "metadata": {"user_api_key_alias": "gold"},
    "response_time": 0.5,
    "status": "success",
    "api_base": "http://a",
}
OPENAI = {
    "created": 1700000000,
    "user": "gold",
    "ttft_ms": 500,
    "latency_ms": 1500.0,
    "usage": {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}},
}
SPAN = {
    "start_time": "2023-11-14T22:13:20Z",
    "gen_ai.latency.time_to_first_token": 0.5,
    "gen_ai.latency.e2e": 1.5,
    "gen_ai.usage.prompt_tokens": 10,
    "gen_ai.usage.completion_tokens": 4,
    "tenant": "gold",
}
VLLM = {
    "arrival_time": 1700000000.0,
    "end_time": 1700000001.5,
    "metrics": {"time_to_first_token_ms": 200.0, "queue_time_ms": 500.0, "generation_time_ms": 800.0},
    "usage": {"prompt_tokens": 10, "completion_tokens": 4},
    "client": "gold",
}


@pytest.mark.parametrize("row", [LITELLM, OPENAI, SPAN, VLLM], ids=["litellm", "openai", "span", "vllm"])
def test_common_logs_need_no_map(tmp_path: Path, row: dict[str, Any]) -> None:
    """What proxies, engines and spans usually write is read as it is meant."""
    log = read_access_log(logged(tmp_path, row))
    assert log.clients == ("gold",)
    assert (log.prompt[0], log.output[0], log.outcome[0]) == (10, 4, Outcome.FINISHED)
    assert log.served_ns[0] - log.arrival_ns[0] == 500 * MS
    assert log.end_ns[0] - log.arrival_ns[0] == 1500 * MS
    assert log.cached[0] == (6 if row is OPENAI else 0)


@given(lines=LINES)
def test_csv_and_json_say_the_same(lines: list[Line]) -> None:
    """A log in CSV is audited as the same log in JSON lines."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        plain = audited(write(path, lines)).to_json()
        names = ["client", "start_ms", "latency_ms", "ttft_ms", "prompt_tokens", "output_tokens", "status"]
        rows = [",".join(str(line.row().get(name, "")) for name in names) for line in lines]
        path.write_text("\n".join([",".join(names), *rows]) + "\n")
        assert {key: v for key, v in audited(path).to_json().items() if key != "reading"} == {
            key: v for key, v in plain.items() if key != "reading"
        }


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        (1700000000.25, "s"),
        (1700000000250, "ms"),
        (1700000000250000, "us"),
        (1700000000250000000, "ns"),
        ("1700000000.25", "s"),
        ("2023-11-14T22:13:20.25Z", "iso"),
        ("2023-11-14 23:13:20.250+01:00", "iso"),
        ("2023-11-14 22:13:20.2500000", "iso"),
    ],
)
def test_a_moments_unit_is_seen(tmp_path: Path, value: object, unit: str) -> None:
    """Seconds, their fractions and ISO 8601 are told apart, and all of them mean the same moment."""
    log = read_access_log(logged(tmp_path, {"start": value, "latency_s": 1, "prompt_tokens": 1, "output_tokens": 1}))
    assert log.arrival_ns[0] == 1700000000_250_000_000
    assert any(unit.replace("iso", "ISO 8601") in line for line in log.reading if line.startswith("arrival"))


MAP = """
arrival = { column = "t", unit = "ms" }
latency = { column = "took", unit = "ms" }
client = "who.name"
prompt_tokens = "in"
output_tokens = "out"
status = "code"
ok = ["fine"]
"""


def test_a_map_of_few_lines_names_columns(tmp_path: Path) -> None:
    """Columns, units and successes are as a map says; an end and a length of time make an arrival."""
    mapped = tmp_path / "map.toml"
    mapped.write_text(MAP)
    assert len(MAP.strip().splitlines()) <= 10
    row = {"t": 5_000, "took": 2, "who": {"name": "x"}, "in": 3, "out": 4, "code": "fine"}
    path = logged(tmp_path, row, row | {"code": "broke", "out": 0})
    log = read_access_log(path, read_map(mapped))
    assert log.clients == ("x",)
    assert (log.end_ns - log.arrival_ns).tolist() == [2 * MS, 2 * MS]
    assert sorted(log.outcome.tolist()) == [Outcome.FINISHED, Outcome.ERROR]
    mapped.write_text(MAP.replace("arrival =", "end ="))
    assert read_access_log(path, read_map(mapped)).arrival_ns.tolist() == [4_998 * MS] * 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("arival = 't'", "did you mean arrival"),
        ("arrival = 3", "arrival is a column as"),
        ("arrival = { column = 't', unit = 'weeks' }", "one of s, ms, us, ns, iso"),
        ("client = { column = 't', unit = 's' }", "this is no time"),
        ("ok = 'yes'", "ok is a list"),
        ("arrival = ", "Invalid value"),
    ],
)
def test_a_map_that_is_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """In one line, with the file."""
    path = tmp_path / "map.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=said) as caught:
        read_map(path)
    assert str(path) in str(caught.value)


GOOD = {"start_ms": 1_000, "ttft_ms": 1, "latency_ms": 5, "client": "a", "prompt_tokens": 1, "output_tokens": 1}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{nonsense", "row 2: expected a JSON object"),
        ("", "row 2: expected a JSON object, found an empty line"),
        (GOOD | {"start_ms": "soon"}, "row 2, field start_ms: expected a time in ms since 1970, found soon"),
        (GOOD | {"prompt_tokens": -1}, "row 2, field prompt_tokens: expected a whole number of tokens"),
        (GOOD | {"prompt_tokens": 1.5}, "row 2, field prompt_tokens"),
        (GOOD | {"output_tokens": None}, "row 2, field output_tokens: expected a value, found nothing"),
        (GOOD | {"latency_ms": -3}, "row 2, field latency_ms: expected a length of time in ms, not negative"),
        (GOOD | {"ttft_ms": 50}, "row 2, field ttft_ms: expected times in order"),
        (GOOD | {"latency_ms": None}, "row 2, field latency_ms: expected a value"),
        (GOOD | {"latency_ms": float("nan")}, "row 2: expected a JSON object"),
        (GOOD | {"start_ms": 1e300}, "row 2, field start_ms: expected a time in ms since 1970"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, row: Any, said: str) -> None:
    """File, row and field, what was expected and found; or, if asked for, left out and counted."""
    path = tmp_path / "a.jsonl"
    text = row if isinstance(row, str) else json.dumps(row)
    path.write_text(f"{json.dumps(GOOD)}\n{text}\n{json.dumps(GOOD)}\n")
    with pytest.raises(TraceError) as caught:
        read_access_log(path)
    assert f"{path}, {said}" in str(caught.value)
    log = read_access_log(path, skip=True)
    assert len(log.client) == 2
    assert log.notes[-1].startswith("Rows that could not be read and are left out: 1;")
    assert said in log.notes[-1]


def test_what_came_from_a_cache_is_charged_to_nobody(tmp_path: Path) -> None:
    """Neither when a request is let in nor in all."""
    found = audited(logged(tmp_path, GOOD | {"prompt_tokens": 100, "cached_tokens": 64, "output_tokens": 3}))
    assert found.clients[0].service == 100 - 64 + 2 * 3
    assert found.evidence.calls.cost.tolist() == [100 - 64 + 2 * 3]


@pytest.mark.parametrize("moment", ["9999-12-31T00:00:00Z", "0001-01-01T00:00:00+05:00", "2026-02-30T00:00:00Z"])
def test_a_date_that_is_none_of_ours_is_named(tmp_path: Path, moment: str) -> None:
    """Dates that 64 bits of nanoseconds do not hold are refused like those that are none."""
    path = logged(tmp_path, *(GOOD | {"start": each, "start_ms": None} for each in ("2026-11-21T18:00:00Z", moment)))
    with pytest.raises(TraceError, match="row 2, field start: expected a time as in ISO 8601"):
        read_access_log(path)


def test_times_without_a_zone_and_rows_that_come_twice_are_told(tmp_path: Path) -> None:
    """Local times may be off by an hour, and a log that was copied while it was turned over counts requests twice."""
    path = tmp_path / "a.csv"
    head = "start,latency_s,client,prompt_tokens,output_tokens\n"
    row, other = "2026-10-25T02:30:00,5,a,1,1\n", "2026-10-25T02:30:00,5,b,1,1\n"
    path.write_text(head + row + other)
    assert any(note.startswith("Times without a zone (start) are read as UTC") for note in read_access_log(path).notes)
    path.write_text((head + row + other + row + row).replace("00,5", "00Z,5"))
    notes = read_access_log(path).notes
    assert notes[-1] == "Rows that say the same as another, which count like any: 2."
    assert not any("zone" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least one request"),
        ("[1]", "one JSON object a line"),
        ('{"a": 1}\n', "when a request came"),
        ('{"start": 1, "prompt_tokens": 1, "output_tokens": 1}\n', "when a request ended"),
        ('{"start": 1, "latency": 1, "output_tokens": 1}\n', "the tokens of a prompt"),
        ('{"start": 1, "latency": 90000, "prompt_tokens": 1, "output_tokens": 1}\n', "its unit in a map"),
        ("start,latency_s,prompt_tokens,output_tokens\n1,1,1\n", "expected 4 values"),
        ("start,start,prompt_tokens,output_tokens\n1,1,1,1\n", "each column once"),
    ],
)
def test_a_file_that_is_no_access_log_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """In one line that says what is missing."""
    path = tmp_path / "a.log"
    path.write_text(text)
    with pytest.raises(TraceError, match=said):
        read_access_log(path)


def test_a_column_that_the_map_names_must_be_there(tmp_path: Path) -> None:
    """The message lists the columns that there are."""
    path, mapped = logged(tmp_path, GOOD), tmp_path / "m.toml"
    mapped.write_text('client = "tenant"\n')
    with pytest.raises(TraceError, match="a column 'tenant', which the map names, found only client, latency_ms"):
        read_access_log(path, read_map(mapped))


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
