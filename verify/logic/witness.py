"""Runs that attain a bound: the constant could not be smaller.

A witness is a list of a system's own events with their facts.  It is run from the empty gate through the numpy and the
exact interpretation of the shipped kernels; every hypothesis of every event is checked, the claim's start where the
interval begins, and every invariant of the claim after each event from there on.  Charges and reservations are those of
real requests (at least one token computed, at least one output) on a worker of M tokens, and U is what
`fairsched.model.pricing` says for that M.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from fairsched.model.pricing import Rates, price
from fairsched.model.theorem import BACKLOGGED_DURING, Theorem
from fairsched.verify.logic import system as logic_system

BEGIN = "the interval starts"
"""The step that is no event: service and credit are counted from here, and backlogged clients wait."""

RATES = Rates(1, 2)

RunStep = tuple[str, Mapping[str, Any]]

Measure = Callable[[logic_system.World], int]
"""What the theorem bounds, read off a world."""


def service_gap(w: logic_system.World) -> int:
    """|W_f - W_g|."""
    return abs(int(w.W[w.f]) - int(w.W[w.g]))


@attrs.frozen
class Witness:
    """A run of a claim's system in a world of `clients` clients; its `parameters` hold until the run is over.

    What happens before the interval starts happens in the system `history` (the claim's own unless given), where no
    client needs to be backlogged; `snapshots` are the parameters that are then read off the state, by the field's
    name.
    """

    claim: logic_system.Claim
    clients: int
    parameters: logic_system.Values
    steps: tuple[RunStep, ...]
    bound_cost: int
    snapshots: Mapping[str, str] = attrs.field(factory=dict)
    measure: Measure = service_gap
    history: logic_system.System | None = None

    @property
    def theorem(self) -> Theorem:
        """The theorem whose bound is to be attained."""
        return self.claim.theorem


class NotAWitness(ValueError):
    """A step was not permitted, or broke an invariant."""


def attained(witness: Witness) -> int:
    """Return what is bounded, at the run's end, the same in both interpretations; raises `NotAWitness`."""
    gaps = {_measured(witness, run) for run in logic_system.INTERPRETATIONS}
    if len(gaps) != 1:
        raise NotAWitness(f"{witness.theorem.id}: the interpretations disagree: {sorted(gaps)}")
    return gaps.pop()


def _measured(witness: Witness, run: logic_system.Interpretation) -> int:
    claim, o = witness.claim, run.o
    system = witness.history or claim.system
    kinds = {**system.parameters, **system.fields, **claim.system.parameters, **claim.system.fields}
    zeros = {name: _nothing(kind, witness.clients) for name, kind in kinds.items()}
    world = logic_system.with_derived(o, system, run.world(kinds, {**zeros, **witness.parameters}))
    counting = not any(name == BEGIN for name, _ in witness.steps)
    for name, facts in witness.steps:
        if name == BEGIN:
            counting, system = True, claim.system
            fresh = [field for field in ("W", "P", "X", "S", "T") if field in system.fields]
            world = logic_system.updated(world, vars(run.world(kinds, {field: zeros[field] for field in fresh})))
            world = logic_system.updated(
                world, {known: getattr(world, field) for known, field in witness.snapshots.items()}
            )
            world = logic_system.with_derived(o, system, world)
            if missing := list(logic_system.failing(o, claim.start, world, witness.clients)):
                raise NotAWitness(f"{claim.theorem.id}: the interval starts without {missing}")
            continue
        event = next(event for event in system.events if event.name == name and event.excluded_by is None)
        worlds = logic_system.happened(
            run, system, event, world, facts, frozenset(() if counting else (BACKLOGGED_DURING,))
        )
        if worlds is None:
            raise NotAWitness(f"{claim.theorem.id}: {name} {dict(facts)} is not permitted")
        _, world = worlds
        if counting and (broken := list(logic_system.failing(o, claim.invariants, world, witness.clients))):
            raise NotAWitness(f"{claim.theorem.id}: {name} {dict(facts)} breaks {broken}")
    return int(witness.measure(world))


def _nothing(kind: logic_system.Kind, clients: int) -> int | tuple[int, ...]:
    if kind is logic_system.Kind.POINT:
        return -1
    return (0,) * clients if kind in (logic_system.Kind.VECTOR, logic_system.Kind.MASK) else 0


def one(clients: int, client: int, value: int) -> tuple[int, ...]:
    """Return the vector with a value at one client and zero elsewhere."""
    return tuple(value if i == client else 0 for i in range(clients))


def served(clients: int, client: int, input_tokens: int, output_tokens: int, **chosen: Any) -> Iterator[RunStep]:
    """Yield one request from admission to its last token, of whose charge nothing comes back; `chosen` are the facts by
    which the kernel picks the client."""
    output = price(output_tokens, RATES.output)
    yield "admit", {"x": price(input_tokens, RATES.input), "r": output, "k": 0, **chosen}
    yield "decode", {"d": one(clients, client, output)}
