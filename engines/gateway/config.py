"""What a gateway is told, from a TOML file: servers and their windows, clients and their weights, limits.

Every key is known or the file is refused, with the file and the key in the error.  Clients and limits may change while
it serves (`reloaded`); the rest needs a restart, and the error says so.
"""

import math
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import attrs
import msgspec
from msgspec import Meta

from fairsched.model.request import Groups

Mode = Literal["window", "priority"]
Identify = Literal["key", "header"]
UnknownClients = Literal["reject", "own", "together"]


DEFAULT_POLICY = "fcfs+deficit"


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the file and the key."""


def _positive(_: object, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{attribute.name} is positive, not {value}")


def _not_negative(_: object, attribute: "attrs.Attribute[Any]", value: int | None) -> None:
    if value is not None and value < 0:
        raise ValueError(f"{attribute.name} is 0 or more, not {value}")


def _token(_: object, attribute: "attrs.Attribute[Any]", value: str) -> None:
    if not value or not all(mark.isalnum() or mark in "-_" for mark in value):
        raise ValueError(f"{attribute.name} is the name of a header, not {value!r}")


def _url(_: object, attribute: "attrs.Attribute[str]", value: str) -> None:
    if "@" in value:
        # It would be in the status and in logs, and is not repeated here either.
        raise ValueError(f"{attribute.name} has a user or password in it: name a key in api_key")
    try:
        parts = urlsplit(value)
        there = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        there = False
    if not there or "?" in value or "#" in value or value.endswith(("/", "/v1")):
        raise ValueError(f"{attribute.name} is http://HOST:PORT without /v1, not {value!r}")


@attrs.frozen
class ServerConfig:
    """An OpenAI-compatible server: its address without `/v1`, and what it takes at a time."""

    url: str = attrs.field(validator=_url)
    """Address without `/v1`."""
    window_tokens: int | None = attrs.field(default=None, validator=_positive)
    """Prompt and output tokens in flight there at most: about its KV cache. Needed in window mode."""
    window_requests: int | None = attrs.field(default=None, validator=_positive)
    """Calls in flight there at most; none: 256, and no limit in priority mode."""
    api_key: str | None = attrs.field(default=None, repr=False)
    """Sent instead of the caller's key."""


@attrs.frozen
class OrganisationConfig:
    """An organisation: its weight, and the weights of its users among themselves (1 for one that is not named)."""

    weight: int = attrs.field(default=1, validator=_positive)
    """Share among organisations."""
    users: dict[str, Annotated[int, Meta(ge=1)]] = attrs.field(factory=dict)
    """Weights of its users among themselves; others have 1."""


@attrs.frozen
class ClientConfig:
    """A client: its keys, its weight among its siblings, and where it belongs."""

    keys: tuple[Annotated[str, Meta(min_length=1)], ...] = attrs.field(default=(), repr=False)
    """API keys of the client."""
    weight: int = attrs.field(default=1, validator=_positive)
    """Share among its siblings."""
    organisation: str | None = None
    """The organisation in whose share it is."""
    user: str | None = None
    """The user of that organisation."""


@attrs.frozen
class LimitConfig:
    """Limits; what is over one is refused with 413 or 429.  Times in seconds."""

    body_bytes: int = attrs.field(default=8 << 20, validator=_positive)
    """Longest body; else 413."""
    waiting_per_client: int = attrs.field(default=256, validator=_positive)
    """Calls of one client that wait; else 429."""
    waiting: int = attrs.field(default=4096, validator=_positive)
    """Calls that wait; else 429."""
    clients: int = attrs.field(default=1024, validator=_positive)
    """Unknown clients beyond so many share the name `others`."""
    wait_seconds: float = attrs.field(default=600.0, validator=_positive)
    """Longest wait for a place; then 503."""
    stall_seconds: float = attrs.field(default=60.0, validator=_positive)
    """A caller that takes no byte for so long is cut off."""
    read_seconds: float = attrs.field(default=600.0, validator=_positive)
    """A server that sends no byte for so long has failed."""
    retry_after_seconds: int = attrs.field(default=1, validator=_positive)
    """Sent as `Retry-After` with 429."""
    tries: int = attrs.field(default=3, validator=_positive)
    """Attempts a call, while no byte of an answer was passed on."""
    down_seconds: float = attrs.field(default=5.0, validator=_positive)
    """A server that failed is left alone for so long."""
    drain_seconds: int = attrs.field(default=120, validator=_positive)
    """Time to finish calls after SIGTERM."""


