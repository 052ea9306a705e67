"""A map is suggested by what holds in the rows where names say nothing; what they do not tell is said as a doubt."""

import csv
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.cli import main
from fairsched.engines.logs.access import read_access_log, read_map, suggest_map
from fairsched.engines.logs.access.access_log import COLUMNS
from fairsched.engines.workloads import TraceError

NS = {"s": 1e9, "ms": 1e6, "us": 1e3}
KINDS = ("moment", "end", "ttft", "latency", "prompt", "output", "total", "client", "code", "id")
NAMES = st.lists(
    st.text("abxyz_-.äß0", min_size=1, max_size=6).map(lambda text: f"zz{text}0"),
    min_size=len(KINDS),
    max_size=len(KINDS),
    unique_by=lambda name: name.replace(".", ""),
)
"""Names that say nothing."""


def requests(seed: int, count: int = 150) -> list[dict[str, Any]]:
    """Requests of a busy server, times in nanoseconds, in the order in which they end."""
    draw = random.Random(seed)
    now, made = 1_764_000_000 * 10**9, []
    for _ in range(count):
        now += int(draw.expovariate(3) * 1e9)
        prompt, output = int(draw.lognormvariate(6, 1)) + 5, int(draw.lognormvariate(4, 0.8)) + 2
        ttft = int((0.05 + prompt * 2e-4 + draw.expovariate(5)) * 1e9)
        latency = ttft + int((output - 1) * 0.02 * draw.uniform(0.8, 1.3) * 1e9)
        made.append(
            {"moment": now, "end": now + latency, "ttft": ttft, "latency": latency, "prompt": prompt, "output": output}
            | {"total": prompt + output, "client": draw.choice(["ann", "bob", "eve"]), "code": 200}
            | {"id": f"{draw.getrandbits(64):016x}"}
        )
    return sorted(made, key=lambda row: row["end"])


def moment(ns: int, form: str) -> object:
    """A moment as a log writes it."""
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat() if form == "iso" else round(ns / NS[form], 6)


def written(
    folder: str, rows: Sequence[dict[str, Any]], names: dict[str, str], unit: str, form: str, kind: str
) -> Path:
    """A log of the columns in `names`, called so."""
    shown = []
    for row in rows:
        said = {key: moment(row[key], form) for key in ("moment", "end")}
        said |= {key: row[key] / NS[unit] for key in ("ttft", "latency")}
        shown.append({name: (row | said)[key] for key, name in names.items()})
    path = Path(folder, f"log.{kind}")
    with path.open("w", newline="") as file:
        if kind == "csv":
            writer = csv.DictWriter(file, list(names.values()))
            writer.writeheader()
            writer.writerows(shown)
        else:
            file.writelines(f"{json.dumps(row)}\n" for row in shown)
    return path


@settings(max_examples=25, deadline=None)
@given(
    names=NAMES,
    seed=st.integers(0, 2**32),
    unit=st.sampled_from(["s", "ms", "us"]),
    form=st.sampled_from(["s", "ms", "iso"]),
    kind=st.sampled_from(["csv", "jsonl"]),
    times=st.sampled_from([("moment", "latency"), ("moment", "end"), ("end", "latency"), ("moment", "end", "latency")]),
    left_out=st.sets(st.sampled_from(["ttft", "total", "code", "id"])),
    order=st.randoms(use_true_random=False),
)
def test_shapes_alone_find_times_and_tokens(
    names: list[str], seed: int, unit: str, form: str, kind: str, times: tuple[str, ...], left_out: set[str], order: Any
) -> None:
    """Whatever columns are called, and in whichever order and units they stand, the reading is the truth; and the map
    that is written gives the same reading as the columns that were found."""
    wanted = [key for key in KINDS if key not in left_out and (key in times or key not in ("moment", "end", "latency"))]
    order.shuffle(wanted)
    rows = requests(seed)
    with TemporaryDirectory() as folder:
        path = written(folder, rows, dict(zip(wanted, names, strict=False)), unit, form, kind)
        suggestion = suggest_map(path)
        saved = Path(folder, "map.toml")
        saved.write_text(suggestion.toml())
        log, same = read_access_log(path, read_map(saved)), read_access_log(path, suggestion.columns)
    assert all((getattr(log, name) == getattr(same, name)).all() for name in COLUMNS)
    rows = sorted(rows, key=lambda row: row["moment"])
    assert np.abs(log.arrival_ns - [row["moment"] for row in rows]).max() < 10_000
    assert np.abs(log.end_ns - [row["end"] for row in rows]).max() < 10_000
    assert log.prompt.tolist() == [row["prompt"] for row in rows]
    assert log.output.tolist() == [row["output"] for row in rows]
    assert log.clients == ("ann", "bob", "eve")
    assert ("ttft" in left_out) == (log.first_ns < 0).all()
    if "ttft" not in left_out:
        assert np.abs(log.first_ns - [row["moment"] + row["ttft"] for row in rows]).max() < 10_000


