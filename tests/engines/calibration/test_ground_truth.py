"""The simulator is held against what others measured on GPUs: their files are read as what they are, and both runs that
are known request by request are met within what `docs/validation.json` says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairsched.cli import main
from fairsched.engines.calibration import hold, read_experiments
from fairsched.engines.calibration.ground_truth import FITTED_LOADS, TABLED, figures
from tests.engines.calibration.test_kernel_tables import written

TRUTH = Path(__file__).parents[4] / "shared" / "ground-truth"
RECORDED = Path(__file__).parents[3] / "docs" / "validation.json"
RUN = "rtx4090-llama-3.1-8b"


def lines(path: Path, *rows: dict[str, Any]) -> None:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def request(number: int, arrival: float, queued: float, first: float, last: float, tokens: int = 40) -> dict[str, Any]:
    """A request as LLMServingSim's `bench` records it."""
    times = {"arrival_time": arrival, "queued_ts": queued, "first_token_ts": first, "last_token_ts": last}
    return {"request_id": f"bench-{number}", "input_toks": tokens, "output_toks": 11} | times


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a run of two requests."""
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "tensor_parallel_size": 1}
    meta = {"vllm_version": "0.19.0", "engine_kwargs": settings, "kv_cache": {"num_gpu_blocks": 50}}
    (tmp_path / f"{RUN}-meta.json").write_text(json.dumps(meta))
    # The wall clock shows 1,000 where the other shows 5; the second request was queued a second late.
    lines(
        tmp_path / f"{RUN}-requests.jsonl",
        request(1, 1002.0, 8.0, 9.0, 10.0),
        request(0, 1000.0, 5.0, 6.0, 8.0),
    )
    lines(
        tmp_path / f"{RUN}-blocks.jsonl",
        {"request": "bench-0", "prompt_tokens": 40, "blocks_of_16": [0, 1]},
        {"request": "bench-1", "prompt_tokens": 40, "blocks_of_16": [0, 1]},
    )
    tables = tmp_path / "kernels"
    tables.mkdir()
    for name in ("dense", "per_sequence", "attention", "skew_fit"):
        source = written(tables) / f"{name}.csv"
        source.rename(tables / f"{RUN}-{name}.csv")
    (tmp_path / f"{RUN}-llmservingsim.txt").write_text(
        "Metric  vLLM  Sim  Diff%\n-----\nTTFT Mean  1500.0  3000.0  +100%\nTPOT P99  150.0  75.0  -50%\n"
    )
    return tmp_path


def test_clocks_are_aligned_where_a_request_is_queued_soonest(folder: Path) -> None:
    """TTFT is from the arrival on the wall clock, not from when the request was queued."""
    (run,) = read_experiments(folder)
    measured = run.stages[0].measured
    assert measured["ttft.mean"] == pytest.approx((1 + 2) / 2)
    assert measured["latency.p50"] == pytest.approx((3 + 3) / 2)
    assert measured["tpot.mean"] == pytest.approx((2 + 1) / 2 / 10)
    assert [job.request.arrival_ns for job in run.workload.jobs] == [0, 2 * 10**9]
    assert run.options.num_gpu_blocks == 50
    assert run.published == {"LLMServingSim": {"ttft.mean": (3.0, 1.5), "tpot.p99": (0.075, 0.15)}}


def test_equal_blocks_are_cached(folder: Path) -> None:
    """A prompt whose blocks came before takes less time than another, and the first waits until kernels are loaded."""

    def second(*blocks: int) -> float:
        prompts = [0, 1], blocks
        rows = ({"request": f"bench-{i}", "prompt_tokens": 40, "blocks_of_16": each} for i, each in enumerate(prompts))
        lines(folder / f"{RUN}-blocks.jsonl", *rows)
        (run,) = read_experiments(folder)
        held = hold(run)
        assert set(held.errors(0)) == set(run.stages[0].measured)
        return 2 * held.simulated[0]["ttft.mean"] - 0.37

    assert 0 < second(0, 1) < second(0, 2) < second(2, 3) < 0.01


def stage(requests: int, failed: int = 0) -> dict[str, Any]:
    """What was measured of a stage."""
    ranks = ("mean", "median", "p90", "p99")
    lengths = dict.fromkeys(("p1", "p5", "p10", "p25", "median", "p75", "p90", "p95", "p99", "max"), 100.0)
    times = {name: dict.fromkeys(ranks, value) for name, value in (("ttft_s", 0.02), ("latency_s", 0.11))}
    counts = {"requests": requests, "succeeded": requests - failed, "failed": failed}
    return {**counts, **times, "throughput": {"requests_per_sec": 2.0}, "prompt_tokens": lengths}


def load(**changed: Any) -> dict[str, Any]:
    """A load of two stages on one H100."""
    shared = {
        "num_unique_system_prompts": 2,
        "num_users_per_system_prompt": 3,
        "output_len": 10,
        "system_prompt_len": 33,
    }
    stages = [{"duration": 5, "rate": 2}, {"duration": 5, "rate": 4}]
    return {
        "id": "llama-2-7b-tp1-codegen",
        "hardware": "H100",
        "engine": "vLLM 0.15.1",
        "model": "meta-llama/Llama-2-7b-hf",
        "tensor_parallelism": 1,
        "max_model_len": 4096,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 128,
        "load": {"stages": stages, "shared_prefix": shared},
        "measured": {"stage_0": stage(10), "stage_1": stage(20, 5)},
    } | changed


def test_loads_are_users_in_groups_at_rates(tmp_path: Path) -> None:
    """Requests fill their stages; users of a group share whole blocks of the system prompt and each their own."""
    (tmp_path / "vllm-h100.json").write_text(json.dumps([load()]))
    (found,) = read_experiments(tmp_path)
    times = [job.request.arrival_ns for job in found.workload.jobs]
    assert len(times) == 30
    assert times[9] == 5 * 10**9 < times[10] <= times[29] == 10 * 10**9
    prompts = [job.request.prompt for job in found.workload.jobs]
    assert prompts[0] == prompts[6] != prompts[2]
    assert prompts[0].keys[:16] == prompts[2].keys[:16] != prompts[1].keys[:16]
    assert [stage.measured["lost"] for stage in found.stages] == [0, 0.25]
    assert found.stages[0].measured["tpot.mean"] == pytest.approx(0.01)
    assert found.fitted
    assert {load()["id"], "mixtral-8x7b-v0-1-tp2-reasoning"} < set(FITTED_LOADS)
    assert len(FITTED_LOADS) == 3


def test_what_others_predict_is_of_the_same_experiment(tmp_path: Path) -> None:
    """Rows count whose measured mean latency is this experiment's; a row of another experiment does not."""
    (tmp_path / "vllm-h100.json").write_text(json.dumps([load()]))
    head = "simulator,experiment,model,metric,predicted_ms,measured_ms\n"
    same = "vidur,a,meta-llama/Llama-2-7b-hf,e2e_mean,220,110\nvidur,a,meta-llama/Llama-2-7b-hf,ttft_mean,10,20\n"
    (tmp_path / "simulators.csv").write_text(head + same + "vidur,b,meta-llama/Llama-2-7b-hf,e2e_mean,99,120\n")
    (found,) = read_experiments(tmp_path)
    assert found.published == {"vidur": {"latency.mean": (0.22, 0.11), "ttft.mean": (0.01, 0.02)}}
    assert found.stages[-1].measured == pytest.approx({"latency.mean": 0.11, "ttft.mean": 0.02, "tpot.mean": 0.01})


