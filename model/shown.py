"""How values are shown to who asks for them: on one line, and as a table in a notebook."""

from collections.abc import Collection, Iterable, Mapping
from html import escape
from itertools import islice
from typing import Any

_SHOWN = 1_600
"""Characters of a value that is shown."""
_LEAST = 16
"""Characters for a part."""
_PARTS = 8
"""So many parts of a list are shown at most."""
_ROWS = 32
"""So many rows of a table are shown."""


def short_repr(value: Any, room: int = _SHOWN) -> str:
    """Return what a value is in about so many characters: of an array its size, of a long list the first ones.

    Attrs classes and msgspec structs that may be large have it as their `__repr__`.
    """
    fields = getattr(value, "__struct_fields__", None) or [
        field.name for field in getattr(value, "__attrs_attrs__", ()) if field.repr
    ]
    if isinstance(value, type) or (not isinstance(value, Collection) and not fields):
        return _cut(repr(value), room)
    if isinstance(value, bytes) and len(value) > _LEAST:
        return f"<{len(value):,} bytes>"
    if isinstance(value, str):
        return _cut(repr(value[:room]), room)
    if hasattr(value, "dtype"):
        return f"<{value.size:,} {value.dtype}>"
    if fields:
        parts, opens, closes = [(f"{name}=", getattr(value, name)) for name in fields], f"{type(value).__name__}(", ")"
    elif isinstance(value, Mapping):
        parts, opens, closes = [(f"{_cut(repr(key), 40)}: ", value[key]) for key in islice(value, _PARTS)], "{", "}"
    else:
        parts, opens, closes = [("", each) for each in islice(value, _PARTS)], "(", ")"
    of = len(fields) if fields else len(value)
    left, shown = room - len(opens) - 1, list[str]()
    for i, (name, part) in enumerate(parts):
        if left < _LEAST + len(name):
            break
        shown.append(
            name + short_repr(part, max(left // (len(parts) - i if fields else 1 + i // 2), _LEAST) - len(name))
        )
        left -= len(shown[-1]) + 2
    more = [f"... {of:,} in all"] if len(shown) < of else []
    return f"{opens}{', '.join(shown + more)}{closes}"


def _cut(text: str, room: int) -> str:
    return text if len(text) <= max(room, _LEAST) else f"{text[: max(room, _LEAST) - 3]}..."


def html_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table as HTML, which notebooks show: the first rows."""

    def row(cells: Iterable[str], kind: str) -> str:
        return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"

    return f"<table>{row(heads, 'th')}{''.join(row(each, 'td') for each in islice(rows, _ROWS))}</table>"
