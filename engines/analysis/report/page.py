"""The page of every report: a verdict first, then pictures, then details, in one HTML file that needs nothing else.

A `Page` is a value: each `Part` has a heading and blocks, which are paragraphs (plain text), `Sentences`, `Table`,
`Code`, `Facts`, `Folded`, plots and a `Player`.  All text is text: the page escapes it, and shows control characters
instead of obeying them.  The page is as wide as its window; what is wider (a table, a command) scrolls in a box of its
own.

Needs the `cli` extra (jinja2), imported when a page is written.

The colours of lines (Okabe and Ito's, and two of Tol's) are told apart by readers who see fewer colours; lines differ
in dashes as well.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs

from fairsched.engines.analysis.report.canvas import Key, Plot, shown_text
from fairsched.engines.analysis.table import Column
from fairsched.engines.files import make_folder, write_whole

if TYPE_CHECKING:
    from jinja2 import Template

PLAYER = Path(__file__).with_name("player.js")
"""What plays, in the page of a report that has a `Player`."""
Tone = Literal["", "good", "bad", "soft"]


@attrs.frozen
class Cell:
    """A text of a table with a smaller one under it; `href` leads to another place of the page, `id` is its own."""

    text: str
    small: str = ""
    tone: Tone = ""
    href: str = ""
    id: str = ""


@attrs.frozen
class Heading:
    """The head of a column and a smaller text under it; texts stand at the left, figures at the right."""

    name: str
    small: str = ""
    is_text: bool = False


def _heads(given: Sequence[str | Heading | Column]) -> tuple[Heading, ...]:
    """Return the heads; the first column of a table names its rows."""
    found = []
    for i, each in enumerate(given):
        if isinstance(each, Column):
            each = Heading(each.label, is_text=each.kind != "figure")
        head = Heading(each) if isinstance(each, str) else each
        found.append(attrs.evolve(head, is_text=head.is_text or not i))
    return tuple(found)


def _rows(given: Sequence[Sequence[str | Cell]]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(tuple(Cell(each) if isinstance(each, str) else each for each in row) for row in given)


@attrs.frozen
class Table:
    """Columns (those of a terminal's table, too) and rows; `note` says what is left out."""

    kind: ClassVar[str] = "table"
    columns: tuple[Heading, ...] = attrs.field(converter=_heads)
    rows: tuple[tuple[Cell, ...], ...] = attrs.field(converter=_rows)
    note: str = ""


@attrs.frozen
class Sentences:
    """A list of sentences; small ones say what figures mean."""

    kind: ClassVar[str] = "sentences"
    lines: Sequence[str]
    is_small: bool = False


@attrs.frozen
class Code:
    """A text of fixed width: a command, a file, a log."""

    kind: ClassVar[str] = "code"
    text: str


@attrs.frozen
class Facts:
    """Names and what belongs to them."""

    kind: ClassVar[str] = "facts"
    items: Sequence[tuple[str, str]]


@attrs.frozen
class Folded:
    """Blocks that a click on the heading shows; `id` is where links to it lead."""

    kind: ClassVar[str] = "folded"
    heading: str
    blocks: "Sequence[Block]"
    is_open: bool = False
    id: str = ""


@attrs.frozen
class Player:
    """Courses of runs to play, stop and drag; `data` is what `player.js` reads, `keys` are the lines in it."""

    kind: ClassVar[str] = "player"
    data: Mapping[str, object]
    keys: Sequence[Key]
    caption: str


Block = str | Table | Sentences | Code | Facts | Folded | Player | Plot


@attrs.frozen
class Part:
    """Blocks under a heading; `id` is where links to it lead (default: from the heading)."""

    heading: str
    blocks: Sequence[Block]
    id: str = ""

    @property
    def anchor(self) -> str:
        """Where links to it lead."""
        plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in self.heading.lower())
        return self.id or f"part-{plain}"


def plot_part(plot: Plot) -> Part:
    """Return a picture under its title."""
    return Part(plot.title, [plot])


@attrs.frozen
class Page:
    """A report.

    The first sentence of `verdict` is set large: what came out, for a reader who reads nothing else; `tone` colours it.
    `parts` follow in order, pictures first.  At the end stand the `command` that repeats the report and `small`, what
    its figures rest on.
    """

    title: str
    verdict: Sequence[str]
    parts: Sequence[Part] = ()
    subtitle: str = ""
    tone: Tone = ""
    command: str = ""
    small: Sequence[str] = ()

    def html(self) -> str:
        """Return the page as text, which is HTML and well-formed XML."""
        plays = any(isinstance(block, Player) for part in self.parts for block in part.blocks)
        return _template().render(page=self, style=STYLE, script=PLAYER.read_text(encoding="utf-8") if plays else "")

    def write(self, directory: Path) -> Path:
        """Write `index.html` into `directory`, which is made if need be, and return its path.  Raises `OSError`."""
        make_folder(directory)
        path = directory / "index.html"
        write_whole(path, self.html())
        return path


@cache
def _template() -> "Template":
    from jinja2 import Environment

    return Environment(autoescape=True, finalize=_safe, trim_blocks=True).from_string(_PAGE)


