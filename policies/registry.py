"""The policies that ship, by name: what a command line lists, and how it sets their parameters.

Read `policies.local.parameters` for what a policy's parameters are.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import attrs

from fairsched.policies import gates, placement, routers
from fairsched.policies.base import AnyClusterPolicy, AnyRouter, ClusterPolicy
from fairsched.policies.batching import BATCHINGS
from fairsched.policies.catalog import COMPOSITIONS
from fairsched.policies.local import ComposedPolicy, Value, changed, parameters, parts_with, settable
from fairsched.policies.validators import WHOLE_MAX, meant, whole_number

LOCAL_POLICIES: dict[str, ComposedPolicy] = {policy.name: policy for policy in (make() for make in COMPOSITIONS)}
"""Local policies by name, with their defaults."""

GATES: dict[str, gates.AnyGate] = {
    gate.name: gate
    for gate in (
        gates.OpenGate(),
        gates.CounterGate(),
        gates.DeficitGate(),
        gates.HierarchicalGate(),
        gates.InBatchGate(),
        gates.BandGate(),
    )
}
"""Gates by name, with their defaults: any of them goes with any local policy (`local_policy`)."""

ROUTERS: dict[str, AnyRouter] = {
    router.name: router
    for router in (
        *(routers.RoundRobin(), routers.PerClientRoundRobin(), routers.Random(), routers.PowerOfTwo()),
        *(routers.JoinShortestQueue(), routers.Freeness(), routers.Llumnix(), routers.SAL(), routers.SALPrinted()),
        *(
            routers.E2(),
            routers.E2Printed(),
            routers.LongestPrefixRouter(),
            routers.LMetric(),
            routers.OraclePartition(),
        ),
        *(routers.D2LPM(), routers.D2LPMPrinted()),
        *(routers.DistServe(), routers.DistServeReleased(), routers.SplitJSQ(), routers.SplitP2C()),
        *(routers.SplitD2LPM(), routers.TetriInfer(), routers.TetriInferPrinted()),
    )
}
"""Routers by name, with their defaults."""

_HOLDING: tuple[AnyClusterPolicy, ...] = (
    *(routers.CentralDLPM(), placement.Aladdin(), placement.AladdinPrinted()),
    *(placement.AladdinSplit(), placement.AladdinGrouped()),
    *(routers.Splitwise(), routers.SplitwisePrinted(), routers.SplitwiseReleased()),
    routers.ValleyFilling(),
)
CLUSTER_POLICIES: dict[str, AnyClusterPolicy] = {**ROUTERS, **{each.name: each for each in _HOLDING}}
"""What may stand before the workers, by name: routers, and policies that hold requests."""

Placing = TypeVar("Placing", bound=AnyClusterPolicy)
__all__ = [
    "CLUSTER_POLICIES", "GATES", "LOCAL_POLICIES", "ROUTERS", "Value", "cluster_policy", "imported", "local_policy",
    "parameters", "router_parameters", "router_with", "unknown", "with_parameters"
]  # fmt: skip


def unknown(what: str, name: str, known: Iterable[str]) -> ValueError:
    """Return the error for a name that is not among `known`."""
    return ValueError(meant(what, name, known))


def imported(name: str) -> object:
    """Return what `module:attribute` names; a class of policies or routers is called without arguments.

    Raises `ValueError` where there is no such thing, and for whatever the module raises.
    """
    module, _, attribute = name.partition(":")
    what = "imported"
    try:
        found: object = getattr(importlib.import_module(module), attribute)
        if isinstance(found, type) and issubclass(found, ComposedPolicy | ClusterPolicy):
            what = "made without arguments"
            make: Callable[[], object] = found
            return make()
    except (Exception, SystemExit) as error:
        # A module runs as it is imported, and its author may make any mistake.
        kind = "" if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: "
        raise ValueError(f"{name!r} cannot be {what}: {kind}{error}") from error
    return found


def _own(name: str, kind: type, what: str) -> Any:
    """Return what `module:attribute` names, if it is of that kind."""
    own = imported(name)
    if not isinstance(own, kind):
        found = f"the class {own.__qualname__}" if isinstance(own, type) else f"a {type(own).__name__}"
        raise ValueError(f"{what} {name!r} is {found}; a {what} of your own is a {kind.__name__}, or a class of them")
    return own


def local_policy(name: str) -> ComposedPolicy:
    """Return a shipped policy by its name, NAME+GATE (its order and batching rule under another gate), or your own by
    `module:attribute`.

    Raises `ValueError`, also where the module or the attribute is no composed policy.

    >>> local_policy("larry+deficit").gate.name
    'deficit'
    >>> local_policy("fairsched.policies.catalog:VTC").name
    'vtc'
    """
    if ":" in name:
        return cast("ComposedPolicy", _own(name, ComposedPolicy, "policy"))
    base, plus, gate = name.partition("+")
    if base not in LOCAL_POLICIES:
        raise unknown("policy", base, LOCAL_POLICIES)
    policy: Any = LOCAL_POLICIES[base]
    if not plus:
        return cast("ComposedPolicy", policy)
    if gate not in GATES:
        raise unknown("gate", gate, GATES)
    return cast("ComposedPolicy", attrs.evolve(policy, name=name, gate=GATES[gate]))


def with_parameters(policy: ComposedPolicy, given: Mapping[str, str]) -> ComposedPolicy:
    """Return the policy with parameters set from text.

    A deficit gate's `quantum` that is not given is twice the step's token budget.  Raises `ValueError` for a
    parameter that the policy does not have, `ValueError` for a value that it cannot have.
    """
    batching: Any = policy.batching
    if given.get("batching") in BATCHINGS:
        # Another batching rule may have parameters of its own, and keeps the values of those that both have.
        batching = changed(BATCHINGS[given["batching"]](), {n: getattr(batching, n) for n in settable(type(batching))})
    known = parameters(policy) | parameters(attrs.evolve(policy, batching=batching))
    values = _parsed(policy, "policy", given, known)
    if "batching" in given and given["batching"] not in BATCHINGS:
        raise unknown("batching rule", given["batching"], BATCHINGS)
    return attrs.evolve(policy, **parts_with(policy, batching, values))


def cluster_policy(name: str) -> AnyClusterPolicy:
    """Return a shipped router, or another cluster policy, by its name, or your own by `module:attribute`.

    Raises `ValueError`, also where the module or the attribute is no router.

    >>> cluster_policy("fairsched.policies.routers:E2").name
    'e2'
    """
    if ":" in name:
        return cast("AnyClusterPolicy", _own(name, ClusterPolicy, "router"))
    if name not in CLUSTER_POLICIES:
        raise unknown("router", name, CLUSTER_POLICIES)
    return CLUSTER_POLICIES[name]


def router_parameters(router: AnyClusterPolicy) -> dict[str, Value]:
    """Return the router's parameters and their values."""
    return {name: getattr(router, name) for name in settable(type(router))}


def router_with(router: Placing, given: Mapping[str, str]) -> Placing:
    """Return the router with parameters set from text.

    Raises `ValueError` for a parameter that the router does not have, and for a value that it cannot
    have.
    """
    return cast("Placing", changed(router, _parsed(router, "router", given, router_parameters(router))))


def _parsed(
    policy: ComposedPolicy | AnyClusterPolicy, kind: str, given: Mapping[str, str], known: Mapping[str, Value]
) -> dict[str, Value]:
    """Return what is given as values like those known; a whole number where that is one or None."""
    values: dict[str, Value] = {}
    for name, text in given.items():
        if name not in known:
            raise unknown(f"parameter of {kind} {policy.name}", name, known)
        if isinstance(known[name], str):
            values[name] = text
            continue
        if known[name] is None and text == "none":
            values[name] = None
            continue
        value = whole_number(text)
        if value is None or abs(value) > WHOLE_MAX:
            limit = "" if value is None else f" of at most {WHOLE_MAX:,}"
            raise ValueError(f"{policy.name}.{name} is a whole number{limit}, not {text!r}")
        values[name] = value
    return values