def suggested(folder: Path, rows: Sequence[dict[str, Any]]) -> Any:
    """The suggestion for rows."""
    path = folder / "a.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return suggest_map(path)


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row with names that say nothing."""
    times = {"q1": row["moment"] / 1e9, "q2": row["ttft"] / 1e9, "q3": row["latency"] / 1e9}
    return times | {"q4": row["prompt"], "q5": row["output"], "q6": row["client"]}


def test_a_column_that_rises_with_the_output_is_a_doubt(tmp_path: Path) -> None:
    """Bytes sent rise with the time of an answer as its tokens do; the map says so, and takes the smaller."""
    rows = [plain(row) | {"q7": 240 * row["output"] + 31} for row in requests(3)]
    found = suggested(tmp_path, rows)
    assert found.columns.of["output_tokens"].name == "q5"
    assert any("q5 may not be the output's tokens: q7" in doubt for doubt in found.doubts)


def test_tokens_that_go_with_no_time_are_a_doubt(tmp_path: Path) -> None:
    """Where neither number of tokens has to do with the time, which is the output is a doubt."""
    draw = random.Random(1)
    rows = [plain(row) | {"q4": draw.randint(5, 900), "q5": draw.randint(5, 900)} for row in requests(4)]
    doubts = suggested(tmp_path, rows).doubts
    assert any("output's tokens" in doubt or "hardly rises" in doubt for doubt in doubts)


def test_a_moment_in_order_is_a_doubt(tmp_path: Path) -> None:
    """Rows in order of their only moment may be sorted by arrival, or written at ends."""
    rows = sorted((plain(row) for row in requests(5)), key=lambda row: row["q1"])
    found = suggested(tmp_path, rows)
    assert any("q1" in doubt and "arrival" in doubt for doubt in found.doubts)


def test_what_cannot_be_found_is_refused(tmp_path: Path) -> None:
    """Without anything that takes time, or without numbers of tokens, there is no map: the error says what lacks."""
    rows = [plain(row) for row in requests(6)]
    without_times = [{key: row[key] for key in ("q1", "q4", "q5", "q6")} for row in rows]
    with pytest.raises(TraceError, match=r"it ended, or how long it took\), found only q1, q4, q5, q6"):
        suggested(tmp_path, without_times)
    without_tokens = [{key: row[key] for key in ("q1", "q2", "q3", "q6")} for row in rows]
    with pytest.raises(TraceError, match=r"tokens of its prompt\), output_tokens \(tokens of its output\)"):
        suggested(tmp_path, without_tokens)


def test_a_strange_word_for_success_is_taken_for_one(tmp_path: Path) -> None:
    """The status that most requests have means success, which is a doubt."""
    rows = [plain(row) | {"status": "tamam" if i % 9 else "error"} for i, row in enumerate(requests(7))]
    found = suggested(tmp_path, rows)
    assert found.columns.ok == {"tamam"}
    assert any("tamam" in doubt for doubt in found.doubts)


def test_the_command_prints_a_map_that_the_audit_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`audit --suggest-map LOG > map.toml`, then `audit LOG --map map.toml`."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{json.dumps(plain(row))}\n" for row in requests(8)))
    assert main(["audit", "--suggest-map", str(path)]) == 0
    text = capsys.readouterr().out
    (tmp_path / "map.toml").write_text(text)
    assert 'output_tokens = "q5"  # it rises' in text
    assert main(["audit", str(path), "--map", str(tmp_path / "map.toml")]) == 0
    assert "ann" in capsys.readouterr().out


def own(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a log with columns of its own."""
    times = {"ts": row["moment"] / 1e9, "ttfb_sec": row["ttft"] / 1e9, "total_sec": row["latency"] / 1e9}
    return times | {"api_key_name": row["client"], "prompt_tok": row["prompt"], "completion_tok": row["output"]}


def test_a_log_with_columns_of_its_own_is_read_where_nothing_is_in_doubt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its map is said on the first line, with the clients; where two columns may be the output, the command is named
    that writes a map."""
    path = tmp_path / "own.jsonl"
    path.write_text("".join(f"{json.dumps(own(row))}\n" for row in requests(9)))
    assert main(["audit", str(path)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("Clients: 3 by key name (api_key_name).")
    for said in ("arrival = ts", "latency = total_sec", "prompt_tokens = prompt_tok", "client = api_key_name"):
        assert said in first
    path.write_text("".join(f"{json.dumps(plain(row) | {'q7': 240 * row['output']})}\n" for row in requests(9)))
    with pytest.raises(SystemExit):
        main(["audit", str(path)])
    (said,) = capsys.readouterr().err.splitlines()
    assert "name them with --map (`fairsched audit --suggest-map` writes one)" in said


@settings(max_examples=40, deadline=None)
@given(
    prompt=st.sampled_from(["input_toks", "promptTok", "nIn", "in_count", "request-tok"]),
    output=st.sampled_from(["output_toks", "completionTok", "nOut", "generated_count", "response-tok"]),
    seed=st.integers(0, 2**32),
)
def test_tokens_are_never_swapped_against_their_names(prompt: str, output: str, seed: int) -> None:
    """Where the one rises with the time after the first token that the other is named for."""
    with TemporaryDirectory() as folder:
        rows = [plain(row) for row in requests(seed)]
        rows = [
            {key: row[key] for key in ("q1", "q2", "q3", "q6")} | {prompt: row["q5"], output: row["q4"]} for row in rows
        ]
        found = suggested(Path(folder), rows).columns.of
    assert (found["prompt_tokens"].name, found["output_tokens"].name) == (prompt, output)


@pytest.mark.parametrize("count", [5, 1000])
def test_two_clocks_are_told_apart(count: int, tmp_path: Path) -> None:
    """Moments since a machine's start beside arrivals since 1970 are neither its first tokens nor lengths of time, also
    in few rows whose answers end in another order than they began."""
    rows = [
        {
            "arrival_time": row["moment"] / 1e9,
            "first_token_ts": 4e5 + i + 0.25,
            "last_token_ts": 4e5 + i + 7.5 * (i % 3),
        }
        | {"input_toks": row["prompt"], "output_toks": row["output"]}
        for i, row in enumerate(requests(11)[:count])
    ]
    with pytest.raises(TraceError, match="first_token_ts is on another clock than arrival_time"):
        suggested(tmp_path, rows)
