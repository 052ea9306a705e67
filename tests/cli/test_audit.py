"""`fairsched audit` and `fairsched trace convert`: from a log to findings, a report and a comparison."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fairsched.cli import main
from tests.cli.conftest import Figures, Refused
from tests.support.access_logs import Line, write

FLOOD = [Line("flood", 1_000 * k, 100, 800, 50, 20) for k in range(30)]
SMALL = [Line("small", 0, 20_000, 100, 100, 50)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """An access log in which one client waits twenty seconds while another is served."""
    return write(tmp_path / "access.jsonl", [*FLOOD, *SMALL])


def test_an_access_log_is_audited(
    log: Path, figures: Figures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table, who starved and who gained, every figure as JSON, and a report with plots."""
    said = figures("audit", str(log), "--report", str(tmp_path / "report"))
    shown = capsys.readouterr().out
    assert "31 requests of 2 clients" in shown
    assert "1 of 2 clients starved, small for 20 s; p99 wait 20 s." in shown
    assert "small waited 20 s (from 22:13:20.0) for nothing, while others got" in shown
    assert "flood had got 200 cost units beyond its fair share" in shown
    assert "small was 200 behind" in shown
    assert "Waiting and computing the prompt cannot be told apart" in shown
    assert said["clients"]["small"]["starved"] == 1
    assert said["clients"]["flood"]["service"] == 30 * (50 + 2 * 20)
    assert [row["client"] for row in said["gained"]] == ["flood"]
    assert said["service_gap_bound"] is None
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.count("<figure>") == 2
    assert "When clients starved" in page


