"""What a gateway is told, by a TOML file: servers, clients, limits. Read `settings` first, then `reading`.

Servers, clients, keys and limits may change while it serves (`reloaded`); the rest needs a restart.
"""

from fairsched.engines.gateway.config.callers import (
    KEY_KINDS,
    PROGRAM_PRESETS,
    UNKNOWN_PREFIX,
    JwtConfig,
    Way,
    claimed_groups,
    is_reserved,
    is_url,
    networks,
    verified_name,
)
from fairsched.engines.gateway.config.clients import HASH_PREFIX, ClientConfig, OrganisationConfig, hashed_key
from fairsched.engines.gateway.config.limits import ConfigError, LimitConfig
from fairsched.engines.gateway.config.reading import made, read_config, reloaded
from fairsched.engines.gateway.config.schema import Schema, config_schema, field_meanings, schema_of
from fairsched.engines.gateway.config.settings import (
    CLIENT_HEADER,
    GatewayConfig,
    ServerConfig,
)
from fairsched.engines.gateway.config.store import StoreConfig
from fairsched.engines.gateway.config.tls import TlsConfig, TlsFiles, server_context, tls_context

__all__ = [
    "CLIENT_HEADER", "HASH_PREFIX", "KEY_KINDS", "PROGRAM_PRESETS", "UNKNOWN_PREFIX", "ClientConfig", "ConfigError",
    "GatewayConfig", "JwtConfig", "LimitConfig", "OrganisationConfig", "Schema", "ServerConfig", "StoreConfig",
    "TlsConfig", "TlsFiles", "Way", "claimed_groups", "config_schema", "field_meanings", "hashed_key", "is_reserved",
    "is_url", "made", "networks", "read_config", "reloaded", "schema_of", "server_context", "tls_context",
    "verified_name"
]  # fmt: skip
