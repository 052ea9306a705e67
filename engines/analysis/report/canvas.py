"""What the plots of a report share: axes over time, style, colours, panels, labels, and the way
from a figure to a piece of SVG.

A plot is drawn once, with letters that can be read on a phone; on a wide screen the page makes the picture larger and
its letters smaller.  Colours are names of the page's own (`--c0` and so on), so the page decides what they are; black
is whatever the text around is.  Lines differ in dashes as well as in colour.  What lines mean stands above the picture,
as text of the page, which breaks its lines where the window ends.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from html import escape, unescape
from io import StringIO
from math import ceil, floor
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np

from fairsched.engines.analysis.figures import Compared, count, safe_text, shortened
from fairsched.engines.analysis.series import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MINUTE, HOUR, DAY = 60, 3_600, 86_400
_STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(HOUR * n for n in (1, 2, 3, 6, 12)),
    *(DAY * n for n in (1, 2, 7, 14, 28, 91, 182, 364)),
)
"""Seconds between two ticks."""
_ROUND = (1, 2, 5, 10, 20, 50, 100, 200)
"""The same of a run that is told in seconds."""
_LEAST_S = 5
"""Shorter spans have ticks between whole seconds."""


@attrs.frozen
class TimeAxis:
    """How seconds since the first arrival are written along an axis.

    `start` is the first arrival on the log's clock, with its zone; None where there is no such clock, as in a run that
    was simulated.  What is drawn is in seconds in both cases.
    """

    span_s: float
    start: datetime | None = None

    @property
    def unit_s(self) -> int:
        """Seconds in one unit of an axis without a clock."""
        return HOUR if self.span_s > 3 * HOUR else MINUTE if self.span_s > 5 * MINUTE else 1

    def _at(self, seconds: float) -> datetime:
        """Return the moment on the log's clock; by way of UTC, since a local clock may be put back on the way."""
        assert self.start is not None
        return (self.start.astimezone(UTC) + timedelta(seconds=seconds)).astimezone(self.start.tzinfo)

    def label(self) -> str:
        """Return what stands at the axis: the day and the zone, or the unit."""
        if self.start is None:
            name = {1: "seconds", MINUTE: "minutes", HOUR: "hours"}[self.unit_s]
            return f"{name} since the first arrival"
        end = self._at(self.span_s)
        zone = self.start.tzname() or "no zone"
        if self.span_s < _LEAST_S:
            return f"seconds after {self.start:%Y-%m-%d %H:%M:%S} {zone}"
        days = f"{self.start:%Y-%m-%d}" + (f" to {end:%Y-%m-%d}" if end.date() != self.start.date() else "")
        return f"time on {days}, {zone}"

    def ticks(self, low: float, high: float, most: int) -> list[float]:
        """Return at most so many round times from `low` to `high`, in seconds."""
        # Round on the clock of the log, whose day does not begin with the first arrival.
        ahead = 0.0 if self.start is None else (self.start.replace(tzinfo=None) - datetime(1970, 1, 5)).total_seconds()
        steps = _ROUND if self.start is None and self.unit_s == 1 else _STEPS
        found: list[float] = []
        for step in steps:
            first, last = ceil((low + ahead) / step), floor((high + ahead) / step)
            if last - first < most:
                found = [k * step - ahead for k in range(first, last + 1)]
                break
        return found

    def text(self, seconds: float) -> str:
        """Return what stands at a tick."""
        if self.start is None:
            return f"{seconds / self.unit_s:,.10g}"
        # Ticks are whole seconds of the clock; the start may not be.
        moment = self._at(seconds)
        moment = (moment + timedelta(milliseconds=1)).replace(microsecond=0)
        if self.span_s > 5 * DAY:
            return f"{moment:%d %b}"
        if self.span_s > 1.5 * DAY:
            return f"{moment:%d %b %H:%M}"
        return f"{moment:%H:%M:%S}" if self.span_s < 10 * MINUTE else f"{moment:%H:%M}"

    def put_on(self, panels: "Sequence[Axes]", most: int = 5) -> None:
        """Write at most so many times along the axes; their limits may be set before or after."""
        if self.span_s < _LEAST_S:
            return
        from matplotlib.ticker import FuncFormatter, Locator

        class TimeLocator(Locator):
            """Ticks at round times, whatever part is shown."""

            def __init__(self, axis: TimeAxis) -> None:
                self.of = axis

            def __call__(self) -> list[float]:
                assert self.axis is not None
                low, high = sorted(self.axis.get_view_interval())
                return self.tick_values(low, high)

            def tick_values(self, vmin: float, vmax: float) -> list[float]:
                return self.of.ticks(vmin, vmax, most)

        for axes in panels:
            axes.xaxis.set_major_locator(TimeLocator(self))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: self.text(x)))


