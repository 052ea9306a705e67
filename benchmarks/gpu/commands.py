"""The CUDA tests, `fairsched calibrate` and `fairsched validate`: what they find, as rows."""

import json
import statistics
from pathlib import Path

import pytest

from benchmarks.gpu.part import Notebook, Setting
from fairsched.cli import main

ROOT = Path(__file__).parents[2]
SCHEDULER_TARGET, P95_TARGET = 0.02, 0.05
FIGURES = {"ttft_us.p95": "TTFT p95", "tpot_us.p95": "TPOT p95", "normalized_latency_us.p95": "normalised latency p95"}


class Outcomes:
    """A plugin that notes each test when it is over."""

    def __init__(self, notes: Notebook) -> None:
        self.notes = notes
        self.passed = self.skipped = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count what passes; name what does not."""
        if report.failed:
            why = report.longreprtext.strip().splitlines()
            said = next((line for line in reversed(why) if line.startswith("E ")), why[-1] if why else "")
            self.notes.add(report.nodeid.rpartition("::")[2], "failed", note=said.removeprefix("E").strip()[:200])
        elif report.skipped:
            self.skipped += 1
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.notes.add(report.nodeid.rpartition("::")[2], "skipped", note=why)
        elif report.when == "call":
            self.passed += 1


def tests_part(setting: Setting, notes: Notebook) -> None:
    """Every test of the torch worker that needs CUDA; on a CPU their twins."""
    outcomes = Outcomes(notes)
    options = [
        "-q",
        "-W",
        "default",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(ROOT),
        "-c",
        str(ROOT / "pyproject.toml"),
    ]
    options += ["--override-ini", "addopts=--import-mode=importlib --strict-markers"]
    where = ROOT / "tests" / "engines" / "torch"
    if setting.cuda:
        options += ["-m", "cuda", str(where)]
    else:
        options += ["-m", "not cuda", str(where / "test_cuda.py")]
    code = pytest.main(options, plugins=[outcomes])
    good = code == 0 and outcomes.passed > 0 and not outcomes.skipped
    notes.hold("tests passed", outcomes.passed, "", "all of them", good, f"pytest's exit status {int(code)}")


def engine_of(setting: Setting) -> list[str]:
    """Return the options that name the engine."""
    options = {
        "--model": setting.model,
        "--device": setting.device,
        "--kv-capacity-tokens": setting.kv_capacity,
        "--batch-max": f"{setting.batch_max}:{setting.chunk_max}",
        "--clock": setting.clock,
    }
    return [word for name, value in options.items() for word in (name, str(value))]


def _command(*words: str) -> None:
    code = main(list(words))
    if code:
        raise RuntimeError(f"`fairsched {words[0]}` ended with exit status {code}: see the log")


def calibrate_part(setting: Setting, notes: Notebook) -> None:
    """A latency model of this engine, with what it misses, and the scheduler's share of a step."""
    figures, preset = setting.folder / "calibrate-figures.json", setting.folder / "preset.json"
    _command(
        "calibrate", *engine_of(setting), "--repeats", str(setting.repeats), "--policy", "dlpm",
        "--out", str(preset), "--json", str(figures),
    )  # fmt: skip
    found = json.loads(figures.read_text())
    for residual in found["residuals"]:
        if residual["mape"] is not None:
            note = f"{residual['points']} steps that were not fitted, worst {100 * residual['worst']:+.1f} %"
            notes.add(f"{residual['kind']} steps, error of the model", residual["mape"], "%", note)
    _scheduler(notes, "dlpm over the grid", found["scheduler_share"])


def validate_part(setting: Setting, notes: Notebook) -> None:
    """The simulator with that latency model against the engine in real time, one policy after the other."""
    preset = setting.folder / "preset.json"
    known = ["--preset", str(preset)] if preset.exists() else ["--repeats", "1"]
    for name in ("fcfs", "dlpm"):
        figures = setting.folder / f"validate-{name}-figures.json"
        _command(
            "validate", *engine_of(setting), *known, setting.workload, "--runs", str(setting.runs),
            "--policy", name, "--json", str(figures),
        )  # fmt: skip
        (policy,) = json.loads(figures.read_text())["policies"]
        for key, title in FIGURES.items():
            errors, at_speed = policy["errors"][key], policy["errors_at_speed"][key]
            if errors:
                error = statistics.median(errors)
                note = f"runs {_percents(errors)}; with the machine's speed in each run {_percents(at_speed)}"
                figure = f"{name}, {title}, simulated over real less 1"
                notes.hold(figure, error, "%", "within 5 %", abs(error) <= P95_TARGET, note)
        shares = [run["scheduler_share"] for run in policy["runs"]]
        _scheduler(notes, f"{name} serving", statistics.median(shares))


def _scheduler(notes: Notebook, what: str, share: float) -> None:
    notes.hold(f"scheduler's share of a step, {what}", share, "%", "under 2 %", share < SCHEDULER_TARGET)


def _percents(values: list[float]) -> str:
    return ", ".join(f"{100 * value:+.1f} %" for value in values)
