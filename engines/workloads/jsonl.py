"""Reading JSON lines: one object a line, decoded straight into a typed record, every misfit located."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fairsched.engines.workloads.errors import TraceError
from fairsched.engines.workloads.rows import lines

_Object = TypeVar("_Object", bound=msgspec.Struct)
_AT_FIELD = re.compile(r" - at `\$\.(\w+)")
_NAMED_FIELD = re.compile(r"(missing required|contains unknown) field `([^`]*)`")


def read_objects(path: Path, kind: type[_Object]) -> Iterator[tuple[int, _Object]]:
    """Row number and object for each line of JSON.  Raises `TraceError` with the field that does not fit `kind`."""
    decode = msgspec.json.Decoder(kind).decode
    for row, text in lines(path):
        try:
            yield row, decode(text)
        except msgspec.ValidationError as error:
            raise _misfit(path, row, text, str(error)) from None
        except msgspec.DecodeError as error:
            found = (
                f"{text!r} ({error})" if text.strip() and len(text) < 40 else (str(error) if text else "an empty line")
            )
            raise TraceError(path, row, None, "a JSON object", found) from None


def _misfit(path: Path, row: int, text: str, message: str) -> TraceError:
    """The decoder's complaint as a `TraceError`: its field, what it wanted, and the value that stands there."""
    at, named = _AT_FIELD.search(message), _NAMED_FIELD.search(message)
    if named:
        field = f"{at[1]}.{named[2]}" if at else named[2]
        if named[1] == "missing required":
            return TraceError(path, row, field, f"a key {named[2]!r}", "none")
        return TraceError(path, row, field, "only keys that this format knows", f"the key {named[2]!r}")
    expected = message.split(" - at ")[0].removeprefix("Expected ").split(", got")[0].replace("`", "")
    if at is None:
        return TraceError(path, row, None, f"a JSON {expected}", repr(text))
    value: Any = msgspec.json.decode(text)
    return TraceError(path, row, at[1], expected, repr(value[at[1]]))
