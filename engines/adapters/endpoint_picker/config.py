"""What a picker is told, from a TOML file: the pool's endpoints and their windows, clients and their weights, limits.
`QueueSettings` are those of any queue of this kind, whatever is behind it.

Every key is known, or the file is refused with the place in it.  Endpoints, clients and limits may change while it
serves; the rest needs a restart.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fairsched.engines.gateway import StoreConfig
from fairsched.engines.serving import BUDGET_MS
from fairsched.engines.settings import (
    ConfigError,
    Count,
    Name,
    NotNegative,
    Seconds,
    Settings,
    check_changes,
    read_settings,
)
from fairsched.model.pricing import CAPACITY_TOKENS_MAX

Tokens = Annotated[int, Meta(ge=2, le=CAPACITY_TOKENS_MAX)]
Address = Annotated[
    str,
    Meta(pattern=r"^(\d{1,3}(\.\d{1,3}){3}|\[[0-9a-fA-F:]+\]):\d{1,5}$", description="IP:PORT, with brackets for IPv6"),
]
BodyMode = Literal["none", "streamed", "buffered", "full-duplex-streamed"]


class CallWindow(Settings, frozen=True):
    """What may be in flight at a time: prompts and outputs of calls, and calls."""

    window_tokens: Tokens
    """Prompt and output tokens in flight there at most: about its KV cache."""
    window_requests: Count = 256
    """Calls in flight there at most."""


class EndpointPool(CallWindow, frozen=True):
    """The endpoints, by address or as whatever a name stands for (a headless Service's is its pods), and the window of
    each; fewer calls go to an endpoint where some wait in its own queue, as it says (`/metrics`)."""

    endpoints: tuple[Address, ...] = ()
    """`IP:PORT`s; this or `dns` is needed."""
    dns: Annotated[str, Meta(pattern=r"^[\w.-]+:\d{1,5}$")] | None = None
    """`NAME:PORT`, asked again every `resolve_seconds`."""
    resolve_seconds: Seconds = 5.0
    """How often `dns` is asked again."""
    fallbacks: NotNegative = 0
    """How many other endpoints are named behind the picked one, those with the fewest calls first: a proxy that retries
    goes down the list. A call counts at the endpoint that was picked, wherever it is served."""


class PickedClient(Settings, frozen=True):
    """A client's weight."""

    weight: Count = 1
    """Share of the client."""


class QueueLimits(Settings, frozen=True):
    """What is over one of these is refused with 429, and what waits for too long with 503."""

    waiting_per_client: Count = 256
    """Calls of one client that wait; else 429."""
    waiting: Count = 4096
    """Calls that wait; else 429."""
    wait_seconds: Seconds = 30.0
    """What waits before must have more patience: Envoy's `message_timeout` is longer."""
    clients: Count = 1024
    """Clients without a weight beyond so many share the name `others`."""
    retry_after_seconds: Count = 1
    """Sent as `Retry-After` with 429."""


class PickerLimits(QueueLimits, frozen=True):
    """Those of a queue, and of a server."""

    body_bytes: Count = 8 << 20
    """Longest body; else 413."""
    drain_seconds: Seconds = 120.0
    """Time to finish calls after SIGTERM."""


class QueueSettings(Settings, frozen=True, kw_only=True):
    """How calls wait, and what they are charged."""

    policy: str = "fcfs+deficit"
    """Any policy that does not preempt; `+deficit` and `+counter` have a bound."""
    quantum: Count = 4096
    """Credit of a round for weight 1, in cost units."""
    decision_budget_ms: Count = BUDGET_MS
    """How long a decision of the policy or the router may take; a later one fails."""
    bytes_per_token: Count = 4
    """Divides a prompt's bytes into tokens."""
    default_output_tokens: Count = 1024
    """Declared output of a call without `max_tokens`; an answer may exceed it, and is charged for that."""
    store: StoreConfig | None = None
    """The account that several share, with the settings of several gateways."""
    client: dict[str, PickedClient] = msgspec.field(default_factory=dict)

    @property
    def weights(self) -> dict[str, int]:
        return {name: client.weight for name, client in self.client.items()}


class PickerConfig(QueueSettings, frozen=True):
    """All of it."""

    pool: EndpointPool
    listen: Annotated[str, Meta(pattern=r"^.+:\d{1,5}$")] = "127.0.0.1:9002"
    """Address and port."""
    router: str = "join-shortest-queue"
    """Any router, over what the picker has in flight."""
    headers: tuple[Name, ...] = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
    """The first that a call has names its client (llm-d's, and the extension's); let only your gateway set them."""
    request_body_mode: BodyMode = "buffered"
    """How Envoy sends bodies of requests, where it does not say so itself."""
    response_body_mode: BodyMode = "streamed"
    """The same of answers. Envoy says it itself since 1.34."""
    tls_certificate: str | None = None
    """A file; a gateway of the extension expects TLS."""
    tls_key: str | None = None
    """A file."""
    limits: PickerLimits = PickerLimits()

    def __post_init__(self) -> None:
        if not self.pool.endpoints and self.pool.dns is None:
            raise ValueError("pool.endpoints or pool.dns is missing: there is nothing to pick from")
        for where, address in (("listen", self.listen), ("pool.dns", self.pool.dns)):
            if address is not None and int(address.rpartition(":")[2]) > 65535:
                raise ValueError(f"{where} has a port over 65535: {address}")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")


def read_config(path: Path) -> PickerConfig:
    """Return the configuration in a file.  Raises `ConfigError`, or `OSError` for a file that cannot be read."""
    return read_settings(path, PickerConfig)


def reloaded(running: PickerConfig, path: Path) -> PickerConfig:
    """Return the file as it is now.  Raises `ConfigError` also where it changes what cannot change while it serves."""
    fresh = read_config(path)
    check_changes(path, running, fresh, ("pool", "client", "limits"))
    if fresh.pool.dns != running.pool.dns:
        raise ConfigError(f"{path}: a change of pool.dns needs a restart")
    return fresh
