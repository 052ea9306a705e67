"""What a gateway is told, by a TOML file: servers and windows, how callers are known, limits, quotas, a store.

Read `GatewayConfig` first.  Servers, clients, keys and limits may change while it serves (`reloaded`); the rest needs a
restart.

A client of the file has the name that the file says.  A caller that a token, a certificate or a proxy vouches for, and
that the file does not list, is named by the way, its groups and what the way says: `jwt/acme/ann:app-7`.  Such a name
is told apart from every other one by its form, so no client of the file may have it, and no two callers share it.

A key is written as `sha256:` and the SHA-256 of its bytes in hexadecimal, which `fairsched gateway --hash-key` prints.
A key in plain text is refused: a configuration is read by more people and programs than keys are for.  The hash is not
salted, so that a call's client is found in one step; it hides keys that cannot be guessed, as generated ones are.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from fairsched.engines import settings
from fairsched.engines.serving import BUDGET_MS, OTHERS
from fairsched.model.request import Groups

Way = Literal["key", "header", "jwt", "certificate"]
"""How a caller is identified."""
Network = IPv4Network | IPv6Network

UnknownClients = Literal["reject", "own", "together"]
QuotaKind = Literal["client", "user", "organisation"]
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]

KEY_KINDS: dict[Algorithm, str] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
"""The kind of public key by algorithm.  `none` and the algorithms with a shared secret are no part of it."""
UNKNOWN_PREFIX = "~"
"""How the name of an unknown client begins."""
_VOUCHED = ("jwt", "certificate", "header")
DEFAULT_POLICY = "fcfs+deficit"
CLIENT_HEADER = "x-fairsched-client"
"""The header that tells a server the name of a call's client.  Only the gateway sets it: a caller's own is dropped."""
EACH_OTHER = "*"
"""Stands for every client, user or organisation that has no quota by its name."""
HASH_PREFIX = "sha256:"
Key = Annotated[
    str,
    Meta(
        pattern="^sha256:[0-9a-f]{64}$",
        description='"sha256:..." of 64 hexadecimal digits, which `fairsched gateway --hash-key` prints for a key',
    ),
]
Header = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]+$", description="the name of a header")]
TlsFiles = tuple[str | None, str | None, str | None]
"""Authorities, certificate chain, and private key, in PEM."""
_CHANGE = (
    *("servers", "clients", "organisations", "limits", "admin_keys"),
    *("unknown_clients", "verified_clients", "header_from", "quota"),
)
"""What may change while a gateway serves."""


# --- names of callers -----------------------------------------------------------------------------------------------


def verified_name(way: Way, said: str, groups: Sequence[str] = ()) -> str:
    """Return the name of a caller that is known by `way` as `said` and that the file does not list.

    Different ways, groups or words give different names: within groups the marks that separate them are escaped.

    >>> verified_name("jwt", "app-7", ("acme", "ann"))
    'jwt/acme/ann:app-7'
    """
    return "/".join((way, *(_escaped(group, "%/:") for group in groups))) + ":" + _escaped(said, "%")


def claimed_groups(name: str) -> tuple[str, ...]:
    """Return the groups that the name of a verified caller says; none for any other name.

    >>> claimed_groups("jwt/acme/ann:app-7")
    ('acme', 'ann')
    """
    return tuple(name.partition(":")[0].split("/")[1:]) if _is_verified(name) else ()


def is_reserved(name: str) -> bool:
    """Return whether a name is of a form that only callers have which the file does not list."""
    return name.startswith(UNKNOWN_PREFIX) or _is_verified(name)


def names_no_group(name: str) -> bool:
    """Return whether no claim can be this group, since it has a mark that separates groups."""
    return _escaped(name, "%/:") != name


def _is_verified(name: str) -> bool:
    head, colon, _ = name.partition(":")
    return bool(colon) and head.split("/")[0] in _VOUCHED


def _escaped(text: str, marks: str) -> str:
    return "".join(f"%{ord(mark):02X}" if mark in marks else mark for mark in text)


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return networks of texts like 10.0.0.0/8.  Raises `ValueError`, with the text."""
    found = []
    for text in texts:
        try:
            found.append(ip_network(text))
        except ValueError as error:
            raise ValueError(f"header_from: a network is like 10.0.0.0/8 or ::1/128: {error}") from None
    return tuple(found)


