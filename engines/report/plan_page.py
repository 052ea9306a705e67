"""The report of `fairsched plan`: attainment against workers, a line a policy, with the figures beside it.

Needs the `cli` extra (jinja2, matplotlib), imported when a report is written.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairsched.engines.report.canvas import GREY, WIDTH, Plot, drawn, line_style
from fairsched.engines.report.sheet import Table, write_sheet
from fairsched.engines.sizing import Sizing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def attainment_plot(sizings: Mapping[str, Sizing], aim: float) -> Plot:
    """The share of requests that kept their targets against workers, a line a policy."""

    def picture(figure: "Figure") -> None:
        axes = figure.subplots()
        for i, (name, sizing) in enumerate(sizings.items()):
            workers = list(sizing.tried)
            shares = [100 * sizing.attainment(n) for n in workers]
            axes.plot(workers, shares, marker="o", markersize=4, label=name, **line_style(i))
        axes.axhline(100 * aim, color=GREY, linewidth=0.8)
        axes.set_xlabel("workers")
        axes.set_ylabel("requests that keep their targets, %")
        figure.legend(loc="outside upper left", ncols=3, fontsize=9)

    return drawn(
        "attainment",
        "Attainment against workers",
        "The share of requests that keep their targets with so many workers; the grey line is what is aimed at. Only "
        "the numbers that the search looked at are drawn.",
        (WIDTH, 3.6),
        picture,
    )


def write_plan(directory: Path, *, command: str, lines: Sequence[str], tables: Sequence[Table], plot: Plot) -> Path:
    """Write `index.html` into `directory`, which is made if need be, and return its path.  Raises `OSError`."""
    return write_sheet(directory, title="How many workers", command=command, lines=lines, tables=tables, plots=[plot])