def _safe(value: Any) -> Any:
    """Return what the page shows of a text; what is markup already stays as it is."""
    return shown_text(value) if type(value) is str else value


_PAGE = """
{%- macro cell(each) -%}
{% if each.href %}<a href="{{ each.href }}">{{ each.text }}</a>{% else %}{{ each.text }}{% endif %}
{% if each.small %}<small>{{ each.small }}</small>{% endif %}
{%- endmacro %}
{%- macro table(given) -%}
<div class="scroll" tabindex="0"><table>
<thead><tr>
{% for each in given.columns %}
<th{% if each.is_text %} class="text"{% endif %}>{{ each.name }}
{%- if each.small %}<small>{{ each.small }}</small>{% endif %}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in given.rows %}
<tr>
{% for each in row %}
{% set kind = "text" if given.columns[loop.index0].is_text else "" %}
{% set marks = [kind, each.tone]|select|join(" ") %}
<td{% if marks %} class="{{ marks }}"{% endif %}
{%- if each.id %} id="{{ each.id }}"{% endif %}>{{ cell(each) }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table></div>
{% if given.note %}<p class="soft">{{ given.note }}</p>
{% endif %}
{%- endmacro %}
{%- macro plot(given) -%}
<figure{% if given.kind == "player" %} class="player"{% endif %}>
{% if given.keys %}<ul class="keys">
{% for key in given.keys %}
<li>{{ key.svg|safe }}<span>{{ key.text }}</span></li>
{% endfor %}
</ul>
{% endif %}
{% if given.kind == "player" %}
<script type="application/json">{{ given.data|tojson }}</script>
{% else %}
{{ given.svg|safe }}
{% endif %}
<figcaption>{{ given.caption }}</figcaption>
</figure>
{% endmacro %}
{%- macro block(given) -%}
{% if given is string %}
<p>{{ given }}</p>
{% elif given.kind == "table" %}
{{ table(given) }}
{% elif given.kind == "sentences" %}
<ul{% if given.is_small %} class="soft"{% endif %}>
{% for line in given.lines %}
<li>{{ line }}</li>
{% endfor %}
</ul>
{% elif given.kind == "code" %}
<pre tabindex="0">{{ given.text }}</pre>
{% elif given.kind == "facts" %}
<dl>
{% for name, value in given["items"] %}
<dt>{{ name }}</dt><dd>{{ value }}</dd>
{% endfor %}
</dl>
{% elif given.kind == "folded" %}
<details{% if given.is_open %} open=""{% endif %}>
<summary>{{ given.heading }}</summary>
{# A link to what is inside opens it. #}
<div{% if given.id %} id="{{ given.id }}"{% endif %}>{% for each in given.blocks %}{{ block(each) }}{% endfor %}</div>
</details>
{% else %}
{{ plot(given) }}
{% endif %}
{%- endmacro -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{{ page.title }}</title>
<style>{{ style|safe }}</style>
</head>
<body>
<header>
<h1>{{ page.title }}</h1>
{% if page.subtitle %}<p class="soft">{{ page.subtitle }}</p>{% endif %}
{% for line in page.verdict %}
{% if loop.first %}<p class="verdict {{ page.tone }}">{{ line }}</p>
{% if not loop.last %}<ul class="verdict">{% endif %}
{% else %}<li>{{ line }}</li>
{% if loop.last %}</ul>{% endif %}
{% endif %}
{% endfor %}
{% if page.parts|length > 3 %}<nav><details><summary>On this page</summary><ul>
{% for part in page.parts %}
<li><a href="#{{ part.anchor }}">{{ part.heading }}</a></li>
{% endfor %}
</ul></details></nav>
{% endif %}
</header>
<main>
{% for part in page.parts %}
<section id="{{ part.anchor }}">
<h2>{{ part.heading }}</h2>
{% for each in part.blocks %}{{ block(each) }}{% endfor %}
</section>
{% endfor %}
</main>
<footer>
{% if page.command %}<h2>How this page was made</h2>
<pre tabindex="0">{{ page.command }}</pre>{% endif %}
{% if page.small %}<h2>What these figures rest on</h2>
<ul class="soft">
{% for line in page.small %}
<li>{{ line }}</li>
{% endfor %}
</ul>{% endif %}
</footer>
{% if script %}
<script>/*<![CDATA[*/
{{ script|safe }}
/*]]>*/</script>
{% endif %}
</body>
</html>
"""


STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b1f24; --soft: #57606a; --rule: #d8dde3; --band: #f4f6f8;
  --link: #0a5c9e; --good: #00694c; --bad: #b03a00; --grey: #8a929c;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #c2609b; --c4: #e69f00; --c5: #56b4e9;
  --c6: #332288; --c7: #999933; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #14171a; --ink: #e6e9ec; --soft: #a2abb5; --rule: #343a41; --band: #1d2125;
    --link: #7cc0f5; --good: #4fd1a5; --bad: #ff9a62; --grey: #818a94;
    --c0: #4fa8e0; --c1: #f0824a; --c2: #34c79d; --c3: #dd8fbd; --c4: #efb73e; --c5: #9bd5f5;
    --c6: #a394f0; --c7: #bdbd5c; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 72rem; padding: 1.25rem 1rem 4rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; line-height: 1.3; }
