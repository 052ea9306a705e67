"""A team's own numbers: from them a theorem's constant becomes tokens and seconds.

One TOML or JSON document, every key optional:

    latency_model = "llama-3.2-3b-a10g"   # how fast a worker is: a preset, or a file of `fairsched calibrate`
    kv_capacity_tokens = 65536            # M; the latency model's, if not given
    prompt_tokens_max = 8192              # L; M - 1, if not given
    max_output_tokens = 1024              # M - 1, if not given; matters only where outputs are not reserved

    [weights]                             # each weight that a client may have; one of weight 1, if not given
    gold = 4
    free = 1

    [policies.dlpm]                       # parameters, as `fairsched policies` lists them
    quantum = 8192
"""

from collections.abc import Iterable, Mapping
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import attrs

from fairsched.model import machine as model_latency
from fairsched.model.request import Client
from fairsched.model.serialization import parse
from fairsched.model.shown import short_repr
from fairsched.model.theorem import EQUAL_QUANTA, Theorem
from fairsched.policies.base import Limits
from fairsched.policies.gates import BoundTerms
from fairsched.policies.guarantees import bound_terms
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import unknown

KV_TOKENS_MIN = 2
"""A request has at least one prompt and one output token."""


@attrs.frozen
class Deployment:
    """What bounds rest on: the worker, the largest request, the clients' weights by name, parameters by policy."""

    __repr__ = short_repr

    latency: model_latency.LatencyModel = model_latency.PRESETS[model_latency.DEFAULT_PRESET]
    kv_capacity_tokens: int = model_latency.PRESETS[model_latency.DEFAULT_PRESET].kv_capacity_tokens
    prompt_tokens_max: int = model_latency.PRESETS[model_latency.DEFAULT_PRESET].kv_capacity_tokens - 1
    max_output_tokens: int = model_latency.PRESETS[model_latency.DEFAULT_PRESET].kv_capacity_tokens - 1
    weights: tuple[tuple[str, int], ...] = (("any", 1),)
    policies: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()

    def parameters(self, policy: str) -> dict[str, str]:
        """Return the parameters that were given for a policy, as text."""
        return dict(dict(self.policies).get(policy, ()))

    def limits(self, policy: ComposedPolicy) -> Limits:
        """Return what the policy's bounds rest on."""
        limits = policy.guarantee.limits(self.kv_capacity_tokens, self.max_output_tokens)
        return attrs.evolve(limits, prompt_tokens_max=min(limits.prompt_tokens_max, self.prompt_tokens_max))

    def bound_terms(self, policy: ComposedPolicy) -> tuple[tuple[int, BoundTerms], ...]:
        """Weight and bound terms of a client of each weight."""
        clients = tuple(Client(i, name, weight) for i, (name, weight) in enumerate(self.weights))
        terms = bound_terms(policy.gate, clients, self.limits(policy))
        return tuple((client.weight, each) for client, each in zip(clients, terms, strict=False))


@attrs.frozen
class DeployedBound:
    """A bound in one deployment, for the worst pair of clients: cost units of the client of larger weight, that many
    output tokens, and how long a worker takes to serve that client so much (`seconds_of_service`)."""

    cost_units: int
    output_tokens: int
    seconds: float


