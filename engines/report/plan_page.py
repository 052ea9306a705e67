"""The report of `fairsched plan`: attainment against workers, a line a policy, with the figures beside it.

Needs the `cli` extra (jinja2, matplotlib), imported when a report is written.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairsched.engines.report.canvas import GREY, WIDTH, Plot, drawn, line_style
from fairsched.engines.report.page import PAGE
from fairsched.engines.sizing import Sizing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = PAGE[PAGE.index("<style>") : PAGE.index("</style>") + len("</style>")]
_PAGE = (
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
"""
    + _STYLE
    + """
</head>
<body>
<h1>{{ title }}</h1>
<pre>{{ command }}</pre>
<ul>{% for line in lines %}<li>{{ line }}</li>{% endfor %}</ul>
{% for table in tables %}<h2>{{ table[0] }}</h2>
<div class="scroll"><table>
<thead><tr>{% for name in table[1] %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in table[2] %}<tr>{% for text in row %}<td>{{ text }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table></div>
{% endfor %}
<h2>{{ plot.title }}</h2>
<figure>{{ plot.svg|safe }}<figcaption>{{ plot.caption }}</figcaption></figure>
</body>
</html>
"""
)

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A heading, column names, and rows of text."""


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
    from jinja2 import Environment

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "index.html"
    template = Environment(autoescape=True).from_string(_PAGE)
    page = template.render(title="How many workers", command=command, lines=lines, tables=tables, plot=plot)
    path.write_text(page, encoding="utf-8")
    return path
