"""The fields of a class of parameters or settings: type, default, and the string below each as its meaning."""

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
import msgspec
from markdown import directive, escaped, sentence, table

from fairsched.engines.conformance import SCENARIOS
from fairsched.engines.logs.access import PRESETS
from fairsched.engines.settings import field_meanings
from fairsched.engines.workloads import FORMATS, WORKLOADS

UNITS = {
    "_tokens": "tokens",
    "_percent": "%",
    "_us": "µs",
    "_ns": "ns",
    "_ms": "ms",
    "_milli": "thousandths",
    "_seconds": "s",
    "_bytes": "bytes",
}


def fields(kind: type) -> dict[str, tuple[Any, str]]:
    """Type and meaning of each field of a class."""
    meanings = {each.name: each.metadata.get("meaning", "") for each in attrs.fields(kind)} if attrs.has(kind) else {}
    meanings |= field_meanings(kind)
    return {name: (hint, meanings.get(name, "")) for name, hint in get_type_hints(kind).items()}


def kind_of(kind: Any, name: str = "") -> str:
    """What values of a type are, in words; the end of the field's name says the unit."""
    origin = get_origin(kind)
    if origin is Annotated:
        return kind_of(get_args(kind)[0], name)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if origin in (Union, UnionType):
        return " or ".join(filter(None, dict.fromkeys(kind_of(each, name) for each in get_args(kind))))
    if kind in (int, float, Decimal):
        return next((unit for end, unit in UNITS.items() if name.endswith(end)), "number")
    return {str: "text", bool: "true or false", type(None): "none", dict: "table", tuple: "list"}.get(
        origin or kind, ""
    )


def default(value: object) -> str:
    """A default as it would be written."""
    if value is None:
        return "none"
    if value in ("", (), {}, []):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def settings(words: Sequence[str]) -> str:
    """A table of the settings that some classes of a module hold: `MODULE CLASS[=PREFIX]...`."""
    module, *classes = words
    found = importlib.import_module(module)
    rows = []
    for each in classes:
        name, _, prefix = each.partition("=")
        if not hasattr(found, name):
            raise ValueError(f"{module} has no {name}")
        rows += list(_rows(getattr(found, name), prefix))
    return table(("setting", "default", "values", "meaning"), rows)


def _rows(kind: type, prefix: str) -> Iterator[Sequence[str]]:
    defaults = _defaults(kind)
    for name, (hint, meaning) in fields(kind).items():
        if name in defaults and not _is_table(hint):
            value = defaults[name]
            shown = "needed" if value is _NEEDED else default(value)
            yield f"`{prefix}{name}`", shown, kind_of(hint, name), escaped(meaning)


_NEEDED = object()


def _defaults(kind: type) -> Mapping[str, Any]:
    if attrs.has(kind):
        return {field.name: _attrs_default(field) for field in attrs.fields(kind) if field.init}
    return {field.name: _struct_default(field) for field in msgspec.structs.fields(kind)}


def _attrs_default(field: Any) -> Any:
    if isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]
        return field.default.factory()
    return _NEEDED if field.default is attrs.NOTHING else field.default


def _struct_default(field: Any) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return _NEEDED if field.default is msgspec.NODEFAULT else field.default


def _is_table(hint: Any) -> bool:
    """Whether a setting holds other settings, which have rows of their own."""
    kinds = [hint, *get_args(hint)]
    return any(isinstance(kind, type) and (attrs.has(kind) or issubclass(kind, msgspec.Struct)) for kind in kinds)


def figures(words: Sequence[str]) -> str:
    """A table of the fields of a class and what each is: `MODULE CLASS`."""
    module, name = words
    found = fields(getattr(importlib.import_module(module), name))
    return table(
        ("field", "definition"), [(f"`{each}`", escaped(meaning)) for each, (_, meaning) in found.items() if meaning]
    )


def workloads(_: Sequence[str]) -> str:
    """A table of the generated workloads, with the parameters of each."""
    rows = []
    for name, spec in WORKLOADS.items():
        given = [each for each in inspect.signature(spec.make).parameters.values() if each.default is not each.empty]
        shown = ", ".join(f"`{each.name}={default(each.default).strip('`')}`" for each in given)
        rows.append((f"`{name}`", escaped(sentence(spec.summary)), shown))
    return table(("name", "what", "parameters"), rows)


def formats(_: Sequence[str]) -> str:
    """A table of the trace formats: what a file holds, and its columns or keys."""
    rows = [
        (f"`{each.name}`", escaped(sentence(each.summary)), ", ".join(f"`{name}`" for name in each.fields))
        for each in FORMATS.values()
    ]
    return table(("name", "what", "columns or keys"), rows)


def log_kinds(_: Sequence[str]) -> str:
    """A table of the kinds of logs that need no map: how each is known, what it says, and what must be turned on."""
    rows = [
        (
            each.name,
            sentence(each.known_by),
            ", ".join(f"`{field}`" for field in each.columns.of),
            escaped(sentence(each.asks)),
            escaped(sentence(each.sample)),
        )
        for each in PRESETS
    ]
    return table(("kind", "known by", "fields", "so that nothing is missing", "our sample is by"), rows)


def scenarios(_: Sequence[str]) -> str:
    """Return a table of the scenarios of `fairsched conform`: what is claimed of a gateway."""
    rows = [(f"`{name}`", escaped(sentence(each.claim))) for name, each in SCENARIOS.items()]
    return table(("scenario", "passes if"), rows)


def setup(app: Any) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("settings", directive(settings))
    app.add_directive("figures", directive(figures))
    app.add_directive("workloads", directive(workloads))
    app.add_directive("formats", directive(formats))
    app.add_directive("log-kinds", directive(log_kinds))
    app.add_directive("scenarios", directive(scenarios))
    return {"parallel_read_safe": True}
