"""The directives `policy` and `policy-table`: what a policy or router is made of, its parameters and what is proved."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from fields import default, fields, kind_of
from markdown import directive, escaped, sentence, table
from theorems import assumption_link, link, subjects

from fairsched.policies.batching import BATCHINGS
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import CLUSTER_POLICIES, LOCAL_POLICIES, parameters, router_parameters

ALL: Mapping[str, Any] = {**LOCAL_POLICIES, **CLUSTER_POLICIES}


def policy(names: Sequence[str]) -> str:
    """What a policy consists of, its parameters, its theorems, and those that its configuration breaks."""
    (name,) = names
    if name not in ALL:
        raise ValueError(f"no policy {name}; known: {', '.join(ALL)}")
    chosen = ALL[name]
    return "\n\n".join((*_made_of(name, chosen), _parameters(chosen), *_proved(name)))


def _made_of(name: str, chosen: Any) -> Iterator[str]:
    option = "--policies" if isinstance(chosen, ComposedPolicy) else "--routers"
    line = f"`{option} {name}`"
    if isinstance(chosen, ComposedPolicy):
        promise = "promises a bound" if chosen.promises_bound else "promises no bound"
        line += f" · order `{chosen.order.name}` · gate `{chosen.gate.name}` · {promise}"
    yield line


def _parameters(chosen: Any) -> str:
    composed = isinstance(chosen, ComposedPolicy)
    values = parameters(chosen) if composed else router_parameters(chosen)
    if not values:
        return "It has no parameters."
    parts = (chosen.order, chosen.gate, chosen.batching) if composed else (chosen,)
    known = {name: field for part in parts for name, field in fields(type(part)).items()}
    if composed:
        known["batching"] = (Literal[tuple(BATCHINGS)], "the batching rule")
        for kind in ("input", "output"):
            known[f"{kind}_rate"] = (int, f"cost units of an {kind} token")
    rows = []
    for name, value in values.items():
        kind, text = known.get(name, (type(value), ""))
        rows.append((f"`{name}`", default(value), kind_of(kind, name), escaped(text)))
    return table(("parameter", "default", "values", "meaning"), rows)


def _proved(name: str) -> Iterator[str]:
    try:
        about = subjects()[name]
    except KeyError:
        return
    kept, lost = [], []
    for theorem in about.theorems:
        broken = about.broken.intersection(about.assumptions(theorem))
        (lost if broken else kept).append((theorem, broken))
    worker = about.policy.batching.theorems if about.policy is not None else ()
    own = [link(theorem.id) for theorem, _ in kept if theorem not in worker]
    yield f"Theorems: {', '.join(own)}." if own else "No theorem is about its decisions."
    if rest := [link(theorem.id) for theorem, _ in kept if theorem in worker]:
        yield f"Of the worker under its batching rule: {', '.join(rest)}."
    if lost:
        broken = sorted({each for _, all_broken in lost for each in all_broken}, key=lambda each: each.name)
        named = ", ".join(link(theorem.id) for theorem, _ in lost)
        yield f"Not of it, since it breaks {', '.join(map(assumption_link, broken))}: {named}."
    if returns := [f"- {escaped(sentence(line))}" for line in about.returns()]:
        yield "\n".join(("What a client gains or loses that leaves and returns:", "", *returns))


def policy_table(names: Sequence[str]) -> str:
    """A line for each policy: what it is, and whether it promises a bound.  `local` or `routers`."""
    rows = []
    for name, chosen in ({"local": LOCAL_POLICIES, "routers": CLUSTER_POLICIES}[names[0]]).items():
        first = sentence((inspect.getdoc(chosen) or "").split("\n\n")[0])
        row = [f"`{name}`", escaped(first)]
        if isinstance(chosen, ComposedPolicy):
            row += [chosen.gate.name, "yes" if chosen.promises_bound else "no"]
        rows.append(row)
    head = ("name", "what it does", "gate", "bound")
    return table(head[: len(rows[0])], rows)


def setup(app: Any) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("policy", directive(policy))
    app.add_directive("policy-table", directive(policy_table))
    return {"parallel_read_safe": True}
