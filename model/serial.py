"""States to and from JSON: losing a state at a restart would forgive every debt, so every state can be kept.

A document is ``{"schema": 1, "type": "<class name>", "state": ...}`` of plain JSON values.  Structs, tuples and bytes
follow msgspec; a persistent map is a list of pairs in order of its keys and an array a list, so equal states give
equal documents.
"""

import hashlib
from typing import Any, TypeVar, get_args, get_origin

import msgspec
import numpy as np
from immutables import Map

SCHEMA = 1
"""Version of the document; it grows when a field's meaning changes."""

T = TypeVar("T")


class StateError(ValueError):
    """A document that is not the state it should be; the message says which part and why."""


def _encode(value: object) -> object:
    if isinstance(value, Map):
        return sorted(value.items())
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"a state holds no {type(value).__name__}")


def _decode(kind: Any, value: Any) -> object:
    origin = get_origin(kind) or kind
    if origin is Map:
        key, item = get_args(kind)
        return Map(msgspec.convert(value, list[tuple[key, item]], dec_hook=_decode))  # type: ignore[valid-type]
    if origin is np.ndarray:
        dtype = get_args(get_args(kind)[1])[0]
        return np.array(value, dtype=dtype)
    raise NotImplementedError(f"a state holds no {kind}")


def to_json(state: object) -> dict[str, Any]:
    """The document of a state, of plain JSON values.  O(size of the state)."""
    name = type(state).__name__
    return {"schema": SCHEMA, "type": name, "state": msgspec.to_builtins(state, enc_hook=_encode)}


def from_json(kind: type[T], document: dict[str, Any]) -> T:
    """The state of a document made by `to_json`; raises `StateError` when it is of another type, version or shape."""
    if not isinstance(document, dict) or set(document) != {"schema", "type", "state"}:
        raise StateError(f"a {kind.__name__} document has the keys schema, type and state")
    if document["schema"] != SCHEMA:
        raise StateError(f"this library reads schema {SCHEMA}, and the document has {document['schema']!r}")
    name = (get_origin(kind) or kind).__name__
    if document["type"] != name:
        raise StateError(f"expected the state of a {name}, and the document holds a {document['type']!r}")
    try:
        return msgspec.convert(document["state"], kind, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise StateError(f"{name}: {error}") from error


def digest(state: object) -> str:
    """SHA-256 of a state's document: equal for equal states, on every machine.  O(size of the state)."""
    return hashlib.sha256(msgspec.json.encode(to_json(state))).hexdigest()
