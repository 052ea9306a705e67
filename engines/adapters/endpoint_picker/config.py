"""What a picker is told, from a TOML file: the pool's endpoints and their windows, clients and their weights, limits.

Every key is known, or the file is refused with the place in it.  Endpoints, clients and limits may change while it
serves; the rest needs a restart.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Tokens = Annotated[int, Meta(ge=2)]
Seconds = Annotated[float, Meta(gt=0)]
Address = Annotated[str, Meta(pattern=r"^(\d{1,3}(\.\d{1,3}){3}|\[[0-9a-fA-F:]+\]):\d{1,5}$")]
"""`IP:PORT`, with brackets for IPv6."""
BodyMode = Literal["none", "streamed", "buffered", "full-duplex-streamed"]


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the file and the place."""


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The endpoints, by address or as whatever a name stands for (a headless Service's is its pods), and the window of
    each: prompts and outputs in flight there at most, and requests."""

    window_tokens: Tokens
    window_requests: Count = 256
    endpoints: tuple[Address, ...] = ()
    dns: Annotated[str, Meta(pattern=r"^[\w.-]+:\d{1,5}$")] | None = None
    """`NAME:PORT`, asked again every `resolve_seconds`."""
    resolve_seconds: Seconds = 5.0


class ClientConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client's weight."""

    weight: Count = 1


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is over one of these is refused with 413 or 429, and what waits for too long with 503."""

    body_bytes: Count = 8 << 20
    waiting_per_client: Count = 256
    waiting: Count = 4096
    wait_seconds: Seconds = 30.0
    """Envoy's `message_timeout` must be longer."""
    clients: Count = 1024
    """Clients without a weight beyond so many share the name `others`."""
    retry_after_seconds: Count = 1
    drain_seconds: Seconds = 120.0


class PickerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of it."""

    pool: Pool
    listen: Annotated[str, Meta(pattern=r"^.+:\d{1,5}$")] = "127.0.0.1:9002"
    policy: str = "fcfs+deficit"
    quantum: Count = 4096
    router: str = "join-shortest-queue"
    header: str = "x-gateway-inference-fairness-id"
    """Who calls."""
    bytes_per_token: Count = 4
    default_output_tokens: Count = 1024
    """What a call that names no most is counted for; an answer may exceed it, and is charged for that."""
    request_body_mode: BodyMode = "full-duplex-streamed"
    response_body_mode: BodyMode = "full-duplex-streamed"
    """How Envoy sends bodies, where it does not say it itself (since 1.34 it does)."""
    tls_certificate: str | None = None
    tls_key: str | None = None
    limits: Limits = Limits()
    client: dict[str, ClientConfig] = {}

    def __post_init__(self) -> None:
        if not self.pool.endpoints and self.pool.dns is None:
            raise ValueError("pool.endpoints or pool.dns is missing: there is nothing to pick from")
        for where, address in (("listen", self.listen), ("pool.dns", self.pool.dns)):
            if address is not None and int(address.rpartition(":")[2]) > 65535:
                raise ValueError(f"{where} has a port over 65535: {address}")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")

    @property
    def weights(self) -> dict[str, int]:
        """Weights of clients, by name."""
        return {name: client.weight for name, client in self.client.items()}


def read_config(path: Path) -> PickerConfig:
    """The configuration in a file.  Raises `ConfigError`, or `OSError` for a file that cannot be read."""
    try:
        return msgspec.convert(tomllib.loads(path.read_bytes().decode()), PickerConfig)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None


def reloaded(running: PickerConfig, path: Path) -> PickerConfig:
    """The file as it is now.  Raises `ConfigError` also where it changes what cannot change while it serves."""
    fresh = read_config(path)
    for name in PickerConfig.__struct_fields__:
        if name not in ("pool", "client", "limits") and getattr(fresh, name) != getattr(running, name):
            raise ConfigError(f"{path}: a change of {name} needs a restart")
    if fresh.pool.dns != running.pool.dns:
        raise ConfigError(f"{path}: a change of pool.dns needs a restart")
    return fresh
