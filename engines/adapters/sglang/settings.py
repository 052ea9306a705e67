"""What the hook inside SGLang is told: a TOML file that an environment variable names.  Without it, nothing happens."""

from typing import Literal

from fairsched.engines.adapters.common import InsideSettings
from fairsched.engines.settings import Count, Name

VARIABLE = "FAIRSCHED_SGLANG_CONFIG"
"""The environment variable that names the TOML file; scheduler processes inherit it."""
GATEWAY = "gateway"
"""A `client_from` that takes the gateway's header in place of SGLang's own routing key."""


class SglangSettings(InsideSettings, frozen=True, kw_only=True):
    """What all engines are told, and SGLang's own."""

    policy: Name = "vtc"
    """A local policy by `NAME` or `NAME+GATE`; `+deficit` and `+counter` have a bound."""
    within_client: Literal["policy", "sglang"] = "policy"
    """Whose order holds among one client's requests: the policy's, or that of `--schedule-policy`."""
    ranked_max: Count = 128
    """So many requests are ranked before a batch; the others follow as they came."""
    client_from: Literal["custom_params", "routing_key", "gateway"] = "custom_params"
    """Where a request names its client: in `custom_params`; in the header `x-smg-routing-key`, as SGLang's router sends
    it; or in `x-fairsched-client`, which the gateway sets (let only the gateway reach SGLang)."""
    output_tokens_max: Count | None = None
    """The longest output that a caller may ask for; the bound needs it, and without it there is no monitor."""
