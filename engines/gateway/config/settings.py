"""What a gateway is told: servers and their windows, how callers are known, what is served, and the bound's terms."""

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import attrs

from fairsched.engines.gateway.config.callers import (
    JwtConfig,
    Way,
    check_networks,
    claimed_groups,
    is_reserved,
    names_no_group,
    verified_name,
)
from fairsched.engines.gateway.config.clients import ClientConfig, OrganisationConfig, check_keys
from fairsched.engines.gateway.config.limits import ConfigError, LimitConfig, not_negative, positive
from fairsched.engines.gateway.config.quotas import EACH_OTHER, QuotasConfig
from fairsched.engines.gateway.config.store import StoreConfig
from fairsched.engines.gateway.config.tls import TlsConfig, TlsFiles, server_context, tls_context
from fairsched.engines.serving import BUDGET_MS, OTHERS, SEAT
from fairsched.model.request import Groups

Mode = Literal["window", "priority"]
UnknownClients = Literal["reject", "own", "together"]

DEFAULT_POLICY = "fcfs+deficit"
CLIENT_HEADER = "x-fairsched-client"
"""The header that tells a server the name of a call's client.  Only the gateway sets it: a caller's own is dropped."""


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
    ca: str | None = None
    """Certificates of the authorities that the server's certificate is checked by, in PEM; none: the system's."""
    certificate: str | None = None
    """Certificate chain in PEM that the server is shown."""
    key: str | None = attrs.field(default=None, repr=False)
    """The private key of that certificate in PEM."""

    def __attrs_post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key are files that belong together: name both")
        if self.tls_files is not None and not self.url.startswith("https://"):
            raise ValueError(f"ca, certificate and key are for https://, not {self.url}")

    @property
    def tls_files(self) -> TlsFiles | None:
        """Files of the server's authorities, and of the certificate that it is shown; None: those of the system."""
        files = (self.ca, self.certificate, self.key)
        return None if files == (None, None, None) else files


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
    identify: Way | tuple[Way, ...] = "key"
    """How a caller is identified, or several ways: the first of which a call has something."""
    header: str = attrs.field(default="x-client", validator=_token)
    """The header that names the client (`identify`: `header`)."""
    header_from: tuple[str, ...] = attrs.field(default=(), validator=check_networks)
    """Networks of the proxies that set it, like 10.0.0.0/8; from other peers it counts for nothing. None: from all."""
    program_headers: tuple[str, ...] = attrs.field(default=(), validator=_tokens)
    """Headers that name the program of a call, or agent harnesses: the first that a call has. Its account is below its
    client's."""
    unknown_clients: UnknownClients = "reject"
    """Callers that no `[client]` names and that nothing vouches for: 401 (`reject`), a client each (`own`), or one
    client for all (`together`)."""
    verified_clients: UnknownClients = "own"
    """The same for callers that a token, a certificate or a proxy of `header_from` vouches for."""
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
    quota: QuotasConfig | None = None
    """Tokens over time, at most."""
    tls: TlsConfig | None = None
    jwt: JwtConfig | None = None
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
        self._check_ways()
        self._check_keys()
        self._check_quotas()
        self.address  # noqa: B018

    @property
    def ways(self) -> tuple[Way, ...]:
        """How a caller is identified, in this order."""
        return (self.identify,) if isinstance(self.identify, str) else self.identify

    @property
    def claims_organisations(self) -> bool:
        """Whether tokens name organisations."""
        return self.jwt is not None and self.jwt.organisation_claim is not None

    def _check_ways(self) -> None:
        """Raise `ValueError` where a way lacks what it needs, or something is there for a way that is not."""
        ways = self.ways
        if not ways or len(set(ways)) < len(ways):
            raise ValueError(f"identify is a way or several different ones, not {list(ways)}")
        client_ca = None if self.tls is None else self.tls.client_ca
        for way, key, there in (("jwt", "[jwt]", self.jwt), ("certificate", "tls.client_ca", client_ca)):
            if (way in ways) != (there is not None):
                missing = f"has {way}, and {key} is missing" if way in ways else f"has no {way}, which {key} is for"
                raise ValueError(f"identify {missing}")
        if self.header_from and "header" not in ways:
            raise ValueError("identify has no header, which header_from is for")
        if "header" in ways and len(ways) > 1 and not self.header_from:
            raise ValueError("header_from is missing: without it any caller could take any name by the header")

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
            if self.program_headers and SEAT in name:
                raise ValueError(f"client.{name}: with program_headers no name has {SEAT!r} in it")
            if is_reserved(name):
                raise ValueError(f"client.{name}: only callers that are not listed have names that begin so")
        self.listed  # noqa: B018

    def _check_quotas(self) -> None:
        """Raise `ValueError` for a quota of what is not there."""
        for kind, name, _ in () if self.quota is None else self.quota.named():
            organisation, slash, user = name.partition("/")
            if name == EACH_OTHER:
                continue
            if kind == "client":
                known = name in self.clients or is_reserved(name) or name == OTHERS
            else:
                known = organisation in self.organisations or self.claims_organisations
                if kind == "user" and not (slash and user):
                    raise ValueError(f"quota.user.{name}: a user's name here is ORGANISATION/USER")
            if not known:
                table = f"client.{name}" if kind == "client" else f"organisation.{organisation}"
                raise ValueError(f"quota.{kind}.{name}: there is no [{table}]")

    @property
    def listed(self) -> dict[str, str]:
        """The clients of the file by the names that their tokens and certificates would give them otherwise.

        Raises `ValueError` for one that two clients claim, or that no caller can have.
        """
        found: dict[str, str] = {}
        for name, client in self.clients.items():
            ways: tuple[tuple[Way, tuple[str, ...]], ...]
            ways = (("jwt", client.jwt), ("certificate", client.certificates))
            for way, values in ways:
                if values and way not in self.ways:
                    raise ValueError(f"client.{name}: identify has no {way}")
                groups = self._claimed(name) if values and way == "jwt" else ()
                for value in values:
                    other = found.setdefault(verified_name(way, value, groups), name)
                    if other != name:
                        raise ValueError(f"client.{name}: {way} {value!r} is also {other}'s")
        return found

    def _claimed(self, name: str) -> list[str]:
        """Return the groups that tokens of a client of the file name: those where it belongs."""
        assert self.jwt is not None
        client, groups = self.clients[name], []
        for key, claim in (("organisation", self.jwt.organisation_claim), ("user", self.jwt.user_claim)):
            if claim is not None:
                group = getattr(client, key)
                if group is None or names_no_group(group):
                    raise ValueError(f"client.{name}.{key} is missing, or not what a claim can be: its token names it")
                groups.append(group)
        return groups

    def groups(self, client: str) -> Groups:
        """Where a client belongs, with weights: nowhere, in an organisation, or to a user of one."""
        found = self.clients.get(client)
        if found is None:
            names = claimed_groups(client)
        else:
            names = tuple(name for name in (found.organisation, found.user) if name is not None)
        return self.weighed(tuple((name, 1) for name in names))

    def check_files(self) -> None:
        """Raise `ConfigError` for certificates, keys or authorities that cannot be used as they are now."""
        if self.tls is not None:
            tls_context(self.tls)
        if self.jwt is not None and self.jwt.ca is not None:
            server_context.__wrapped__(self.jwt.ca)
        for i, server in enumerate(self.servers):
            if server.tls_files is not None:
                try:
                    server_context.__wrapped__(*server.tls_files)
                except ConfigError as error:
                    raise ConfigError(f"server[{i}]: {error}") from None

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
