"""Check this package on a GPU: CUDA tests, calibration, validation, rooflines, peers.  Writes gpu.json and gpu.md.

    python -m benchmarks.gpu [--device cuda] [--model 8b] [--only decode,prefill] [--out out/gpu]

`--device cpu` runs the same parts small, to see that they work.  The exit status is 1 if a target was missed or a part
failed, 2 if there was nothing to check (no CUDA device), else 0.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

LIMITS_S = {
    "hardware": 40,
    "tests": 90,
    "decode": 60,
    "prefill": 40,
    "calibrate": 80,
    "validate": 90,
    "throughput": 40,
    "transformers": 50,
    "vllm": 80,
}
"""The parts in order, with the seconds that each has at least: what a part leaves, those after it may use."""

PEERS = ("transformers", "vllm")
RATE = "output tokens a second"

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass
class Result:
    """A part: whether it `ran`, is `not run`, `failed`, `died` or `timed out`, why, and its rows."""

    part: str
    status: str
    note: str = ""
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def missed(self) -> bool:
        """Whether something is wrong: not what another machine lacks."""
        return self.status not in ("ran", "not run") or any(row["met"] is False for row in self.rows)


def run_part(name: str, argv: Sequence[str], found: Path, limit_s: float, env: Mapping[str, str]) -> Result:
    """Run a part in a process group of its own, which is gone afterwards; it writes its rows to `found` as it goes."""
    start = time.monotonic()
    with found.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            argv, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=dict(env), start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout=max(limit_s, 0))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    seconds = time.monotonic() - start
    written = _read(found)
    status, note, rows = written.get("status", "running"), written.get("note", ""), written.get("rows", [])
    if status == "running":
        if code is None:
            status, note = "timed out", f"its limit was {limit_s:.0f} s"
        else:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            status, note = "died", f"{how}; {_last_line(found.with_suffix('.log'))}"
    return Result(name, status, note, seconds, rows)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill what is left of the part's group: a peer's own processes may outlive it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it printed nothing"


def run_all(
    parts: Mapping[str, Sequence[str]],
    limits_s: Mapping[str, float],
    folder: Path,
    env: Mapping[str, str],
    told: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Run each part's command; a part has its own limit and what those before it left of theirs."""
    results: list[Result] = []
    start, due = time.monotonic(), 0.0
    for name, argv in parts.items():
        due += limits_s[name]
        left = due - (time.monotonic() - start)
        try:
            result = run_part(name, argv, folder / f"{name}.json", left, env)
        except OSError as error:
            result = Result(name, "failed", str(error))
        results.append(result)
        told(result)
    return results


def with_ratios(results: Sequence[Result]) -> None:
    """Give each peer that ran the ratio of our rate to its own."""
    rates = {
        result.part: row["value"] for result in results for row in result.rows if row["figure"] == RATE and row["value"]
    }
    for result in results:
        if result.part in PEERS and {"throughput", result.part} <= rates.keys():
            ratio = rates["throughput"] / rates[result.part]
            row = {"figure": "ours over theirs", "value": ratio, "unit": "", "target": "", "met": None, "note": ""}
            result.rows.append(row)


def status_of(results: Sequence[Result]) -> int:
    """Return the exit status."""
    if any(result.missed for result in results):
        return 1
    return 0 if any(result.status == "ran" and result.part != "hardware" for result in results) else 2


# --- the page ---------------------------------------------------------------------------------------------------------


def page(document: Mapping[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = ["# GPU check", "", f"{document['command']}, {document['date']}, commit {document['commit']}.", ""]
    lines += ["| part | | seconds | |", "|---|---|---|---|"]
    for part in document["parts"]:
        lines.append(_line(part["part"], part["status"], f"{part['seconds']:.0f}", part["note"]))
    lines += ["", "| part | figure | measured | target | met | |", "|---|---|---|---|---|---|"]
    for part in document["parts"]:
        for row in part["rows"]:
            met = {True: "yes", False: "**no**", None: ""}[row["met"]]
            lines.append(
                _line(part["part"], row["figure"], shown(row["value"], row["unit"]), row["target"], met, row["note"])
            )
    return "\n".join(lines) + "\n"


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def shown(value: float | str | None, unit: str) -> str:
    """Return a figure with its unit, in four digits."""
    if value is None or isinstance(value, str):
        return value or ""
    if unit == "%":
        return f"{100 * value:.1f} %"
    digits = f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
    return f"{digits} {unit}".strip()


def commit() -> str:
    """Return the commit that is checked, or that it is not known (a copy without history)."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip() or "unknown"


def tell(result: Result) -> None:
    """Print a part and its rows."""
    print(f"{result.part:13} {result.status}, {result.seconds:.0f} s{': ' * bool(result.note)}{result.note}")
    for row in result.rows:
        met = {True: "met", False: "MISSED", None: ""}[row["met"]]
        more = ", ".join(x for x in (row["target"] and f"target {row['target']}", met, row["note"]) if x)
        print(f"    {row['figure']}: {shown(row['value'], row['unit'])}{' (' * bool(more)}{more}{')' * bool(more)}")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", default="", help="1b, 3b or 8b (default: 8b where 40 GB fit, else 1b)")
    parser.add_argument("--only", default="", help=f"of {','.join(LIMITS_S)}")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "gpu")
    given = parser.parse_args(arguments)
    wanted = given.only.split(",") if given.only else list(LIMITS_S)
    if not set(wanted) <= LIMITS_S.keys():
        parser.error(f"--only names parts out of {', '.join(LIMITS_S)}, not {given.only}")
    out = given.out.resolve()
    folder = out / "parts"
    shutil.rmtree(folder, ignore_errors=True)  # A part that fails must not be taken for what it was last time.
    folder.mkdir(parents=True)
    parts = {
        name: [sys.executable, "-m", "benchmarks.gpu.part", name, given.device, given.model, str(folder)]
        for name in LIMITS_S
        if name in wanted
    }
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = os.environ | OFFLINE | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    document: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.gpu", *(sys.argv[1:] if arguments is None else arguments)]),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": commit(),
        "parts": [],
    }
    results = run_all(parts, LIMITS_S, folder, env, tell)
    with_ratios(results)
    status = status_of(results)
    document["status"] = status
    document["parts"] = [asdict(result) for result in results]
    (out / "gpu.json").write_text(json.dumps(document, indent=1) + "\n")
    (out / "gpu.md").write_text(page(document))
    verdict = {
        0: "No target was missed and no part failed.",
        1: "A target was missed or a part failed.",
        2: "Nothing ran.",
    }
    print(f"{verdict[status]}  {out / 'gpu.md'}, {out / 'gpu.json'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
