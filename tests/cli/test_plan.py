"""`fairsched plan` and `scale`: an answer that is true of its runs, a cluster that grows step by step, and one clear
line for what is wrong."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fairsched as fs
from fairsched.engines.calibration import with_slo
from fairsched.engines.capacity import measured
from fairsched.engines.simulation import Cluster, RunSpec
from fairsched.model.machine import DEFAULT_PRESET, PRESETS, as_builtins
from fairsched.model.request import Slo
from tests.cli.conftest import Figures, Refused

WORKLOAD = ["azure-chat:requests=60,rate=12,arrivals=poisson", "--latency-model", "opt-13b-a100"]
SLO = ["--slo", "ttft=2s,tpot=50ms"]


def test_plan_says_how_many(figures: Figures, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number of workers, each placement's own, every run's figures, and a report with the plot."""
    arguments = ["plan", *WORKLOAD, "--slo", "ttft=1s,tpot=50ms", "--attainment", "0.9", "--workers-max", "16"]
    said = figures(*arguments, "--routers", "round-robin", "--report", str(tmp_path))
    placements = said["placements"]
    assert set(placements) == {"aladdin", "round-robin"}
    for each in placements.values():
        tried = {int(n): measures["slo_attainment"] for n, measures in each["tried"].items()}
        assert tried[each["workers"]] >= 0.9
        assert each["workers"] == 1 or tried[each["workers"] - 1] < 0.9
    assert said["workers"] == placements["aladdin"]["workers"]
    assert str(said["workers"]) in placements["round-robin"]["tried"]
    shown = capsys.readouterr().out
    assert shown.startswith("Simulated: opt-13b-a100 (1 x a100), not held against measurements.")
    assert f"{said['workers']} workers of opt-13b-a100 keep ttft=1 s, tpot=50 ms" in shown
    assert "<svg" in (tmp_path / "index.html").read_text()
    arguments[-1] = str(said["workers"] - 1)
    assert figures(*arguments, "--routers", "round-robin", status=1)["workers"] is None


@given(ttft_ms=st.integers(1, 300), attainment=st.sampled_from([0.2, 0.5, 0.9, 1.0]), seed=st.integers(0, 9))
@settings(max_examples=12, deadline=None)
def test_what_no_number_of_workers_keeps_is_not_kept_by_one_for_each_request(
    ttft_ms: int, attainment: float, seed: int
) -> None:
    """Where a plan says so; and where one for each request keeps the targets, it does not say so."""
    workload, slo = fs.generate("azure-chat", requests=8, seed=seed), Slo(ttft_ns=ttft_ms * 10**6, tpot_ns=10**9)
    run = RunSpec.of("fcfs", "round-robin", params={"batching": "eager-prefill"})
    kept = measured(with_slo(workload, slo), run, Cluster(PRESETS[DEFAULT_PRESET]))(8).slo_attainment or 0.0
    refused = pytest.raises(ValueError, match="no number of workers is enough")
    with nullcontext() if kept >= attainment else refused:
        fs.plan(workload, slo, attainment=attainment, routers=[], workers_max=1)


def test_sizes_that_nobody_timed_and_parameters(figures: Figures) -> None:
    """A size between two is weighed and simulated, and variants of Aladdin get the targets and their parameters."""
    arguments = ["plan", WORKLOAD[0], "--slo", "ttft=1s,tpot=50ms", "--attainment", "0.9", "--workers-max", "8"]
    arguments += ["--latency-model", "opt-13b-a100,opt-13b-a100-tp4", "--scaled-to", "2"]
    said = figures(*arguments, "--routers", "aladdin-split", "--set", "aladdin-split.prefill_workers=1")
    assert [each["gpus"] for each in said["sizes"]] == [1, 4, 2]
    assert (said["size"], said["gpus_per_worker"]) == ("2 GPUs by equation 5", 2)
    assert set(said["placements"]) == {"aladdin", "aladdin-split"}


def test_a_size_is_chosen_per_joule(figures: Figures) -> None:
    """Four GPUs together draw more for a token than one, and every placement says what a request draws."""
    arguments = ["plan", "azure-chat:requests=20", *SLO, "--routers", "round-robin", "--per", "joule"]
    said = figures(*arguments, "--latency-model", "llama-3.1-8b-h100,llama-3.1-8b-h100-tp4")
    by_size = {each["name"]: each["tokens_per_joule"] for each in said["sizes"]}
    assert said["size"] == max(by_size, key=by_size.__getitem__) == "llama-3.1-8b-h100"
    for each in said["placements"].values():
        assert all(measures["joules_per_request"] > measures["joules_per_token"] for measures in each["tried"].values())


def test_figures_are_for_one_gpu_of_a_worker(
    figures: Figures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker of eight GPUs counts as eight; a document that does not say how many counts as one, with a note; and
    what is said on the command line goes before both."""
    model = PRESETS["llama-2-70b-h100"]
    old = as_builtins(model)
    assert old.pop("gpus") == 8
    (tmp_path / "old.json").write_text(json.dumps(old))
    names = ["llama-2-70b-h100", f"{tmp_path}/old.json", f"{tmp_path}/old.json:8"]
    arguments = ["plan", "azure-chat:requests=20", *SLO, "--routers", "round-robin"]
    said = figures(*arguments, "--latency-model", ",".join(names))
    rates = [each["tokens_per_s_per_gpu"] for each in said["sizes"]]
    assert [each["gpus"] for each in said["sizes"]] == [8, 1, 8]
    assert rates[0] == rates[2] == pytest.approx(rates[1] / 8)
    assert [note for note in said["notes"] if "counts as one" in note] == said["notes"] != []
    assert "does not say how many GPUs" in capsys.readouterr().out
    assert said["gpus"] == said["workers"] * said["gpus_per_worker"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slo", "ttft=2s"], "one for tpot"),
        (["--slo", "ttft=2s,tpot=fast"], "expected ttft=TIME,tpot=TIME"),
        (["--slo", "ttft=2s,tpot=1ms"], "no size keeps"),
        (["--slo", "ttft=1ms,tpot=1s"], "no number of workers is enough"),
        ([*SLO, "--latency-model", "opt-13b-a100:0"], "at least one GPU"),
        ([*SLO, "--scaled-to", "2"], "two or more sizes"),
        (
            [*SLO, "--latency-model", "opt-13b-a100,opt-13b-a100-tp2", "--scaled-to", "4,2"],
            "opt-13b-a100-tp2 has 2 GPUs, and was timed",
        ),
        ([*SLO, "--set", "aladdin=1"], "ROUTER.PARAM=VALUE"),
        ([*SLO, "--set", "aladdin.slack=1", "--set", "aladdin.slack=2"], "aladdin.slack is set twice"),
        ([*SLO, "--set", "sal.x=1"], "not among --routers"),
        ([*SLO, "--set", "aladdin.slak=printed"], "did you mean slack"),
        ([*SLO, "--kv-capacity-tokens", "100"], "every request needs more than the 100 KV tokens"),
        ([*SLO, "--attainment", "2"], "at most 1"),
        ([*SLO, "--predictor", "guess"], "predictor"),
        ([], "--slo"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], said: str, refused: Refused) -> None:
    """In one line, with exit status 2."""
    assert said in refused("plan", "demo", *arguments)
