"""Clients of a gateway: their weights, where they belong, and their keys, of which only hashes are kept.

A key is written as `sha256:` and the SHA-256 of its bytes in hexadecimal, which `fairsched gateway --hash-key` prints.
A key in plain text is refused: a configuration is read by more people and programs than keys are for.  The hash is not
salted, so that a call's client is found in one step; it hides keys that cannot be guessed, as generated ones are.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated, Any

import attrs
from msgspec import Meta

HASH_PREFIX = "sha256:"
KEY_PATTERN = r"sha256:[0-9a-f]{64}"
_HASHED = re.compile(KEY_PATTERN)


def hashed_key(key: str) -> str:
    """Return a key as it stands in a configuration.

    >>> hashed_key("sk-gold")[:18]
    'sha256:83a9d60338d'
    """
    return HASH_PREFIX + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def check_keys(_: object, attribute: "attrs.Attribute[Any]", keys: Sequence[str]) -> None:
    """Raise `ValueError` for a key that is no hash, which is not repeated."""
    for i, key in enumerate(keys):
        if not _HASHED.fullmatch(key):
            raise ValueError(
                f'{attribute.name}[{i}] is no "{HASH_PREFIX}..." of 64 hexadecimal digits: '
                "write what `fairsched gateway --hash-key` prints for the key"
            )


def check_weight(_: object, attribute: "attrs.Attribute[Any]", value: int) -> None:
    """Raise `ValueError` for a weight that is not positive."""
    if value <= 0:
        raise ValueError(f"{attribute.name} is positive, not {value}")


def check_values(_: object, attribute: "attrs.Attribute[Any]", values: Sequence[str]) -> None:
    """Raise `ValueError` for a text that names no caller."""
    if not all(values):
        raise ValueError(f"{attribute.name} has an empty text")


@attrs.frozen
class OrganisationConfig:
    """An organisation: its weight, and the weights of its users among themselves (1 for one that is not named)."""

    weight: int = attrs.field(default=1, validator=check_weight)
    """Share among organisations."""
    users: dict[str, Annotated[int, Meta(ge=1)]] = attrs.field(factory=dict)
    """Weights of its users among themselves; others have 1."""


@attrs.frozen
class ClientConfig:
    """A client: how it is known, its weight among its siblings, and where it belongs."""

    keys: tuple[str, ...] = attrs.field(default=(), repr=False, validator=check_keys)
    """Hashes of the client's API keys, as `fairsched gateway --hash-key` prints them."""
    weight: int = attrs.field(default=1, validator=check_weight)
    """Share among its siblings."""
    organisation: str | None = None
    """The organisation in whose share it is."""
    user: str | None = None
    """The user of that organisation."""
    jwt: tuple[str, ...] = attrs.field(default=(), validator=check_values)
    """Values of the token claim that names clients: callers with one of them are this client."""
    certificates: tuple[str, ...] = attrs.field(default=(), validator=check_values)
    """Names in certificates: callers with one of them are this client."""