def is_url(source: str) -> bool:
    """Return whether a JWKS is to be fetched; otherwise it is a file."""
    return source.startswith(("http://", "https://"))


def hashed_key(key: str) -> str:
    """Return a key as it stands in a configuration.

    >>> hashed_key("sk-gold")[:18]
    'sha256:83a9d60338d'
    """
    return HASH_PREFIX + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


# --- tables -----------------------------------------------------------------------------------------------------------


class LimitConfig(settings.Settings, frozen=True):
    """Limits; a call that is over one is refused with 413 or 429.  Times in seconds."""

    connections: settings.Count | None = None
    """Connections of callers; none: as the descriptors of the process allow. Beyond, the oldest idle one is closed."""
    header_bytes: settings.Count = 16 << 10
    """Longest line of a head; else 400."""
    header_seconds: settings.Seconds = 10.0
    """A connection whose call has no whole head after so long is closed."""
    body_bytes: settings.Count = 8 << 20
    """Longest body; else 413."""
    bodies_bytes: settings.Count = 256 << 20
    """All bodies that are held at a time; else 503."""
    body_seconds: settings.Seconds = 60.0
    """A body that is not whole after so long is refused with 408."""
    idle_seconds: settings.Seconds = 75.0
    """A connection without a call is closed after so long."""
    waiting_per_client: settings.Count = 256
    """Calls of one client that wait; else 429."""
    waiting: settings.Count = 4096
    """Calls that wait. Beyond, the client with the most of them by weight loses its newest, with 429."""
    clients: settings.Count = 1024
    """Unknown clients beyond so many share the name `others`."""
    wait_seconds: settings.Seconds = 600.0
    """Longest wait for a place; then 503."""
    heartbeat_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 15.0
    """A stream that waits has a comment so often, so that nothing on the way cuts it off; 0: none."""
    stall_seconds: settings.Seconds = 60.0
    """A caller that takes no byte for so long is cut off."""
    first_byte_seconds: settings.Seconds = 300.0
    """A server that sends no byte of a stream for so long has failed: the call goes elsewhere."""
    read_seconds: settings.Seconds = 600.0
    """A server that sends no further byte for so long has failed."""
    retry_after_seconds: settings.Count = 1
    """Sent as `Retry-After` with 429."""
    tries: settings.Count = 3
    """Attempts a call, while no byte of an answer was passed on."""
    retry_percent: settings.Percent = 20
    """Attempts beyond the first, as a share of each client's answered calls; 100 are saved up."""
    failures: settings.Count = 5
    """A server is left alone after so many failures in a row; at once if it takes no connection."""
    down_seconds: settings.Seconds = 5.0
    """A server is left alone for so long the first time, and for longer each time that it fails soon again."""
    down_seconds_max: settings.Seconds = 300.0
    """A server is left alone for so long at most, also if its `Retry-After` says more."""
    down_percent: settings.Percent = 50
    """Servers that may be left alone at a time for failed answers; one always stays."""
    health_seconds: settings.Seconds = 5.0
    """Each server's health path is asked so often; no answer for so long is a failure, and two in a row take it out."""
    resolve_seconds: settings.Seconds = 10.0
    """Names of servers with `resolve` are looked up so often."""
    drain_seconds: settings.Count = 120
    """Time to finish calls after SIGTERM."""
    leave_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Calls are still taken for so long after SIGTERM, while `/readyz` says 503: time for load balancers to notice."""


class OrganisationConfig(settings.Settings, frozen=True):
    """An organisation: its weight, and the weights of its users among themselves (1 for one that is not named)."""

    weight: settings.Count = 1
    """Share among organisations."""
    users: dict[str, settings.Count] = msgspec.field(default_factory=dict)
    """Weights of its users among themselves; others have 1."""


class ClientConfig(settings.Settings, frozen=True):
    """A client: how it is known, its weight among its siblings, and where it belongs."""

    keys: tuple[Key, ...] = ()
    """Hashes of the client's API keys, as `fairsched gateway --hash-key` prints them."""
    weight: settings.Count = 1
    """Share among its siblings."""
    organisation: str | None = None
    """The organisation in whose share it is."""
    user: str | None = None
    """The user of that organisation."""
    jwt: tuple[settings.Text, ...] = ()
    """Values of the token claim that names clients: callers with one of them are this client."""
    certificates: tuple[settings.Text, ...] = ()
    """Names in certificates: callers with one of them are this client."""


