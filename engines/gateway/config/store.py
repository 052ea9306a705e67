"""Where several gateways share one account."""

from typing import Any, Literal
from urllib.parse import urlsplit

import attrs

from fairsched.engines.gateway.config.limits import positive

Away = Literal["closed", "local"]


def _url(_: object, attribute: "attrs.Attribute[str]", value: str) -> None:
    try:
        parts = urlsplit(value)
        secret = parts.password is not None
    except ValueError:
        raise ValueError(f"{attribute.name} is no address: {value!r}") from None
    if secret:
        # It would be in the status and in logs, and is not repeated here either.
        raise ValueError(f"{attribute.name} has a password in it: write it in password")
    whole = parts.path if parts.scheme in ("file", "unix") else parts.hostname
    if parts.scheme not in ("redis", "rediss", "unix", "file") or not whole:
        raise ValueError(f"{attribute.name} is redis://HOST:PORT/0, rediss://..., unix:///PATH or file:///FOLDER")


def _name(_: object, attribute: "attrs.Attribute[str]", value: str) -> None:
    if not value or not all(mark.isascii() and (mark.isalnum() or mark in "-_.") for mark in value):
        raise ValueError(f"{attribute.name} has letters, digits, dots and dashes, and is not {value!r}")


def _away(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if value not in ("closed", "local"):
        raise ValueError(f"{attribute.name} is closed or local, not {value!r}")


@attrs.frozen
class StoreAddress:
    """A store that several gateways share."""

    url: str = attrs.field(validator=_url)
    """`redis://HOST:PORT/0` of Redis or Valkey (`rediss` with TLS, `unix` for a socket), or `file:///FOLDER` for the
    gateways of one machine."""
    name: str = attrs.field(default="default", validator=_name, kw_only=True)
    """Of the deployment: gateways of another name share nothing with these."""
    password: str | None = attrs.field(default=None, repr=False, kw_only=True)
    """Of Redis; a user's name is in the address."""
    timeout_seconds: float = attrs.field(default=0.5, validator=positive, kw_only=True)
    """How long the store may take to answer."""


@attrs.frozen
class StoreConfig(StoreAddress):
    """The account that several gateways share, each of which has the same of this but for the address."""

    gateways: int = attrs.field(default=2, validator=positive)
    """How many may share it at a time; the bound grows with it, and one more is refused."""
    lease: int | None = attrs.field(default=None, validator=attrs.validators.optional(positive))
    """Most credit of a client that a gateway has on lease, in cost units; none: the quantum.  A larger one asks less
    often, and the bound grows with it."""
    away: Away = attrs.field(default="closed", validator=_away)
    """Once its leases are spent and the store is away: `closed` lets no call in until it is back, `local` shares what
    this gateway has between its own clients."""
    gone_seconds: float = attrs.field(default=10.0, validator=positive)
    """A gateway that has not renewed its leases for so long is gone; its clients wait there no more."""