@attrs.frozen
class GatewayConfig:
    """All of it."""

    servers: tuple[ServerConfig, ...]
    mode: Mode = "window"
    """`priority`: calls go on at once with a priority for servers that order calls themselves; it has no bound."""
    listen: str = "127.0.0.1:8080"
    """Address and port."""
    policy: str = DEFAULT_POLICY
    """Any policy that does not preempt; `+deficit`, `+counter` and `+hierarchical` have a bound."""
    quantum: int = attrs.field(default=4096, validator=_positive)
    """Credit of a round for weight 1, in cost units."""
    router: str = "join-shortest-queue"
    """Any router, over what the gateway has in flight."""
    identify: Identify = "key"
    """How a caller is identified: by API key, or by a header (only behind a proxy that sets it)."""
    header: str = attrs.field(default="x-client", validator=_token)
    """The header that names the client."""
    unknown_clients: UnknownClients = "own"
    """Callers that no `[client]` names: a client each, one client for all (`together`), or 401 (`reject`)."""
    bytes_per_token: int = attrs.field(default=4, validator=_positive)
    """Divides a prompt's bytes into tokens."""
    default_output_tokens: int = attrs.field(default=4096, validator=_positive)
    """A call without `max_tokens` may have so many outputs at least, and more where its client's calls usually have."""
    unreserved_tokens: int | None = attrs.field(default=None, validator=_not_negative)
    """Declared outputs beyond reservations that one client may have in flight; none: the largest server's window."""
    hold_seconds: float = attrs.field(default=60.0, validator=_positive)
    """A token that is held for so long costs as much as an output token."""
    call_seconds: float = attrs.field(default=600.0, validator=_positive)
    """Longest call at a server; then it is cut off, and charged."""
    status: bool = False
    """Serve `/gateway/status`, which names clients."""
    metrics: bool = False
    """Serve `/metrics` for Prometheus (extra `metrics`), which names clients."""
    state: str | None = None
    """A file that keeps debts through restarts."""
    limits: LimitConfig = attrs.field(factory=LimitConfig)
    organisations: dict[str, OrganisationConfig] = attrs.field(factory=dict)
    clients: dict[str, ClientConfig] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if not self.servers:
            raise ValueError("server: at least one is needed")
        for i, server in enumerate(self.servers):
            if self.mode == "window" and server.window_tokens is None:
                raise ValueError(f"server[{i}].window_tokens is missing")
        if self.mode == "priority" and self.policy != DEFAULT_POLICY:
            raise ValueError("policy: in priority mode the servers order calls; leave it out")
        owner: dict[str, str] = {}
        for name, client in self.clients.items():
            for key in client.keys:
                if owner.setdefault(key, name) != name:
                    raise ValueError(f"client.{name}.keys: one of its keys is also {owner[key]}'s")
            if client.organisation is not None and client.organisation not in self.organisations:
                raise ValueError(f"client.{name}.organisation: there is no [organisation.{client.organisation}]")
            if client.user is not None and client.organisation is None:
                raise ValueError(f"client.{name}.user is a user of an organisation, and none is named")
        self.address  # noqa: B018

    def groups(self, client: str) -> Groups:
        """Where a client belongs, with weights: nowhere, in an organisation, or to a user of one."""
        found = self.clients.get(client)
        if found is None or found.organisation is None:
            return ()
        organisation = self.organisations[found.organisation]
        groups = ((found.organisation, organisation.weight),)
        return groups if found.user is None else (*groups, (found.user, organisation.users.get(found.user, 1)))

    def weighed(self, place: Groups) -> Groups:
        """Return the same groups with their weights here; those of an organisation that is not here stay."""
        if not place or place[0][0] not in self.organisations:
            return place
        (name, _), *users = place
        organisation = self.organisations[name]
        return ((name, organisation.weight), *((user, organisation.users.get(user, 1)) for user, _ in users))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen at."""
        host, colon, port = self.listen.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"listen is HOST:PORT, not {self.listen!r}")
        return host.strip("[]"), int(port)


_OLD_NAMES = {"strangers": "unknown_clients"}
"""Keys that were called otherwise, and still work."""
_TABLES = {"server": "servers", "client": "clients", "organisation": "organisations", "limits": "limits"}


def read_config(path: Path) -> GatewayConfig:
    """Return the configuration in a file.  Raises `ConfigError`, or `OSError` for a file that cannot be read."""
    try:
        document, hints = tomllib.loads(path.read_bytes().decode()), _fields(GatewayConfig)
        tables = {name: document.pop(name) for name in _TABLES if name in document}
        _known("", document.keys() - _OLD_NAMES, [*(name for name in hints if name not in _TABLES.values()), *_TABLES])
        names = {key: _OLD_NAMES.get(key, key) for key in document}
        values = {name: _typed(key, document[key], hints[name]) for key, name in names.items()}
        servers = tables.get("server", [])
        if not isinstance(servers, list):
            raise ConfigError("server is a list of tables: [[server]]")
        values["servers"] = tuple(_made(ServerConfig, f"server[{i}]", table) for i, table in enumerate(servers))
        values["limits"] = _made(LimitConfig, "limits", tables.get("limits", {}))
        for table, kind in (("client", ClientConfig), ("organisation", OrganisationConfig)):
            named = _table(table, tables.get(table, {}))
            values[_TABLES[table]] = {name: _made(kind, f"{table}.{name}", each) for name, each in named.items()}
        return GatewayConfig(**values)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def reloaded(running: GatewayConfig, path: Path) -> GatewayConfig:
    """Return the file as it is now.  Raises `ConfigError` also where it changes what cannot change while it serves."""
    fresh = read_config(path)
    for field in attrs.fields(GatewayConfig):
        name = field.name
        if name not in ("clients", "organisations", "limits") and getattr(fresh, name) != getattr(running, name):
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


def _made(kind: type[Any], where: str, table: object) -> Any:
    """Return an object of a table, whose keys are its fields."""
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


_SECRET = (".keys", ".api_key")
"""Values that no message shows."""
_KINDS = {tuple: "a list of strings", dict: "a table of names and weights"}


def _typed(where: str, value: object, hint: Any) -> Any:
    """Return the value if it is of the field's type."""
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError:
        kind = get_args(hint)[0] if isinstance(hint, UnionType) else hint
    if get_origin(kind) is Literal:
        raise ConfigError(f"{where} is one of {', '.join(get_args(kind))}, not {value!r}")
    names = _KINDS.get(get_origin(kind), kind.__name__)
    found = f"of type {type(value).__name__}" if where.endswith(_SECRET) else repr(value)
    raise ConfigError(f"{where} is of type {names}, not {found}")
