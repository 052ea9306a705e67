"""The table of the page of speeds, which the site asks for, and its plot, from what was recorded."""

import statistics
from collections.abc import Iterable
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.suite.history import OURS, Record, series

COLOURS = ("#1f6f8b", "#c0392b", "#7f8c8d", "#b7791f", "#5b3f8c", "#2e7d4f")
SHAPES = "osDv^P"
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "svg.hashsalt": "fairsched",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.axisbelow": True,
}


def latest(records: Iterable[Record]) -> dict[tuple[str, str], Record]:
    """Return the last record of each figure beside each other side, in the order in which figures were first seen.

    A figure without another side stands beside itself.
    """
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        for beside in [side for side in record.us if side != OURS] or [OURS]:
            found[record.figure, beside] = record
    order = {figure: place for place, (figure, _) in reversed(list(enumerate(found)))}
    return {key: found[key] for key in sorted(found, key=lambda key: (order[key[0]], key[1].startswith("twin")))}


def table(records: Iterable[Record]) -> str:
    """Return the table of the last measurement of each figure beside each other side."""
    lines = ["| CPU time of | ours | beside it | ratio | commit |", "|---|---|---|---|---|"]
    before = ""
    for (figure, beside), record in latest(records).items():
        ours = statistics.median(record.us[OURS])
        what = figure if figure != before else ""
        before = figure
        theirs, ratio = "", ""
        if beside != OURS:
            name = " ".join(filter(None, [beside, record.versions.get(beside)]))
            theirs = f"{name}: {_us(statistics.median(record.us[beside]))}"
            ratios = record.ratios(beside)
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(f"| {what} | {_us(ours)}, {1e6 / ours:,.0f}/s | {theirs} | {ratio} | {record.commit} |")
    return "\n".join(lines)


def machines(records: Iterable[Record]) -> str:
    """Return where and when the table's figures were taken."""
    of: dict[tuple[str, str, str], list[float]] = {}
    for record in latest(records).values():
        of.setdefault((record.commit, record.date, record.machine), []).extend(record.load)
    return "\n".join(
        f"- `{commit}` on {date}: {machine}; load average {min(loads):.1f} to {max(loads):.1f}"
        for (commit, date, machine), loads in of.items()
    )


def _us(value: float) -> str:
    return f"{value:,.0f} us" if value >= 100 else f"{value:.3g} us"


def draw(picture: Path, records: list[Record], twin: str) -> None:
    """Draw the ratios of the table with their intervals, and those to the pinned twin by commit."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    last = latest(records)
    figures = list(dict.fromkeys(figure for figure, _ in last))
    sides = sorted({beside for _, beside in last if beside != OURS}, key=lambda side: (side != twin, side))
    with mpl.rc_context(STYLE):
        _, (now, then) = plt.subplots(
            1, 2, figsize=(9.5, 0.42 * len(figures) + 1.4), width_ratios=(3, 2), sharey=True, layout="constrained"
        )
        for side, colour, shape in zip(sides, COLOURS, SHAPES, strict=False):
            of = {figure: record.ratios(side) for (figure, beside), record in last.items() if beside == side}
            rows = [figures.index(figure) for figure in of]
            middle = [statistics.median(ratios) for ratios in of.values()]
            ends = [
                [m - min(ratios) for m, ratios in zip(middle, of.values(), strict=True)],
                [max(ratios) - m for m, ratios in zip(middle, of.values(), strict=True)],
            ]
            now.errorbar(middle, rows, xerr=ends, fmt=shape, color=colour, label=side, capsize=2, markersize=5)
        now.set(xlabel="their CPU time / ours", xscale="log", title="last measured", ylim=(len(figures) - 0.5, -0.5))
        now.set_yticks(range(len(figures)), [fill(figure, 46) for figure in figures])
        now.legend(loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=len(sides))
        _by_commit(then, figures, records, twin)
        for axes in (now, then):
            axes.axvline(1, color=COLOURS[2], linewidth=1)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.grid(alpha=0.3)
        plt.savefig(picture, metadata={"Date": None})
        plt.close()


def _by_commit(axes: Any, figures: list[str], records: list[Record], twin: str) -> None:
    """Draw each figure's ratios to the twin, the oldest below and faint, the newest above."""
    for figure, ratios in series(records, twin).items():
        row, size = figures.index(figure), len(ratios)
        heights = [row + 0.3 - 0.6 * (i + 0.5) / size for i in range(size)]
        axes.plot(ratios, heights, color=COLOURS[0], linewidth=0.8, alpha=0.6)
        axes.scatter(ratios, heights, color=COLOURS[0], s=10, alpha=[(i + 1) / size for i in range(size)])
    axes.set(xlabel="the twin's CPU time / ours", xscale="log", title="by record, the newest above")
