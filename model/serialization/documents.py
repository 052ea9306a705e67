"""Documents of plain values: the configuration that a certificate is about, its hash, and text that people write.

The prover and the server describe a policy by these functions, so that equal descriptions mean equal policies.  What is
wrong with a text, TOML or JSON, is said with line and column.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import attrs

_MEANT = {
    "Invalid value": "no value stands here; a text needs quotes",
    "Cannot overwrite a value": "this key has a value already",
    "Illegal character '\\n'": "the text has no closing quote",
}


def configuration(part: object) -> Any:
    """Return a configuration as plain JSON values: a class of attrs as its full name and its fields, in turn.

    Raises `ValueError` for a field that is no value, such as a function: whether two functions are equal cannot be
    decided.
    """
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if isinstance(part, tuple | list):
        return [configuration(item) for item in part]
    if attrs.has(type(part)):
        kind: Any = type(part)
        fields = {field.name: configuration(getattr(part, field.name)) for field in attrs.fields(kind)}
        return {"class": f"{kind.__module__}.{kind.__qualname__}", **fields}
    raise ValueError(f"a configuration holds no {type(part).__name__}: {part!r}")


def document_sha256(document: Any) -> str:
    """Hash of plain JSON values; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def differences(said: Any, here: Any, where: str = "") -> Iterator[str]:
    """Yield the places in which two documents differ, a line each: what is said, and what is here."""
    if isinstance(said, Mapping) and isinstance(here, Mapping):
        for key in sorted(said.keys() | here.keys()):
            place = f"{where}.{key}" if where else key
            yield from differences(said.get(key, "nothing"), here.get(key, "nothing"), place)
    elif said != here:
        yield f"{where}: {said!r} is certified, and here it is {here!r}"


def parse(raw: bytes, kind: Literal["TOML", "JSON"]) -> Any:
    """Return the value of a document; raises `ValueError`, as in "line 2, column 7: ...", for one that is malformed."""
    text = raw.decode(errors="replace")
    try:
        raw.decode()
        return tomllib.loads(text) if kind == "TOML" else json.loads(text, parse_constant=str)
    except json.JSONDecodeError as error:
        line, column, what = error.lineno, error.colno, error.msg
    except tomllib.TOMLDecodeError as error:
        found = re.fullmatch(r"(.*?) \(at line (\d+), column (\d+)\)", str(error))
        what = found[1] if found else str(error).removesuffix(" (at end of document)")
        line, column = (int(found[2]), int(found[3])) if found else _position(text)
    except UnicodeDecodeError as error:
        (line, column), what = _position(raw[: error.start].decode()), "not UTF-8"
    except RecursionError:
        line, column, what = 1, 1, "nested too deeply"
    raise ValueError(f"line {line}, column {column}: {_MEANT.get(what, what[:1].lower() + what[1:])}")


def _position(before: str) -> tuple[int, int]:
    """Return line and column after a text."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")