class JwtConfig(settings.Settings, frozen=True):
    """Tokens of an issuer (JSON Web Tokens): which are taken, and what they say of their caller (extra `jwt`)."""

    jwks: settings.Text
    """File or URL of the issuer's public keys (a JSON Web Key Set)."""
    issuer: settings.Text
    """The claim `iss` of its tokens."""
    audience: settings.Text
    """What the claim `aud` names, alone or among others."""
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = ("RS256", "ES256")
    """Algorithms with a public key that are taken; `none` and shared secrets never are."""
    client_claim: settings.Text = "sub"
    """The claim that names the client."""
    organisation_claim: settings.Text | None = None
    """The claim that names its organisation (hierarchical gate)."""
    user_claim: settings.Text | None = None
    """The claim that names its user in that organisation."""
    leeway_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 30.0
    """By so much the clocks of issuer and gateway may differ."""
    refresh_seconds: settings.Seconds = 300.0
    """The keys are read again so often, where they have a URL."""
    retry_seconds: settings.Seconds = 10.0
    """Tokens of unknown keys have the keys read again, at most so often."""
    ca: settings.Text | None = None
    """Certificates of the authorities that the URL's certificate is checked by, in PEM; none: the system's."""

    def __post_init__(self) -> None:
        if is_url(self.jwks) and ("@" in self.jwks or not urlsplit(self.jwks).hostname):
            raise ValueError("jwks is a file, or http(s)://HOST/PATH without user and password")
        if self.user_claim is not None and self.organisation_claim is None:
            raise ValueError("user_claim names a user of an organisation, and organisation_claim is missing")


class StoreAddress(settings.Settings, frozen=True):
    """A store that several gateways share."""

    url: str
    """`redis://HOST:PORT/0` of Redis or Valkey (`rediss` with TLS, `unix` for a socket), or `file:///FOLDER` for the
    gateways of one machine."""
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+$", description="letters, digits, dots and dashes")] = "default"
    """Of the deployment: gateways of another name share nothing with these."""
    password: str | None = None
    """Of Redis; a user's name is in the address."""
    timeout_seconds: settings.Seconds = 0.5
    """How long the store may take to answer."""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            secret = parts.password is not None
        except ValueError:
            raise ValueError(f"url is no address: {self.url!r}") from None
        if secret:
            # It would be in the status and in logs, and is not repeated here either.
            raise ValueError("url has a password in it: write it in password")
        whole = parts.path if parts.scheme in ("file", "unix") else parts.hostname
        if parts.scheme not in ("redis", "rediss", "unix", "file") or not whole:
            raise ValueError("url is redis://HOST:PORT/0, rediss://..., unix:///PATH or file:///FOLDER")


class StoreConfig(StoreAddress, frozen=True):
    """The account that several gateways share, each of which has the same of this but for the address."""

    gateways: settings.Count = 2
    """How many may share it at a time; the bound grows with it, and one more is refused."""
    lease: settings.Count | None = None
    """Most credit of a client that a gateway has on lease, in cost units; none: the quantum.  A larger one asks less
    often, and the bound grows with it."""
    away: Literal["closed", "local"] = "closed"
    """Once its leases are spent and the store is away: `closed` lets no call in until it is back, `local` shares what
    this gateway has between its own clients."""
    gone_seconds: settings.Seconds = 10.0
    """A gateway that has not renewed its leases for so long is gone; its clients wait there no more."""


