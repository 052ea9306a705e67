"""The policy that a gateway's configuration names, and what it promises there."""

from pathlib import Path

import attrs

from fairsched.engines.gateway.config import GatewayConfig, StoreConfig
from fairsched.engines.settings import ConfigError
from fairsched.model.pricing import COMMON, multipliers
from fairsched.model.request import Client
from fairsched.model.service import ServiceCurve
from fairsched.policies.base import AnyRouter, Limits
from fairsched.policies.gates import HierarchicalGate, on_lease
from fairsched.policies.guarantees import SECOND_NS, WindowTerms, window_curve, window_limits
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders.abilities import preempts
from fairsched.policies.registry import ROUTERS, local_policy, unknown, with_parameters

PACE = 2500
"""Output tokens a second of the server in whose time a bound is said: one GPU and a model of 8 B, with a full batch."""
_HIERARCHICAL = 'policy = "fcfs+hierarchical"'


def window_policy(name: str, quantum: int) -> ComposedPolicy:
    """Return the policy of that name, in a window; `quantum` is for gates that have one.

    Raises `ValueError` for one that cannot be used there.
    """
    policy = local_policy(name)
    values = {"batching": "iteration-level", "max_running": "1", "reserve": "static"}
    if hasattr(policy.gate, "quantum"):
        values["quantum"] = str(quantum)
    policy = with_parameters(policy, values)
    if preempts(policy.order):
        raise ValueError(f"{name} preempts, which a window before servers cannot")
    if policy.pauses:
        raise ValueError(f"{name} pauses running requests, which a window before servers cannot")
    rates = policy.gate.rates
    if policy.promises_bound and rates.input > rates.output:
        raise ValueError("its bound needs input tokens that are not dearer than output tokens")
    return policy


def window_router(name: str) -> AnyRouter:
    """Return the router of that name.  Raises `ValueError` for one that is not there."""
    router = ROUTERS.get(name)
    if router is None:
        raise unknown("router", name, ROUTERS)
    return router


def gateway_policy(config: GatewayConfig, path: Path) -> ComposedPolicy:
    """Return the policy of a gateway's configuration, which was read from `path`.

    Raises `ConfigError` for one that cannot be used here, and for a router that is not there.
    """
    try:
        window_router(config.router)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        policy = window_policy(config.policy, config.quantum)
    except ValueError as error:
        raise ConfigError(f"{path}: policy: {error}") from None
    if config.organisations and not isinstance(policy.gate, HierarchicalGate):
        raise ConfigError(f"{path}: organisation: a hierarchical gate has them: {_HIERARCHICAL}")
    if config.claims_organisations and not isinstance(policy.gate, HierarchicalGate):
        raise ConfigError(f"{path}: jwt.organisation_claim: a hierarchical gate has organisations: {_HIERARCHICAL}")
    if config.store is None:
        return policy
    try:
        return leased_policy(policy, config.store)
    except ValueError as error:
        raise ConfigError(f"{path}: store: {error}") from None


def leased_policy(policy: ComposedPolicy, store: StoreConfig) -> ComposedPolicy:
    """Return the policy with its gate's credit on lease.  Raises `ValueError` for a gate whose credit cannot be."""
    lease = getattr(policy.gate, "quantum", 1) if store.lease is None else store.lease
    return attrs.evolve(policy, gate=on_lease(policy.gate, lease, store.gateways))


def window_terms(config: GatewayConfig) -> WindowTerms:
    """Return what a configuration says of reservations, of holding memory, and of long calls."""
    hold_ns, call_ns = (round(seconds * SECOND_NS) for seconds in (config.hold_seconds, config.call_seconds))
    return WindowTerms(config.unreserved_tokens, hold_ns, call_ns, config.tokens_per_second)


