"""Settings: classes of them, one reader with its errors in one line, and the JSON Schema that an editor asks.

A setting is a field of a `Settings`: its type says what may stand there, with limits, and the string below it what it
means.  Unknown keys are refused.  The schema is made of the same classes.  A file that can be used follows the schema;
one that follows it may still be refused, for what several settings say together (`__post_init__`).
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from fairsched.model.serialization import parse

Schema = dict[str, Any]
S = TypeVar("S", bound=msgspec.Struct)

Count = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Text = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SECRETS = ("keys", "admin_keys", "api_key", "password", "key")
"""Settings whose values no message and no `repr` shows."""
_WORDS = {" | null": "", "`array`": "a list", "`object`": "a table", "`str`": "a text", "`": ""}
_PLACE = re.compile(r" - at (?:`key` in )?`\$(.*)`$", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")


class ConfigError(ValueError):
    """Settings that cannot be used; the message says where they stand, which key, and what may stand there."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of settings."""

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in _SECRETS)
        return f"{type(self).__name__}({', '.join(shown)})"


# --- reading --------------------------------------------------------------------------------------------------------


def read_settings(path: Path, kind: type[S]) -> S:
    """Return the settings in a TOML file.  Raises `ConfigError`, or `OSError` for a file that cannot be read."""
    try:
        document = parse(path.read_bytes(), "TOML")
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return made(kind, document, str(path))


def made(kind: type[S], document: object, where: str) -> S:
    """Return the settings of a document.  Raises `ConfigError`, which says `where` it stands and what is wrong.

    A whole number may have a point: Helm writes all with one.
    """
    document = _whole(document)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_told(str(error), document, kind)}") from None


def _whole(value: object) -> object:
    """Return a copy of the value with whole numbers for floats that are."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list) else value


def _told(error: str, document: Any, kind: type[msgspec.Struct]) -> str:
    """Return one line of what msgspec has against the document: place, value, what is expected."""
    found = _PLACE.search(error)
    text, steps = (error[: found.start()], _STEP.findall(found[1])) if found else (error, [])
    (node,), definitions = msgspec.json.schema_components([kind])
    place, value = "", document
    for name, index in steps:
        if index == "...":
            index = _blamed(value, document, kind, error)
        node = _inside(node, definitions, name or index)
        place += f"[{index}]" if isinstance(value, list) else f".{name or index}" if place else f"{name or index}"
        value = value[int(index)] if isinstance(value, list) else value[name or index]
    node = _inside(node, definitions)
    if "unknown field" in text:
        return _unknown(text.split("`")[1], place, list(node.get("properties", ())))
    if "missing required field" in text:
        return f"{place}{'.' if place else ''}{text.split('`')[1]} is missing"
    if not text.startswith(("Expected", "Invalid enum")):
        return f"{place}: {text}" if place else text
    if text.startswith("Invalid enum"):
        text = f"Expected one of {', '.join(map(str, _values(node)))}"
    elif "description" in node and "properties" not in node:
        text = f"Expected {node['description']}"
    else:
        for word, ours in _WORDS.items():
            text = text.replace(word, ours)
    expected = text.partition(", got")[0].removeprefix("Expected ")
    # What stands in the place of a table may be a secret in the wrong place.
    hidden = re.sub(r"\[\d+\]$", "", place).rpartition(".")[2] in _SECRETS or expected in ("a list", "a table")
    shown = f"a {type(value).__name__}" if hidden or isinstance(value, dict | list) else repr(value)
    return f"{place or 'it'}: expected {expected}, not {shown}"


def _blamed(table: dict[str, Any], document: object, kind: type[msgspec.Struct], error: str) -> str:
    """Return the key of a table for which a document is refused, and leave the table with that one alone."""
    items = dict(table)
    for key, value in items.items():
        table.clear()
        table[key] = value
        try:
            msgspec.convert(document, kind)
        except msgspec.ValidationError as again:
            if str(again) == error:
                return key
    raise AssertionError(error)


def _inside(node: Schema, definitions: dict[str, Schema], step: str | None = None) -> Schema:
    """Return the schema of what stands in a table or list at this step; without one, the table of a reference."""
    for each in node.get("anyOf", (node,)):
        told = definitions[each["$ref"].rpartition("/")[2]] if "$ref" in each else each
        if step is None and "$ref" in each:
            return told
        inner = told.get("properties", {}).get(step) or told.get("items") or told.get("additionalProperties")
        if step is not None and inner:
            return inner  # type: ignore[no-any-return]
    return node if step is None else {}


def _values(node: Schema) -> list[object]:
    """Return what may stand there, if that is one of some values, or a list of them."""
    found = list(node.get("enum", ()))
    for each in (*node.get("anyOf", ()), node.get("items", {})):
        found += [value for value in each.get("enum", ()) if value not in found]
    return found


def _unknown(key: str, place: str, known: list[str]) -> str:
    near = get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return f"unknown key {place}{'.' if place else ''}{key}; {hint}"


def check_changes(path: Path, running: msgspec.Struct, fresh: msgspec.Struct, may_change: tuple[str, ...]) -> None:
    """Raise `ConfigError` where the file there changes a setting that may not change while a program serves."""
    for name in running.__struct_fields__:
        if name not in may_change and getattr(fresh, name) != getattr(running, name):
            raise ConfigError(f"{path}: a change of {name} needs a restart")


# --- schema ---------------------------------------------------------------------------------------------------------


def schema_of(kind: type[msgspec.Struct]) -> Schema:
    """Return the schema of a file with the settings of a class."""
    (root,), definitions = msgspec.json.schema_components([kind])
    for each in _classes(kind):
        meanings, properties = field_meanings(each), definitions[each.__name__]["properties"]
        for field in msgspec.structs.fields(each):
            told = properties[field.encode_name]
            if {"type": "null"} in (kinds := told.get("anyOf", ())):
                # TOML has no null.
                (rest,) = (one for one in kinds if one != {"type": "null"})
                told = {**{key: value for key, value in told.items() if key not in ("anyOf", "default")}, **rest}
            if field.name in meanings:
                told = {**told, "description": meanings[field.name]}
            properties[field.encode_name] = told
    return {"$schema": DIALECT, "title": kind.__name__, **root, "$defs": definitions}


def _classes(kind: Any) -> dict[type[msgspec.Struct], None]:
    """Return the classes of settings in a type."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return {each: None for inner in get_args(kind) for each in _classes(inner)}
    return {kind: None} | {each: None for hint in get_type_hints(kind).values() for each in _classes(hint)}


def field_meanings(kind: type) -> dict[str, str]:
    """Return the string below each field of a class, in one line; those of its bases, too."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):
            continue
        found |= dict(_strings_below(ast.parse(source).body[0]))
    return found


def _strings_below(definition: ast.stmt) -> Iterator[tuple[str, str]]:
    assert isinstance(definition, ast.ClassDef)
    for above, below in zip(definition.body, definition.body[1:], strict=False):
        match above, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())
