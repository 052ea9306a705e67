"""What a gateway is told: servers and their windows, how callers are known, what is served, and the bound's terms."""

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import attrs

from fairsched.engines.gateway.config.clients import ClientConfig, OrganisationConfig, check_keys
from fairsched.engines.gateway.config.limits import LimitConfig, not_negative, positive
from fairsched.engines.gateway.config.store import StoreConfig
from fairsched.engines.serving import BUDGET_MS, SEAT
from fairsched.model.request import GROUPS_MAX, Groups

Mode = Literal["window", "priority"]
Identify = Literal["key", "header"]
UnknownClients = Literal["reject", "own", "together"]

DEFAULT_POLICY = "fcfs+deficit"
CLIENT_HEADER = "x-fairsched-client"
"""The header that tells a server the name of a call's client.  Only the gateway sets it: a caller's own is dropped."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the file and the key."""


def _token(_: object, attribute: "attrs.Attribute[Any]", value: str) -> None:
    if not value or not all(mark.isalnum() or mark in "-_" for mark in value):
        raise ValueError(f"{attribute.name} is the name of a header, not {value!r}")
    if value.lower() == CLIENT_HEADER:
        raise ValueError(f"{attribute.name} is not {CLIENT_HEADER}, which only the gateway sets")


def _tokens(_: object, attribute: "attrs.Attribute[Any]", values: tuple[str, ...]) -> None:
    for value in values:
        _token(_, attribute, value)


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


def _path(_: object, attribute: "attrs.Attribute[str]", value: str) -> None:
    if value and not value.startswith("/"):
        raise ValueError(f"{attribute.name} is a path like /health, or empty, not {value!r}")


def _origins(_: object, attribute: "attrs.Attribute[Any]", values: tuple[str, ...]) -> None:
    for value in values:
        parts = urlsplit(value)
        if value != "*" and (not parts.scheme or not parts.netloc or parts.path or parts.query or parts.fragment):
            raise ValueError(f'{attribute.name} has origins like https://HOST, or "*", not {value!r}')


@attrs.frozen
class ServerConfig:
    """An OpenAI-compatible server: its address without `/v1`, and what it takes at a time."""

    url: str = attrs.field(validator=_url)
    """Address without `/v1`."""
    window_tokens: int | None = attrs.field(default=None, validator=positive)
    """Prompt and output tokens in flight there at most: about its KV cache. Needed in window mode."""
    window_requests: int | None = attrs.field(default=None, validator=positive)
    """Calls in flight there at most; none: 256, and no limit in priority mode."""
    api_key: str | None = attrs.field(default=None, repr=False)
    """Sent instead of the caller's key."""
    health: str = attrs.field(default="/health", validator=_path)
    """Path that is asked now and then; an answer under 500 is a good one. Empty: it is not asked."""
    resolve: bool = False
    """The name stands for a server at each of its addresses, which come and go; the windows are those of each."""


@attrs.frozen
class TlsConfig:
    """Files of a certificate and its key, which SIGHUP reads again; without them callers speak plain HTTP."""

    certificate: str
    """Certificate chain in PEM."""
    key: str
    """Its private key in PEM."""


