"""The JSON Schema of a configuration, for editors: the gateway's, and by the same way the endpoint picker's.

It is made from the classes of the settings: types, defaults and tables are theirs, the text of a setting is the string
below it, and a limit is the one that its validator holds.  A file that can be used follows the schema; one that follows
it may still be refused, for what several settings say together.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import msgspec

from fairsched.engines.gateway.config.clients import KEY_PATTERN, check_keys, check_weight
from fairsched.engines.gateway.config.limits import not_negative, percent, positive
from fairsched.engines.gateway.config.reading import OLD_NAMES, TABLES
from fairsched.engines.gateway.config.settings import GatewayConfig

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LIMITS: Mapping[object, Schema] = {
    positive: {"exclusiveMinimum": 0},
    not_negative: {"minimum": 0},
    percent: {"minimum": 0, "maximum": 100},
    check_weight: {"exclusiveMinimum": 0},
    check_keys: {"items": {"type": "string", "pattern": f"^{KEY_PATTERN}$"}},
}
"""What a validator demands, where JSON Schema has words for it."""


def config_schema() -> Schema:
    """Return the schema of a gateway's TOML file."""
    names = {field: key for key, field in TABLES.items()}
    schema = schema_of(GatewayConfig, lambda kind, name: names.get(name, name) if kind is GatewayConfig else name)
    root = schema["$defs"]["GatewayConfig"]["properties"]
    for old, name in OLD_NAMES.items():
        root[old] = {**root[name], "description": f"It is called {name} now.", "deprecated": True}
    return schema


def schema_of(kind: type, named: Callable[[type, str], str] = lambda kind, name: name) -> Schema:
    """Return the schema of a file with a class's fields; `named` says what the field of a class is called there."""
    (root,), definitions = msgspec.json.schema_components([kind])
    for each in _classes(kind):
        _complete(definitions[each.__name__], each, named)
    return {"$schema": DIALECT, "title": kind.__name__, **root, "$defs": definitions}


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


def _complete(definition: Schema, kind: type, named: Callable[[type, str], str]) -> None:
    """Have the tables of a class refuse unknown keys, and its settings have limits, meanings and no null, which TOML
    has not."""
    meanings = field_meanings(kind)
    checks = {field.name: field.validator for field in attrs.fields(kind)} if attrs.has(kind) else {}
    properties = {}
    for name, told in definition["properties"].items():
        if {"type": "null"} in (kinds := told.get("anyOf", ())):
            (rest,) = (each for each in kinds if each != {"type": "null"})
            told = {**{key: value for key, value in told.items() if key not in ("anyOf", "default")}, **rest}
        check = checks.get(name)
        told = {**told, **_LIMITS.get(getattr(check, "validator", check), {})}
        if name in meanings:
            told["description"] = meanings[name]
        properties[named(kind, name)] = told
    definition["properties"] = properties
    definition["additionalProperties"] = False
    if required := definition.get("required"):
        definition["required"] = [named(kind, name) for name in required]


def _classes(kind: type) -> list[type]:
    """Return the class and all that its fields are of."""
    found: dict[type, None] = {}

    def visit(told: msgspec.inspect.Type) -> None:
        match told:
            case msgspec.inspect.DataclassType(cls=cls) | msgspec.inspect.StructType(cls=cls) if cls not in found:
                found[cls] = None
                for field in told.fields:
                    visit(field.type)
            case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType():
                visit(told.item_type)
            case msgspec.inspect.DictType():
                visit(told.value_type)
            case msgspec.inspect.UnionType():
                for each in told.types:
                    visit(each)
            case msgspec.inspect.Metadata():
                visit(told.type)
            case _:
                pass

    visit(msgspec.inspect.type_info(kind))
    return list(found)
