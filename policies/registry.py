"""The policies that ship, by name: what a command line lists, and how it sets their parameters.

A policy's parameters are the fields of its order, its gate and its batching rule, by their names; `input_rate` and
`output_rate` are the gate's rates, `batching` names the rule itself.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import attrs

from fairsched.model.pricing import Rates
from fairsched.policies import gates, placement, routers
from fairsched.policies.base import AnyClusterPolicy, AnyRouter
from fairsched.policies.batching import BATCHINGS
from fairsched.policies.catalog import COMPOSITIONS
from fairsched.policies.local import ComposedPolicy
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
        *(routers.E2(), routers.E2Printed(), routers.LongestPrefixRouter(), routers.OraclePartition()),
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
)
CLUSTER_POLICIES: dict[str, AnyClusterPolicy] = {**ROUTERS, **{each.name: each for each in _HOLDING}}
"""What may stand before the workers, by name: routers, and policies that hold requests."""

Value = int | str | None
"""What a parameter may be."""
Placing = TypeVar("Placing", bound=AnyClusterPolicy)


class UnknownNameError(ValueError):
    """A name that is not there; the message lists the nearest ones."""


def unknown(what: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Return the error for a name that is not among `known`."""
    return UnknownNameError(meant(what, name, known))


def imported(name: str) -> object:
    """Return what `module:attribute` names; a class of composed policies is called without arguments.

    Raises `ValueError` where there is no such thing, and for whatever the module raises.
    """
    module, _, attribute = name.partition(":")
    what = "imported"
    try:
        found: object = getattr(importlib.import_module(module), attribute)
        if isinstance(found, type) and issubclass(found, ComposedPolicy):
            what = "made without arguments"
            make: Callable[[], object] = found
            return make()
    except (Exception, SystemExit) as error:
        # A module runs as it is imported, and its author may make any mistake.
        kind = "" if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: "
        raise ValueError(f"policy {name!r} cannot be {what}: {kind}{error}") from error
    return found


def local_policy(name: str) -> ComposedPolicy:
    """Return a shipped policy by its name, NAME+GATE (its order and batching rule under another gate), or your own by
    `module:attribute`.

    Raises `UnknownNameError`, or `ValueError` where the module or the attribute is no composed policy.

    >>> local_policy("larry+deficit").gate.name
    'deficit'
    >>> local_policy("fairsched.policies.catalog:VTC").name
    'vtc'
    """
    if ":" in name:
        own = imported(name)
        if not isinstance(own, ComposedPolicy):
            kind = f"the class {own.__qualname__}" if isinstance(own, type) else f"a {type(own).__name__}"
            raise ValueError(f"policy {name!r} is {kind}; a policy of your own is a ComposedPolicy, or a class of them")
        return own
    base, plus, gate = name.partition("+")
    if base not in LOCAL_POLICIES:
        raise unknown("policy", base, LOCAL_POLICIES)
    policy: Any = LOCAL_POLICIES[base]
    if not plus:
        return cast("ComposedPolicy", policy)
    if gate not in GATES:
        raise unknown("gate", gate, GATES)
    return cast("ComposedPolicy", attrs.evolve(policy, name=name, gate=GATES[gate]))


def parameters(policy: ComposedPolicy) -> dict[str, Value]:
    """Return the policy's parameters and their values."""
    values: dict[str, Value] = {"batching": policy.batching.name}
    for part in (policy.order, policy.gate, policy.batching):
        for name in _fields(type(part)):
            value = getattr(part, name)
            if isinstance(value, Rates):
                values |= {"input_rate": value.input, "output_rate": value.output}
            else:
                values[name] = value
    return values


def _fields(kind: type) -> list[str]:
    """Return the fields that may be set as text: none that follow from others, none with `metadata={"text": False}`."""
    fields = attrs.fields(cast("type[attrs.AttrsInstance]", kind))
    return [field.name for field in fields if field.init and field.metadata.get("text", True)]


def _changed(part: Any, values: Mapping[str, Any]) -> Any:
    """Return the part with those of the values that it has a field for."""
    return attrs.evolve(part, **{name: values[name] for name in _fields(type(part)) if name in values})


def with_parameters(policy: ComposedPolicy, given: Mapping[str, str]) -> ComposedPolicy:
    """Return the policy with parameters set from text.

    A deficit gate's `quantum` that is not given is twice the step's token budget.  Raises `UnknownNameError` for a
    parameter that the policy does not have, `ValueError` for a value that it cannot have.
    """
    batching: Any = policy.batching
    if given.get("batching") in BATCHINGS:
        # Another batching rule may have parameters of its own, and keeps the values of those that both have.
        batching = _changed(BATCHINGS[given["batching"]](), {n: getattr(batching, n) for n in _fields(type(batching))})
    known = parameters(policy) | parameters(attrs.evolve(policy, batching=batching))
    values: dict[str, Any] = _parsed(policy, "policy", given, known)
    if "batching" in given and given["batching"] not in BATCHINGS:
        raise unknown("batching rule", given["batching"], BATCHINGS)
    batching = _changed(batching, values)
    rates = policy.gate.rates
    values["rates"] = Rates(values.get("input_rate", rates.input), values.get("output_rate", rates.output))
    if "quantum" in known:
        values.setdefault("quantum", 2 * batching.max_batched_tokens)
    order, gate = _changed(policy.order, values), _changed(policy.gate, values)
    return attrs.evolve(policy, order=order, gate=gate, batching=batching)


def router_parameters(router: AnyClusterPolicy) -> dict[str, Value]:
    """Return the router's parameters and their values."""
    return {name: getattr(router, name) for name in _fields(type(router))}


def router_with(router: Placing, given: Mapping[str, str]) -> Placing:
    """Return the router with parameters set from text.

    Raises `UnknownNameError` for a parameter that the router does not have, `ValueError` for a value that it cannot
    have.
    """
    return cast("Placing", _changed(router, _parsed(router, "router", given, router_parameters(router))))


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
