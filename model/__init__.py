"""What exists and what is meant: values and pure functions that policies, proofs and engines share.

A folder's `__init__` may name everything and load nothing before it is used (`lazy_exports`), since a serving process
must not load torch, Ray or a solver because it imports a neighbour of theirs.  It lists its imports under
`TYPE_CHECKING`, where type checkers and readers see them, and that list is read.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from html import escape
from importlib import import_module
from itertools import islice
from typing import Any

EXTRAS = {
    "cli": ("cyclopts", "rich", "matplotlib", "jinja2"),
    "verify": ("z3", "cvc5", "hypothesis"),
    "cli,torch": ("torch", "safetensors"),
    "gateway": ("aiohttp",),
    "endpoint-picker": ("envoy", "google", "grpc", "grpc_health"),
    "frame": ("pyarrow",),
}
"""The extra that brings a module."""


def extra_of(module: str) -> str | None:
    """Return the extra that brings a module, or None."""
    return next((extra for extra, modules in EXTRAS.items() if module.partition(".")[0] in modules), None)


def installing(extra: str) -> str:
    """Return the command that installs an extra; no package index has fairsched."""
    return f"pip install '.[{extra}]' in a clone of fairsched"


@contextmanager
def extra_named() -> Iterator[None]:
    """Name the extra to install where a module is missing; `with` it, or as a decorator."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (extra := extra_of(error.name or "")) is None:
            raise
        said = f"{(error.name or '').partition('.')[0]} is not installed: {installing(extra)}"
        raise ModuleNotFoundError(said, name=error.name) from error


def lazy_exports(package: str) -> Callable[[str], object]:
    """Return the `__getattr__` of the package named `package`: it loads a name when that is first asked for."""

    def load(name: str) -> object:
        homes = {} if name.startswith("__") else imported_names(package)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, own_name = homes[name]
        found = vars(sys.modules[package])[name] = getattr(import_module(module), own_name)
        return found

    return load


@cache
def imported_names(package: str) -> dict[str, tuple[str, str]]:
    """Return the names that the package's text imports from inside of it: the module of each, and its name there."""
    tree = ast.parse(inspect.getsource(sys.modules[package]))
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{package}.")
        for alias in node.names
    }


# --- how values are shown ---------------------------------------------------------------------------------------------

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
