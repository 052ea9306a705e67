"""A gate's state beside what its kernels make of the same events: the simulation relation between a run and its proofs.

The theorems are about transition systems of kernels in unbounded integers.  A policy keeps vectors of 64 bits, in
copies and units of its own.  The relation says which state of the system a gate's state stands for; where it holds
after every event, the run is one of those that the theorems speak about.
"""

from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any

from fairsched.model.algebra import ExactVector
from fairsched.policies.gates.bands import Bands
from fairsched.policies.gates.hierarchical import TreeOfDeficits
from fairsched.policies.gates.interpreters import DeclaredRules, GateInterpreter, _PausingDeficits, _SharedDeficits

Part = tuple[str, Sequence[Any], Sequence[Any], Any]
"""A part of both states: its name, one value a client in the gate's state and by the kernels, and the value of clients
that one of them has not met."""


def difference(rules: GateInterpreter, state: Any) -> str | None:
    """Where the gate's state is not the one that the kernels made, in one sentence; None if it is.  O(clients)."""
    for name, kept, made, unmet in parts(rules, state):
        if list(kept) == list(made):
            continue
        for client in range(max(len(kept), len(made))):
            one, other = (values[client] if client < len(values) else unmet for values in (kept, made))
            if one != other:
                return (
                    f"{name} of client {client} is {one} in the gate's state, and its kernels make {other} of the run"
                )
    return None


@singledispatch
def parts(rules: GateInterpreter, state: Any) -> Iterator[Part]:
    """What a gate's state and an interpreter have in common."""
    raise TypeError(f"{type(rules).__name__}: no relation to a state is known")


@parts.register
def _(rules: DeclaredRules, state: Any) -> Iterator[Part]:
    gate, fields = rules.gate, state.__struct_fields__
    for name in gate.state:
        kept, made = getattr(state, name).tolist(), rules.vectors[name]
        if name in gate.units:
            # The gate's unit is a multiple of the weights, and so is the interpreter's.
            kept, made = [value * rules.common for value in kept], [value * state.common for value in made]
        yield name, kept, made, name in gate.masks and False
    for name, made in gate.weighed(ExactVector(rules.weight)).items():
        yield name, getattr(state, name).tolist(), made, gate.weighed(1)[name]
    if "weight" in fields:
        yield "the weight", state.weight.tolist(), rules.weight, 1
    if gate.units:
        yield "the weight", [state.common // share for share in state.share.tolist()], rules.weight, 1
    if "last" in fields:
        size = gate.size(state)
        one, other = ([client == last for client in range(size)] for last in (state.last, rules.last))
        yield "whether it left last", one, other, False


@parts.register
def _(rules: _PausingDeficits, state: Any) -> Iterator[Part]:
    yield from parts.dispatch(DeclaredRules)(rules, state)
    yield "the debt that pauses", [rules.gate.depth(state)], [rules.depth], 0


@parts.register
def _(rules: _SharedDeficits, state: Any) -> Iterator[Part]:
    yield from parts.dispatch(DeclaredRules)(rules, state)
    yield "the number of workers where it waits", state.places.tolist(), rules.places, 0


@parts.register
def _(rules: TreeOfDeficits, state: Any) -> Iterator[Part]:
    names = {node: group for group, node in state.groups.items()}
    nodes: list[int] = state.node.tolist()
    # Clients first, by number; groups after them, in the order of the gate's nodes.
    keys = [*range(len(nodes)), *(names[node] for node in sorted(names))]
    places = [*nodes, *sorted(names)]
    for client in range(len(nodes)):
        rules._path(client)
    for name, kept, made in (
        ("the deficit", state.q, rules.q),
        ("the quantum", state.quantum, rules.quantum),
        ("the number of clients that wait there or below", state.below, rules.below),
    ):
        yield name, kept[places].tolist(), [made[key] for key in keys], 0
    yield "whether it came", state.known[places].tolist(), [key in rules.known for key in keys], False


@parts.register
def _(rules: Bands, state: Any) -> Iterator[Part]:
    yield "the lag of the bands below the band with the number", state.lag.tolist(), rules.lag, 0
    yield "the number of waiting clients of the band with the number", state.waits.tolist(), rules.waits(), 0
    made = [rules.of(client) for client in range(len(state.band))]
    yield "the band", state.band.tolist(), made, len(rules.shares) - 1
    for own, kept in zip(rules.inside, state.inside, strict=True):
        yield from parts(own, kept)
