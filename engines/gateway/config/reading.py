"""A configuration from a TOML file, and from the same file when it has changed.

Every key is known or the file is refused, with the file and the key in the error.
"""

import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
import msgspec

from fairsched.engines.gateway.config.callers import JwtConfig
from fairsched.engines.gateway.config.clients import ClientConfig, OrganisationConfig
from fairsched.engines.gateway.config.limits import ConfigError, LimitConfig
from fairsched.engines.gateway.config.settings import GatewayConfig, ServerConfig
from fairsched.engines.gateway.config.store import StoreConfig
from fairsched.engines.gateway.config.tls import TlsConfig

OLD_NAMES = {"strangers": "unknown_clients"}
"""Keys that were called otherwise, and still work."""
_CHANGE = (
    *("servers", "clients", "organisations", "limits", "admin_keys", "cors_origins"),
    *("unknown_clients", "verified_clients", "header_from"),
)
"""What may change while a gateway serves."""
TABLES = {
    "server": "servers",
    "client": "clients",
    "organisation": "organisations",
    "jwt": "jwt",
    "limits": "limits",
    "store": "store",
    "tls": "tls",
}


def read_config(path: Path) -> GatewayConfig:
    """Return the configuration in a file.  Raises `ConfigError`, or `OSError` for a file that cannot be read."""
    try:
        document, hints = tomllib.loads(path.read_bytes().decode()), _fields(GatewayConfig)
        tables = {name: document.pop(name) for name in TABLES if name in document}
        _known("", document.keys() - OLD_NAMES, [*(name for name in hints if name not in TABLES.values()), *TABLES])
        names = {key: OLD_NAMES.get(key, key) for key in document}
        values = {name: _typed(key, document[key], hints[name]) for key, name in names.items()}
        servers = tables.get("server", [])
        if not isinstance(servers, list):
            raise ConfigError("server is a list of tables: [[server]]")
        values["servers"] = tuple(made(ServerConfig, f"server[{i}]", table) for i, table in enumerate(servers))
        values["limits"] = made(LimitConfig, "limits", tables.get("limits", {}))
        one: dict[str, type] = {"tls": TlsConfig, "jwt": JwtConfig, "store": StoreConfig}
        values |= {table: made(kind, table, tables[table]) for table, kind in one.items() if table in tables}
        for table, kind in (("client", ClientConfig), ("organisation", OrganisationConfig)):
            named = _table(table, tables.get(table, {}))
            values[TABLES[table]] = {name: made(kind, f"{table}.{name}", each) for name, each in named.items()}
        return GatewayConfig(**values)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def reloaded(running: GatewayConfig, path: Path) -> GatewayConfig:
    """Return the file as it is now.  Raises `ConfigError` also where it changes what cannot change while it serves."""
    fresh = read_config(path)
    for field in attrs.fields(GatewayConfig):
        name = field.name
        if name not in _CHANGE and getattr(fresh, name) != getattr(running, name):
            raise ConfigError(f"{path}: a change of {name} needs a restart")
    for name in running.clients.keys() & fresh.clients.keys():
        here, there = ([group for group, _ in config.groups(name)] for config in (running, fresh))
        if here != there:
            raise ConfigError(f"{path}: client.{name}: a change of where it belongs needs a restart")
    return fresh


def _fields(kind: type) -> dict[str, object]:
    return get_type_hints(kind, include_extras=True)


def _table(where: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        # Not what is there: it may be a key that stands in the wrong place.
        raise ConfigError(f"{where} is a table, not of type {type(value).__name__}")
    return value


def _known(where: str, table: Iterable[str], known: list[str]) -> None:
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"unknown key {where}{key}; {hint}")


def made(kind: type[Any], where: str, table: object) -> Any:
    """Return an object of a table, whose keys are its fields.  Raises `ConfigError`, which says `where` it stands."""
    table, hints = _table(where, table), _fields(kind)
    _known(f"{where}.", table, list(hints))
    values = {name: _typed(f"{where}.{name}", value, hints[name]) for name, value in table.items()}
    for field in attrs.fields(kind):
        if field.default is attrs.NOTHING and field.name not in values:
            raise ConfigError(f"{where}.{field.name} is missing")
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _whole(value: object) -> object:
    """Return the value with whole numbers for floats that are."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list) else value


_SECRET = ("keys", ".api_key", ".password")
"""Values that no message shows."""
_KINDS = {tuple: "a list of strings", dict: "a table of names and weights"}


def _typed(where: str, value: object, hint: Any) -> Any:
    """Return the value if it is of the field's type.  A whole number may have a point: Helm writes all with one."""
    try:
        return msgspec.convert(_whole(value), hint)
    except msgspec.ValidationError:
        kind = get_args(hint)[0] if get_origin(hint) in (UnionType, Union) else hint
    if get_origin(kind) is Literal:
        several = " or a list of these" if hint is not kind else ""
        raise ConfigError(f"{where} is one of {', '.join(get_args(kind))}{several}, not {value!r}")
    names = _KINDS.get(get_origin(kind), kind.__name__)
    found = f"of type {type(value).__name__}" if where.endswith(_SECRET) else repr(value)
    raise ConfigError(f"{where} is of type {names}, not {found}")
