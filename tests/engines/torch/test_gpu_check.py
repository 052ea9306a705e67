"""`make gpu-check` goes to its end whatever a part does, and its parts work on a CPU, where no target is missed."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu import __main__ as check
from benchmarks.gpu import hardware, part, worker
from fairsched.engines.torch import SIZES, Llama

WRITE = (
    "import json, os, pathlib, sys; "
    "pathlib.Path(sys.argv[1]).write_text(json.dumps({'status': sys.argv[2], 'rows': [{'met': None}]}))"
)


def test_every_part_has_its_row_whatever_became_of_those_before(tmp_path: Path) -> None:
    """A part that does not end, is killed, breaks or cannot be started is named with its reason and keeps its rows."""

    def writes(name: str, status: str, then: str = "") -> list[str]:
        return [sys.executable, "-c", f"{WRITE}; {then}", str(tmp_path / f"{name}.json"), status]

    parts = {
        "endless": [sys.executable, "-c", "import time; time.sleep(3600)"],
        "killed": writes("killed", "running", "os.kill(os.getpid(), 9)"),
        "broken": [sys.executable, "-c", "print('no such kernel'); raise SystemExit(3)"],
        "missing": [str(tmp_path / "no-such-program")],
        "good": writes("good", "ran"),
    }
    limits = dict.fromkeys(parts, 600.0) | {"endless": 0.0}
    results = {result.part: result for result in check.run_all(parts, limits, tmp_path, os.environ)}
    assert [result.status for result in results.values()] == ["timed out", "died", "died", "failed", "ran"]
    assert "SIGKILL" in results["killed"].note
    assert results["killed"].rows == results["good"].rows == [{"met": None}]
    assert "exit status 3; no such kernel" in results["broken"].note
    assert "no-such-program" in results["missing"].note
    assert all(result.missed for result in list(results.values())[:-1])


def test_the_limits_leave_time_to_start_and_to_write() -> None:
    """All parts together end within ten minutes."""
    assert sum(check.LIMITS_S.values()) <= 580
    assert check.LIMITS_S.keys() == part.MODULES.keys()


@pytest.mark.parametrize(
    ("status", "met", "expected"),
    [("ran", True, 0), ("ran", None, 0), ("ran", False, 1), ("timed out", None, 1), ("not run", None, 2)],
)
def test_the_exit_status_says_whether_a_part_missed(status: str, met: bool | None, expected: int) -> None:
    """A missed target or a part that did not end is 1, a check of nothing 2; facts about the machine are no check."""
    row = {"figure": "f", "value": 1.0, "unit": "%", "target": "x", "met": met, "note": ""}
    hardware_result = check.Result("hardware", "ran", rows=[row | {"met": None}])
    assert check.status_of([hardware_result, check.Result("decode", status, rows=[row])]) == expected


def test_peers_are_beside_ours() -> None:
    """A peer that ran has the ratio of our rate to its own, and the page shows it, and what was missed."""

    def result(name: str, value: float) -> check.Result:
        row = {"figure": check.RATE, "value": value, "unit": "tokens/s", "target": "", "met": None, "note": ""}
        return check.Result(name, "ran", rows=[row])

    results = [result("throughput", 3000.0), result("transformers", 1500.0), check.Result("vllm", "failed", "a | b")]
    results[0].rows.append(
        {"figure": "s", "value": 0.031, "unit": "%", "target": "under 2 %", "met": False, "note": ""}
    )
    check.with_ratios(results)
    text = check.page({"command": "c", "date": "d", "commit": "e", "parts": [vars(each) for each in results]})
    assert "| transformers | ours over theirs | 2 |" in text
    assert "| throughput | s | 3.1 % | under 2 % | **no** |" in text
    assert "| vllm | failed | 0 | a \\| b |" in text


@pytest.mark.parametrize("name", ["hardware", "decode", "prefill", "throughput"])
def test_a_part_runs_small_on_a_cpu(name: str, tmp_path: Path) -> None:
    """It writes positive figures, and a CPU misses no target."""
    assert part.run(name, "cpu", "", tmp_path) == 0
    document = json.loads((tmp_path / f"{name}.json").read_text())
    assert (document["status"], document["note"]) == ("ran", "")
    figures = [row["value"] for row in document["rows"] if not isinstance(row["value"], str)]
    assert len(figures) >= 2
    assert min(figures) > 0
    assert all(row["met"] is None for row in document["rows"])


def test_calibration_is_taken_by_the_validation(tmp_path: Path) -> None:
    """Both run small on a CPU; the second reads the preset of the first, and has an error for each policy."""
    assert [part.run(name, "cpu", "", tmp_path) for name in ("calibrate", "validate")] == [0, 0]
    calibrated, validated = (
        json.loads((tmp_path / f"{name}.json").read_text())["rows"] for name in ("calibrate", "validate")
    )
    assert "scheduler's share" in calibrated[-1]["figure"]
    for policy in ("fcfs", "dlpm"):
        assert sum(row["figure"].startswith(f"{policy}, ") for row in validated) == 3


def test_a_part_that_raises_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is in one line, and what was measured before stays."""

    def fails(setting: part.Setting, notes: part.Notebook) -> None:
        notes.add("before", 1.0)
        raise RuntimeError("CUDA error\nand a long story")

    monkeypatch.setattr(part, "part_of", lambda name: fails)
    assert part.run("decode", "cpu", "", tmp_path) == 1
    document = json.loads((tmp_path / "decode.json").read_text())
    assert (document["status"], document["note"]) == ("failed", "RuntimeError: CUDA error")
    assert [row["figure"] for row in document["rows"]] == ["before"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the check asks for")
def test_without_a_device_the_check_says_so(tmp_path: Path) -> None:
    """The command ends with status 2, a JSON document and a page in which no part ran."""
    assert check.main(["--only", "decode,vllm", "--out", str(tmp_path)]) == 2
    document = json.loads((tmp_path / "gpu.json").read_text())
    said = {each["part"]: (each["status"], each["note"]) for each in document["parts"]}
    assert said == dict.fromkeys(("decode", "vllm"), ("not run", "no CUDA device"))
    assert "| decode | not run |" in (tmp_path / "gpu.md").read_text()


@pytest.mark.nightly
@pytest.mark.usefixtures("by_night")
def test_the_whole_check_on_a_cpu(tmp_path: Path) -> None:
    """Every part ends well, or is not run because a peer is not installed."""
    assert check.main(["--device", "cpu", "--out", str(tmp_path)]) == 0


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_the_roofline_counts_what_is_computed(size: str) -> None:
    """The operations beside attention are those that torch counts, and a decode step reads every matrix once."""
    model = Llama.random(SIZES[size])
    config, tokens = model.config, 10

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return queries

    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        model.forward(torch.zeros(tokens, dtype=torch.int64), torch.arange(tokens), attend, torch.tensor([tokens - 1]))
    scores = 4 * config.layers * config.heads * config.head_dim * tokens * (tokens + 1) / 2
    assert worker.prefill_work(model, tokens).flops - scores == counter.get_total_flops()
    matrices = sum(tensor.nbytes for _, tensor in model.tensors() if tensor.dim() == 2)
    assert worker.decode_work(model, 1, 0).bytes == matrices
    kv = worker.decode_work(model, 3, 100).bytes - matrices
    assert kv == 300 * 2 * config.kv_bytes_per_token  # float32 here, and two bytes a number there


def test_a_step_takes_at_least_what_its_bytes_or_operations_take() -> None:
    """Whichever is longer."""
    peak = hardware.Peaks(bandwidth=100.0, flops=10.0, source="")
    assert worker.Work(bytes=100.0, flops=5.0).seconds(peak) == 1.0
    assert worker.Work(bytes=100.0, flops=50.0).seconds(peak) == 5.0