def test_a_held_load_has_every_measured_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`validate --truth` prints measured beside simulated, and writes both."""
    (tmp_path / "vllm-h100.json").write_text(json.dumps([load()]))
    assert main(["validate", "--truth", str(tmp_path), "--json", str(tmp_path / "found.json")]) == 0
    (entry,) = json.loads((tmp_path / "found.json").read_text())["experiments"]
    assert [each["name"] for each in entry["stages"]] == ["stage_0: 2 a second", "stage_1: 4 a second"]
    measured, simulated = entry["stages"][1]["figures"]["lost"]
    assert (measured, simulated) == (0.25, 0)
    assert "-25.0 points" in capsys.readouterr().out


def test_figures_are_interpolated() -> None:
    """Percentiles lie between samples, and a request of one token has no TPOT."""
    arrival, first, end, output = (np.array(column) for column in ([0, 0], [1, 2], [3, 2], [3, 1]))
    found = figures(arrival, first, end, output)
    assert (found["ttft.p50"], found["ttft.p90"], found["tpot.mean"], found["latency.mean"]) == (1.5, 1.9, 1, 2.5)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("requests.jsonl", '{"request_id": "bench-0"}\n', r"requests.jsonl, line 1: .*input_toks"),
        ("requests.jsonl", "", "requests.jsonl: there are no requests"),
        ("blocks.jsonl", "", "requests.jsonl: bench-0 has 40 tokens, and no such blocks are known"),
        ("meta.json", "{", "meta.json: "),
        ("meta.json", '{"vllm_version": "0.19", "engine_kwargs": {}}', "meta.json: kv_cache has no num_gpu_blocks"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(folder: Path, name: str, text: str, message: str) -> None:
    """File, line and field are named."""
    (folder / f"{RUN}-{name}").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_experiments(folder)


def test_a_folder_without_experiments_is_refused(tmp_path: Path) -> None:
    """A folder in which nothing is known says so, and a load of an unknown model names it."""
    with pytest.raises(ValueError, match="has no file of an experiment"):
        read_experiments(tmp_path)
    (tmp_path / "vllm-h100.json").write_text(json.dumps([load(model="a/b")]))
    with pytest.raises(ValueError, match=r"vllm-h100.json: llama-2-7b-tp1-codegen: .*a/b"):
        read_experiments(tmp_path)


def recorded(name: str) -> dict[str, Any]:
    """Return what `make validate` wrote of an experiment."""
    found: dict[str, Any] = next(
        each for each in json.loads(RECORDED.read_text())["experiments"] if each["name"] == name
    )
    return found


@pytest.mark.skipif(not TRUTH.exists(), reason="the published files are not here")
@pytest.mark.parametrize("name", TABLED)
def test_runs_request_by_request_are_met(name: str) -> None:
    """TPOT and latency are within 1 % in mean, p50, p90 and p99, TTFT within 2 %, as recorded."""
    held = hold(next(each for each in read_experiments(TRUTH) if each.name == name))
    errors = held.errors(0)
    assert max(abs(error) for key, error in errors.items() if key.startswith("ttft")) < 0.02
    assert max(abs(error) for key, error in errors.items() if key.startswith(("tpot", "latency"))) < 0.0105
    (stage,) = recorded(name)["stages"]
    assert {key: said for key, (_, said) in stage["figures"].items()} == pytest.approx(
        {key: held.simulated[0][key] for key in errors}
    )


def test_loads_below_saturation_are_predicted() -> None:
    """Of loads that were not fitted and lose nothing, TPOT and latency are within 4 % in mean, the median TTFT within
    10 %, as recorded."""
    found = [
        stage["figures"]
        for each in json.loads(RECORDED.read_text())["experiments"]
        for stage in each["stages"]
        if not each["fitted"] and stage["figures"].get("lost", [1])[0] == 0
    ]
    assert len(found) >= 7

    def mean(key: str) -> float:
        return float(np.mean([abs(figure[key][1] / figure[key][0] - 1) for figure in found]))

    assert mean("tpot.mean") < 0.04
    assert mean("latency.mean") < 0.04
    assert mean("ttft.p50") < 0.1