class QuotaConfig(settings.Settings, frozen=True):
    """Tokens of prompts and outputs, at most; a window is one of the clock of the store, in UTC."""

    tokens_per_minute: settings.Count | None = None
    """Charged in a minute of the clock; none: any number, as in the others."""
    tokens_per_day: settings.Count | None = None
    """Charged in a day."""
    tokens_per_month: settings.Count | None = None
    """Charged in a month of the calendar."""
    concurrent_tokens: settings.Count | None = None
    """Reserved by calls under way, those that wait included."""


class QuotasConfig(settings.Settings, frozen=True):
    """All quotas, and where they are kept."""

    client: dict[str, QuotaConfig] = msgspec.field(default_factory=dict)
    """Of clients by name; `"*"`: of each other one."""
    user: dict[str, QuotaConfig] = msgspec.field(default_factory=dict)
    """Of users, all clients of one together, by `ORGANISATION/USER`; `"*"`: of each other one."""
    organisation: dict[str, QuotaConfig] = msgspec.field(default_factory=dict)
    """Of organisations, all clients of one together; `"*"`: of each other one."""
    bytes_per_token: settings.Count = 1
    """A prompt reserves a token for so many bytes.  1 is never too few for a vocabulary of bytes; what a prompt comes
    to beyond its reservation is charged all the same, and may exceed a quota."""
    template_tokens: settings.NotNegative = 64
    """Tokens that a server's chat template may add to a prompt beyond the bytes of the call; they are reserved, too."""
    store_away: Literal["closed", "open"] = "closed"
    """While the store is away: `closed` refuses calls with 503, `open` lets them pass uncounted."""
    store: StoreAddress | None = None
    """Where budgets are kept; none: in `[store]`, and without that in the memory of this gateway, until it ends."""

    @property
    def least(self) -> int:
        """What the smallest call reserves: a byte, the template, and an output."""
        return self.template_tokens + 2

    def named(self) -> Iterator[tuple[QuotaKind, str, QuotaConfig]]:
        tables: tuple[tuple[QuotaKind, Mapping[str, QuotaConfig]], ...]
        tables = (("client", self.client), ("user", self.user), ("organisation", self.organisation))
        for kind, table in tables:
            for name, quota in table.items():
                yield kind, name, quota

    def __post_init__(self) -> None:
        for kind, name, quota in self.named():
            for window, most in msgspec.structs.asdict(quota).items():
                if most is not None and most < self.least:
                    raise ValueError(
                        f"{kind}.{name}.{window} is {most}, and the smallest call reserves {self.least} tokens "
                        f"(template_tokens is {self.template_tokens})"
                    )


class TlsConfig(settings.Settings, frozen=True):
    """Files of a certificate and its key, which SIGHUP reads again; without them callers speak plain HTTP."""

    certificate: str
    """Certificate chain in PEM."""
    key: str
    """Its private key in PEM."""
    client_ca: str | None = None
    """Certificates of the authorities that callers' certificates are checked by, in PEM (`identify`: `certificate`)."""
    client_name: Literal["CN", "DNS", "URI", "email"] = "CN"
    """What names a caller in its certificate: the subject's common name, or a subject alternative name of this kind."""


