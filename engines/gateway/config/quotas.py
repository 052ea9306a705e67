"""How many tokens clients, users and organisations may have over time (`engines.gateway.account.quota`)."""

from collections.abc import Iterator, Mapping
from typing import Literal

import attrs

from fairsched.engines.gateway.config.limits import not_negative, positive
from fairsched.engines.gateway.config.store import StoreAddress

EACH_OTHER = "*"
"""Stands for every client, user or organisation that has no quota by its name."""
Kind = Literal["client", "user", "organisation"]


@attrs.frozen
class QuotaConfig:
    """Tokens of prompts and outputs, at most; a window is one of the clock of the store, in UTC."""

    tokens_per_minute: int | None = attrs.field(default=None, validator=positive)
    """Charged in a minute of the clock; none: any number, as in the others."""
    tokens_per_day: int | None = attrs.field(default=None, validator=positive)
    """Charged in a day."""
    tokens_per_month: int | None = attrs.field(default=None, validator=positive)
    """Charged in a month of the calendar."""
    concurrent_tokens: int | None = attrs.field(default=None, validator=positive)
    """Reserved by calls under way, those that wait included."""


@attrs.frozen
class QuotasConfig:
    """All quotas, and where they are kept."""

    client: dict[str, QuotaConfig] = attrs.field(factory=dict)
    """Of clients by name; `"*"`: of each other one."""
    user: dict[str, QuotaConfig] = attrs.field(factory=dict)
    """Of users, all clients of one together, by `ORGANISATION/USER`; `"*"`: of each other one."""
    organisation: dict[str, QuotaConfig] = attrs.field(factory=dict)
    """Of organisations, all clients of one together; `"*"`: of each other one."""
    bytes_per_token: int = attrs.field(default=1, validator=positive)
    """A prompt reserves a token for so many bytes.  1 is never too few for a vocabulary of bytes; what a prompt comes
    to beyond its reservation is charged all the same, and may exceed a quota."""
    template_tokens: int = attrs.field(default=64, validator=not_negative)
    """Tokens that a server's chat template may add to a prompt beyond the bytes of the call; they are reserved, too."""
    store_away: Literal["closed", "open"] = "closed"
    """While the store is away: `closed` refuses calls with 503, `open` lets them pass uncounted."""
    store: StoreAddress | None = None
    """Where budgets are kept; none: in `[store]`, and without that in the memory of this gateway, until it ends."""

    @property
    def least(self) -> int:
        """What the smallest call reserves: a byte, the template, and an output."""
        return self.template_tokens + 2

    def named(self) -> Iterator[tuple[Kind, str, QuotaConfig]]:
        """Yield each quota."""
        tables: tuple[tuple[Kind, Mapping[str, QuotaConfig]], ...]
        tables = (("client", self.client), ("user", self.user), ("organisation", self.organisation))
        for kind, table in tables:
            for name, quota in table.items():
                yield kind, name, quota

    def __attrs_post_init__(self) -> None:
        for kind, name, quota in self.named():
            for window, most in attrs.asdict(quota).items():
                if most is not None and most < self.least:
                    raise ValueError(
                        f"{kind}.{name}.{window} is {most}, and the smallest call reserves {self.least} tokens "
                        f"(template_tokens is {self.template_tokens})"
                    )
