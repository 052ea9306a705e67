"""What the plots of a report share: style, colours, panels, labels, and the way from a figure to a piece of SVG.

Colours are names of the page's own (`--c0` and so on), so the page decides what they are; black is whatever the text
around is.  Lines differ in dashes as well as in colour.  Labels stand outside the axes, where no data is.
"""

import re
import warnings
from collections.abc import Callable, Sequence
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

import attrs

from fairsched.engines.analysis.figures import Compared, count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0a0001", "#0a0002", "#0a0003", "#0a0004", "#0a0005", "#0a0006", "#0a0007", "#0a0008")
"""Stand-ins that become the page's `--c0` to `--c7`."""
GREY = "#0a0009"
TEXT = "#0a000a"
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
DOTTED: dict[str, Any] = {"linestyle": (0, (2, 3)), "linewidth": 1}
PANELS_MAX = 12
WIDTH = 10.0
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


def line_style(i: int) -> dict[str, Any]:
    """Colour and dashes of the i-th of several lines; those beyond the palette are grey."""
    if i >= len(COLOURS):
        return {"color": GREY, "linewidth": 0.8}
    return {"color": COLOURS[i], "linestyle": DASHES[i % len(DASHES)] if i else "-"}


def panels_of(figure: "Figure", titles: Sequence[str], xlabel: str, ylabel: str, **shared: Any) -> "list[Axes]":
    """A grid of small axes that share their scales, one a title."""
    columns = _columns(len(titles))
    rows = -(-len(titles) // columns)
    grid: list[Axes] = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for axes, title in zip(grid, titles, strict=False):
        axes.set_title(title, loc="left", wrap=True)
    for axes in grid[len(titles) :]:
        axes.set_visible(False)
    for i, axes in enumerate(grid[: len(titles)]):
        axes.tick_params(labelbottom=i + columns >= len(titles))
    figure.supxlabel(xlabel, fontsize=9)
    figure.supylabel(ylabel, fontsize=9)
    return grid[: len(titles)]


def panel_size(number: int) -> tuple[float, float]:
    """Inches for so many panels."""
    return WIDTH, 0.9 + 2.0 * -(-number // _columns(number))


def left_out(comparison: Compared) -> str:
    """What a caption says of runs that have no panel."""
    more = len(comparison.runs) - PANELS_MAX
    return f" Of {len(comparison.runs)} runs the first {PANELS_MAX} are shown." if more > 0 else ""


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
