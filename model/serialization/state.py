"""States to and from JSON: losing a state at a restart would forgive every debt, so every state can be kept.

A document is ``{"schema": 2, "type": "<class name>", "state": ...}`` of plain JSON values.  A struct is an object of
its fields, bytes are base64, a persistent map is a list of pairs in order of its keys, a sorted sequence or an array
a list, and prefix trees and indexes write themselves; so equal states give equal documents, whatever their histories.
"""

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from types import GenericAlias, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from immutables import Map

from fairsched.model.prefix_cache import PrefixIndex, PrefixTree, SortedTuple

SCHEMA = 2
"""Version of the document; it grows when a field's meaning changes.

Version 1 is read as well: only states of composed local policies had other fields, which the policy rewrites.
"""

T = TypeVar("T")


class StateError(ValueError):
    """A document that is not the state it should be; the message says which part and why."""


class Derived(msgspec.Struct, frozen=True, eq=False):
    """What a state keeps at hand although it follows from the rest of it: an index, or sums.

    It is in no document, and has a default, from which it is made anew.  All are equal, since what they follow from is.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Derived)

    def __hash__(self) -> int:
        return 0


def to_json(state: object) -> dict[str, Any]:
    """Return the document of a state, of plain JSON values.  O(size of the state)."""
    return {"schema": SCHEMA, "type": type(state).__name__, "state": _plain(state)}


def from_json(kind: type[T], document: object) -> T:
    """Return the state of a document made by `to_json`; raises `StateError` when it is of another type, version or
    shape.

    A generic state names its parameters: `LocalState[DeficitState]`.
    """
    name = (get_origin(kind) or kind).__name__
    if not isinstance(document, dict) or set(document) != {"schema", "type", "state"}:
        raise StateError(f"a {name} document has the keys schema, type and state")
    if document["schema"] != SCHEMA:
        raise StateError(f"this library reads schema {SCHEMA}, and the document has {document['schema']!r}")
    if document["type"] != name:
        raise StateError(f"expected the state of a {name}, and the document holds a {document['type']!r}")
    return cast(T, _restored(kind, document["state"], name))


def digest(state: object) -> str:
    """SHA-256 of a state's document: equal for equal states, on every machine.  O(size of the state)."""
    return hashlib.sha256(msgspec.json.encode(to_json(state))).hexdigest()


_SCALARS = frozenset({type(None), bool, int, str})


def _plain(value: object) -> object:
    # Most values are scalars, tuples and structs, and a look at the type is faster than `isinstance`.
    kind = type(value)
    if kind in _SCALARS:
        return value
    if isinstance(value, tuple | SortedTuple):
        # A sorted sequence cuts itself into chunks as its history had it; its items are what it is.
        return [item if type(item) in _SCALARS else _plain(item) for item in value]
    if isinstance(value, PrefixTree | PrefixIndex):
        return value.to_json()
    if isinstance(value, msgspec.Struct):
        fields = [(name, getattr(value, name)) for name in value.__struct_fields__]
        return {
            name: field if type(field) in _SCALARS else _plain(field)
            for name, field in fields
            if field is not msgspec.UNSET and not isinstance(field, Derived)
        }
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    if isinstance(value, Map):
        return [[_plain(key), _plain(value[key])] for key in sorted(value)]
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"a state holds no {kind.__name__}")


def _restored(kind: Any, value: Any, where: str) -> Any:
    """Return the value of type `kind` that `_plain` wrote; `where` is its place in the document, for errors."""
    origin, args = get_origin(kind) or kind, get_args(kind)
    try:
        if origin is tuple:
            return _tuple(args, value, where)
        if origin is SortedTuple:
            return SortedTuple.from_sorted(_tuple((args[0], ...), value, where))
        if origin is Map:
            return Map(_tuple((GenericAlias(tuple, args), ...), value, where))
        if origin is np.ndarray:
            dtype = get_args(args[1])[0]
            items: type = list[bool] if dtype is np.bool_ else list[int]
            return np.array(msgspec.convert(value, items), dtype=dtype)
        if origin in (PrefixTree, PrefixIndex):
            return _tree(origin, value)
        if origin in (Union, UnionType) and type(None) in args:
            (given,) = set(args) - {type(None)}
            return None if value is None else _restored(given, value, where)
        if isinstance(origin, type) and issubclass(origin, msgspec.Struct):
            return _struct(origin, args, value, where)
        if origin is Any or isinstance(origin, TypeVar):
            raise TypeError(f"{where}: the type of a state is given in full, not as {kind}")
        return msgspec.convert(value, kind)
    except (ValueError, OverflowError) as error:
        # Whatever is inside has named its own place.
        raise error if isinstance(error, StateError) else StateError(f"{where}: {error}") from error


def _tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    items = msgspec.convert(value, list[Any])
    if kinds[-1:] == (...,):
        kinds = kinds[:1] * len(items)
    if len(items) != len(kinds):
        raise StateError(f"{where}: expected {len(kinds)} items, found {len(items)}")
    return tuple(
        _restored(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, items, strict=True))
    )


def _struct(kind: Any, args: tuple[Any, ...], value: Any, where: str) -> Any:
    fields = msgspec.convert(value, dict[str, Any])
    names = kind.__struct_fields__
    if missing := set(names) - fields.keys():
        # What is unset is not written, nor what follows from the rest.
        defaults = dict(zip(names[::-1], kind.__struct_defaults__[::-1], strict=False))
        left = {n for n in missing if defaults.get(n) is msgspec.UNSET or isinstance(defaults.get(n), Derived)}
        names = tuple(n for n in names if n not in left)
    if fields.keys() != set(names):
        raise StateError(
            f"{where}: expected the fields {', '.join(names)}, found {', '.join(sorted(fields)) or 'none'}"
        )
    parameters: Mapping[Any, Any] = dict(zip(getattr(kind, "__parameters__", ()), args, strict=False))
    hints = _hints(kind)
    values = {n: _restored(parameters.get(hints[n], hints[n]), fields[n], f"{where}.{n}") for n in names}
    return kind(**values)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _tree(kind: type[PrefixTree] | type[PrefixIndex], value: Any) -> PrefixTree | PrefixIndex:
    try:
        return kind.from_json(value)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        name = "prefix tree" if kind is PrefixTree else "prefix index"
        raise ValueError(f"not a {name} ({type(error).__name__}: {error})") from error
