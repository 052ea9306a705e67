"""What a certificate is about, as values and hashes: a policy's configuration.

The prover and the server describe a policy by these functions, so that equal descriptions mean equal policies.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs


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
