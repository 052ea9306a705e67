"""What the plots of a report share: style, colours, panels, labels, and the way from a figure to a piece of SVG.

Colours are names of the page's own (`--c0` and so on), so the page decides what they are; black is whatever the text
around is.  Lines differ in dashes as well as in colour.  Labels stand outside the axes, where no data is.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from fairsched.engines.analysis.figures import Compared, count
from fairsched.engines.analysis.metrics import Run
from fairsched.engines.analysis.series import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Style = dict[str, Any]
"""How matplotlib draws a line."""
COLOURS = ("#0a0001", "#0a0002", "#0a0003", "#0a0004", "#0a0005", "#0a0006", "#0a0007", "#0a0008")
"""Stand-ins that become the page's `--c0` to `--c7`."""
GREY = "#0a0009"
TEXT = "#0a000a"
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
DOTTED: dict[str, Any] = {"linestyle": (0, (2, 3)), "linewidth": 1}
PANELS_MAX = 12
WIDTH = 10.0
SECONDS = "seconds since the first arrival"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fairsched",
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.edgecolor": TEXT,
    "axes.labelcolor": TEXT,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "text.color": TEXT,
    "text.parse_math": False,  # a client may be called $x$
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "legend.frameon": False,
    "axes.formatter.useoffset": False,
}


@attrs.frozen
class Plot:
    """A titled picture and the sentence that says what to look for."""

    title: str
    caption: str
    svg: str


def _svg(figure: "Figure", name: str, title: str) -> str:
    """The figure as an inline element: no document around it, unique ids, the page's colours, no addresses."""
    buffer = StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r' width="[\d.]+pt" height="[\d.]+pt"', f' role="img" aria-label="{escape(title)}"', text, count=1)
    for i, colour in enumerate(COLOURS):
        text = text.replace(colour, f"var(--c{i})")
    return text.replace(GREY, "var(--grey)").replace(TEXT, "currentColor")


def cost_tick(value: float, _: float = 0) -> str:
    """How an axis of cost units writes a tick."""
    return count(value)


