"""Runs that attain a bound: the constant could not be smaller.

A witness is a list of the system's own events with their facts.  It is run from the empty gate through the numpy and
the exact interpretation of the shipped kernels; every hypothesis of every event is checked, and so is every invariant
of the claim after it.  Charges and reservations are those of real requests (at least one token computed, at least one
output) on a worker of M tokens, and U is what `fairsched.model.pricing` says for that M.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from fairsched.model.pricing import Rates, charge_max_reserved, price
from fairsched.model.theorem import BACKLOGGED_DURING, Assumption, Theorem
from fairsched.policies import counter, deficit
from fairsched.verify import counter_proofs, deficit_proofs
from fairsched.verify.concrete import INTERPRETATIONS, Interpretation, Values, holds, hypotheses, permitted
from fairsched.verify.system import Claim, World, decided, state_after, with_derived

INTERVAL_STARTS = "the interval starts"
"""The step that is no event: service and credit are counted from here, and both clients wait."""

Step = tuple[str, Mapping[str, Any]]


@attrs.frozen
class Witness:
    """A run of a claim's system in a world of `clients` clients; its `parameters` hold until the run is over."""

    claim: Claim
    clients: int
    parameters: Values
    base: str
    steps: tuple[Step, ...]
    bound_cost: int

    @property
    def theorem(self) -> Theorem:
        """The theorem whose bound is to be attained."""
        return self.claim.theorem


class NotAWitness(ValueError):
    """A step was not permitted, or broke an invariant."""


def attained(witness: Witness) -> int:
    """The largest service gap between f and g at the end, the same in both interpretations; raises `NotAWitness`."""
    gaps = {_gap(witness, run) for run in INTERPRETATIONS}
    if len(gaps) != 1:
        raise NotAWitness(f"{witness.theorem.id}: the interpretations disagree: {sorted(gaps)}")
    return gaps.pop()


def _gap(witness: Witness, run: Interpretation) -> int:
    system = witness.claim.system
    kinds = {**system.parameters, **system.fields}
    zeros = {name: -1 if kind.value == "point" else (0,) * witness.clients for name, kind in system.fields.items()}
    world = with_derived(run.o, system, run.world(kinds, {**zeros, **witness.parameters}))
    counting = False
    for name, facts in witness.steps:
        if name == INTERVAL_STARTS:
            counting = True
            fresh = run.world(kinds, {field: (0,) * witness.clients for field in ("W", "P") if field in system.fields})
            world = _with(world, {**vars(fresh), witness.base + "0": getattr(world, witness.base)})
            continue
        world = _after(witness, run, world, name, facts, counting)
    return abs(int(world.W[world.f]) - int(world.W[world.g]))


def _after(
    witness: Witness, run: Interpretation, world: World, name: str, facts: Mapping[str, Any], counting: bool
) -> World:
    o, system = run.o, witness.claim.system
    event = next(event for event in system.events if event.name == name)
    before = decided(o, event, _with(world, vars(run.world(event.facts, facts))))
    # Before the interval starts nobody has to be backlogged.
    dropped: frozenset[Assumption] = frozenset() if counting else frozenset({BACKLOGGED_DURING})
    if not permitted(o, hypotheses(system, event, dropped), before):
        raise NotAWitness(f"{witness.theorem.id}: {name} {dict(facts)} is not permitted")
    after = state_after(o, system, event, before)
    broken = [clause.name for clause in witness.claim.invariants if not holds(o, clause, after, witness.clients)]
    if counting and broken:
        raise NotAWitness(f"{witness.theorem.id}: {name} {dict(facts)} breaks {broken}")
    return after


def _with(world: World, more: Mapping[str, Any]) -> World:
    return World(**{**vars(world), **more})


# --- the runs -------------------------------------------------------------------------------------------------------

_RATES = Rates(1, 2)


def _one(clients: int, client: int, value: int) -> tuple[int, ...]:
    return tuple(value if i == client else 0 for i in range(clients))


def _served(clients: int, client: int, input_tokens: int, output_tokens: int, **chosen: Any) -> Iterator[Step]:
    """One request from admission to its last token; `chosen` are the facts by which the kernel picks the client."""
    output = price(output_tokens, _RATES.output)
    yield "admit", {"x": price(input_tokens, _RATES.input), "r": output, **chosen}
    yield "decode", {"d": _one(clients, client, output)}


def deficit_witness() -> Witness:
    """Q = 4 and M = 3, so U = 5: from q = (4, -4) to (-4, 4), where f was served 16 and g nothing."""
    memory, longest, quantum = 3, 2, 4
    charge_max = charge_max_reserved(_RATES, memory, longest)

    def spends_all(client: int) -> Iterator[Step]:
        """From the most credit (4) to the deepest debt (1 - U = -4)."""
        chosen = {"ready": (1, 1), "score": _one(2, client, 1)}
        yield from _served(2, client, 1, 1, **chosen)
        yield from _served(2, client, 1, 2, **chosen)

    f, g = 0, 1
    steps = (
        ("arrive", {"p": f}),
        ("arrive", {"p": g}),
        ("refill", {}),
        *spends_all(g),
        (INTERVAL_STARTS, {}),
        *spends_all(f),
        ("refill", {}),
        ("refill", {}),
        *spends_all(f),
    )
    claim = next(claim for claim in deficit_proofs.claims() if claim.theorem is deficit.D_41)
    parameters: Values = {"Q": (quantum,) * 2, "U": (charge_max,) * 2, "q0": (0, 0), "f": f, "g": g}
    return Witness(claim, 2, parameters, "q", steps, deficit.gap_cost(quantum, charge_max, quantum, charge_max))


def counter_witness() -> Witness:
    """M = 3, so U = 5: client 0 is served 10 while client 1 waits and gets nothing.

    The kernel serves the first of equals.  Client 1 is served U while client 2 waits at 0; client 0 joins at 0, is
    served U, ties with client 1, and as the first of equals is served U again.
    """
    memory = 3
    charge_max = charge_max_reserved(_RATES, memory, memory - 1)

    def turn(client: int) -> Iterator[Step]:
        """The shortest prompt, and outputs that fill the memory."""
        return _served(3, client, 1, memory - 1)

    steps = (
        ("arrive", {"p": 1}),
        ("arrive", {"p": 2}),
        *turn(1),
        ("arrive", {"p": 0}),
        (INTERVAL_STARTS, {}),
        *turn(0),
        *turn(2),
        *turn(0),
    )
    claim = next(claim for claim in counter_proofs.claims() if claim.theorem is counter.V_44)
    parameters: Values = {"U": (charge_max,) * 3, "c0": (0, 0, 0), "f": 0, "g": 1}
    return Witness(claim, 3, parameters, "c", steps, counter.gap_cost(0, charge_max, 0, charge_max))


def witnesses() -> tuple[Witness, ...]:
    """One run a bound that is claimed to be tight."""
    return (deficit_witness(), counter_witness())
