"""Settings of a shim: a TOML file that an environment variable names, or a table that its engine carries.

An unknown key is refused.
"""

import inspect
from pathlib import Path
from typing import Annotated, Any, TypeVar

import attrs
import msgspec
from msgspec import Meta

from fairsched.engines.serving import BUDGET_MS, ClientRegistry
from fairsched.engines.settings import ConfigError, Count, Name, Settings, read_settings
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import FollowsCache
from fairsched.policies.orders.abilities import preempts
from fairsched.policies.registry import local_policy, parameters, with_parameters

S = TypeVar("S", bound=msgspec.Struct)


class InsideSettings(Settings, frozen=True, kw_only=True):
    """What all engines are told."""

    policy: Name
    parameters: dict[Name, str | int] = msgspec.field(default_factory=dict)
    """The policy's parameters, as `fairsched policies` lists them."""
    client_key: Name = "client"
    """The key under which a request names its client."""
    default_client: Name = "default"
    """The client of requests that name none, and of unknown clients beyond `clients_max`."""
    clients: dict[Name, Count] = msgspec.field(default_factory=dict)
    """Weights by client name; other clients have weight 1."""
    clients_max: Count = 1024
    """Unknown clients beyond so many share `default_client`."""
    decision_budget_ms: Count = BUDGET_MS
    """How long a decision may take; a later one fails."""
    log: Name | None = None
    """A file for the log, which `replay`, `explain` and `audit` read."""
    report: Name | None = None
    """A file for the status as JSON, written at the end."""
    metrics_port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    """Serve Prometheus metrics on this port."""
    metrics_host: Name = "127.0.0.1"
    """The address on which metrics are served."""

    def registry(self) -> ClientRegistry:
        """Return the registry of the configured clients, the default client first."""
        default = self.default_client
        weights = {default: self.clients.get(default, 1), **self.clients}
        return ClientRegistry(weights, unknown_max=self.clients_max, overflow=default)


@attrs.frozen
class Chosen:
    """A policy for one engine, with an admission a decision.  `parameters` are all that it has, for the log."""

    policy: ComposedPolicy
    parameters: dict[str, object]

    @property
    def looks_at_cache(self) -> bool:
        """Whether what is cached matters to the policy."""
        return isinstance(self.policy.order, FollowsCache)


def choose(settings: InsideSettings, engine: str, own: dict[str, str], taken: str, *, pauses: bool = False) -> Chosen:
    """Return the policy of settings inside an engine, which sets the parameters `own`; `taken` says so of one of them.

    With `pauses` the engine can pause running requests.

    Raises `ConfigError` for one that cannot be used there.
    """
    given = {name: str(value) for name, value in settings.parameters.items()}
    try:
        policy = local_policy(settings.policy)
        if names := sorted(own.keys() & given.keys()):
            raise ValueError(f"{names[0]} is {taken}")
        policy = with_parameters(policy, given | own)
    except ValueError as error:
        raise ConfigError(f"fairsched: {error}") from None
    if preempts(policy.order):
        raise ConfigError(f"fairsched: {settings.policy} preempts, which {engine} decides itself")
    if policy.pauses and not pauses:
        raise ConfigError(f"fairsched: {settings.policy} pauses running requests, which {engine} does not here")
    return Chosen(policy, dict(parameters(policy)))


def read_file(path: Path, variable: str, kind: type[S]) -> S:
    """Return the settings in the TOML file that `variable` names.  Raises `ConfigError`."""
    try:
        return read_settings(path, kind)
    except OSError as error:
        raise ConfigError(f"{variable}: {path} cannot be read: {error.strerror}") from None


def own_file(name: str, rank: int) -> Path:
    """Return the file of one of several engines with the same settings: beyond the first they have their number in the
    name.

    >>> own_file("fair.json", 0).name, own_file("fair.json", 2).name
    ('fair.json', 'fair.2.json')
    """
    path = Path(name)
    return path.with_name(f"{path.stem}.{rank}{path.suffix}") if rank else path


def probe(engine: str, *uses: tuple[Any, str | type]) -> None:
    """Raise `ConfigError` that lists what this release of `engine` lacks of the names that an adapter uses.

    `uses` says where in the engine (a class, or a value) which names are looked up: the members of a protocol, or
    names in a line, of methods with their number of arguments.  A class has its attributes, and what it sets when made.

    >>> probe("Python", (list, "append/1 sort"))
    >>> probe("Python", (list, "append/2 peek"))
    Traceback (most recent call last):
    fairsched.engines.settings.ConfigError: fairsched cannot run in this Python, which lacks list.append/2, list.peek
    """
    lacks = [
        f"{getattr(owner, '__name__', type(owner).__name__)}.{name}"
        for owner, names in uses
        for name in (names.split() if isinstance(names, str) else {**names.__annotations__, **vars(names)})
        if (isinstance(names, str) or not name.startswith("_")) and not _has(owner, name)
    ]
    if lacks:
        raise ConfigError(f"fairsched cannot run in this {engine}, which lacks {', '.join(lacks)}")


def _has(owner: Any, name: str) -> bool:
    name, _, arguments = name.partition("/")
    if arguments:
        try:
            inspect.signature(getattr(owner, name)).bind(*range(int(arguments) + isinstance(owner, type)))
        except (AttributeError, TypeError):
            return False
        return True
    made = [vars(each).get("__init__") for each in owner.__mro__] if isinstance(owner, type) else []
    return hasattr(owner, name) or any(name in each.__code__.co_names for each in made if inspect.isfunction(each))
