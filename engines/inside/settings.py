"""Settings of a shim: a TOML file that an environment variable names, or a table that its engine carries.

An unknown key is refused.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
S = TypeVar("S", bound=msgspec.Struct)


class SettingsError(ValueError):
    """Settings that cannot be used; the message says where they stand and which key."""


def read_file(path: Path, variable: str, kind: type[S]) -> S:
    """The settings in the TOML file that `variable` names.  Raises `SettingsError`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{variable}: {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None
    return typed(str(path), document, kind)


def typed(where: str, document: Any, kind: type[S]) -> S:
    """The settings of a document that stands there.  Raises `SettingsError`."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{where}: {error}") from None


def own_file(name: str, rank: int) -> Path:
    """The file of one of several engines with the same settings: beyond the first they have their number in the name.

    >>> own_file("fair.json", 0).name, own_file("fair.json", 2).name
    ('fair.json', 'fair.2.json')
    """
    path = Path(name)
    return path.with_name(f"{path.stem}.{rank}{path.suffix}") if rank else path
