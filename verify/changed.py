"""Shipped Python of another text, or in which a name means something else: seeded bugs, and contracts for builtins."""

import inspect
import linecache
import textwrap
from itertools import count
from types import FunctionType
from typing import Any, TypeVar

Kind = TypeVar("Kind")
_numbers = count(1)


def changed(kind: type[Kind], method: str, old: str, new: str) -> type[Kind]:
    """The class where, in the text of one of its methods, `old` reads `new`.

    Raises `ValueError` unless `old` occurs there exactly once, so that a bug cannot silently be none.
    """
    home = next(base for base in kind.__mro__ if method in vars(base))
    text = textwrap.dedent(inspect.getsource(vars(home)[method]))
    if text.count(old) != 1:
        raise ValueError(f"{kind.__name__}.{method}: {old!r} occurs {text.count(old)} times, not once")
    lines = f"class {kind.__name__}(Base):\n{textwrap.indent(text.replace(old, new), '    ')}"
    name = f"<{kind.__name__}.{method}, changed {next(_numbers)}>"
    linecache.cache[name] = (len(lines), None, lines.splitlines(keepends=True), name)
    names: dict[str, Any] = {**vars(inspect.getmodule(home)), "Base": kind}
    exec(compile(lines, name, "exec"), names)
    made: type[Kind] = names[kind.__name__]
    return made


def with_names(function: Any, **names: Any) -> Any:
    """The function, for which these global names and builtins mean something else."""
    made = FunctionType(function.__code__, {**function.__globals__, **names})
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return made


def unchecked(kind: type[Kind], **values: Any) -> Kind:
    """A configuration with these values, such as unknown integers, that no validator has seen; others are defaults."""
    made = object.__new__(kind)
    fields: Any = getattr(kind, "__attrs_attrs__", ())
    for field in fields:
        object.__setattr__(made, field.name, values.get(field.name, field.default))
    return made
