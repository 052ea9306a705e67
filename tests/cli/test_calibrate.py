"""`fairsched calibrate` and `validate` with the smallest model: what they write is taken elsewhere, and bad input is
one line."""

from pathlib import Path

import pytest

from fairsched.cli import main
from fairsched.engines.calibration.from_log import LogMachine
from fairsched.engines.calibration.from_log.machine import COEFFICIENTS
from fairsched.model.machine import decoded
from fairsched.verify.report import deployment as deployments
from fairsched.verify.report import load
from tests.cli.conftest import Figures, Refused
from tests.support.engines.log_machines import written

TINY = ["--model", "tiny", "--kv-capacity-tokens", "512", "--batch-max", "2:32", "--clock", "thread"]
SHORT = "multi-turn:sessions=12,turns=1,system_tokens=16,question_tokens=16,output_tokens=8,max_output_tokens=16"


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preset of the smallest model."""
    target = tmp_path_factory.mktemp("calibrated") / "tiny.json"
    assert main(["calibrate", *TINY, "--repeats", "1", "--out", str(target)]) == 0
    return target


def test_a_preset_says_what_was_measured(preset: Path) -> None:
    """The document has the engine's facts, and no word about the machine."""
    found = decoded(preset.read_bytes())
    assert found.name == "tiny-cpu"
    assert found.kv_capacity_tokens == 512
    assert found.engine is not None
    assert (found.engine.model, found.engine.clock, found.engine.dated) == ("tiny", "thread", None)
    assert "model tiny, float32, torch" in found.source


def test_calibration_shows_its_residuals(figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a row a kind of step; the JSON has the same with the worst point and the scheduler's share."""
    document = figures("calibrate", *TINY, "--repeats", "1", "--policy", "dlpm")
    out = capsys.readouterr().out
    assert all(word in out for word in ("prefill", "decode", "mixed", "Scheduler's share of a step"))
    assert [residual["kind"] for residual in document["residuals"]] == ["prefill", "decode", "mixed"]
    assert all(residual["points"] and residual["mape"] >= 0 for residual in document["residuals"])
    assert 0 < document["decide_share"] < document["scheduler_share"] < 1


def test_compare_takes_a_preset(preset: Path, figures: Figures) -> None:
    """`compare --latency-model FILE` simulates workers of the calibrated engine."""
    arguments = [SHORT, "--policies", "fcfs", "--latency-model", str(preset)]
    trace = figures("compare", *arguments)["trace"]
    assert trace["latency_model"] == "tiny-cpu"
    assert trace["kv_capacity_tokens"] == 512


def test_a_deployment_takes_a_preset(preset: Path, tmp_path: Path) -> None:
    """`verify --config` finds the file beside the configuration, and a certificate's document holds the whole model."""
    (preset.parent / "deployment.toml").write_text('latency_model = "tiny.json"\n')
    deployment = load(preset.parent / "deployment.toml")
    assert deployment.latency == decoded(preset.read_bytes()).latency
    assert deployment.kv_capacity_tokens == 512
    assert deployments.read(deployments.document(deployment)) == deployment
    for text, said in (
        ('latency_model = "gone.json"', "gone.json"),
        ("latency_model = [1]", "unknown latency_model"),
        ("latency_model = { name = 1 }", "no latency preset"),
    ):
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(ValueError, match=said):
            load(tmp_path / "bad.toml")


def test_validate_reports_and_logs(
    preset: Path, figures: Figures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two policies, two runs each: every error of every run is in the document, and each log replays."""
    logs = tmp_path / "logs"
    arguments = [*TINY, SHORT, "--preset", str(preset), "--runs", "2", "--policy", "fcfs"]
    document = figures("validate", *arguments, "--policy", "vtc", "--set", "reserve=static", "--log", str(logs))
    out = capsys.readouterr().out
    assert all(word in out for word in ("normalized_latency.p95", "makespan", "SLO attainment", "step time MAPE"))
    assert document["load"] == 0.85
    assert [entry["policy"] for entry in document["policies"]] == ["fcfs", "vtc"]
    for entry in document["policies"]:
        assert len(entry["runs"]) == 2
        assert all(run["figures"]["makespan_us"] > 0 and run["steps"] > 0 for run in entry["runs"])
        assert {len(errors) for errors in entry["errors"].values()} == {2}
    for path in sorted(logs.iterdir()):
        assert main(["audit", str(path), "--replay"]) == 0
    assert len(list(logs.iterdir())) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("calibrate", "--model", "huge"), "neither a folder nor one of tiny"),
        (("calibrate", "--clock", "thread", "--device", "cpu:2"), "use --device cpu"),
        (("calibrate", "--model", "tiny", "--kv-capacity-tokens", "100"), "less than 8 for each of 32"),
        (("calibrate", "--batch-max", "1"), "at least 2"),
        (("validate", "--set", "reserve"), "PARAM=VALUE"),
        (("validate", "--set", "max_running=64"), "--batch-max 32"),
        (("validate", "--model", "tiny", "--preset", "gone.json"), "gone.json"),
        (("compare", "--latency-model", "gone.json"), "gone.json"),
    ],
)
def test_bad_input_is_said(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be done is said in the last line on standard error, with exit status 2."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_a_preset_of_another_engine_is_refused(preset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Validation is about the engine that was measured: other threads, sizes or clocks are told apart."""
    for given, said in (
        (["--batch-max", "2:16"], "was measured with chunk_max 32, and this engine has 16"),
        (["--batch-max", "2:32", "--kv-capacity-tokens", "600"], "kv_capacity_tokens 512"),
    ):
        capacity = [] if "--kv-capacity-tokens" in given else TINY[2:4]
        with pytest.raises(SystemExit):
            main(["validate", *TINY[:2], *capacity, *TINY[6:], SHORT, "--preset", str(preset), *given])
        assert said in capsys.readouterr().err


def test_a_machine_of_a_log(figures: Figures, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`calibrate LOG` prints what was found and observed against simulated times of the held-out half, and writes a
    preset with the server's settings, without torch."""
    machine = LogMachine((3e6, 150e3, 20e3, 4e6, 1000, 800e3), max_running=8, max_batched_tokens=256)
    log = written(tmp_path / "access.jsonl", machine, seed=2, count=140, rate=7)
    out = tmp_path / "machine.json"
    document = figures("calibrate", str(log), "--workers", "1", "--out", str(out))
    said = capsys.readouterr().out
    assert "held-out half" in said
    assert "p95" in said
    server = decoded(out.read_bytes()).server
    assert server is not None
    assert server.workers == 1
    assert server.credible == document["credible"]
    assert list(document["machine"]["times"]) == list(COEFFICIENTS)
    assert document["preset"]["name"] == "access.jsonl"


def test_a_log_that_is_not_there_is_one_line(refused: Refused, tmp_path: Path) -> None:
    """The file is named."""
    assert "gone.jsonl" in refused("calibrate", str(tmp_path / "gone.jsonl"))
