"""What a user says in `request_router_kwargs`: the policy, the windows of replicas, weights, and how calls are read."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairsched.engines.serving import BUDGET_MS
from fairsched.engines.settings import Count, Seconds, Settings, made


class RouterSettings(Settings, frozen=True):
    """Every key of `request_router_kwargs`, with its default.  Values are JSON values."""

    window_tokens: Annotated[int, Meta(ge=2)]
    """Prompts and outputs in flight at one replica, at most: about its KV cache."""
    policy: str = "fcfs+deficit"
    """Any policy that does not preempt; `+deficit` and `+counter` have a bound."""
    quantum: Count = 4096
    """Credit of a round for weight 1, in cost units."""
    router: str = "join-shortest-queue"
    """Any router, over what is in flight."""
    weights: dict[str, Count] = msgspec.field(default_factory=dict)
    """Of clients, by name; other clients have weight 1."""
    clients: Count = 1024
    """Clients without a weight beyond so many share the name `others`."""
    decision_budget_ms: Count = BUDGET_MS
    """How long a decision of the policy or the router may take; a later one fails."""
    extractor: str | None = None
    """`module:function` that makes a `Wanted` of Serve's `PendingRequest`."""
    client_header: str = "x-client"
    """Names the client of an HTTP call; let only your proxy set it."""
    bytes_per_token: Count = 4
    """Divides a prompt's bytes into tokens, for calls that do not say theirs."""
    default_output_tokens: Count = 1024
    """Declared output of calls that say none."""
    patience_seconds: Seconds = 10.0
    """How long a call waits for an absent actor before it goes around the policy."""
    heartbeat_seconds: Seconds = 1.0
    """How often a handle reports to the actor."""
    handle_timeout_seconds: Seconds = 15.0
    """A handle that is silent for longer is gone, and its places are free."""
    lease_seconds: Seconds = 3600.0
    """A call in flight for longer counts as lost, and its place is free."""
    idle_seconds: Seconds = 60.0
    """The actor ends when no handle was there for so long."""

    def __post_init__(self) -> None:
        if self.handle_timeout_seconds < 3 * self.heartbeat_seconds:
            raise ValueError("handle_timeout_seconds is at least three times heartbeat_seconds")


def settings_of(given: Mapping[str, Any]) -> RouterSettings:
    """Return the settings in `request_router_kwargs`.  Raises `ConfigError` for a key or a value that cannot be."""
    return made(RouterSettings, dict(given), "request_router_kwargs")