class ServerConfig(settings.Settings, frozen=True):
    """An OpenAI-compatible server: its address without `/v1`, and what it takes at a time."""

    url: str
    """Address without `/v1`."""
    window_tokens: settings.Count
    """Prompt and output tokens in flight there: about its KV cache. A call larger than an eighth may go beyond."""
    window_requests: settings.Count = 256
    """Calls in flight there at most; fewer where the server says at `/metrics` or `/status` that calls wait there."""
    api_key: str | None = None
    """Sent instead of the caller's key."""
    health: Annotated[str, Meta(pattern="^(/[!-~]*)?$", description="a path like /health, or none")] = "/health"
    """Path that is asked now and then; an answer under 500 is a good one. Empty: it is not asked."""
    resolve: bool = False
    """The name stands for a server at each of its addresses, which come and go; the windows are those of each."""
    ca: str | None = None
    """Certificates of the authorities that the server's certificate is checked by, in PEM; none: the system's."""
    certificate: str | None = None
    """Certificate chain in PEM that the server is shown."""
    key: str | None = None
    """The private key of that certificate in PEM."""

    def __post_init__(self) -> None:
        if "@" in self.url:
            # It would be in the status and in logs, and is not repeated here either.
            raise ValueError("url has a user or password in it: name a key in api_key")
        try:
            parts = urlsplit(self.url)
            there = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            there = False
        if not there or "?" in self.url or "#" in self.url or self.url.endswith(("/", "/v1")):
            raise ValueError(f"url is http://HOST:PORT without /v1, not {self.url!r}")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key are files that belong together: name both")
        if self.tls_files is not None and not self.url.startswith("https://"):
            raise ValueError(f"ca, certificate and key are for https://, not {self.url}")

    @property
    def tls_files(self) -> TlsFiles | None:
        """Files of the server's authorities, and of the certificate that it is shown; None: those of the system."""
        files = (self.ca, self.certificate, self.key)
        return None if files == (None, None, None) else files