Style = dict[str, Any]
"""How matplotlib draws a line."""
COLOURS = ("#0a0001", "#0a0002", "#0a0003", "#0a0004", "#0a0005", "#0a0006", "#0a0007", "#0a0008")
"""Stand-ins that become the page's `--c0` to `--c7`."""
GREY = "#0a0009"
TEXT = "#0a000a"
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
DOTTED: dict[str, Any] = {"linestyle": (0, (2, 3)), "linewidth": 1}
PANELS_MAX = 12
WIDTH, FONT = 4.8, 11.0
"""Inches of every picture, and points of its letters: 11 pixels or more on a phone."""
TICKS, LABEL = 5, 20
"""Times along an axis as wide as the picture, and letters of a label inside it."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fairsched",
    "font.family": "sans-serif",
    "font.size": FONT,
    "axes.titlesize": FONT,
    "axes.labelsize": FONT,
    "axes.edgecolor": TEXT,
    "axes.labelcolor": TEXT,
    "xtick.labelsize": "medium",
    "ytick.labelsize": "medium",
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


Draw = Callable[["Figure"], None]
"""Draws into an empty figure."""
Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""


@attrs.frozen
class Key:
    """What one line or point means: a text, and how it looks."""

    text: str
    style: Style

    @property
    def svg(self) -> str:
        """Return a small picture of it, in the page's colours."""
        look = dict(self.style)
        colour = _page_colours(look.get("color", COLOURS[0]))
        if look.get("linestyle") == "none":
            shape = f'<circle cx="14" cy="5" r="4" fill="{colour}"/>'
        elif look.get("bar"):
            shape = f'<rect x="2" y="0" width="24" height="10" fill="{colour}"/>'
        else:
            line = look.get("linestyle", "-")
            dashes = "" if isinstance(line, str) else f' stroke-dasharray="{" ".join(f"{2 * x:g}" for x in line[1])}"'
            width = 1.4 * look.get("linewidth", 1.6)
            shape = f'<path d="M0 5H28" stroke="{colour}" stroke-width="{width:.2g}"{dashes}/>'
        return f'<svg class="key" viewBox="0 0 28 10" aria-hidden="true">{shape}</svg>'


@attrs.frozen
class Plot:
    """A titled picture, what its lines are, and the sentence that says what to look for."""

    kind: ClassVar[str] = "plot"
    title: str
    caption: str
    svg: str
    keys: Sequence[Key] = ()


def _svg(figure: "Figure", name: str, title: str) -> str:
    """Return the figure as an inline element: no document around it, unique ids, the page's colours, no addresses."""
    buffer = StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # Less than a hundredth of a point is not seen.
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href=", "href=")
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    label = f' role="img" aria-label="{escape(shown_text(title))}"'
    text = re.sub(r' width="[\d.]+pt" height="[\d.]+pt"', lambda _: label, text, count=1)
    return _page_colours(re.sub(r"(?<=>)[^<]+(?=</text>)", lambda found: escape(shown_text(unescape(found[0]))), text))


def shown_text(text: str) -> str:
    """Return a text as a page or a picture shows it: what would break a line or turn its direction as an escape.

    Lines stay apart, and names that are isolated already stay so.
    """
    return "".join(
        piece if not piece.strip() or piece in "\u2068\u2069" else safe_text(piece, None)
        for piece in re.split("([\u2068\u2069\n])", text)
    )


def _page_colours(text: str) -> str:
    for i, colour in enumerate(COLOURS):
        text = text.replace(colour, f"var(--c{i})")
    return text.replace(GREY, "var(--grey)").replace(TEXT, "currentColor")


def cost_tick(value: float, _: float = 0) -> str:
    """Return how an axis of cost units writes a tick."""
    return count(value)


