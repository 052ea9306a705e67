"""The policies that ship, by name: what a command line lists, and how it sets their parameters.

A policy's parameters are the fields of its order, its gate and its batching rule, by their names; `input_rate` and
`output_rate` are the gate's rates, `batching` names the rule itself.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, cast

import attrs

from fairsched.model.pricing import Rates
from fairsched.policies.ageing import Ageing
from fairsched.policies.aladdin import Aladdin, AladdinPrinted
from fairsched.policies.aladdin_grouped import AladdinGrouped
from fairsched.policies.aladdin_split import AladdinSplit
from fairsched.policies.base import ClusterPolicy, Router
from fairsched.policies.batching import BATCHINGS, Batching
from fairsched.policies.batchllm import BatchLLM, HybridBatchLLM
from fairsched.policies.counter import CounterGate
from fairsched.policies.d2lpm import D2LPM
from fairsched.policies.deficit import DeficitGate
from fairsched.policies.dfs_weight import DfsWeight
from fairsched.policies.dlpm import DLPM, DLPMPrinted
from fairsched.policies.dlpm_central import CentralDLPM
from fairsched.policies.dlpm_global import DLPMGlobal
from fairsched.policies.dlpm_hierarchical import DLPMHierarchical
from fairsched.policies.e2 import E2, E2Printed
from fairsched.policies.fastserve import FastServe
from fairsched.policies.fcfs import FCFS, FCFSOptimistic, NoPreempt
from fairsched.policies.freeness import Freeness
from fairsched.policies.gate import Gate, OpenGate
from fairsched.policies.hierarchical import HierarchicalGate
from fairsched.policies.larry import LARRY, FairLARRY, LARRYPrinted
from fairsched.policies.learning_to_rank import LearningToRank
from fairsched.policies.llumnix import Llumnix
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.longest_prefix import LongestPrefixRouter
from fairsched.policies.lpm import LPM
from fairsched.policies.oracle_partition import OraclePartition
from fairsched.policies.preble import Preble, PreblePrinted
from fairsched.policies.predicted_batches import S3, PiA
from fairsched.policies.router import JoinShortestQueue, PerClientRoundRobin, RoundRobin
from fairsched.policies.router_random import PowerOfTwo, Random
from fairsched.policies.sal import SAL, SALPrinted
from fairsched.policies.shortest_prompt_first import ShortestPromptFirst
from fairsched.policies.stealing import Stealing
from fairsched.policies.trail import TRAIL
from fairsched.policies.upstream_first import UpstreamFirst
from fairsched.policies.vtc import VTC

LOCAL_POLICIES: dict[str, ComposedPolicy] = {
    policy.name: policy
    for policy in (
        *(FCFS(), ShortestPromptFirst(), LPM(), VTC(), DLPM(), DLPMPrinted(), DLPMGlobal(), DLPMHierarchical()),
        *(FCFSOptimistic(), NoPreempt(), Ageing(), DfsWeight(), S3(), PiA()),
        *(LARRY(), LARRYPrinted(), FairLARRY(), UpstreamFirst(), Preble(), PreblePrinted()),
        *(TRAIL(), LearningToRank(), FastServe()),
        *(BatchLLM(), HybridBatchLLM()),
    )
}
"""Local policies by name, with their defaults."""

GATES: dict[str, Gate[Any]] = {
    gate.name: gate for gate in (OpenGate(), CounterGate(), DeficitGate(), HierarchicalGate())
}
"""Gates by name, with their defaults: any of them goes with any local policy (`local_policy`)."""

ROUTERS: dict[str, Router[Any]] = {
    router.name: router
    for router in (
        RoundRobin(),
        PerClientRoundRobin(),
        Random(),
        PowerOfTwo(),
        JoinShortestQueue(),
        Freeness(),
        Llumnix(),
        SAL(),
        SALPrinted(),
        E2(),
        E2Printed(),
        LongestPrefixRouter(),
        OraclePartition(),
        D2LPM(),
        Stealing(),
    )
}
"""Routers by name, with their defaults."""

CLUSTER_POLICIES: dict[str, ClusterPolicy[Any]] = {
    **ROUTERS,
    **{each.name: each for each in (CentralDLPM(), Aladdin(), AladdinPrinted(), AladdinSplit(), AladdinGrouped())},
}
"""Whatever may stand before the workers, by name: routers, and what holds requests."""

Placing = TypeVar("Placing", bound=ClusterPolicy[Any])


class UnknownNameError(ValueError):
    """A name that is not there; the message lists the nearest ones."""


def unknown(what: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not among `known`."""
    names = list(known)
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return UnknownNameError(f"unknown {what} {name!r}; {hint}")