p, li { max-width: 50rem; }
ul { padding-left: 1.2rem; } li { margin: .2rem 0; }
a { color: var(--link); }
.soft, figcaption, dt { color: var(--soft); }
.soft { font-size: .92rem; }
p.verdict { font-size: 1.3rem; line-height: 1.4; margin: 1rem 0 .5rem; padding: .1rem 0 .1rem .9rem;
  border-left: .3rem solid var(--rule); }
p.verdict.good { border-color: var(--good); } p.verdict.bad { border-color: var(--bad); }
nav { font-size: .92rem; } nav ul { columns: 16rem; margin: .3rem 0; } nav li { break-inside: avoid; }
pre { overflow-x: auto; overflow-wrap: normal; background: var(--band); padding: .6rem .8rem; border-radius: .4rem;
  font-size: .85rem; }
dl { display: grid; grid-template-columns: fit-content(14rem) minmax(0, 1fr); gap: .15rem 1rem; margin: .75rem 0; }
dd { margin: 0; }
.scroll { overflow-x: auto; max-width: 100%;
  background: linear-gradient(to right, var(--page) 40%, transparent) 0 0 / 2.5rem 100%,
  linear-gradient(to left, var(--page) 40%, transparent) 100% 0 / 2.5rem 100%,
  linear-gradient(to right, var(--rule), transparent) 0 0 / .8rem 100%,
  linear-gradient(to left, var(--rule), transparent) 100% 0 / .8rem 100%;
  background-repeat: no-repeat; background-attachment: local, local, scroll, scroll; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .3rem .5rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
th { font-weight: 600; vertical-align: bottom; }
th small, td small { display: block; font-weight: 400; color: var(--soft); }
th.text, td.text { text-align: left; }
td.text { white-space: normal; overflow-wrap: anywhere; min-width: 9rem; max-width: 24rem; unicode-bidi: isolate; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--page); }
td:first-child { max-width: 18rem; }
tbody tr:hover td { background: var(--band); }
:target { background: var(--band); scroll-margin-top: 1rem; }
.good { color: var(--good); } .bad { color: var(--bad); } td.bad { font-weight: 600; }
p.verdict { color: var(--ink); }
figure { margin: 1rem 0 2rem; } figcaption { max-width: 50rem; margin-top: .4rem; font-size: .92rem; }
figure > svg { width: 100%; max-width: 32rem; height: auto; display: block; }
.keys { list-style: none; padding: 0; margin: .5rem 0; display: flex; flex-wrap: wrap; gap: .1rem 1.1rem;
  font-size: .88rem; }
.keys li { display: flex; align-items: center; gap: .4rem; max-width: 100%; margin: 0; }
.keys span { unicode-bidi: isolate; max-width: 24rem; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.keys svg { width: 1.75rem; height: .6rem; flex: none; }
.controls { display: flex; gap: .8rem; margin: .8rem 0; } .controls input { flex: 1; min-width: 0; }
.controls button, .sides select { font: inherit; color: inherit; background: var(--band); border-radius: .4rem;
  border: 1px solid var(--rule); padding: .3rem .8rem; max-width: 100%; } .controls button { min-width: 5rem; }
.sides { display: grid; grid-template-columns: repeat(var(--sides), minmax(0, 1fr)); gap: .3rem 1.2rem;
  font-size: .88rem; font-variant-numeric: tabular-nums; }
.sides output { display: block; color: var(--soft); } .measure { grid-column: 1 / -1; margin: .7rem 0 0; }
.measure small { color: var(--soft); }
.sides svg { display: block; width: 100%; height: 7rem; background: var(--band); cursor: ew-resize;
  touch-action: pan-y; }
.sides path { fill: none; stroke-width: 1.8; vector-effect: non-scaling-stroke; }
.sides ul { list-style: none; padding: 0; margin: .3rem 0; display: grid;
  grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .1rem 1.1rem; }
.sides li { border-left: .25rem solid transparent; padding-left: .4rem; } .sides li b { margin-left: .4rem; }
details { margin: .4rem 0; } summary { cursor: pointer; }
@media (max-width: 40em) { dl { grid-template-columns: minmax(0, 1fr); } dd { margin-bottom: .4rem; }
  td.text { min-width: 7rem; } td:first-child { max-width: 9rem; } th, td { padding: .3rem .45rem; } }
@media (min-width: 52em) { figure > svg { max-width: 46rem; } figure > svg text { font-size: 7.5px !important; }
  body { padding-left: 1.25rem; padding-right: 1.25rem; } h1 { font-size: 1.5rem; } p.verdict { font-size: 1.45rem; } }
@media print { body { max-width: none; padding: 0; font-size: 11pt; }
  nav { display: none; } figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; } .scroll, pre { overflow: visible; } pre { white-space: pre-wrap; }
  table { font-size: .7rem; } th, td { padding: .2rem .3rem; white-space: normal; } }
"""
