"""The parameters of a composed policy: the fields of its order, its gate and its batching rule, by their names.

`input_rate` and `output_rate` are the gate's rates, `batching` names the rule itself.
"""

from collections.abc import Mapping
from typing import Any, cast

import attrs

from fairsched.model.pricing import Rates
from fairsched.policies.local.policy import ComposedPolicy

Value = int | str | None
"""What a parameter may be."""


def parameters(policy: ComposedPolicy) -> dict[str, Value]:
    """Return the policy's parameters and their values."""
    values: dict[str, Value] = {"batching": policy.batching.name}
    for part in (policy.order, policy.gate, policy.batching):
        for name in settable(type(part)):
            value = getattr(part, name)
            if isinstance(value, Rates):
                values |= {"input_rate": value.input, "output_rate": value.output}
            else:
                values[name] = value
    return values


def settable(kind: type) -> list[str]:
    """Return the fields that may be set as text: none that follow from others, none with `metadata={"text": False}`."""
    fields = attrs.fields(cast("type[attrs.AttrsInstance]", kind))
    return [field.name for field in fields if field.init and field.metadata.get("text", True)]


def changed(part: Any, values: Mapping[str, Any]) -> Any:
    """Return the part with those of the values that it has a field for."""
    return attrs.evolve(part, **{name: values[name] for name in settable(type(part)) if name in values})


def parts_with(policy: ComposedPolicy, batching: Any, given: Mapping[str, Value]) -> dict[str, Any]:
    """Return order, gate and batching rule with these parameters.

    A deficit gate's `quantum` that is not given is twice the step's token budget, unless the policy has one of its own.
    Raises `ValueError` for a value that
    a parameter cannot have.
    """
    values: dict[str, Any] = dict(given)
    batching = changed(batching, values)
    rates = policy.gate.rates
    values["rates"] = Rates(values.get("input_rate", rates.input), values.get("output_rate", rates.output))
    gate: Any = policy.gate
    quantum = getattr(attrs.fields(type(gate)), "quantum", None)
    if quantum is not None and quantum.default == gate.quantum:
        values.setdefault("quantum", 2 * batching.max_batched_tokens)
    return {"order": changed(policy.order, values), "gate": changed(policy.gate, values), "batching": batching}
