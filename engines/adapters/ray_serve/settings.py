"""What a user says in `request_router_kwargs`: the policy, the windows of replicas, weights, and how calls are read."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, get_type_hints

import attrs

from fairsched.engines.serving import BUDGET_MS


def _positive(_: object, attribute: "attrs.Attribute[Any]", value: float) -> None:
    if value <= 0:
        raise ValueError(f"{attribute.name} is positive, not {value}")


def _weights(_: object, attribute: "attrs.Attribute[Any]", value: Mapping[str, int]) -> None:
    for client, weight in value.items():
        if not isinstance(client, str) or type(weight) is not int or weight < 1:
            raise ValueError(f"{attribute.name} are names with whole numbers from 1, not {client!r}: {weight!r}")


@attrs.frozen
class Settings:
    """Every key of `request_router_kwargs`, with its default.  Values are JSON values."""

    window_tokens: int = attrs.field(validator=attrs.validators.ge(2))
    """Prompts and outputs in flight at one replica, at most: about its KV cache."""
    policy: str = "fcfs+deficit"
    """Any policy that does not preempt; `+deficit` and `+counter` have a bound."""
    quantum: int = attrs.field(default=4096, validator=_positive)
    """Credit of a round for weight 1, in cost units."""
    router: str = "join-shortest-queue"
    """Any router, over what is in flight."""
    weights: dict[str, int] = attrs.field(factory=dict, validator=_weights)
    """Of clients, by name; other clients have weight 1."""
    clients: int = attrs.field(default=1024, validator=_positive)
    """Clients without a weight beyond so many share the name `others`."""
    decision_budget_ms: int = attrs.field(default=BUDGET_MS, validator=_positive)
    """How long a decision of the policy or the router may take; a later one fails."""
    extractor: str | None = None
    """`module:function` that makes a `Wanted` of Serve's `PendingRequest`."""
    client_header: str = "x-client"
    """Names the client of an HTTP call; let only your proxy set it."""
    bytes_per_token: int = attrs.field(default=4, validator=_positive)
    """Divides a prompt's bytes into tokens, for calls that do not say theirs."""
    default_output_tokens: int = attrs.field(default=1024, validator=_positive)
    """Declared output of calls that say none."""
    patience_seconds: float = attrs.field(default=10.0, validator=_positive)
    """How long a call waits for an absent actor before it goes around the policy."""
    heartbeat_seconds: float = attrs.field(default=1.0, validator=_positive)
    """How often a handle reports to the actor."""
    handle_timeout_seconds: float = attrs.field(default=15.0, validator=_positive)
    """A handle that is silent for longer is gone, and its places are free."""
    lease_seconds: float = attrs.field(default=3600.0, validator=_positive)
    """A call in flight for longer counts as lost, and its place is free."""
    idle_seconds: float = attrs.field(default=60.0, validator=_positive)
    """The actor ends when no handle was there for so long."""

    def __attrs_post_init__(self) -> None:
        if self.handle_timeout_seconds < 3 * self.heartbeat_seconds:
            raise ValueError("handle_timeout_seconds is at least three times heartbeat_seconds")


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Return the settings in `request_router_kwargs`.  Raises `ValueError` for a key or a value that cannot be."""
    hints = get_type_hints(Settings)
    for key, value in given.items():
        if key not in hints:
            near = get_close_matches(key, hints, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(hints)}"
            raise ValueError(f"unknown key {key} in request_router_kwargs; {hint}")
        if not _is_of(value, hints[key]):
            raise ValueError(f"{key} in request_router_kwargs has a value of the wrong type: {value!r}")
    if "window_tokens" not in given:
        raise ValueError("window_tokens is missing in request_router_kwargs: about the KV tokens of one replica")
    return Settings(**given)


def _is_of(value: object, hint: Any) -> bool:
    if hint is int:
        return type(value) is int
    if hint is float:
        return type(value) in (int, float)
    if hint is str:
        return isinstance(value, str)
    return isinstance(value, dict) if hint == dict[str, int] else value is None or isinstance(value, str)
