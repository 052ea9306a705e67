"""The command line: what it writes, and what bad input gets."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairsched.cli import main
from tests.cli.conftest import Figures, Refused
from tests.engines.analysis.test_metrics import RUN_KEYS

SMALL = ["compare", "--limit", "40", "--policies", "fcfs,dlpm"]


def test_json_holds_every_key_of_the_documented_schema(figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    """`compare --json` writes one entry a run, each with exactly the documented keys, for the run and each client."""
    document = figures(*SMALL)
    assert set(document) == {"fairsched", "trace", "runs"}
    assert [entry["policy"] for entry in document["runs"]] == ["fcfs", "dlpm"]
    for entry in document["runs"]:
        assert set(entry) - {"slo_attainment", "programs"} == RUN_KEYS
        assert set(entry["ttft_us"]) == {"mean", "p50", "p90", "p95", "p99"}
        assert entry["requests"] == entry["finished"] + entry["rejected"] + entry["cancelled"]
        for client in entry["clients"].values():
            assert set(client["latency_us"]) == {"mean", "p50", "p90", "p95", "p99"}
    assert "dlpm" in capsys.readouterr().out


def test_rates_and_predictors_are_runs_of_their_own(
    figures: Figures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each rate scale and each predictor is run with each policy, and JSON, report and table say which; the first rate
    in the list is the one whose facts are shown."""
    workload = ["compare", "azure-chat:requests=80", "--policies", "fcfs,dlpm"]
    arguments = [*workload, "--rate-scale", "8,0.5", "--predictor", "oracle", "--predictor", "bucketed:seed=3"]
    document = figures(*arguments, "--report", str(tmp_path))
    assert [(entry["rate_scale"], entry["predictor"], entry["policy"]) for entry in document["runs"]] == [
        (scale, by, policy)
        for scale in (8.0, 0.5)
        for by in ("oracle", "bucketed:seed=3")
        for policy in ("fcfs", "dlpm")
    ]
    assert document["trace"]["rate_scales"] == "8, 0.5"
    assert document["trace"]["predictors"] == "oracle; bucketed:seed=3"
    first, last = document["runs"][0], document["runs"][-2]
    assert first["policy"] == last["policy"]
    assert first["ttft_us"]["p95"] > last["ttft_us"]["p95"]
    page = (tmp_path / "index.html").read_text()
    assert "Waiting against load" in page
    assert "bucketed:seed=3" in page
    assert "rate x0.5" in capsys.readouterr().out


