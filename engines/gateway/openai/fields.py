"""The fields of a body: a JSON object, read once and in one way, for the gateway and for the server of our own engine.

What could be read in two ways is refused: a field that comes twice, a boolean or a number that is none, text that is no
UTF-8.  Each error is a `ValueError` with a sentence for the caller.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fairsched.model.request import TOKENS_MAX

FIELDS_MAX = 1 << 10
"""Fields of a body."""
NESTED_MAX = 1 << 18
"""Brackets and braces that open in a body, in its texts too: each may be a list or an object that has to be made."""
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Value:
    """A value at the top of a body.  The hook that makes one is called for every field, a second one of a name, too."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


def document_of(raw: bytes) -> dict[str, object]:
    """Return the fields of a body.  Raises `ValueError`, with a sentence for the caller, for what is no JSON object."""
    if raw.count(b"{") + raw.count(b"[") > NESTED_MAX:
        raise ValueError(f"the body has more than {NESTED_MAX} lists and objects")
    count = 0

    def counted(_: type, value: object) -> _Value:
        nonlocal count
        count += 1
        if count > FIELDS_MAX:
            raise ValueError
        return _Value(value)

    try:
        fields = msgspec.json.decode(raw, type=dict[str, _Value], dec_hook=counted)
    except msgspec.ValidationError as error:
        if count > FIELDS_MAX:
            raise ValueError(f"the body has more than {FIELDS_MAX} fields") from None
        if str(error).startswith("Expected `object`"):
            raise ValueError("the body is not a JSON object") from None
        raise ValueError(f"the body is not JSON: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the body is not JSON: {error}") from None
    if count != len(fields):
        raise ValueError("a field of the body comes twice")
    return {name: each.value for name, each in fields.items()}


def with_fields(body: bytes, fields: Mapping[str, object]) -> bytes:
    """Return a JSON object that is not empty with these fields; all other bytes are as they were."""
    try:
        known = _RAW.decode(body)
    except msgspec.DecodeError:  # pragma: no cover
        raise ValueError("the body is not a JSON object") from None
    if known.keys() & fields.keys():
        return msgspec.json.encode({**known, **fields})
    return body.rstrip()[:-1] + b"," + msgspec.json.encode(fields)[1:]


def shown(value: object) -> str:
    """Return a caller's value for a sentence, and no more than fits into one."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def whole(document: Mapping[str, Any], key: str, *, least: int = 1, most: int = TOKENS_MAX) -> int | None:
    """Return a whole number; None for a field that is not there or null."""
    value = document.get(key)
    if value is None:
        return None
    if type(value) is not int or not least <= value <= most:
        limit = f"from {least} to {most}" if most < TOKENS_MAX else f"from {least}"
        raise ValueError(f"{key} is a whole number {limit}, not {shown(value)}")
    return value


def number(document: Mapping[str, Any], key: str, least: float, most: float) -> float | None:
    """Return a number; None for a field that is not there or null."""
    value = document.get(key)
    if value is None:
        return None
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{key} is a number from {least:g} to {most:g}, not {shown(value)}")
    return float(value)


def flag(document: Mapping[str, Any], key: str) -> bool:
    """Return a boolean; false for a field that is not there or null."""
    value = document.get(key)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key} is true or false, not {shown(value)}")
    return bool(value)


def table(document: Mapping[str, Any], key: str, known: Sequence[str] = ()) -> dict[str, Any]:
    """Return an object, with some of the `known` keys if there are any; empty for a field that is not there or null."""
    value = document.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict) or (known and not value.keys() <= set(known)):
        raise ValueError(f"{key} is an object{' with ' if known else ''}{' and '.join(known)}, not {shown(value)}")
    return value
