"""A plain page: a title, the command that made it, sentences, tables and plots, in one HTML file.

Needs the `cli` extra (jinja2), imported when a page is written.
"""

from collections.abc import Sequence
from pathlib import Path

from fairsched.engines.analysis.report.canvas import Plot
from fairsched.engines.analysis.report.page import PAGE

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
{% for heading, sentences in sections %}<h2>{{ heading }}</h2>
<ul>{% for line in sentences %}<li>{{ line }}</li>{% endfor %}</ul>
{% endfor %}{% for table in tables %}<h2>{{ table[0] }}</h2>
<div class="scroll"><table>
<thead><tr>{% for name in table[1] %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in table[2] %}<tr>{% for text in row %}<td>{{ text }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table></div>
{% endfor %}{% for plot in plots %}<h2>{{ plot.title }}</h2>
<figure>{{ plot.svg|safe }}<figcaption>{{ plot.caption }}</figcaption></figure>
{% endfor %}{% if small %}<h2>What these figures rest on</h2>
<ul class="soft">{% for line in small %}<li>{{ line }}</li>{% endfor %}</ul>
{% endif %}</body>
</html>
"""
)

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A heading, column names, and rows of text."""


def write_sheet(
    directory: Path,
    *,
    title: str,
    command: str,
    lines: Sequence[str],
    tables: Sequence[Table] = (),
    plots: Sequence[Plot] = (),
    sections: Sequence[tuple[str, Sequence[str]]] = (),
    small: Sequence[str] = (),
) -> Path:
    """Write `index.html` into `directory`, which is made if need be, and return its path.  Raises `OSError`.

    `lines` come first, `sections` are sentences under headings before the tables, `small` what stands at the end.
    """
    from jinja2 import Environment

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "index.html"
    page = (
        Environment(autoescape=True)
        .from_string(_PAGE)
        .render(
            title=title,
            command=command,
            lines=lines,
            tables=tables,
            plots=plots,
            sections=sections,
            small=small,
        )
    )
    path.write_text(page, encoding="utf-8")
    return path
