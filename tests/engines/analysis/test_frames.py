"""Requests and events as frames: what is in the files is what the run recorded, and nothing half written stays."""

from collections import Counter
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import fairsched as fs
from fairsched.cli import main
from fairsched.engines.analysis.audit import audit_log, write_audit_frames
from fairsched.engines.analysis.report import FrameWriter
from fairsched.engines.analysis.report.frames import EventRow, RequestRow
from tests.support.access_logs import Line, write

parquet = pytest.importorskip("pyarrow.parquet")


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a parquet file."""
    found: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return found


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, fs.Comparison]:
    """Two runs with frames and event logs in one folder."""
    folder = tmp_path_factory.mktemp("frames")
    workload = fs.generate("demo", limit=150)
    return folder, fs.compare(workload, ["fcfs", "dlpm"], frames=folder, logs=folder)


def test_the_frame_of_requests_gives_the_figures_of_the_run(compared: tuple[Path, fs.Comparison]) -> None:
    """Counting and sorting its rows gives each run's finished requests and p50 and p99 of TTFT, exactly."""
    folder, comparison = compared
    found = rows(folder / "requests.parquet")
    for label, run in comparison.named():
        mine = [row for row in found if row["run"] == label]
        done = [row for row in mine if row["outcome"] == "finished"]
        assert len(mine) == run.measures.requests
        assert Counter(row["client"] for row in done) == Counter(
            {name: each.finished for name, each in run.clients.items()}
        )
        waits = sorted(row["first_token_ns"] - row["arrival_ns"] for row in done)
        for percent, figure in ((50, run.measures.ttft_us.p50), (99, run.measures.ttft_us.p99)):
            assert waits[(percent * len(waits) + 99) // 100 - 1] / 1e3 == figure
        assert fs.requests_frame(run).drop_columns(["run"]).to_pylist() == [
            {name: value for name, value in row.items() if name != "run"} for row in mine
        ]


def test_a_comparison_in_memory_has_the_frame_that_is_written(compared: tuple[Path, fs.Comparison]) -> None:
    """`requests_frame` of all runs is the file."""
    folder, comparison = compared
    assert fs.requests_frame(comparison).to_pylist() == rows(folder / "requests.parquet")


def test_the_frame_of_events_is_in_order_and_complete(compared: tuple[Path, fs.Comparison]) -> None:
    """Positions and times never fall within a run, and produced tokens add up to the outputs of its requests."""
    folder, comparison = compared
    found, requests = rows(folder / "events.parquet"), rows(folder / "requests.parquet")
    for label in comparison.labels():
        mine = [row for row in found if row["run"] == label]
        order = [(row["position"], row["time_ns"]) for row in mine]
        assert order == sorted(order)
        assert [time for _, time in order] == sorted(time for _, time in order)
        produced, outputs = Counter[str](), Counter[str]()
        for row in mine:
            if row["kind"] == "Decoded":
                produced[row["client"]] += row["tokens"]
        for row in requests:
            if row["run"] == label:
                outputs[row["client"]] += row["output_tokens"]
        assert produced == outputs


def test_an_event_log_has_the_frames_of_its_run(compared: tuple[Path, fs.Comparison], tmp_path: Path) -> None:
    """An audit of the log writes the same events, where steps are summed up in longer runs, and requests with the same
    times and what each was charged."""
    folder, _ = compared
    audit = audit_log(folder / "01-fcfs-round-robin.jsonl")
    write_audit_frames(tmp_path / "audit", [audit])

    logged, ran = rows(tmp_path / "audit" / "events.parquet"), rows(folder / "events.parquet")
    ran = [row for row in ran if row["run"] == "fcfs"]
    plain = [
        [{k: v for k, v in row.items() if k not in ("run", "position")} for row in each if row["kind"] != "Decoded"]
        for each in (logged, ran)
    ]
    assert plain[0] == plain[1]
    produced = [sum(row["tokens"] for row in each if row["kind"] == "Decoded") for each in (logged, ran)]
    assert produced[0] == produced[1]
    audited, run = rows(tmp_path / "audit" / "requests.parquet"), rows(folder / "requests.parquet")
    for column in ("client", "arrival_ns", "admitted_ns", "end_ns", "outcome"):
        assert [row[column] for row in audited] == [row[column] for row in run if row["run"] == "fcfs"]
    assert sum(row["cost"] for row in audited) == sum(client.service for client in audit.clients)


def test_an_access_log_has_a_frame_of_its_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`audit --to-frame FILE.parquet`: waits and outcomes as the audit counts them, and names as they are."""
    lines = [Line("a", 0, 3, 4, 10, 2), Line("\u05d0\u202eb", 1, 5, 5, 8, 3), Line("a", 2, 6, 0, 5, 0, failed=True)]
    log, target = write(tmp_path / "access.jsonl", lines), tmp_path / "requests.parquet"
    assert main(["audit", str(log), "--to-frame", str(target)]) == 0
    assert f"Frames: {target}" in capsys.readouterr().out
    found = rows(target)
    assert [row["outcome"] for row in found] == ["finished", "finished", "rejected"]
    assert [row["client"] for row in found[::2]] == ["a", "a"]
    assert found[1]["client"] == lines[1].client
    assert [row["admitted_ns"] and row["admitted_ns"] - row["arrival_ns"] for row in found] == [3e6, 5e6, None]
    assert [row["cost"] for row in found] == [14, 14, 0]


def test_columns_are_those_that_are_documented(compared: tuple[Path, fs.Comparison]) -> None:
    """The files have the fields of `RequestRow` and `EventRow`, and only those that may be absent are nullable."""
    folder, _ = compared
    for name, row in (("requests", RequestRow), ("events", EventRow)):
        schema = parquet.read_schema(folder / f"{name}.parquet")
        hints = get_type_hints(row)
        assert schema.names == list(hints)
        assert {field.name for field in schema if field.nullable} == {
            name for name, hint in hints.items() if type(None) in get_args(hint)
        }


def test_a_file_that_is_not_whole_is_not_there(tmp_path: Path) -> None:
    """After an error neither a new file nor a half of one is left, and an old file is as it was."""
    target = tmp_path / "requests.parquet"
    target.write_text("old")
    with pytest.raises(RuntimeError), FrameWriter(target):
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["requests.parquet"]
    assert target.read_text() == "old"


def test_without_pyarrow_one_line_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said before anything is run."""
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "--limit", "5", "--to-frame", str(tmp_path / "f")])
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert "pip install '.[frame]'" in said.err
    assert said.out == ""