class GatewayConfig(settings.Settings, frozen=True):
    """All of it."""

    servers: tuple[ServerConfig, ...] = msgspec.field(name="server")
    listen: str = "127.0.0.1:8080"
    """Address and port."""
    processes: settings.Count = 1
    """Processes that serve callers (not on Windows). Each has a part of each window; all share one account by
    leases, that of `[store]` or one that ends with them."""
    policy: str = DEFAULT_POLICY
    """Any policy that does not preempt; `+deficit`, `+counter` and `+hierarchical` have a bound."""
    quantum: settings.Count = 4096
    """Credit of a round for weight 1, in cost units."""
    router: str = "join-shortest-queue"
    """Any router, over what the gateway has in flight."""
    decision_budget_ms: settings.Count = BUDGET_MS
    """How long a decision of the policy or the router may take; a later one fails."""
    identify: Way | tuple[Way, ...] = "key"
    """How a caller is identified, or several ways: the first of which a call has something."""
    header: Header = "x-client"
    """The header that names the client (`identify`: `header`)."""
    header_from: tuple[str, ...] = ()
    """Networks of the proxies that set it, like 10.0.0.0/8; from other peers it counts for nothing. None: from all."""
    unknown_clients: UnknownClients = "reject"
    """Callers that no `[client]` names and that nothing vouches for: 401 (`reject`), a client each (`own`), or one
    client for all (`together`)."""
    verified_clients: UnknownClients = "own"
    """The same for callers that a token, a certificate or a proxy of `header_from` vouches for."""
    admin_keys: tuple[Key, ...] = ()
    """Hashes of the keys that `/gateway/status` and `/metrics` want, as `fairsched gateway --hash-key` prints them."""
    bytes_per_token: settings.Count = 4
    """Divides a prompt's bytes into tokens."""
    media_tokens: settings.Count = 1024
    """Tokens that an image, a sound or a film is taken for, until the server says what it was."""
    media_tokens_max: settings.Count = 16384
    """Tokens that each of them may be: what it is charged where a server does not say what it was."""
    default_output_tokens: settings.Count = 4096
    """A call without `max_tokens` may have so many outputs at least, and 8 times what is usual for its client."""
    unreserved_tokens: settings.NotNegative | None = None
    """Outputs that may be expected beyond what is reserved for the calls of one client; none: the largest window."""
    hold_seconds: settings.Seconds = 3600.0
    """Holding a token for so long costs as much as one output token."""
    call_seconds: settings.Seconds = 600.0
    """A call that is longer at a server is cut off, and charged."""
    tokens_per_second: settings.Count | None = None
    """Output tokens a second that the servers together yield at least while a call waits, prompt tokens counted at
    their price: then a longest wait in seconds is promised, and held to. None: none is."""
    status: bool = False
    """Serve `/gateway/status`, which names clients, to callers with an admin key."""
    metrics: bool = False
    """Serve `/metrics` for Prometheus (extra `metrics`), which names clients, to callers with an admin key."""
    store: StoreConfig | None = None
    """The account that several gateways share, which also keeps debts through restarts."""
    quota: QuotasConfig | None = None
    """Tokens over time, at most."""
    tls: TlsConfig | None = None
    jwt: JwtConfig | None = None
    limits: LimitConfig = LimitConfig()
    organisations: dict[str, OrganisationConfig] = msgspec.field(default_factory=dict, name="organisation")
    clients: dict[str, ClientConfig] = msgspec.field(default_factory=dict, name="client")

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("server: at least one is needed")
        urls: dict[str, int] = {}
        for i, server in enumerate(self.servers):
            if urls.setdefault(server.url, i) != i:
                raise ValueError(f"server[{i}].url is that of server[{urls[server.url]}], too: {server.url}")
        if self.header.lower() == CLIENT_HEADER:
            raise ValueError(f"header: {CLIENT_HEADER} is set by the gateway alone")
        networks(self.header_from)
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

    def of_process(self, number: int = 0, folder: Path = Path("/")) -> "GatewayConfig":
        """Return the configuration of one of its processes: a part of each window, and the account of all, in the
        store, or in this folder if there is none.  One process has all.  Raises `ConfigError` for a window that has no
        part for each."""
        count, servers = self.processes, []
        if count == 1:
            return self
        for i, server in enumerate(self.servers):
            tokens, requests = server.window_tokens, server.window_requests
            if tokens < 2 * count or requests < count:
                raise settings.ConfigError(
                    f"server[{i}]: a window of {tokens} tokens and {requests} requests has no part for each of {count} "
                    "processes"
                )
            parts = (whole // count + (number < whole % count) for whole in (tokens, requests))
            servers.append(replace(server, window_tokens=next(parts), window_requests=next(parts)))
        # One that was killed is waited for no longer than another one takes to start.
        store = self.store or StoreConfig(folder.as_uri(), gateways=1, gone_seconds=2.0)
        return replace(self, servers=tuple(servers), store=replace(store, gateways=store.gateways * count))

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
        if (self.status or self.metrics) and not self.admin_keys:
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
        """Return where a client belongs, with weights: nowhere, in an organisation, or to a user of one."""
        found = self.clients.get(client)
        if found is None:
            names = claimed_groups(client)
        else:
            names = tuple(name for name in (found.organisation, found.user) if name is not None)
        return self.weighed(tuple((name, 1) for name in names))

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


def read_config(path: Path) -> GatewayConfig:
    """Return the configuration in a file.  Raises `ConfigError`, or `OSError` for a file that cannot be read."""
    return settings.read_settings(path, GatewayConfig)


def reloaded(running: GatewayConfig, path: Path, read: Callable[[Path], GatewayConfig] = read_config) -> GatewayConfig:
    """Return the file as it is now.  Raises `ConfigError` also where it changes what cannot change while it serves."""
    fresh = read(path)
    settings.check_changes(path, running, fresh, _CHANGE)
    if _kept(running) != _kept(fresh):
        raise settings.ConfigError(
            f"{path}: a change of where quotas are kept, or whether there are any, needs a restart"
        )
    for name in running.clients.keys() & fresh.clients.keys():
        here, there = ([group for group, _ in config.groups(name)] for config in (running, fresh))
        if here != there:
            raise settings.ConfigError(f"{path}: client.{name}: a change of where it belongs needs a restart")
    return fresh


def _kept(config: GatewayConfig) -> object:
    """Return where quotas are kept, if there are any."""
    return None if config.quota is None else (config.quota.store,)
