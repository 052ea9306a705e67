"""What the scheduler inside vLLM is told: a table of vLLM's `--additional-config`, or a TOML file that an environment
variable names.  Both reach the engine core in its own process.  An unknown key is refused."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

TABLE = "fairsched"
"""The key of the table in vLLM's additional configuration."""
VARIABLE = "FAIRSCHED_VLLM_CONFIG"
"""The environment variable that names a TOML file instead."""

Positive = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class SettingsError(ValueError):
    """Settings that cannot be used; the message says where they stand and which key."""


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
        return _typed(path, _document(Path(path)))
    return Settings() if table is None else _typed(f"--additional-config, {TABLE}", table)


def _document(path: Path) -> Any:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{VARIABLE}: {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None


def _typed(where: str, document: Any) -> Settings:
    try:
        return msgspec.convert(document, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{where}: {error}") from None