def drawn(name: str, title: str, caption: str, size: tuple[float, float], draw: "Callable[[Figure], None]") -> Plot:
    """The plot that `draw` makes of an empty figure of so many inches; `name` is unique on the page."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser chooses the font
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        _plain_minor_ticks(figure)
        return Plot(title, caption, _svg(figure, name, title))


def _plain_minor_ticks(figure: "Figure") -> None:
    """Logarithmic axes write their minor ticks as they write the major ones, where matplotlib would write formulas."""
    from matplotlib.ticker import Formatter, LogFormatter

    class Plain(LogFormatter):
        """As matplotlib, for when a minor tick is written; as the major ticks, for how."""

        def __init__(self, major: Formatter) -> None:
            super().__init__(labelOnlyBase=False, minor_thresholds=(1, 0.4))
            self.major = major

        def __call__(self, x: float, pos: int | None = None) -> str:
            return self.major(x, pos) if super().__call__(x, pos) else ""

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                axis.set_minor_formatter(Plain(axis.get_major_formatter()))


def line_style(i: int) -> Style:
    """Colour and dashes of the i-th of several lines; those beyond the palette are grey."""
    if i >= len(COLOURS):
        return {"color": GREY, "linewidth": 0.8}
    return {"color": COLOURS[i], "linestyle": DASHES[i % len(DASHES)] if i else "-"}


def client_lines(names: Sequence[str]) -> list[tuple[str, Style]]:
    """The lines of clients in a legend: those in colour by name, the others together."""
    lines = [(name, line_style(i)) for i, name in enumerate(names[: len(COLOURS)])]
    more = len(names) - len(COLOURS)
    return [*lines, (f"{more} other clients", line_style(len(COLOURS)))] if more > 0 else lines


def legend(figure: "Figure", axes: "Axes", lines: Sequence[tuple[str, Style]], columns: int = 5) -> None:
    """A legend above the picture, of lines by name, whatever was drawn."""
    drawn_lines = [axes.plot([], [], **style)[0] for _, style in lines]
    names = [name for name, _ in lines]
    figure.legend(drawn_lines, names, loc="outside upper left", ncols=min(len(names), columns), fontsize=9)


def distribution(figure: "Figure", xlabel: str, samples: Iterable[tuple[Floats, Style]]) -> "Axes":
    """The share of requests that were served within so many seconds; each sample is in order."""
    axes: Axes = figure.subplots()
    for seconds, style in samples:
        if len(seconds):
            axes.plot(seconds, np.linspace(0, 100, len(seconds)), **style)
    axes.set(xscale="log", ylim=(0, 100), xlabel=xlabel, ylabel="requests served within, %")
    axes.xaxis.set_major_formatter("{x:g}")
    return axes


def run_panels(
    comparison: Compared,
    name: str,
    title: str,
    caption: str,
    ylabel: str,
    lines_of: Callable[[Run], Iterable[tuple[Floats, Any, Style]]],
    finish: "Callable[[Axes], object]",
    shown: Sequence[tuple[str, Style]],
    columns: int = 5,
) -> Plot:
    """One panel a run with its lines over time, as (seconds, values, style); `shown` are the lines of the legend."""
    runs = comparison.runs[:PANELS_MAX]
    labels = comparison.labels()[:PANELS_MAX]

    def picture(figure: "Figure") -> None:
        panels = panels_of(figure, labels, ylabel)
        for axes, run in zip(panels, runs, strict=True):
            for seconds, values, style in lines_of(run):
                axes.plot(seconds, values, **style)
        for axes in panels:
            # Only when everything is drawn: limits that are set no longer follow what comes.
            finish(axes)
        legend(figure, panels[0], shown, columns)

    more = len(comparison.runs) - PANELS_MAX
    left_out = f" Of {len(comparison.runs)} runs the first {PANELS_MAX} are shown." if more > 0 else ""
    return drawn(name, title, caption + left_out, panel_size(len(runs)), picture)


def panels_of(figure: "Figure", titles: Sequence[str], ylabel: str) -> "list[Axes]":
    """A grid of small axes over time that share their scales, one a title."""
    columns = _columns(len(titles))
    rows = -(-len(titles) // columns)
    grid: list[Axes] = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    for axes in grid[len(titles) :]:
        axes.set_visible(False)
    for i, (axes, title) in enumerate(zip(grid, titles, strict=False)):
        axes.set_title(title, loc="left", wrap=True)
        axes.tick_params(labelbottom=i + columns >= len(titles))
    figure.supxlabel(SECONDS, fontsize=9)
    figure.supylabel(ylabel, fontsize=9)
    return grid[: len(titles)]


def panel_size(number: int) -> tuple[float, float]:
    """Inches for so many panels."""
    return WIDTH, 0.9 + 2.0 * -(-number // _columns(number))


def _columns(number: int) -> int:
    return 3 if number in (3, 5, 6, 9) else max(min(number, 4), 2)


def end_labels(axes: "Axes", rows: list[tuple[float, str, str]]) -> None:
    """Texts at the right of the axes, at their values' heights as far as they do not overlap."""
    to_height = axes.transLimits.transform
    scale = axes.yaxis.get_transform()
    heights = [
        (float(to_height((0, float(scale.transform([value])[0])))[1]), text, colour) for value, text, colour in rows
    ]
    heights.sort(key=lambda row: row[0])
    step = 0.055
    placed: list[float] = []
    for height, _, _ in heights:
        placed.append(max(height, placed[-1] + step) if placed else height)
    over = placed[-1] - 1.0 if placed else 0.0
    for i in reversed(range(len(placed))):
        above = placed[i + 1] - step if i + 1 < len(placed) else placed[i] - max(over, 0)
        placed[i] = min(placed[i], above)
    for (_, text, colour), height in zip(heights, placed, strict=True):
        axes.annotate(
            text, (1.01, height), xycoords="axes fraction", va="center", color=colour, fontsize=9, annotation_clip=False
        )


def point_labels(axes: "Axes", rows: list[tuple[float, float, str]]) -> None:
    """A label beside each point, above or below its neighbours in turn where points are close."""
    spans = [max(values) - min(values) or 1.0 for values in ([row[0] for row in rows], [row[1] for row in rows])]
    rows = sorted(rows)
    for i, (x, y, label) in enumerate(rows):
        near = [
            other for other in rows[:i] if abs(other[0] - x) < 0.16 * spans[0] and abs(other[1] - y) < 0.07 * spans[1]
        ]
        offset = 9 * ((len(near) + 1) // 2) * (1 if len(near) % 2 else -1)
        axes.annotate(label, (x, y), xytext=(6, offset), textcoords="offset points", va="center", fontsize=8.5)
