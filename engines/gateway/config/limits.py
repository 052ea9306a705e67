"""Limits of a gateway: what callers may hold, how long anything may take, and when a server is left alone."""

import math
from typing import Any

import attrs


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the file and the key."""


def positive(_: object, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
    """Raise `ValueError` for a value that is there and not positive and finite."""
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{attribute.name} is positive, not {value}")


def not_negative(_: object, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
    """Raise `ValueError` for a value that is there and negative or not finite."""
    if value is not None and not 0 <= value < math.inf:
        raise ValueError(f"{attribute.name} is 0 or more, not {value}")


def percent(_: object, attribute: "attrs.Attribute[Any]", value: int) -> None:
    """Raise `ValueError` for what is no percentage."""
    if not 0 <= value <= 100:
        raise ValueError(f"{attribute.name} is from 0 to 100, not {value}")


@attrs.frozen
class LimitConfig:
    """Limits; a call that is over one is refused with 413 or 429.  Times in seconds."""

    connections: int | None = attrs.field(default=None, validator=positive)
    """Connections of callers; none: as the descriptors of the process allow. Beyond, the oldest idle one is closed."""
    header_bytes: int = attrs.field(default=16 << 10, validator=positive)
    """Longest line of a head; else 400."""
    header_seconds: float = attrs.field(default=10.0, validator=positive)
    """A connection whose call has no whole head after so long is closed."""
    body_bytes: int = attrs.field(default=8 << 20, validator=positive)
    """Longest body; else 413."""
    bodies_bytes: int = attrs.field(default=256 << 20, validator=positive)
    """All bodies that are held at a time; else 503."""
    body_seconds: float = attrs.field(default=60.0, validator=positive)
    """A body that is not whole after so long is refused with 408."""
    idle_seconds: float = attrs.field(default=75.0, validator=positive)
    """A connection without a call is closed after so long."""
    waiting_per_client: int = attrs.field(default=256, validator=positive)
    """Calls of one client that wait; else 429."""
    waiting: int = attrs.field(default=4096, validator=positive)
    """Calls that wait. Beyond, the client with the most of them by weight loses its newest, with 429."""
    clients: int = attrs.field(default=1024, validator=positive)
    """Unknown clients beyond so many share the name `others`."""
    programs_per_client: int = attrs.field(default=64, validator=positive)
    """Accounts of one client's programs; programs beyond so many at once share them."""
    program_seconds: float = attrs.field(default=600.0, validator=positive)
    """A program without a call for so long is over, and another of its client has its account."""
    wait_seconds: float = attrs.field(default=600.0, validator=positive)
    """Longest wait for a place; then 503."""
    stall_seconds: float = attrs.field(default=60.0, validator=positive)
    """A caller that takes no byte for so long is cut off."""
    first_byte_seconds: float = attrs.field(default=300.0, validator=positive)
    """A server that sends no byte of a stream for so long has failed: the call goes elsewhere."""
    read_seconds: float = attrs.field(default=600.0, validator=positive)
    """A server that sends no further byte for so long has failed."""
    retry_after_seconds: int = attrs.field(default=1, validator=positive)
    """Sent as `Retry-After` with 429."""
    tries: int = attrs.field(default=3, validator=positive)
    """Attempts a call, while no byte of an answer was passed on."""
    retry_percent: int = attrs.field(default=20, validator=percent)
    """Attempts beyond the first, as a share of each client's calls; 100 are saved up."""
    failures: int = attrs.field(default=5, validator=positive)
    """A server is left alone after so many failures in a row; at once if it takes no connection."""
    down_seconds: float = attrs.field(default=5.0, validator=positive)
    """A server is left alone for so long the first time, and for longer each time that it fails soon again."""
    down_seconds_max: float = attrs.field(default=300.0, validator=positive)
    """A server is left alone for so long at most, also if its `Retry-After` says more."""
    down_percent: int = attrs.field(default=50, validator=percent)
    """Servers that may be left alone at a time for failed answers; one always stays."""
    health_seconds: float = attrs.field(default=5.0, validator=positive)
    """Each server's health path is asked so often; no answer for so long is a failure, and two in a row take it out."""
    resolve_seconds: float = attrs.field(default=10.0, validator=positive)
    """Names of servers with `resolve` are looked up so often."""
    drain_seconds: int = attrs.field(default=120, validator=positive)
    """Time to finish calls after SIGTERM."""
    leave_seconds: float = attrs.field(default=0.0, validator=not_negative)
    """Calls are still taken for so long after SIGTERM, while `/readyz` says 503: time for load balancers to notice."""
