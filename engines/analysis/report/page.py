"""The pages of reports, each an HTML file that needs nothing else: a comparison, and a plain sheet of sentences, tables
and plots.

Needs the `cli` extra (jinja2), imported when a page is written.
"""

from collections.abc import Sequence
from pathlib import Path

from fairsched.engines.analysis.report.canvas import Plot
from fairsched.engines.files import make_folder, write_whole

_HEAD = """{% macro grid(names, rows) %}<div class="scroll"><table>
<thead><tr>{% for name in names %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for text in row %}<td>{{ text }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table></div>{% endmacro -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b1f24; --soft: #5b6470; --rule: #d8dde3; --band: #f4f6f8;
  --good: #00694c; --bad: #b03a00; --grey: #8a929c;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #c2609b; --c4: #e69f00; --c5: #56b4e9;
  --c6: #332288; --c7: #999933; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171a; --ink: #e6e9ec; --soft: #a2abb5; --rule: #343a41; --band: #1d2125;
    --good: #4fd1a5; --bad: #ff9a62; --grey: #818a94;
    --c0: #4fa8e0; --c1: #f0824a; --c2: #34c79d; --c3: #dd8fbd; --c4: #efb73e; --c5: #9bd5f5;
    --c6: #a394f0; --c7: #bdbd5c; }
}
body { margin: 0 auto; max-width: 70rem; padding: 1.5rem 1.25rem 4rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
p, li { max-width: 50rem; }
.soft, figcaption, dt { color: var(--soft); }
pre { overflow-x: auto; background: var(--band); padding: .6rem .8rem; border-radius: .4rem; font-size: .85rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .75rem 0; }
dd { margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .65rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; vertical-align: bottom; }
th small, td small { display: block; font-weight: 400; color: var(--soft); }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--page); }
tbody tr:hover td { background: var(--band); }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
figure { margin: 1rem 0 2rem; } figcaption { max-width: 50rem; margin-top: .4rem; font-size: .92rem; }
figure svg { width: 100%; height: auto; display: block; }
details { margin: .4rem 0; } summary { cursor: pointer; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
"""
COMPARISON = (
    _HEAD
    + """<p class="soft">{{ name }}, {{ rows|length }} run{{ "s" if rows|length != 1 }}, fairsched {{ version }}</p>

<section>
<h2>What was run</h2>
<pre>{{ command }}</pre>
{% if facts %}<dl>{% for name, value in facts %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>{% endif %}
{% if notes %}<ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul>{% endif %}
</section>

<section>
<h2>Summary</h2>
<div class="scroll"><table>
<thead><tr>
{% for name, unit in columns %}<th>{{ name }}{% if unit %}<small>{{ unit }}</small>{% endif %}</th>
{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>
{% for cell in row %}<td class="{{ cell.tone }}">{{ cell.text }}
{%- if cell.small %}<small>{{ cell.small }}</small>{% endif %}</td>
{% endfor %}</tr>
{% endfor %}</tbody>
</table></div>
<ul class="soft">{% for line in legend %}<li>{{ line }}</li>{% endfor %}</ul>
</section>

<section>
<h2>Largest gaps</h2>
<ul>{% for label, sentence in worst %}<li><strong>{{ label }}</strong>: {{ sentence }}.</li>{% endfor %}</ul>
</section>

{% if assumptions %}<section>
<h2>Assumptions of the theorems</h2>
<ul>{% for label, sentences in assumptions %}{% for sentence in sentences %}<li><strong>{{ label }}</strong>:
{{ sentence }}.</li>{% endfor %}{% endfor %}</ul>
</section>

{% endif %}{% for plot in plots %}<section>
<h2>{{ plot.title }}</h2>
<figure>{{ plot.svg|safe }}<figcaption>{{ plot.caption }}</figcaption></figure>
</section>
{% endfor %}

{% if organisations[1] %}<section>
<h2>Organisations</h2>
{{ grid(organisations[0], organisations[1]) }}
</section>

{% endif %}<section>
<h2>Clients</h2>
{% for table in clients %}<details{% if loop.first %} open{% endif %}><summary>{{ table.label }}</summary>
{{ grid(client_columns, table.rows) }}{% if table.more %}<p class="soft">{{ table.more }}</p>{% endif %}</details>
{% endfor %}
</section>
</body>
</html>
"""
)
"""The page of a comparison."""
_SHEET = (
    _HEAD
    + """<pre>{{ command }}</pre>
<ul>{% for line in lines %}<li>{{ line }}</li>{% endfor %}</ul>
{% for heading, sentences in sections %}<h2>{{ heading }}</h2>
<ul>{% for line in sentences %}<li>{{ line }}</li>{% endfor %}</ul>
{% endfor %}{% for table in tables %}<h2>{{ table[0] }}</h2>
{{ grid(table[1], table[2]) }}
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
    sheet = rendered(
        _SHEET, title=title, command=command, lines=lines, tables=tables, plots=plots, sections=sections, small=small
    )
    return write_page(directory, sheet)


def rendered(template: str, **values: object) -> str:
    """The page of a template."""
    from jinja2 import Environment

    return Environment(autoescape=True).from_string(template).render(values)


def write_page(directory: Path, html: str) -> Path:
    """Write `index.html` into `directory`, which is made if need be, and return its path.  Raises `OSError`."""
    make_folder(directory)
    path = directory / "index.html"
    write_whole(path, html)
    return path
