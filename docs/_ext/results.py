"""The directive `results`: panels of papers with what came out, from `docs/results.json`, and a picture of each."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from textwrap import fill
from typing import Any

from docutils import nodes
from markdown import escaped, formula, sentence, table

from fairsched.engines.analysis.report import drawn, line_style
from fairsched.reproduce import PANELS, PAPERS, Verdict
from fairsched.reproduce.row import NEAR, Interval

RECORDED = Path(__file__).parent.parent / "results.json"
"""What `fairsched reproduce --json` wrote last."""
BAND, OURS, WITHOUT = "#0a0002", "#0a0001", "#0a0009"
COLOURS = {
    Verdict.HELD: "#3a9d5d",
    Verdict.SIZE_DIFFERS: "#a8cf8e",
    Verdict.CAUSE_OPEN: "#e8b04a",
    Verdict.MISSED: "#c0392b",
}
WIDTH_IN, LINE_IN, FONT_PT = 8.0, 0.32, 9.0
BANDS_MAX = 6
"""Of more curves the intervals are not drawn: they would lie over each other."""
Entry = Mapping[str, Any]


@cache
def recorded() -> tuple[Entry, ...]:
    """Return the rows as they were recorded."""
    return tuple(json.loads(RECORDED.read_bytes())["rows"])


def slug(verdict: str) -> str:
    """Return a verdict as the name of a class."""
    return verdict.replace(" ", "-")


# --- words ------------------------------------------------------------------------------------------------------------


def shown(found: Mapping[str, float]) -> str:
    """Return a mean and its interval."""
    return Interval(found["mean"], found["low"], found["high"]).text


def overview() -> str:
    """Return what came out of each paper in a sentence."""
    lines = (
        f"- [{escaped(paper.title.partition(':')[0])}](#results-{key}): {formula(paper.came_out)}."
        for key, paper in PAPERS.items()
        if _claims(key)
    )
    return "\n".join(lines)


def _claims(key: str) -> list[Entry]:
    """Return the claims of a paper."""
    return [claim for entry in recorded() if entry["paper"] == key for claim in entry["claims"]]


def _count(claims: Sequence[Entry], verdict: str) -> int:
    return sum(claim["verdict"] == verdict for claim in claims)


def row_text(entry: Entry) -> str:
    """Return a row: what it is, its claims, and its note."""
    seeds = entry["seeds"]
    panel, platform, setting = (formula(sentence(entry[name])) for name in ("panel", "platform", "setting"))
    facts = f"{panel} {platform} {setting} {_seeds(seeds)}."
    controls = any(claim["control"] for claim in entry["claims"])
    claims = table(
        ["claim", "printed", "ours (95 %)", *["without the cause"] * controls, ""],
        [
            [
                escaped(claim["about"]),
                escaped(claim["printed"]),
                shown(claim),
                *[_control(claim)] * controls,
                f"**{claim['verdict']}**" if claim["verdict"] != Verdict.HELD else "held",
            ]
            for claim in entry["claims"]
        ],
    )
    note = f"\n{formula(sentence(entry['note']))}\n" if entry["note"] else ""
    held = f"{_count(entry['claims'], Verdict.HELD)} of {len(entry['claims'])} claims held"
    head = f"(result-{entry['id']})=\n**{entry['id']}. {escaped(entry['about'])}**: {held}"
    return f"{head}\n\n{facts}\n\n{claims}\n{note}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"Seeds {seeds[0]:,} to {seeds[-1]:,}" if len(seeds) > 1 else "No chance in it"


def _control(claim: Entry) -> str:
    control = claim["control"]
    return f"{shown(control)}: {escaped(control['cause'])}" if control else ""


def panels(key: str) -> str:
    """Return all panels of a paper, and what became of each."""
    return table(
        ["panel", "what it shows", "here"],
        [[escaped(each.name), escaped(each.about), _status(each.rows) or escaped(each.status)] for each in PANELS[key]],
    )


def _status(rows: Sequence[str]) -> str:
    return ", ".join(f"[{name}](#result-{name})" for name in rows)


# --- pictures ---------------------------------------------------------------------------------------------------------


def all_claims() -> str:
    """Return the picture of all claims: a bar for each paper, in parts by what came of its claims."""
    papers = {paper.title.partition(":")[0]: _claims(key) for key, paper in PAPERS.items() if _claims(key)}

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        done = [0] * len(papers)
        for verdict, colour in COLOURS.items():
            counts = [_count(claims, verdict) for claims in papers.values()]
            bars = axes.barh(list(papers), counts, left=done, color=colour, label=str(verdict))
            axes.bar_label(bars, [str(count or "") for count in counts], label_type="center", fontsize=FONT_PT)
            done = [before + count for before, count in zip(done, counts, strict=True)]
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.set_xlabel("claims")
        figure.legend(loc="outside upper center", ncols=2, fontsize=FONT_PT)

    height = 1.2 + LINE_IN * len(papers)
    plot = drawn("all-claims", "what came of the claims of each paper", "", height, draw)
    return f'<div class="picture">{plot.svg}</div>'


def picture(entry: Entry) -> str:
    """Return the picture of a row: its curves, and beside what is printed what came out."""
    groups = [group for group in (_ratios(entry), _others(entry)) if group]
    curves = _curves(entry)
    heights = [2.6] * bool(curves) + [0.7 + LINE_IN * len(group) for group in groups]

    def draw(figure: Any) -> None:
        grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        if curves:
            _draw_curves(figure, grid[0], entry["axes"], curves)
        for axes, group in zip(grid[bool(curves) :], groups, strict=True):
            _draw_claims(axes, group)

    plot = drawn(f"row-{entry['id']}", entry["about"], "", sum(heights), draw, width=WIDTH_IN)
    return f'<div class="picture">{plot.svg}</div>'


def _ratios(entry: Entry) -> list[Entry]:
    return [claim for claim in entry["claims"] if claim["neutral"] == 1.0 and claim["low"] > 0]


def _others(entry: Entry) -> list[Entry]:
    return [claim for claim in entry["claims"] if claim not in _ratios(entry)]


def _draw_claims(axes: Any, claims: Sequence[Entry]) -> None:
    """A line for each claim: the printed range as a band, which may be open, ours with its interval, the control as a
    ring."""
    most = max(max(claim["high"], claim["range"][0]) for claim in claims)
    for place, claim in enumerate(claims):
        low, last = claim["range"]
        high = max(1.2 * most, low) if last is None else last
        near = NEAR * abs(low) if low == high and not claim["exact"] else 0.0
        axes.barh(place, high - low + 2 * near, left=low - near, height=0.62, color=BAND, alpha=0.25, linewidth=0)
        axes.plot([low, low], [place - 0.31, place + 0.31], color=BAND, linewidth=1.2)
        if last is not None:
            axes.plot([high, high], [place - 0.31, place + 0.31], color=BAND, linewidth=1.2)
        axes.plot([claim["low"], claim["high"]], [place, place], color=OURS)
        axes.plot(claim["mean"], place, "o", color=OURS, markersize=5)
        if claim["control"]:
            axes.plot(claim["control"]["mean"], place, "o", color=WITHOUT, markersize=6, fillstyle="none")
    axes.set_yticks(range(len(claims)), [fill(claim["about"], 44) for claim in claims])
    axes.set_ylim(len(claims) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.05)
    if all(claim["neutral"] == 1.0 for claim in claims):
        axes.set_xscale("log")
        axes.axvline(1.0, color=WITHOUT, linewidth=0.8)
    axes.xaxis.set_major_formatter("{x:g}")


def _curves(entry: Entry) -> dict[str, dict[float, Interval]]:
    """Return curves by name, with the interval over the seeds at each point that all seeds have."""
    found: dict[str, dict[float, Interval]] = {}
    for name, first in entry["figures"][0].items():
        if isinstance(first, dict):
            points = [key for key in first if all(key in seed[name] for seed in entry["figures"])]
            found[name] = {
                float(key): Interval.of([float(seed[name][key]) for seed in entry["figures"]])
                for key in sorted(points, key=float)
            }
    return found


def _draw_curves(figure: Any, axes: Any, names: Sequence[str], curves: Mapping[str, Mapping[float, Interval]]) -> None:
    for place, points in enumerate(curves.values()):
        style = line_style(place)
        at = list(points)
        axes.plot(at, [one.mean for one in points.values()], marker="o" * (len(at) < 20), markersize=3, **style)
        if len(curves) <= BANDS_MAX:
            low, high = [one.low for one in points.values()], [one.high for one in points.values()]
            axes.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.set(xlabel=names[0], ylabel=fill(names[1], 30))
    if _spread(at for points in curves.values() for at in points):
        axes.set_xscale("log")
    means = [one.mean for points in curves.values() for one in points.values()]
    if _spread(means):
        # Intervals that reach zero end at the picture's edge.
        axes.set(yscale="log", ylim=(0.7 * min(means), None))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    lines = [axes.plot([], [], **line_style(place))[0] for place in range(len(curves))]
    figure.legend(lines, list(curves), loc="outside upper left", ncols=min(len(curves), 4), fontsize=FONT_PT)


def _spread(values: Iterable[float]) -> bool:
    """Whether values are positive and range over more than a factor of twenty."""
    found = [value for value in values if isfinite(value)]
    return bool(found) and min(found) > 0 and max(found) / min(found) > 20


# --- the page ---------------------------------------------------------------------------------------------------------


def _parts() -> Iterator[tuple[str, str, str]]:
    """Yield classes, Markdown and HTML of the page's rows, paper by paper."""
    for key, paper in PAPERS.items():
        rows = [entry for entry in recorded() if entry["paper"] == key]
        if not rows and key not in PANELS:
            continue
        yield f"result-paper paper-{key}", f"(results-{key})=\n**{escaped(paper.title)}**, {escaped(paper.where)}", ""
        for entry in rows:
            yield f"result paper-{key} verdict-{slug(entry['verdict'])}", row_text(entry), picture(entry)
        if key in PANELS:
            yield f"result-panels paper-{key}", panels(key), ""


def setup(app: Any) -> dict[str, bool]:
    """Register the directive and the page's script."""
    from docutils.parsers.rst import Directive

    class Results(Directive):
        """Every recorded row, paper by paper; with the word `overview` what came out of each paper."""

        optional_arguments = 1

        def run(self) -> list[nodes.Node]:
            self.state.document.settings.env.note_dependency(str(RECORDED))
            found: list[nodes.Node] = []
            for classes, text, html in [("", overview(), all_claims())] if self.arguments else _parts():
                holder = nodes.container(classes=classes.split())
                self.state.nested_parse(text.splitlines(), self.content_offset, holder)
                if "result-panels" in classes:
                    summary = "<details><summary>All its figures and tables, and why some were not run</summary>"
                    holder.insert(0, nodes.raw("", summary, format="html"))
                    holder += nodes.raw("", "</details>", format="html")
                if html:
                    holder += nodes.raw("", html, format="html")
                found.append(holder)
            return found

    app.add_directive("results", Results)
    return {"parallel_read_safe": True}