def test_broken_assumptions_are_named(figures: Figures, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`compare` says which assumptions of each run's theorems are broken, in the table, in JSON and in the report: the
    printed rejoin rule breaks one, the shipped rule none, and FCFS promises nothing."""
    chosen = ("--policies", "fcfs,dlpm", "--set", "dlpm.rejoin=keep,reset")
    document = figures(*SMALL[:3], *chosen, "--report", str(tmp_path))
    fcfs, dlpm, printed = (entry["assumptions"] for entry in document["runs"])
    assert fcfs == {}
    assert not any(finding["violated"] for finding in dlpm.values())
    assert all((finding["violated"] is None) == bool(finding["why"]) for finding in dlpm.values())
    broken = {name: finding for name, finding in printed.items() if finding["violated"]}
    assert set(broken) == {"RejoinKeepsDebt"}
    assert broken["RejoinKeepsDebt"]["violated"] == 1
    assert set(broken["RejoinKeepsDebt"]["first"]) == {"time_ns", "worker", "position", "text"}
    assert "D-4.2" in broken["RejoinKeepsDebt"]["theorems"]
    shown = capsys.readouterr().out
    assert "rejoin=reset: RejoinKeepsDebt is broken" in shown
    page = (tmp_path / "index.html").read_text()
    assert "rejoin=keep: none is broken, as far as events show." in page
    assert "RejoinKeepsDebt is broken" in page


def test_lists_run_as_a_product(figures: Figures) -> None:
    """Policies x routers x parameter values are that many runs, each with its own parameters."""
    arguments = [*SMALL, "--workers", "2", "--routers", "round-robin,join-shortest-queue"]
    runs = figures(*arguments, "--set", "dlpm.quantum=100,1000,10000")["runs"]
    assert len(runs) == 2 * (1 + 3)
    quanta = [entry["params"].get("quantum") for entry in runs if entry["router"] == "round-robin"]
    assert quanta == [None, 100, 1_000, 10_000]


def test_routers_take_parameters(figures: Figures) -> None:
    """A router's values are runs of their own, and it is named with them."""
    routers = ["--routers", "round-robin,power-of-two", "--set", "power-of-two.measure=requests,tokens"]
    runs = figures(*SMALL[:3], "--policies", "fcfs", "--workers", "2", *routers)["runs"]
    named = [entry["router"] for entry in runs]
    assert named == ["round-robin", "power-of-two (measure=requests)", "power-of-two (measure=tokens)"]


def test_a_log_replays_equal_and_explains_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    """What `compare --log` writes, `replay` finds equal, and `explain` adds up to the request's latency."""
    assert main([*SMALL, "--log", str(tmp_path)]) == 0
    logs = sorted(tmp_path.iterdir())
    assert [log.name for log in logs] == ["01-fcfs-round-robin.jsonl", "02-dlpm-round-robin.jsonl"]
    capsys.readouterr()
    for log in logs:
        assert main(["audit", str(log), "--replay"]) == 0
        assert "equal" in capsys.readouterr().out
    assert main(["audit", str(logs[1]), "--explain", "3", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert "12345" in refused("audit", str(logs[1]), "--explain", "12345")


def test_phases_are_split(figures: Figures, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a split fleet whose link fails for a while every request ends, each one's KV moved, phases add up to latency,
    the log replays equal, the way of a request is explained, and the report has a plot of phases."""
    logs, report = tmp_path / "logs", tmp_path / "report"
    fleet = ["--split", "1:1", "--routers", "distserve", "--link", "50us", "--change", "link-down:1@1+0.5"]
    document = figures(*SMALL, *fleet, "--log", str(logs), "--report", str(report))
    assert document["trace"]["split"] == "1 prefill, 1 decode"
    assert document["trace"]["changes"] == ["the link of worker 1 fails at 1 s, back after 0.5 s"]
    for entry in document["runs"]:
        assert entry["finished"] == entry["requests"]
        assert entry["transfers"] >= entry["requests"] / 2
        means = [phase["mean"] for phase in entry["phases_us"].values()]
        assert sum(means) == pytest.approx(entry["latency_us"]["mean"])
        assert entry["phases_us"]["transfer"]["mean"] > 50
        assert entry["second_token_us"]["p50"] > entry["tbt_us"]["p50"]
    assert "Where requests spent their time" in (report / "index.html").read_text()
    capsys.readouterr()
    log = min(logs.iterdir())
    assert main(["audit", str(log), "--replay"]) == 0
    assert main(["audit", str(log), "--explain", "3"]) == 0
    said = capsys.readouterr().out
    assert "goes from worker 0 to worker 1" in said
    assert "transfer wait" in said


def test_workers_come_and_go(figures: Figures, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Workers of two kinds, one dies, one drains, one joins, reports are late: every request ends, the document says
    what happened, the log replays equal, and a request of the dead worker is explained."""
    logs = tmp_path / "logs"
    workers = ["--workers", "llama-3.2-3b-a10g,llama-3.1-8b-a100:30000"]
    changes = ["--change", "fail:0@1.5+2", "--change", "drain:1@2", "--change", "join:1.8:40000"]
    reports = ["--reports", "delay=20ms,loss=0.2"]
    small = [*SMALL, "--routers", "join-shortest-queue", *workers, *changes, *reports]
    document = figures(*small, "--log", str(logs))
    facts = document["trace"]
    assert facts["workers"] == 2
    assert facts["worker_kinds"][1:] == ["llama-3.1-8b-a100:30000"]
    assert facts["changes"] == [
        "worker 0 dies at 1.5 s, back after 2 s",
        "a worker joins at 1.8 s",
        "worker 1 drains at 2 s",
    ]
    assert facts["reports"] == "every 100000 us, 20000 us late, 0.2 of them lost"
    for entry in document["runs"]:
        assert entry["finished"] == entry["requests"] == 40
        assert entry["moves"]["placed_again"] > 0
        assert entry["moves"]["reports_lost"] > 0
    capsys.readouterr()
    for log in sorted(logs.iterdir()):
        assert main(["audit", str(log), "--replay"]) == 0
        assert "equal:" in capsys.readouterr().out
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        again = next(line[3] for line in lines if isinstance(line, list) and line[:2] == ["Arrived", 1_500_000_000])
        assert main(["audit", str(log), "--explain", str(again)]) == 0
        assert "worker 0, which left" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["compare", "--policies", "dlmp"], "did you mean dlpm"),
        (["compare", "--policies", "fcfs,fcfs"], "twice"),
        (["compare", "--policies", "no_such_module:Policy"], "cannot be imported"),
        (
            ["compare", "--policies", "fairsched.policies.gates:DeficitGate"],
            "is the class DeficitGate; a policy of your own is a ComposedPolicy, or a class of them",
        ),
        (["compare", "--routers", "no_such_module:Router"], "cannot be imported"),
        (
            ["compare", "--routers", "fairsched.policies.gates:DeficitGate"],
            "is the class DeficitGate; a router of your own is a ClusterPolicy, or a class of them",
        ),
        (["compare", "--routers", "round_robin"], "did you mean round-robin"),
        (["compare", "--routers", "sal", "--set", "sal.pol_us=1"], "did you mean poll_us"),
        (["compare", "--routers", "sal", "--set", "sal.poll_us=-1"], "at least 0"),
        (["compare", "--set", "dlpm.quantums=1"], "did you mean quantum"),
        (["compare", "--set", "dlpm.quantum=0"], "quantum is a whole number from 1"),
        (["compare", "--set", "dlpm.quantum=many"], "whole number"),
        (["compare", "--set", "quantum=1"], "POLICY.PARAM=VALUE"),
        (["compare", "--policies", "fcfs", "--set", "dlpm.quantum=1"], "not among --policies or --routers"),
        (["compare", "--latency-model", "llama-3.2-3b"], "did you mean llama-3.2-3b-a10g"),
        (["compare", "--rate-scale", "1,1"], "given twice"),
        (["compare", "--rate-scale", "1,x"], "numbers separated by commas"),
        (["compare", "--rate-scale", "1,-2"], "positive"),
        (["compare", "--predictor", "bucketed:accuracy=2"], "accuracy"),
        (["compare", "--predictor", "bucketed:accuracy"], "PARAM=VALUE"),
        (["compare", "--latency-model", "opt-13b-a100", "--workers", "llama-3.2-3b-a10g"], "is for equal workers"),
        (["compare", "--workers", "llama-3.2-3b-a10g:many"], "expected --workers MODEL[:KV]"),
        (["compare", "--workers", "llama-3.2-3b-a10g:1"], "not for 1 tokens"),
        (["compare", "--workers", "llama-3.2"], "did you mean llama-3.2-3b-a10g"),
        (["compare", "--split", "3:0"], "no worker of '3:0' decodes, and 3 would wait for one that does"),
        (["compare", "--split", "0:2"], "no worker of '0:2' prefills, and 2 would wait for one that does"),
        (["compare", "--split", "2"], "expected PREFILL:DECODE, such as 2:1, found '2'"),
        (["compare", "--split", "2:1", "--workers", "3"], "--split says how many workers there are"),
        (["compare", "--split", "2:1"], "round-robin knows no phases, and of the workers 2 prefill and 1 decode"),
        (["compare", "--split", "1:1", "--link", "0"], "expected a positive number, from 1e-9 to 1e12, found '0'"),
        (["compare", "--change", "link-down:1@3"], "a failing link of worker 1: there are 1 workers, from 0 on"),
        (["compare", "--change", "fail:0"], "expected fail:WORKER@S[+DOWN], such as fail:0@30, found 'fail:0'"),
        (["compare", "--change", "fail:1@30"], "a crash of worker 1: there are 1 workers, from 0 on"),
        (["compare", "--change", "fail:0@soon"], "expected a time in seconds, found 'soon'"),
        (["compare", "--change", "restart:0@1+-2"], "expected a time in seconds, found '-2'"),
        (["compare", "--change", "drain:0@30+5"], "expected drain:WORKER@S, such as drain:0@30"),
        (["compare", "--change", "join:x"], "expected a time in seconds, found 'x'"),
        (["compare", "--change", "join:3:y"], "KV a number of tokens"),
        (["compare", "--reports", "delay=-1"], "a number of seconds, found"),
        (["compare", "--reports", "loss=1.5"], "a share from 0 to 1, found"),
        (["compare", "demo:seeds=1"], "seeds"),
        (["compare", "demo", "--clients", "4"], "for traces"),
        (["compare", "no-such-file.csv"], "no-such-file.csv"),
        (["compare", "--json", "no/such/folder/x.json"], "no folder"),
        (["compare", "--report", "/dev/null/report"], "--report: /dev/null/report cannot be made: Not a directory"),
        (["tune", "--max-wait", "1s", "--report", "/dev/null/report"], "--report: /dev/null/report cannot be made"),
        (["compare", "--unknown"], "--unknown"),
        (["compare", "--latency-model", "no/such.json"], "--latency-model: no/such.json: no such file or directory"),
        (["audit", "log.csv", "--map", "/dev"], "--map: /dev: is a directory"),
        (["verify", "--config", "no-such.toml"], "--config: no-such.toml: no such file or directory"),
        (["plan"], "a plan needs targets: --slo ttft=2s,tpot=50ms"),
        (["plan", "--policy", "dlmp"], "did you mean dlpm"),
        (["plan", "--routers", "round_robin"], "did you mean round-robin"),
        (["plan", "no-such-file.csv"], "no-such-file.csv"),
        (["trace", "no-such-file.csv"], "no-such-file.csv"),
        (["audit", "no-such-file.jsonl", "--replay"], "no-such-file.jsonl"),
        (["nothing"], "nothing"),
    ],
)
def test_bad_arguments_get_one_line_and_status_two(arguments: list[str], expected: str, refused: Refused) -> None:
    """What is wrong is said in one line on standard error that names it, with exit status 2."""
    assert expected in refused(*arguments)


def test_where_no_request_fits_the_status_is_1_and_says_why(
    figures: Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    """A KV capacity below every prompt rejects all requests; the run still ends with figures."""
    found = figures(*SMALL, "--kv-capacity-tokens", "100", status=1)
    said = "No request had a first token: request 0 needs 3776 tokens, worker 0 holds 100 in all."
    assert " ".join(capsys.readouterr().out.split()).startswith(said)
    for entry in found["runs"]:
        # Calls that depend on a rejected call are never sent: they count as cancelled.
        assert entry["rejected"] > 0
        assert entry["finished"] == 0
        assert entry["rejected"] + entry["cancelled"] == entry["requests"]


def test_host_memory_is_swapped_to(figures: Figures, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With host memory FastServe swaps instead of computing again; the log replays, and tells why a request waited."""
    crowd = ["compare", "azure-chat:rate=6", "--limit", "60", "--policies", "fastserve"]
    crowd += ["--latency-model", "llama-3.1-8b-a100", "--kv-capacity-tokens", "9000"]
    found = {}
    for host in ("0", "60000"):
        memory = ["--host-capacity-tokens", host] if host != "0" else []
        found[host] = figures(*crowd, *memory, "--log", str(tmp_path / host))
    without, swapped = (found[host]["runs"][0] for host in ("0", "60000"))
    assert without["swaps"] == 0 < without["preemptions"]
    assert 0 < swapped["swaps"] <= swapped["preemptions"]
    assert swapped["latency_us"]["mean"] < without["latency_us"]["mean"]
    assert found["60000"]["trace"]["host_capacity_tokens"] == 60_000
    (log,) = (tmp_path / "60000").iterdir()
    assert main(["audit", str(log), "--replay"]) == 0
    capsys.readouterr()
    request = next(json.loads(line)[3] for line in log.read_text().splitlines() if line.startswith('["SwappedOut"'))
    assert main(["audit", str(log), "--explain", str(request)]) == 0
    shown = capsys.readouterr().out
    assert "goes to the host" in shown
    assert "it had been swapped out" in shown


def test_policies_lists_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    """`fairsched policies` names every policy, batching rule, router and latency model."""
    from fairsched.model.machine import PRESETS
    from fairsched.policies.batching import BATCHINGS
    from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS

    assert main(["policies"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for names in (PRESETS, BATCHINGS, LOCAL_POLICIES, ROUTERS) for name in names)


def test_an_interrupt_keeps_what_was_computed(tmp_path: Path) -> None:
    """An interrupt in the middle of a run that has this process writes the figures so far and exits with 130."""
    target = tmp_path / "figures.json"
    arguments = ["compare", "tree-of-thoughts:trees=240", "--policies", "lpm,dlpm,vtc,fcfs", "--jobs", "1"]
    logs = tmp_path / "logs"
    command = [sys.executable, "-m", "fairsched", *arguments, "--json", str(target), "--log", str(logs)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        # Not before the first run has written of many events, however long a busy machine takes for imports.
        while process.poll() is None and sum(log.stat().st_size for log in logs.glob("*")) < 1_000_000:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    document = json.loads(target.read_text())
    assert document["trace"]["complete"] is False
    assert 1 <= len(document["runs"]) <= 4


def test_a_router_of_yours_is_named_by_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A class or a value, with parameters set as of one that ships, and it decides alike."""
    (tmp_path / "my_routers.py").write_text(
        "from fairsched.policies.routers import SAL\nclass Mine(SAL):\n    name = 'mine'\nvalue = SAL(poll_us=7)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    figures = tmp_path / "figures.json"
    given = [
        "--routers",
        "sal,my_routers:Mine,my_routers:value",
        "--set",
        "my_routers:Mine.poll_us=7",
        "--workers",
        "2",
    ]
    assert main(["compare", "demo", "--policies", "fcfs", "--limit", "60", "--json", str(figures), *given]) == 0
    runs = json.loads(figures.read_text())["runs"]
    assert len(runs) == 3
    assert runs[1]["log_sha256"] == runs[2]["log_sha256"]