@attrs.frozen
class GatewayConfig:
    """All of it."""

    servers: tuple[ServerConfig, ...]
    mode: Mode = "window"
    """`priority`: calls go on at once with a priority for servers that order calls themselves; it has no bound."""
    listen: str = "127.0.0.1:8080"
    """Address and port."""
    processes: int = attrs.field(default=1, validator=positive)
    """Processes that serve callers; all share one account (not on Windows)."""
    policy: str = DEFAULT_POLICY
    """Any policy that does not preempt; `+deficit`, `+counter` and `+hierarchical` have a bound."""
    quantum: int = attrs.field(default=4096, validator=positive)
    """Credit of a round for weight 1, in cost units."""
    router: str = "join-shortest-queue"
    """Any router, over what the gateway has in flight."""
    decision_budget_ms: int = attrs.field(default=BUDGET_MS, validator=positive)
    """How long a decision of the policy or the router may take; a later one fails."""
    identify: Identify = "key"
    """How a caller is identified: by API key, or by a header (only behind a proxy that sets it)."""
    header: str = attrs.field(default="x-client", validator=_token)
    """The header that names the client."""
    program_headers: tuple[str, ...] = attrs.field(default=(), validator=_tokens)
    """Headers that name the program of a call: the first that a call has. Its account is below its client's."""
    unknown_clients: UnknownClients = "reject"
    """Callers that no `[client]` names: 401 (`reject`), a client each (`own`), or one client for all (`together`)."""
    admin_keys: tuple[str, ...] = attrs.field(default=(), repr=False, validator=check_keys)
    """Hashes of the keys that `/gateway/status` and `/metrics` want, as `fairsched gateway --hash-key` prints them."""
    cors_origins: tuple[str, ...] = attrs.field(default=(), validator=_origins)
    """Origins of web pages that may call; `*`: any."""
    bytes_per_token: int = attrs.field(default=4, validator=positive)
    """Divides a prompt's bytes into tokens."""
    media_tokens: int = attrs.field(default=1024, validator=positive)
    """Tokens that an image, a sound or a film is taken for, until the server says what it was."""
    default_output_tokens: int = attrs.field(default=4096, validator=positive)
    """A call without `max_tokens` may have so many outputs at least, and 8 times what is usual for its client."""
    unreserved_tokens: int | None = attrs.field(default=None, validator=not_negative)
    """Outputs that the calls of one client may declare beyond what is reserved for them; none: the largest window."""
    hold_seconds: float = attrs.field(default=600.0, validator=positive)
    """Holding a token for so long costs as much as one output token."""
    call_seconds: float = attrs.field(default=600.0, validator=positive)
    """A call that is longer at a server is cut off, and charged."""
    status: bool = False
    """Serve `/gateway/status`, which names clients, to callers with an admin key."""
    admin: bool = False
    """Let callers with an admin key change weights and drain the gateway (`/gateway/weights`, `/gateway/drain`)."""
    metrics: bool = False
    """Serve `/metrics` for Prometheus (extra `metrics`), which names clients, to callers with an admin key."""
    traces: bool = False
    """Export a span for each call by OpenTelemetry (extra `traces`), as its variables of the environment say."""
    state: str | None = None
    """A file that keeps debts through restarts."""
    store: StoreConfig | None = None
    """The account that several gateways share, which also keeps debts through restarts."""
    tls: TlsConfig | None = None
    limits: LimitConfig = attrs.field(factory=LimitConfig)
    organisations: dict[str, OrganisationConfig] = attrs.field(factory=dict)
    clients: dict[str, ClientConfig] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if not self.servers:
            raise ValueError("server: at least one is needed")
        urls: dict[str, int] = {}
        for i, server in enumerate(self.servers):
            if self.mode == "window" and server.window_tokens is None:
                raise ValueError(f"server[{i}].window_tokens is missing")
            if urls.setdefault(server.url, i) != i:
                raise ValueError(f"server[{i}].url is that of server[{urls[server.url]}], too: {server.url}")
        if self.mode == "priority" and self.policy != DEFAULT_POLICY:
            raise ValueError("policy: in priority mode the servers order calls; leave it out")
        if self.store is not None and self.mode == "priority":
            raise ValueError("store: in priority mode there is no account to share")
        if self.store is not None and self.state is not None:
            raise ValueError("state: the store keeps what clients owe; leave one of both out")
        self._check_keys()
        self.address  # noqa: B018

    def _check_keys(self) -> None:
        if (self.status or self.metrics or self.admin) and not self.admin_keys:
            raise ValueError(
                "admin_keys is missing: status and metrics name clients; "
                "write what `fairsched gateway --hash-key` prints for a key of yours"
            )
        owner = dict.fromkeys(self.admin_keys, "")
        for name, client in self.clients.items():
            for key in client.keys:
                if owner.setdefault(key, name) != name:
                    other = f"{owner[key]}'s" if owner[key] else "in admin_keys"
                    raise ValueError(f"client.{name}.keys: one of its keys is also {other}")
            if client.organisation is not None and client.organisation not in self.organisations:
                raise ValueError(f"client.{name}.organisation: there is no [organisation.{client.organisation}]")
            if client.user is not None and client.organisation is None:
                raise ValueError(f"client.{name}.user is a user of an organisation, and none is named")
            if self.program_headers and len(self.groups(name)) >= GROUPS_MAX:
                raise ValueError(f"client.{name}.user: with program_headers a client is in an organisation at most")
            if self.program_headers and SEAT in name:
                raise ValueError(f"client.{name}: with program_headers no name has {SEAT!r} in it")

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

    def with_weights(self, weights: Mapping[str, int]) -> "GatewayConfig":
        """Return it with other weights of some clients.  Raises `ValueError` for a client that is not there, and for a
        weight that cannot be."""
        clients = dict(self.clients)
        for name, weight in weights.items():
            if name not in clients:
                raise ValueError(f"there is no [client.{name[:100]}]")
            try:
                clients[name] = attrs.evolve(clients[name], weight=weight)
            except ValueError as error:
                raise ValueError(f"client.{name}: {error}") from None
        return attrs.evolve(self, clients=clients)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen at."""
        host, colon, port = self.listen.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"listen is HOST:PORT, not {self.listen!r}")
        return host.strip("[]"), int(port)