def constant(theorem: Theorem, policy: ComposedPolicy, deployment: Deployment) -> DeployedBound | None:
    """Return the theorem's bound as a number; None if it has none."""
    cost = theorem.bound_cost
    if cost is None:
        return None
    equal = EQUAL_QUANTA in theorem.assumptions
    costs = []
    for (weight_f, f), (weight_g, g) in combinations_with_replacement(deployment.bound_terms(policy), 2):
        if weight_f == weight_g or not equal:
            unit = min(f.quantum, g.quantum) if theorem.per_quantum else min(f.scale, g.scale)
            there = cost(f.quantum, f.charge_max, g.quantum, g.charge_max)
            back = cost(g.quantum, g.charge_max, f.quantum, f.charge_max)
            costs.append(-(-max(there, back) // unit))
    if not costs:
        return None
    units, rates = max(costs), policy.gate.rates
    return DeployedBound(units, -(-units // rates.output), seconds_of_service(units, policy, deployment))


def seconds_of_service(cost_units: int, policy: ComposedPolicy, deployment: Deployment) -> float:
    """Return how long one worker takes to serve one client so much while it does nothing else.

    It decodes for that client alone: a full batch (as many requests as the batching rule admits, of at least two tokens
    each) whose context fills the KV capacity, so each step serves output rate x batch cost units.
    """
    capacity = deployment.kv_capacity_tokens
    batch = max(min(policy.batching.max_running, capacity // KV_TOKENS_MIN), 1)
    step_ns = deployment.latency.decode_ns(batch, capacity)
    return cost_units * step_ns / (policy.gate.rates.output * batch) / 1e9


# --- reading --------------------------------------------------------------------------------------------------------


def load(path: Path) -> Deployment:
    """Return the deployment of a TOML or JSON document; raises `ValueError`, naming file and key, for anything else."""
    raw = path.read_bytes()
    try:
        return read(parse(raw, "JSON" if path.suffix == ".json" else "TOML"), path.parent)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read(document: object, folder: Path = Path()) -> Deployment:
    """Return the deployment of a document; raises `ValueError` naming the key that does not fit.

    A latency model may also be the document of a preset itself; a file of one is looked for in `folder`.
    """
    keys = ("latency_model", "kv_capacity_tokens", "prompt_tokens_max", "max_output_tokens", "weights", "policies")
    given = _table("the document", document, keys)
    latency = _latency(given.get("latency_model", model_latency.DEFAULT_PRESET), folder)
    held = latency.kv_capacity_tokens
    capacity = _whole("kv_capacity_tokens", given.get("kv_capacity_tokens", held), KV_TOKENS_MIN)
    policies = _table("policies", given.get("policies", {}))
    weights = _table("weights", given.get("weights", {"any": 1}))
    if not weights:
        raise ValueError("weights names no client")
    return Deployment(
        latency,
        capacity,
        _whole("prompt_tokens_max", given.get("prompt_tokens_max", capacity - 1), 1),
        _whole("max_output_tokens", given.get("max_output_tokens", capacity - 1), 1),
        tuple((client, _whole(f"weights.{client}", weight, 1)) for client, weight in weights.items()),
        tuple((policy, _parameters(policy, params)) for policy, params in policies.items()),
    )


def _latency(given: object, folder: Path) -> model_latency.LatencyModel:
    if isinstance(given, dict):
        return model_latency.from_builtins(given).latency
    if isinstance(given, str) and given.endswith(".json"):
        try:
            return model_latency.decoded((folder / given).read_bytes()).latency
        except (OSError, ValueError) as error:
            raise ValueError(f"latency_model {given}: {error}") from None
    found = model_latency.preset(given) if isinstance(given, str) else None
    if found is None:
        raise unknown("latency_model", str(given), model_latency.PRESETS)
    return found


def document(deployment: Deployment) -> dict[str, Any]:
    """Return the document from which `read` makes the same deployment."""
    latency = deployment.latency
    is_shipped = model_latency.preset(latency.name) == latency
    return {
        "latency_model": latency.name if is_shipped else model_latency.as_builtins(latency),
        "kv_capacity_tokens": deployment.kv_capacity_tokens,
        "prompt_tokens_max": deployment.prompt_tokens_max,
        "max_output_tokens": deployment.max_output_tokens,
        "weights": dict(deployment.weights),
        "policies": {policy: dict(params) for policy, params in deployment.policies},
    }


def _table(name: str, value: object, keys: Iterable[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is a table of keys and values, not {value!r}")
    for key in value if keys is not None else ():
        if key not in (known := tuple(keys or ())):
            raise unknown("key", key, known)
    return value


def _parameters(policy: str, params: object) -> tuple[tuple[str, str], ...]:
    table = _table(f"policies.{policy}", params)
    return tuple((key, _text(f"policies.{policy}.{key}", value)) for key, value in table.items())


def _whole(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is a whole number of at least {least}, not {value!r}")
    return value


def _text(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{name} is a whole number or a name, not {value!r}")
    return str(value)
