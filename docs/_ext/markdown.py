"""Markdown made of values of the code, and the directive that puts it into a page."""

import re
from collections.abc import Callable, Iterable, Sequence

from docutils import nodes
from docutils.parsers.rst import Directive

_SPECIAL = re.compile(r"([\\*_<>\[\]|$#~{}])")
_SUBSCRIPT = re.compile(r"(?<![\w`])([A-Za-z])\\_([A-Za-z0-9]{1,3})(?!\w|\\_)")
_SIGNS = ((r"\<=", "≤"), (r"\>=", "≥"), (" - ", " − "))

Making = Callable[[Sequence[str]], str]
"""Makes the Markdown of a directive from its arguments; raises `ValueError` for arguments that name nothing."""


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is; what stands between backticks stays code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return _SPECIAL.sub(r"\\\1", text.replace("`", "'"))
    return "`".join(part if i % 2 else _SPECIAL.sub(r"\\\1", part) for i, part in enumerate(parts))


def formula(text: str) -> str:
    """Return a statement as Markdown, with its signs and subscripts as they are printed in papers."""
    shown = escaped(text)
    for typed, printed in _SIGNS:
        shown = shown.replace(typed, printed)
    return _SUBSCRIPT.sub(r"\1{sub}`\2`", shown)


def sentence(text: str) -> str:
    """Return text on one line, with a full stop, and a capital letter unless a symbol comes first."""
    line = " ".join(text.split())
    if re.match(r"[a-z]{2,}\b", line) or line.startswith("a "):
        line = line[0].upper() + line[1:]
    return line + ("" if line[-1:] in (".", "!", "?") or not line else ".")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("\n", " ") for cell in line) + " |" for line in lines)


def anchor(kind: str, name: str) -> str:
    """Return the target of a theorem, an assumption or a refutation, for links of the whole site."""
    return f"{kind}-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}"


def directive(making: Making) -> type[Directive]:
    """Return the directive that parses what `making` makes of its arguments as a part of the page."""

    class Generated(Directive):
        optional_arguments = 1
        final_argument_whitespace = True
        has_content = False

        def run(self) -> list[nodes.Node]:
            try:
                made = making((self.arguments[0] if self.arguments else "").split())
            except ValueError as error:
                raise self.error(str(error)) from error
            self.state.nested_parse(made.splitlines(), self.content_offset, holder := nodes.container())
            return holder.children

    return Generated
