"""What a gateway is told, by a TOML file: servers, clients, limits. Read `settings` first, then `reading`.

Servers, clients, keys and limits may change while it serves (`reloaded`); the rest needs a restart.
"""

from fairsched.engines.gateway.config.clients import HASH_PREFIX, ClientConfig, OrganisationConfig, hashed_key
from fairsched.engines.gateway.config.limits import LimitConfig
from fairsched.engines.gateway.config.reading import read_config, reloaded
from fairsched.engines.gateway.config.schema import config_schema, field_meanings, schema_of
from fairsched.engines.gateway.config.settings import (
    CLIENT_HEADER,
    ConfigError,
    GatewayConfig,
    ServerConfig,
    TlsConfig,
)
from fairsched.engines.gateway.config.store import StoreConfig

__all__ = [
    "CLIENT_HEADER", "HASH_PREFIX", "ClientConfig", "ConfigError", "GatewayConfig", "LimitConfig",
    "OrganisationConfig", "ServerConfig", "StoreConfig", "TlsConfig", "config_schema", "field_meanings", "hashed_key",
    "read_config", "reloaded", "schema_of"
]  # fmt: skip
