"""`fairsched plan`: an answer that is true of its runs, and one clear line for what is wrong."""

import json
from pathlib import Path

import pytest

from fairsched.cli import main
from tests.cli.conftest import Refused

WORKLOAD = ["--workload", "azure-chat:requests=60,rate=12,arrivals=poisson", "--latency-model", "opt-13b-a100"]


def test_plan_says_how_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number of workers, each placement's own, every run's figures, and a report with the plot."""
    out = tmp_path / "plan.json"
    arguments = ["plan", *WORKLOAD, "--slo", "ttft=1s,tpot=50ms", "--attainment", "0.9", "--workers-max", "16"]
    assert main([*arguments, "--routers", "round-robin", "--json", str(out), "--report", str(tmp_path)]) == 0
    said = json.loads(out.read_text())
    placements = said["placements"]
    assert set(placements) == {"aladdin", "round-robin"}
    for each in placements.values():
        tried = {int(n): measures["slo_attainment"] for n, measures in each["tried"].items()}
        assert tried[each["workers"]] >= 0.9
        assert each["workers"] == 1 or tried[each["workers"] - 1] < 0.9
    assert said["workers"] == placements["aladdin"]["workers"]
    assert str(said["workers"]) in placements["round-robin"]["tried"]
    shown = capsys.readouterr().out
    assert f"{said['workers']} workers of opt-13b-a100 keep ttft=1 s, tpot=50 ms" in shown
    assert "<svg" in (tmp_path / "index.html").read_text()


def test_sizes_that_nobody_timed_and_parameters(tmp_path: Path) -> None:
    """A size between two is weighed and simulated, and variants of Aladdin get the targets and their parameters."""
    out = tmp_path / "plan.json"
    arguments = ["plan", *WORKLOAD[:2], "--slo", "ttft=1s,tpot=50ms", "--attainment", "0.9", "--workers-max", "8"]
    arguments += ["--latency-model", "opt-13b-a100,opt-13b-a100-tp4", "--scaled-to", "2", "--json", str(out)]
    assert main([*arguments, "--routers", "aladdin-split", "--set", "aladdin-split.prefill_workers=1"]) == 0
    said = json.loads(out.read_text())
    assert [each["gpus"] for each in said["sizes"]] == [1, 4, 2]
    assert (said["size"], said["gpus_per_worker"]) == ("2 GPUs by equation 5", 2)
    assert set(said["placements"]) == {"aladdin", "aladdin-split"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slo", "ttft=2s"], "one for tpot"),
        (["--slo", "ttft=2s,tpot=fast"], "expected ttft=TIME,tpot=TIME"),
        (["--slo", "ttft=2s,tpot=1ms"], "no size keeps"),
        (["--slo", "ttft=2s,tpot=50ms", "--routers", "roundrobin"], "did you mean round-robin"),
        (["--slo", "ttft=2s,tpot=50ms", "--latency-model", "opt-13b-a100:0"], "at least one GPU"),
        (["--slo", "ttft=2s,tpot=50ms", "--scaled-to", "0"], "numbers of GPUs"),
        (["--slo", "ttft=2s,tpot=50ms", "--scaled-to", "2"], "two or more sizes"),
        (
            ["--slo", "ttft=2s,tpot=50ms", "--latency-model", "opt-13b-a100,opt-13b-a100-tp2", "--scaled-to", "4,2"],
            "opt-13b-a100-tp2 has 2 GPUs, and was timed",
        ),
        (["--slo", "ttft=2s,tpot=50ms", "--set", "aladdin=1"], "ROUTER.PARAM=VALUE"),
        (["--slo", "ttft=2s,tpot=50ms", "--set", "sal.x=1"], "not among --routers"),
        (["--slo", "ttft=2s,tpot=50ms", "--set", "aladdin.slak=ahead"], "did you mean slack"),
        (["--slo", "ttft=2s,tpot=50ms", "--attainment", "2"], "at most 1"),
        (["--slo", "ttft=2s,tpot=50ms", "--predictor", "guess"], "predictor"),
        ([], "--slo"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], said: str, refused: Refused) -> None:
    """In one line, with exit status 2."""
    assert said in refused("plan", "--workload", "demo", *arguments)