def quota_lines(config: GatewayConfig) -> list[str]:
    """Return what quotas there are and where they are kept, a line each; none without quotas."""
    quota = config.quota
    if quota is None:
        return []
    address = quota.store or config.store
    counts = ", ".join(
        f"{len(table)} of {kind}s"
        for kind, table in (("client", quota.client), ("user", quota.user), ("organisation", quota.organisation))
        if table
    )
    where = "in this gateway's memory, which a restart empties" if address is None else f"at {address.url}"
    per = "a byte" if quota.bytes_per_token == 1 else f"{quota.bytes_per_token} bytes"
    reserves = f"a token for {per} of its prompt, {quota.template_tokens} more, and its outputs at most"
    return [f"quotas: {counts or 'none'}, kept {where}; a call reserves {reserves}"]


def _seconds(bound: int, clients: tuple[Client, ...]) -> str:
    """Return how long a server of that pace takes for what the lightest of these may be behind by."""
    seconds = bound / max(multipliers([client.weight for client in clients])) / (COMMON.output * PACE)
    return f"{seconds:,.0f} s of a server that gives {PACE:,} output tokens a second"


def _waits(policy: ComposedPolicy, clients: tuple[Client, ...], limits: Limits, curve: ServiceCurve) -> str:
    """Return how long one of these clients waits at most before servers that keep the curve, or why nothing is said."""
    promise = policy.guarantee.promise(clients, limits, curve)
    wait = None if promise is None else promise.worst_wait
    if wait is None:
        return f"no wait is promised in seconds: {policy.guarantee.no_wait(limits) or 'weights differ under a counter'}"
    bound = f"{wait.admission_ns / SECOND_NS:,.0f} s ({wait.theorem.id}), while servers keep tokens_per_second"
    return f"one of {len(clients)} clients that waits has a call let in after at most {bound}"


def bound_text(config: GatewayConfig, policy: ComposedPolicy) -> str:
    """Return what the policy promises with the windows of the configuration, a line each bound."""
    windows = [server.window_tokens for server in config.servers]
    tokens, terms = sum(windows), window_terms(config)
    limits = window_limits(policy.guarantee, tokens, terms)
    families: dict[str, list[Client]] = {"": []}
    for name, client in config.clients.items():
        place = config.groups(name)
        path = "/".join(group for group, _ in place)
        families.setdefault(path, []).append(Client(len(families[path]), name, client.weight, place))
    lines = []
    for path, found in families.items():
        clients = tuple(found) if len(found) > 1 else (Client(0, "a"), Client(1, "b"))
        bound = policy.guarantee.service_gap_bound(clients, limits)
        pair = f"two clients of {path}" if path else "two clients" if len(families) == 1 else "two clients in none"
        # What is in a group is shared by each gateway by itself.
        pair += " at one gateway" if path and config.store is not None else ""
        if bound is not None and (path == "" or len(found) > 1):
            costs = f"{bound:,} cost units (an output token costs 2), or {_seconds(bound, clients)}"
            lines.append(f"{pair} that wait differ by at most {costs}")
    if (curve := window_curve(policy.guarantee, tokens, terms)) is not None:
        everyone = tuple(Client(i, name, each.weight) for i, (name, each) in enumerate(config.clients.items()))
        lines.append(_waits(policy, everyone if len(everyone) > 1 else (Client(0, "a"), Client(1, "b")), limits, curve))
    groups = tuple(Client(i, name, each.weight) for i, (name, each) in enumerate(config.organisations.items()))
    if config.claims_organisations:
        # Tokens may name others, of weight 1.
        groups = (*groups, *(Client(len(groups) + i, f"claimed {i}") for i in range(2)))
    if len(groups) > 1:
        bound = policy.guarantee.group_gap_bound(groups, limits)
        lines.append(f"two organisations that wait differ by at most {bound:,} cost units")
    text = f"window {tokens:,} tokens, policy {policy.name}: "
    if config.processes > 1:
        lines.append(
            f"that is of {config.processes} processes, which share one account by leases; the window is the part of "
            "one, and no call may be larger"
        )
    return "\n".join((text + ("\n".join(lines) or "promises nothing"), *policy.guarantee.cautions(tokens)))
