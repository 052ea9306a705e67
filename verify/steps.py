"""What has to be shown for a claim, one step at a time, and whether a concrete world breaks it.

The start implies the invariants, every event keeps them, and they imply the conclusions.  The prover turns each step
into a formula for any number of clients; here the same step is run in a world of real numbers, by two interpretations
of the same kernel text, so a countermodel can be confirmed and replayed without a solver.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import Assumption
from fairsched.verify.concrete import INTERPRETATIONS, Interpretation, Values, holds, hypotheses, permitted
from fairsched.verify.system import Claim, Clause, Event, Kind, World, decided, state_after, with_derived

START = "start"
CONCLUSION = "conclusion"
HINTS = "hints"
DIVISION = "no division by zero"


@attrs.frozen
class Step:
    """From every state in which `assumed` holds, `goals` hold after `event` (of the same state, if there is none)."""

    name: str
    claim: Claim
    event: Event | None
    assumed: tuple[Clause, ...]
    goals: tuple[Clause, ...]
    dropped: frozenset[Assumption]

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """Everything that a world of this step holds."""
        system = self.claim.system
        return {**system.parameters, **system.fields, **(self.event.facts if self.event else {})}


def steps(claim: Claim, dropped: frozenset[Assumption] = frozenset()) -> Iterator[Step]:
    """Every step of `claim` when the assumptions `dropped` are not made."""
    hints = claim.system.hints
    if hints:
        yield Step(HINTS, claim, None, (), hints, dropped)
    yield Step(START, claim, None, (*claim.start, *hints), claim.invariants, dropped)
    kept = (*claim.invariants, *hints)
    for event in claim.system.events:
        if event.excluded_by is None or event.excluded_by in dropped:
            yield Step(event.name, claim, event, kept, claim.invariants, dropped)
    yield Step(CONCLUSION, claim, None, kept, claim.conclusions, dropped)


def step_named(claim: Claim, name: str, dropped: frozenset[Assumption] = frozenset()) -> Step:
    """The step of that name; raises `ValueError` when there is none."""
    for step in steps(claim, dropped):
        if step.name == name:
            return step
    raise ValueError(f"{claim.system.name} has no event {name!r}")


def world_of(run: Interpretation, step: Step, values: Values) -> World:
    """The values as a world of this interpretation, with what is derived and what the event's kernel decides."""
    world = with_derived(run.o, step.claim.system, run.world(step.kinds, values))
    return decided(run.o, step.event, world) if step.event else world


def broken_by(run: Interpretation, step: Step, clients: int, values: Values) -> tuple[str, ...]:
    """Which goals fail after the step; none if the world does not fulfil the hypotheses."""
    try:
        with np.errstate(divide="raise"):
            return _broken(run, step, clients, values)
    except ArithmeticError:
        # A closed form must not divide by zero wherever the laws of the claim hold.
        world = run.world(step.kinds, values)
        return (DIVISION,) if permitted(run.o, hypotheses(step.claim.system, None, step.dropped), world) else ()


def _broken(run: Interpretation, step: Step, clients: int, values: Values) -> tuple[str, ...]:
    before = world_of(run, step, values)
    if not permitted(run.o, hypotheses(step.claim.system, step.event, step.dropped), before):
        return ()
    if any(not holds(run.o, clause, before, clients) for clause in step.assumed):
        return ()
    after = state_after(run.o, step.claim.system, step.event, before) if step.event else before
    return failing(run.o, step.goals, after, clients)


def failing(o: Algebra, clauses: tuple[Clause, ...], world: World, clients: int) -> tuple[str, ...]:
    """The names of the clauses that are not true of a world."""
    return tuple(clause.name for clause in clauses if not holds(o, clause, world, clients))


def confirmed(step: Step, clients: int, values: Values) -> tuple[str, ...]:
    """Which goals fail after the step by the word of every interpretation; none if they do not agree."""
    outcomes = {broken_by(run, step, clients, values) for run in INTERPRETATIONS}
    return outcomes.pop() if len(outcomes) == 1 else ()


def plain(kinds: Mapping[str, Kind], world: World) -> dict[str, Any]:
    """A world of one interpretation as plain integers and tuples, by name."""
    return {name: _plain(kind, getattr(world, name)) for name, kind in kinds.items()}


def _plain(kind: Kind, value: Any) -> Any:
    return tuple(int(entry) for entry in value) if kind in (Kind.VECTOR, Kind.MASK) else int(value)
