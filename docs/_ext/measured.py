"""The directives `measured`, `bench` and `validation`: tables of measured figures, which are data and not text."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markdown import directive, table

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "measured.json"
"""By the name of a table its rows, the head first; cells are Markdown."""


def measured(names: Sequence[str]) -> str:
    """Return the table of that name."""
    (name,) = names
    found = json.loads(FIGURES.read_text())
    if name not in found:
        raise ValueError(f"no table {name}; known: {', '.join(found)}")
    head, *rows = found[name]
    return table(head, [[cell.replace("|", "\\|") for cell in row] for row in rows])


def bench(_: Sequence[str]) -> str:
    """Return the figures that `make bench` recorded last, and the machines."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.suite import page
    from benchmarks.suite.history import read

    history = read(ROOT / "benchmarks" / "history.jsonl")
    return f"{page.table(history)}\n\n{page.machines(history)}"


VALIDATION = ROOT / "docs" / "validation.json"
"""What `make validate` wrote last."""
TIMES = [f"{name}.{statistic}" for name in ("ttft", "tpot", "latency") for statistic in ("mean", "p50", "p90", "p99")]


def _error(key: str, measured: float, said: float) -> str:
    return f"{100 * (said - measured):+.1f}" if key == "lost" else f"{100 * (said / measured - 1):+.1f} %"


def _cell(key: str, measured: float, said: float) -> str:
    shown = f"{100 * measured:.1f} %" if key == "lost" else f"{measured:.2f}/s"
    if key not in ("lost", "throughput"):
        shown = f"{1000 * measured:,.0f} ms" if measured >= 0.1 else f"{1000 * measured:.2f} ms"
    return f"{shown} {_error(key, measured, said)}"


def validation(names: Sequence[str]) -> str:
    """Return, of experiments beside their simulation, the `runs` request by request, the `loads`, a `summary` of those
    below saturation, the same beside `others`, or the `time` that simulating took."""
    (name,) = names
    found = json.loads(VALIDATION.read_text())["experiments"]
    runs = [each for each in found if each["name"].startswith("rtx")]
    if name == "runs":
        rows = []
        for each in runs:
            ours = each["stages"][0]["figures"]
            theirs = each["published"].get("LLMServingSim", {})
            for key in TIMES:
                other = _error(key, theirs[key][1], theirs[key][0]) if key in theirs else ""
                rows.append([each["name"], key, f"{ours[key][0]:,.4g} s", _error(key, *ours[key]), other])
        return table(["run", "figure", "measured", "ours", "LLMServingSim"], rows)
    if name == "loads":
        keys = ["tpot.mean", "latency.mean", "latency.p99", "ttft.p50", "ttft.mean", "ttft.p99", "throughput", "lost"]
        rows = [
            [
                each["name"],
                stage["name"],
                "fitted" if each["fitted"] else "",
                *(_cell(k, *stage["figures"][k]) for k in keys),
            ]
            for each in found
            if each not in runs
            for stage in each["stages"]
            if "lost" in stage["figures"]
        ]
        return table(["load", "stage", "", *keys], rows)
    if name == "summary":
        predicted = [
            stage["figures"]
            for each in found
            for stage in each["stages"]
            if not each["fitted"] and stage["figures"].get("lost", [1])[0] == 0
        ]
        shares = {
            key: [abs(of[key][1] / of[key][0] - 1) for of in predicted]
            for key in ("tpot.mean", "latency.mean", "ttft.p50", "ttft.mean")
        }
        rows = [[key, f"{100 * sum(of) / len(of):.1f} %", f"{100 * max(of):.1f} %"] for key, of in shares.items()]
        return table([f"of {len(predicted)} stages that were predicted", "mean error", "largest"], rows)
    if name == "others":
        rows = []
        for each in found:
            if each in runs:
                continue
            for simulator, of in each["published"].items():
                ours = each["stages"][-1]["figures"]
                rows += [
                    [each["name"], simulator, key, _error(key, real, said), _error(key, *ours[key])]
                    for key, (said, real) in of.items()
                    if key in ours
                ]
        return table(["experiment", "simulator", "figure", "its error", "ours"], rows)
    rows = [[each["name"], f"{each['simulated_s']:,.0f} s", f"{each['cpu_s']:.1f} s"] for each in found]
    return table(["experiment", "simulated", "CPU"], rows)


def setup(app: Any) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("measured", directive(measured))
    app.add_directive("bench", directive(bench))
    app.add_directive("validation", directive(validation))
    return {"parallel_read_safe": True}