def drawn(
    name: str, title: str, caption: str, height: float, draw: Draw, keys: Iterable[Key] = (), width: float = WIDTH
) -> Plot:
    """Return the plot that `draw` makes of an empty figure of so many inches; `name` is unique on the page."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser chooses the font
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        _plain_minor_ticks(figure)
        return Plot(title, caption, _svg(figure, name, title), tuple(keys))


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


def client_keys(names: Sequence[str], left_out: int = 0) -> list[Key]:
    """Return the lines of clients: those in colour by name, the others together; `left_out` more have no line."""
    keys = [Key(name, line_style(i)) for i, name in enumerate(names[: len(COLOURS)])]
    more = len(names) - len(COLOURS)
    if more > 0:
        hidden = f" ({left_out:,} more are not drawn)" if left_out > 0 else ""
        keys.append(Key(f"{more:,} other clients{hidden}", line_style(len(COLOURS))))
    return keys


def distribution(figure: "Figure", xlabel: str, samples: Iterable[tuple[Floats, Style]]) -> "Axes":
    """Return the share of requests that were served within so many seconds; each sample is in order."""
    axes: Axes = figure.subplots()
    for seconds, style in samples:
        if len(seconds):
            axes.plot(seconds, np.linspace(0, 100, len(seconds)), **style)
    axes.set(xscale="log", ylim=(0, 100), xlabel=xlabel, ylabel="requests served within, %")
    axes.xaxis.set_major_formatter("{x:g}")
    return axes


def run_axis(comparison: Compared) -> TimeAxis:
    """Return the time of the longest run."""
    return TimeAxis(max((run.series.service_s[-1] for run in comparison.runs), default=0.0))


def panels_of(figure: "Figure", titles: Sequence[str], ylabel: str, axis: TimeAxis) -> "list[Axes]":
    """Return a grid of small axes over time that share their scales, one a title."""
    columns = _columns(len(titles))
    rows = -(-len(titles) // columns)
    grid: list[Axes] = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    for axes in grid[len(titles) :]:
        axes.set_visible(False)
    for i, (axes, title) in enumerate(zip(grid, titles, strict=False)):
        axes.set_title(shortened(title, LABEL * 2 // columns + 4), loc="left", wrap=True)
        axes.tick_params(labelbottom=i + columns >= len(titles))
    axis.put_on(grid, 3 if columns > 1 else TICKS)
    figure.supxlabel(axis.label(), fontsize=FONT)
    figure.supylabel(ylabel, fontsize=FONT)
    return grid[: len(titles)]


def _columns(number: int) -> int:
    """Return how many of so many small axes stand side by side."""
    return 1 if number <= 2 else 2


def panel_height(number: int) -> float:
    """Return inches for so many panels."""
    return 0.7 + 1.7 * -(-number // _columns(number))


def pair_of(figure: "Figure", sharey: bool = False) -> "list[Axes]":
    """Return two axes, one below the other."""
    return list(figure.subplots(2, 1, sharey=sharey).flat)


def point_labels(axes: "Axes", rows: Iterable[tuple[float, float, str]]) -> None:
    """Label each point where the label covers neither a point nor another label, on the side that has room.

    Where points lie on each other their labels stand above one another.  Limits must be set before.
    """
    points = sorted({(x, y, shortened(label, LABEL + 7)) for x, y, label in rows})
    axes.autoscale_view()
    extent, figure = axes.get_window_extent(), axes.get_figure()
    assert figure is not None
    size: Floats = np.array([extent.width, extent.height]) / figure.dpi * 72
    at = axes.transAxes.inverted().transform(axes.transData.transform([(x, y) for x, y, _ in points])) * size
    high = 1.15 * FONT
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in at.tolist()]
    for (x, y, label), (right, up) in zip(points, at.tolist(), strict=True):
        wide = 0.56 * FONT * len(label)
        sides = (True, False) if right + wide + 8 < size[0] else (False, True)
        places = [(side, high * step) for step in (0, 1, -1, 2, -2, 3, -3, 4, -4) for side in sides]

        def box(is_right: bool, offset: float, right: float = right, up: float = up, wide: float = wide) -> Box:
            left = right + 7 if is_right else right - 7 - wide
            return left, up + offset - high / 2, left + wide, up + offset + high / 2

        def is_free(place: tuple[bool, float]) -> bool:
            found = box(*place)
            inside = found[1] >= 0 and found[3] <= size[1] and found[0] >= 0 and found[2] <= size[0]
            return inside and not any(_overlap(found, other) for other in taken)

        is_right, offset = next(filter(is_free, places), places[0])
        taken.append(box(is_right, offset))
        axes.annotate(
            label,
            (x, y),
            xytext=(7 if is_right else -7, offset),
            textcoords="offset points",
            va="center",
            ha="left" if is_right else "right",
        )


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
