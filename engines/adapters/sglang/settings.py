"""What the hook inside SGLang is told: a TOML file that an environment variable names.  Without it, nothing happens."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fairsched.engines.inside.settings import Name, Positive

VARIABLE = "FAIRSCHED_SGLANG_CONFIG"
"""The environment variable that names the TOML file; scheduler processes inherit it."""
ROUTING_KEY = "routing_key"
"""A `client_from` that takes SGLang's routing key (HTTP header `x-smg-routing-key`)."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it.  `clients` gives weights by name; who is not named has weight 1.

    `parameters` are the policy's, as `fairsched policies` lists them.  `within_client` says whose order holds among one
    client's requests.  At most `ranked_max` requests are ranked before a batch; the others follow as they came.
    """

    policy: Name = "vtc"
    parameters: dict[Name, str | int] = {}
    within_client: Literal["policy", "sglang"] = "policy"
    ranked_max: Positive = 128
    client_from: Literal["custom_params", "routing_key"] = "custom_params"
    client_key: Name = "client"
    default_client: Name = "default"
    clients: dict[Name, Positive] = {}
    clients_max: Positive = 1024
    output_tokens_max: Positive | None = None
    log: Name | None = None
    report: Name | None = None
    metrics_port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    metrics_host: Name = "127.0.0.1"
    accept_untested_version: bool = False
