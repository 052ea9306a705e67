"""What a certificate is about, as values and hashes: a policy's configuration, and the text of its kernels.

The prover and the server describe a policy by these functions, so that equal descriptions mean equal policies.
"""

import hashlib
import importlib
import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs


def configuration(part: object) -> Any:
    """A configuration as plain JSON values: a class of attrs as its full name and its fields, in turn.

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


def text_sha256(part: object) -> str:
    """Hash of the source text of a function or a module.  Raises `OSError` where there is no source."""
    source: Any = part
    return hashlib.sha256(inspect.getsource(source).encode()).hexdigest()


def named(name: str) -> object:
    """The module, or the function of a module, of that full name; `ValueError` if there is none."""
    module, _, attribute = name.rpartition(".")
    try:
        function = getattr(importlib.import_module(module or name), attribute, None)
        return function if inspect.isfunction(function) else importlib.import_module(name)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{name} is not installed: {error}") from None


def differences(said: Any, here: Any, where: str = "") -> Iterator[str]:
    """The places in which two documents differ, a line each: what is said, and what is here."""
    if isinstance(said, Mapping) and isinstance(here, Mapping):
        for key in sorted(said.keys() | here.keys()):
            place = f"{where}.{key}" if where else key
            yield from differences(said.get(key, "nothing"), here.get(key, "nothing"), place)
    elif said != here:
        yield f"{where}: {said!r} is certified, and here it is {here!r}"