@pytest.mark.parametrize(
    ("thresholds", "status"),
    [
        ("starved>1,errors>0", 0),
        ("starved>0,errors>0", 1),
        ("bound_violations>0", 2),
        ("bound_violations>0,starved>0", 1),
    ],
)
def test_thresholds_fail_a_build(
    log: Path, thresholds: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status says whether a figure is beyond a limit, or cannot be judged; each is named in text and files."""
    junit, figures = tmp_path / "junit.xml", tmp_path / "a.json"
    run = ["audit", str(log), "--fail-on", thresholds, "--junit", str(junit), "--json", str(figures)]
    assert main(run) == status
    shown = capsys.readouterr().out
    document = json.loads(figures.read_text())["thresholds"]
    cases = ElementTree.parse(junit).getroot().findall("./testsuite/testcase")
    assert [each["threshold"] for each in document] == [case.attrib["name"] for case in cases] == thresholds.split(",")
    assert all(each["said"] in " ".join(shown.split()) for each in document)


def test_a_log_of_two_models_is_audited_twice(
    tmp_path: Path, figures: Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with a headline, a report and a document of its own, where they share no upstream."""
    path = tmp_path / "a.jsonl"
    rows = [line.row() | {"model": "big" if line in FLOOD else "small"} for line in (*FLOOD, *SMALL)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    said = figures("audit", str(path), "--report", str(tmp_path / "report"))
    assert [each["model"] for each in said["audits"]] == ["big", "small"]
    assert capsys.readouterr().out.count("No client starved for 10 s; p99 wait") == 2
    assert (tmp_path / "report" / "02" / "index.html").exists()


def test_weights_make_shares(log: Path, capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    """With `--clients weights:` shares and gap are by weight, and unknown names are refused."""
    assert main(["audit", str(log), "--clients", "weights:flood=4"]) == 0
    assert "weight" in capsys.readouterr().out
    assert "did you mean flood" in refused("audit", str(log), "--clients", "weights:floud=4")


def test_a_log_of_compare_is_audited_as_it_was_measured(
    figures: Figures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gap and the bound are those in the comparison's JSON, with the assumptions of the theorems."""
    run = ["compare", "demo", "--limit", "120", "--policies", "dlpm", "--set", "dlpm.quantum=512"]
    (theirs,) = figures(*run, "--log", str(tmp_path / "logs"))["runs"]
    (path,) = (tmp_path / "logs").iterdir()
    mine = figures("audit", str(path))
    assert "none is broken" in capsys.readouterr().out
    for name in ("service_gap_max", "service_gap_bound", "gap_scope", "bound_over_busiest", "assumptions"):
        assert mine[name] == theirs[name]


def test_a_log_becomes_a_trace_that_can_be_compared(
    log: Path, figures: Figures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `trace --out` writes, `compare` reads: the same requests and clients."""
    trace = tmp_path / "trace.jsonl"
    assert main(["trace", str(log), "--out", str(trace)]) == 0
    assert "31 requests" in capsys.readouterr().out
    runs = figures("compare", str(trace), "--policies", "fcfs,dlpm")["runs"]
    assert [(run["finished"], sorted(run["clients"])) for run in runs] == [(31, ["flood", "small"])] * 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gone.jsonl"], "gone.jsonl"),
        (["{log}", "--map", "gone.toml"], "gone.toml"),
        (["{log}", "--map", ""], "--map: expected a path, found ''"),
        (["{log}", "--json", ""], "--json: expected a file, or - for standard output, found ''"),
        (["{log}", "--only", "model=gpt"], "unknown model 'gpt'; known: none"),
        (["{log}", "--only", "status=404"], "none of its 31 requests is left: status 404 keeps 0"),
        (["{log}", "--only", "from=1h"], "none of its 31 requests is left: from 1h keeps 0"),
        (["{log}", "{log}"], "named twice"),
        (["{log}", "gone*"], "gone*: no file matches"),
        (["{log}", "--clients", "zipf:8"], "weights of the log's own clients"),
        (["{log}", "--junit", "a.xml"], "and there are none"),
    ],
)
def test_what_is_wrong_is_said(log: Path, arguments: list[str], said: str, refused: Refused) -> None:
    """In one line, with exit status 2."""
    assert said in refused("audit", *(each.replace("{log}", str(log)) for each in arguments))


def test_what_cannot_be_written_is_said_before_the_log_is_read(refused: Refused) -> None:
    """In one line, before the work that it is for."""
    for option in (["--json"], ["--fail-on", "starved>0", "--junit"]):
        assert "there is no folder gone" in refused("audit", "gone.jsonl", *option, "gone/a")


def test_a_log_is_not_written_over(log: Path, refused: Refused) -> None:
    """A trace or figures in the log's own place would be the end of the log."""
    before = log.read_bytes()
    for command in (["trace", str(log), "--out", str(log)], ["audit", str(log), "--json", str(log)]):
        assert f"{log} is what is read, and would be lost" in refused(*command)
    assert log.read_bytes() == before


def test_a_row_that_is_wrong_is_named_or_left_out(
    log: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    """The file, its row and field; with `--skip-malformed` how many were left out."""
    row = {"client": "a", "start_ms": 5, "latency_ms": "long", "prompt_tokens": 1, "output_tokens": 1}
    log.write_text(log.read_text() + json.dumps(row) + "\n")
    assert "row 32, field latency_ms: expected a length of time in ms" in refused("audit", str(log))
    assert main(["audit", str(log), "--skip-malformed"]) == 0
    assert "Rows that could not be read and are left out: 1;" in capsys.readouterr().out


def test_several_logs_and_filters_make_one_audit(
    log: Path, figures: Figures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files and patterns are read as one log, and only the requests that are asked for count."""
    write(tmp_path / "access.jsonl.1", [Line("late", 40_000, 100, 100, 10, 10)])
    assert figures("audit", f"{log}*")["requests"] == 32
    first = ["--only", "from=0.5s", "--only", "until=2023-11-14T22:13:25Z", "--only", "status=200,5xx"]
    few = figures("audit", str(log), f"{log}.1", *first)
    assert (few["requests"], list(few["clients"])) == (4, ["flood"])
    assert "Only requests with from 0.5s, until 2023-11-14T22:13:25Z, status 200 or 5xx: 4 of 32." in few["notes"]
    assert main(["trace", str(log), f"{log}.1", "--out", str(tmp_path / "t.jsonl"), "--only", "from=1s"]) == 0
    assert "30 requests" in capsys.readouterr().out


def test_a_log_that_is_given_for_a_trace_is_told_how_to_become_one(log: Path, refused: Refused, tmp_path: Path) -> None:
    """An access log and an event log alike; what is neither is refused as a trace is."""
    said = f"{log} is a log and no trace; fairsched trace {log} --out trace.jsonl makes a trace of it"
    assert said in refused("compare", str(log), "--policies", "fcfs")
    log.write_text('{"fairsched_log": 1}\n')
    assert said in refused("compare", str(log))
    log.write_text("nonsense\n")
    assert "of a known format" in refused("trace", str(log))
