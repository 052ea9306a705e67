"""What the scheduler inside vLLM is told: a table of vLLM's `--additional-config`, or a TOML file that an environment
variable names.  Both reach the engine core in its own process.  An unknown key is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fairsched.engines.inside.settings import Name, Positive, SettingsError, read_file, typed

TABLE = "fairsched"
"""The key of the table in vLLM's additional configuration."""
VARIABLE = "FAIRSCHED_VLLM_CONFIG"
"""The environment variable that names a TOML file instead."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it.  `clients` gives weights by name; who is not named has weight 1.

    `parameters` are the policy's, as `fairsched policies` lists them.  Strangers beyond `clients_max` names share
    `default_client`, who is also whoever says no name.
    """

    policy: Name = "dlpm"
    parameters: dict[Name, str | int] = {}
    reserve_outputs: bool = True
    client_key: Name = "client"
    default_client: Name = "default"
    clients: dict[Name, Positive] = {}
    clients_max: Positive = 1024
    certificate: Name | None = None
    log: Name | None = None
    report: Name | None = None
    metrics_port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    metrics_host: Name = "127.0.0.1"
    accept_untested_version: bool = False


def read_settings(additional_config: object, environ: Mapping[str, str]) -> Settings:
    """The settings of this engine; the defaults if nobody says anything.  Raises `SettingsError`."""
    table = additional_config.get(TABLE) if isinstance(additional_config, Mapping) else None
    path = environ.get(VARIABLE)
    if table is not None and path:
        raise SettingsError(f"both the additional configuration and {VARIABLE} configure {TABLE}: leave one out")
    if path:
        return read_file(Path(path), VARIABLE, Settings)
    return Settings() if table is None else typed(f"--additional-config, {TABLE}", table, Settings)