def local_policy(name: str) -> ComposedPolicy:
    """A shipped policy by its name, or by NAME+GATE its order and batching rule under that gate instead of its own.

    Raises `UnknownNameError`.

    >>> local_policy("larry+deficit").gate.name
    'deficit'
    """
    base, plus, gate = name.partition("+")
    if base not in LOCAL_POLICIES:
        raise unknown("policy", base, LOCAL_POLICIES)
    policy: Any = LOCAL_POLICIES[base]
    if not plus:
        return cast("ComposedPolicy", policy)
    if gate not in GATES:
        raise unknown("gate", gate, GATES)
    return cast("ComposedPolicy", attrs.evolve(policy, name=name, gate=GATES[gate]))


def parameters(policy: ComposedPolicy) -> dict[str, Any]:
    """The policy's parameters and their values."""
    values: dict[str, Any] = {"batching": policy.batching.name}
    for part in (policy.order, policy.gate, policy.batching):
        for name in _fields(type(part)):
            value = getattr(part, name)
            if isinstance(value, Rates):
                values |= {"input_rate": value.input, "output_rate": value.output}
            else:
                values[name] = value
    return values


def _fields(kind: type) -> list[str]:
    """What may be set as text: not what follows from the rest, nor fields with `metadata={"text": False}`."""
    fields = attrs.fields(cast("type[attrs.AttrsInstance]", kind))
    return [field.name for field in fields if field.init and field.metadata.get("text", True)]


def with_parameters(policy: ComposedPolicy, given: Mapping[str, str]) -> ComposedPolicy:
    """The policy with parameters set from text.

    A deficit gate's `quantum` that is not given is twice the step's token budget.  Raises `UnknownNameError` for a
    parameter that the policy does not have, `ValueError` for a value that it cannot have.
    """
    known = parameters(policy)
    if given.get("batching") in BATCHINGS:
        # Another batching rule may have parameters of its own.
        own = BATCHINGS[given["batching"]]()
        known |= {name: getattr(own, name) for name in _fields(type(own)) if name not in known}
    for name in given:
        if name not in known:
            raise unknown(f"parameter of policy {policy.name}", name, known)
    batching = _batching(policy, given)
    parsed = {name: _parsed(policy, name, text, known[name]) for name, text in given.items()}
    order: Any = policy.order
    order = attrs.evolve(order, **{name: parsed[name] for name in _fields(type(order)) if name in parsed})
    gate: Any = policy.gate
    changes: dict[str, Any] = {name: parsed[name] for name in _fields(type(gate)) if name in parsed}
    rates = {"input_rate": "input", "output_rate": "output"}
    if any(name in parsed for name in rates):
        changes["rates"] = attrs.evolve(
            gate.rates, **{part: parsed[name] for name, part in rates.items() if name in parsed}
        )
    if "quantum" in known and "quantum" not in given:
        changes["quantum"] = 2 * batching.max_batched_tokens
    return attrs.evolve(policy, order=order, gate=attrs.evolve(gate, **changes), batching=batching)


def router_parameters(router: ClusterPolicy[Any]) -> dict[str, Any]:
    """The router's parameters and their values."""
    return {name: getattr(router, name) for name in _fields(type(router))}


def router_with(router: Placing, given: Mapping[str, str]) -> Placing:
    """The router with parameters set from text.

    Raises `UnknownNameError` for a parameter that the router does not have, `ValueError` for a value that it cannot
    have.
    """
    known = router_parameters(router)
    for name in given:
        if name not in known:
            raise unknown(f"parameter of router {router.name}", name, known)
    changes = {name: _parsed(router, name, text, known[name]) for name, text in given.items()}
    configured: Any = router
    return cast("Placing", attrs.evolve(configured, **changes))


def _batching(policy: ComposedPolicy, given: Mapping[str, str]) -> Batching:
    kind = type(policy.batching)
    if "batching" in given:
        if given["batching"] not in BATCHINGS:
            raise unknown("batching rule", given["batching"], BATCHINGS)
        kind = BATCHINGS[given["batching"]]
    default = kind()
    values = {name: getattr(policy.batching, name, getattr(default, name)) for name in _fields(kind)}
    for name in values:
        if name in given:
            values[name] = _parsed(policy, name, given[name], values[name])
    return kind(**values)


def _parsed(policy: ComposedPolicy | ClusterPolicy[Any], name: str, text: str, default: Any) -> Any:
    """`text` as a value like `default`; a whole number where the default is one or None."""
    if isinstance(default, str):
        return text
    if default is None and text == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{policy.name}.{name} is a whole number, not {text!r}") from None
