"""What is to be proved, as data: the state of a gate, its events, and claims about every sequence of events.

Everything here is written in the words of `fairsched.model.algebra`, so the same clause is a proof obligation over
solver terms and a check of a concrete world over numpy arrays or exact integers.  Service and reservations are *ghost*
fields: an event computes them from its own facts (what was charged, what was reserved), never from what a kernel did,
so a kernel that charges one token less is caught even when all its own books agree.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from inspect import getmodule
from itertools import product as tuples
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import numpy as np

from fairsched.model.algebra import EXACT, NUMPY, Algebra, ExactVector
from fairsched.model.theorem import Assumption, Theorem

World = SimpleNamespace
"""The values of fields, parameters, facts and derived scalars by name: `w.q`, `w.queued`, ..."""

Term = Any
"""A value of some interpretation: a number, a truth value or a point, or one a client."""

Functions = ModuleType | SimpleNamespace
"""Functions by name: a module of kernels or of prices, or a variant of one."""

Formula = Callable[[Algebra, World], Term]
"""A truth value, or a mask that is meant to hold for every client."""

Written = Mapping[str, Term]
"""Values by name, such as the fields that an event writes."""

Rule = Callable[[Algebra, World], Written]
"""Computes values of a world."""


def module_of(member: Any) -> ModuleType:
    """Return the module that defines a gate or a function: its kernels stand beside it."""
    found = getmodule(member)
    assert found is not None
    return found


def _nothing(_o: Algebra, _w: World) -> Mapping[str, Any]:
    return {}


def same(a: Any, b: Any) -> Any:
    """Return whether two values agree, as a clause says it (``==`` has no meaning on solver terms)."""
    return (a <= b) & (a >= b)


def product(a: Any, b: Any) -> Any:
    """Return a product of scalars, for clauses only: a kernel multiplies nothing."""
    times = getattr(a, "times", None)
    return a * b if times is None else times(b)


def implies(o: Algebra, a: Term, b: Term) -> Term:
    """b wherever a."""
    return o.where(a, b, True)


def spread(flag: Any, like: Any) -> Any:
    """Return one truth value as a mask over the clients of the vector `like`."""
    return (like <= like) & flag


def total(o: Algebra, v: Term) -> Term:
    """Return the sum of a vector over all clients, for derived values only (on solver terms it names clients)."""
    symbolic = getattr(o, "total", None)
    return sum(map(int, v)) if symbolic is None else symbolic(v)


def only(o: Algebra, like: Term, p: Term) -> Term:
    """Return the mask that is true at the point p and nowhere else, over the clients of the vector `like`."""
    return o.put(spread(False, like), p, True)


class Kind(Enum):
    """What a name stands for."""

    VECTOR = "vector"
    MASK = "mask"
    SCALAR = "scalar"
    FLAG = "flag"
    POINT = "point"


VECTOR, MASK, SCALAR, FLAG, POINT = Kind


def scalars(*names: str) -> dict[str, Kind]:
    """Return these names as scalars."""
    return dict.fromkeys(names, SCALAR)


def vectors(*names: str) -> dict[str, Kind]:
    """Return these names as vectors."""
    return dict.fromkeys(names, VECTOR)


@attrs.frozen
class Need:
    """A hypothesis: part of what an event or a parameter is, or an `assumption` that an audit may drop."""

    holds: Formula
    assumption: Assumption | None = None


def _needs(given: Iterable[Need | Formula]) -> tuple[Need, ...]:
    """Return the hypotheses; a formula is one that no audit drops."""
    return tuple(each if isinstance(each, Need) else Need(each) for each in given)


@attrs.frozen
class Clause:
    """A statement about one state, for every choice of `points` clients (and for every client, if it is a mask)."""

    name: str
    holds: Callable[..., Any]
    points: int = 0


@attrs.frozen
class Event:
    """One atomic change.

    `decides` names what a kernel chooses first (the point to admit); `needs` restrict the `facts` and what was
    decided; `step` returns the fields that it writes, computed by `kernels` or from facts.  `happens` says that the
    event does something, for the check that a proof is not vacuous.  An event that is `excluded_by` an assumption
    happens only when an audit drops that assumption.
    """

    name: str
    step: Rule
    facts: Mapping[str, Kind] = attrs.field(factory=dict)
    needs: tuple[Need, ...] = attrs.field(default=(), converter=_needs)
    kernels: tuple[Callable[..., Any], ...] = ()
    decides: Rule = _nothing
    happens: Formula | None = None
    excluded_by: Assumption | None = None

    def with_needs(self, *needs: Need | Formula) -> "Event":
        """Return this event with more hypotheses."""
        return attrs.evolve(self, needs=(*self.needs, *needs))

    def also(self, **ghosts: Callable[[World], Any]) -> "Event":
        """Return this event, which then also writes fields computed from the world before it."""
        step = self.step
        return attrs.evolve(
            self, step=lambda o, w: {**step(o, w), **{name: ghost(w) for name, ghost in ghosts.items()}}
        )


def of_one(name: str, step: Rule, *needs: Need | Formula, facts: str = "") -> Event:
    """Return an event of one member `r` of the sort, with these scalars as facts."""
    return Event(name, step, {"r": POINT, **scalars(*facts.split())}, (lambda o, w: o.exists(w.r), *needs))


Ghost = Callable[[Algebra, World, Mapping[str, Any]], Any]
"""A field's value after an event, from the world before and the fields that the event writes."""


def and_also(event: Event, **ghosts: Ghost) -> Event:
    """Return the event, which then also writes fields computed from the worlds before and after it."""
    step = event.step

    def both_steps(o: Algebra, w: World) -> Written:
        written = step(o, w)
        return {**written, **{name: ghost(o, w, written) for name, ghost in ghosts.items()}}

    return attrs.evolve(event, step=both_steps)


@attrs.frozen
class Contract:
    """A step known by what it promises, which one theorem shows of shipped functions and another takes for granted.

    A theorem about any number of requests cannot run a worker's function for all of them at once.  Each of its events
    is a step of one request, known by statements about numbers before and after: unknown integers of a run, or scalars
    of an event.  Theorems that it rests on run the shipped functions on unknown integers and show these very
    statements, so that a function which breaks one of them takes both theorems down.
    """

    promises: Mapping[str, Callable[[SimpleNamespace], Any]]

    def shown(self, **numbers: Any) -> dict[str, Any]:
        """Return each statement about these numbers, which is to be shown of a shipped function."""
        w = SimpleNamespace(**numbers)
        return {name: holds(w) for name, holds in self.promises.items()}

    def need(self, **where: Formula) -> Need:
        """Return the hypothesis that all of it is true of an event's fields, its facts, and what `where` says."""

        def holds(o: Any, w: World) -> Any:
            numbers = {name: value(o, w) for name, value in where.items()}
            first, *others = self.shown(**{**vars(w), **numbers}).values()
            for other in others:
                first = first & other
            return first

        return Need(holds)


@attrs.frozen
class System:
    """A gate together with everything that may happen to it.

    `derived` are values of a state (such as whether a client waits) that clauses use; they are computed once a state.
    `hints` follow from the laws by arithmetic alone and spare the solver a search: each is proved before it is used.
    With `closed_forms` vectors may be multiplied and divided, which kernels must not and closed forms beside them do.
    With `opaque` the second solver is told laws of products and quotients in place of them
    (`fairsched.verify.logic.smtlib`).
    """

    name: str
    parameters: Mapping[str, Kind]
    laws: tuple[Need, ...] = attrs.field(converter=_needs)
    fields: Mapping[str, Kind]
    events: tuple[Event, ...]
    derived: Mapping[str, Formula] = attrs.field(factory=dict)
    hints: tuple[Clause, ...] = ()
    closed_forms: bool = False
    opaque: bool = False

    def with_laws(self, *laws: Need | Formula) -> "System":
        """Return this system with more known about its parameters."""
        return attrs.evolve(self, laws=(*self.laws, *laws))

    def kernels(self) -> tuple[Callable[..., Any], ...]:
        return tuple(dict.fromkeys(kernel for event in self.events for kernel in event.kernels))


@attrs.frozen
class Claim:
    """How a theorem follows: `start` implies the invariants, every event keeps them, and they imply the conclusions.

    `start` describes the first state (of the gate, or of an interval).  `given` are the invariants of a theorem on
    which this one rests: true of every state, and not shown again.
    """

    theorem: Theorem
    system: System
    start: tuple[Clause, ...]
    invariants: tuple[Clause, ...]
    conclusions: tuple[Clause, ...]
    given: tuple[Clause, ...] = ()

    @property
    def excluding(self) -> frozenset[Assumption]:
        """The assumptions without which other things happen: those that tell a variant from what ships."""
        return frozenset(event.excluded_by for event in self.system.events if event.excluded_by)

    @property
    def droppable(self) -> frozenset[Assumption]:
        """Every assumption that the claim can be decided without."""
        needs = (*self.system.laws, *(need for event in self.system.events for need in event.needs))
        return self.excluding | frozenset(need.assumption for need in needs if need.assumption)


def one_step(
    theorem: Theorem,
    name: str,
    fields: Mapping[str, Kind],
    event: Event,
    clauses: tuple[Clause, ...],
    *,
    parameters: Mapping[str, Kind] | None = None,
    laws: tuple[Need | Formula, ...] = (),
    derived: Mapping[str, Formula] | None = None,
    closed_forms: bool = False,
) -> Claim:
    """Return the claim that one event makes the clauses true, whatever was true before; `fields` hold what it did."""
    system = System(name, parameters or {}, laws, fields, (event,), derived or {}, closed_forms=closed_forms)
    return Claim(theorem, system, clauses, clauses, clauses)


def updated(world: World, values: Mapping[str, Any]) -> World:
    """Return the world in which these names have these values."""
    return SimpleNamespace(**{**vars(world), **values})


def decided(o: Algebra, event: Event, world: World) -> World:
    """Return the world with what the event's kernel chooses."""
    return updated(world, event.decides(o, world))


def state_after(o: Algebra, system: System, event: Event, world: World) -> World:
    """Return the world in which `event` has happened; raises `ValueError` when it writes what is no field."""
    written = event.step(o, world)
    unknown = set(written) - set(system.fields)
    if unknown:
        raise ValueError(f"{system.name}, event {event.name}: {', '.join(sorted(unknown))} is no field of the state")
    return with_derived(o, system, updated(world, written))


def with_derived(o: Algebra, system: System, world: World) -> World:
    """Return the world with its derived scalars computed afresh."""
    return updated(world, {name: rule(o, world) for name, rule in system.derived.items()})


# --- worlds of numbers ------------------------------------------------------------------------------------------------

Values = Mapping[str, int | tuple[int, ...]]
"""A tuple a vector or mask, an int a scalar, flag or point (a client's index, -1 for none), by name."""


@attrs.frozen
class Interpretation:
    """An algebra that runs, and how its vectors and masks are made from tuples."""

    o: Algebra
    vector: Callable[[tuple[int, ...]], Any]
    mask: Callable[[tuple[int, ...]], Any]

    def world(self, kinds: Mapping[str, Kind], values: Values) -> World:
        """Return the values as this interpretation computes with them."""
        made: dict[Kind, Callable[[Any], Any]] = {Kind.VECTOR: self.vector, Kind.MASK: self.mask, Kind.FLAG: bool}
        return SimpleNamespace(**{name: made.get(kinds[name], int)(value) for name, value in values.items()})


INTERPRETATIONS = (
    Interpretation(EXACT, ExactVector, lambda entries: ExactVector(map(bool, entries))),
    Interpretation(
        NUMPY, lambda entries: np.array(entries, dtype=np.int64), lambda entries: np.array(entries, dtype=np.bool_)
    ),
)


def ones(system: System, facts: Mapping[str, Kind], make: Callable[..., World] = World) -> World:
    """Return a world of two clients in which every number is 1 and every point the first client."""
    kinds = {**system.parameters, **system.fields, **facts}
    values: Values = {
        name: (1, 1) if kind in (VECTOR, MASK) else int(kind is not POINT) for name, kind in kinds.items()
    }
    world = make(**vars(INTERPRETATIONS[0].world(kinds, values)))
    for name, rule in system.derived.items():
        setattr(world, name, rule(EXACT, world))
    return world


def kept(needs: tuple[Need, ...], dropped: frozenset[Assumption]) -> tuple[Need, ...]:
    """Return the hypotheses that remain when the assumptions `dropped` are not made."""
    return tuple(need for need in needs if need.assumption is None or need.assumption not in dropped)


def permitted(o: Algebra, needs: tuple[Need, ...], world: World) -> bool:
    """Return whether a world fulfils every hypothesis."""
    return all(bool(np.all(need.holds(o, world))) for need in needs)


def holds(o: Algebra, clause: Clause, world: World, clients: int) -> bool:
    """Return whether a clause is true of a world of so many clients."""
    return all(bool(np.all(clause.holds(o, world, *points))) for points in tuples(range(clients), repeat=clause.points))


def happened(
    run: Interpretation, system: System, event: Event, world: World, facts: Values, dropped: frozenset[Assumption]
) -> tuple[World, World] | None:
    """Return the world with an event's facts and what its kernel decides, and the one after it; None if not
    permitted."""
    before = decided(run.o, event, updated(world, vars(run.world(event.facts, facts))))
    if not permitted(run.o, hypotheses(system, event, dropped), before):
        return None
    return before, state_after(run.o, system, event, before)


def hypotheses(system: System, event: Event | None, dropped: frozenset[Assumption]) -> tuple[Need, ...]:
    """Return what must be true of a world for the event to happen in it."""
    return kept(system.laws, dropped) + (kept(event.needs, dropped) if event else ())


# --- steps ------------------------------------------------------------------------------------------------------------

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

    @property
    def changed(self) -> bool:
        """Whether it would be another step, or none, if nothing were dropped."""
        needs = (*self.claim.system.laws, *(self.event.needs if self.event else ()))
        made = {need.assumption for need in needs} | {self.event.excluded_by if self.event else None}
        return not self.dropped.isdisjoint(made)


def steps(claim: Claim, dropped: frozenset[Assumption] = frozenset()) -> Iterator[Step]:
    """Yield every step of `claim` when the assumptions `dropped` are not made."""
    hints = claim.system.hints
    if hints:
        yield Step(HINTS, claim, None, (), hints, dropped)
    yield Step(START, claim, None, (*claim.start, *hints), claim.invariants, dropped)
    kept = (*claim.given, *claim.invariants, *hints)
    for event in claim.system.events:
        if event.excluded_by is None or event.excluded_by in dropped:
            yield Step(event.name, claim, event, kept, claim.invariants, dropped)
    yield Step(CONCLUSION, claim, None, kept, claim.conclusions, dropped)


def step_named(claim: Claim, name: str, dropped: frozenset[Assumption] = frozenset()) -> Step:
    """Return the step of that name; raises `ValueError` when there is none."""
    for step in steps(claim, dropped):
        if step.name == name:
            return step
    raise ValueError(f"{claim.system.name} has no event {name!r}")


def broken_by(run: Interpretation, step: Step, clients: int, values: Values) -> tuple[str, ...]:
    """Return which goals fail after the step; none if the world does not fulfil the hypotheses."""
    try:
        with np.errstate(divide="raise"):
            return _broken(run, step, clients, values)
    except ArithmeticError:
        # A closed form must not divide by zero wherever the laws of the claim hold.
        world = run.world(step.kinds, values)
        return (DIVISION,) if permitted(run.o, hypotheses(step.claim.system, None, step.dropped), world) else ()


def _broken(run: Interpretation, step: Step, clients: int, values: Values) -> tuple[str, ...]:
    system = step.claim.system
    before = with_derived(run.o, system, run.world(step.kinds, values))
    before = decided(run.o, step.event, before) if step.event else before
    if not permitted(run.o, hypotheses(system, step.event, step.dropped), before):
        return ()
    if failing(run.o, step.assumed, before, clients):
        return ()
    after = state_after(run.o, system, step.event, before) if step.event else before
    return failing(run.o, step.goals, after, clients)


def refuted_by(step: Step, clients: int, values: Values) -> bool:
    """Return whether the step is a run of its claim: from a first state, to one in which a conclusion fails.

    A state in which a closed form divides by zero is taken for none that was reached.
    """
    run, claim = INTERPRETATIONS[0], step.claim
    try:
        before = with_derived(run.o, claim.system, run.world(step.kinds, values))
    except ArithmeticError:
        return False
    if failing(run.o, claim.start, before, clients):
        return False
    before = decided(run.o, step.event, before) if step.event else before
    after = state_after(run.o, claim.system, step.event, before) if step.event else before
    return bool(failing(run.o, claim.conclusions, after, clients))


def failing(o: Algebra, clauses: tuple[Clause, ...], world: World, clients: int) -> tuple[str, ...]:
    """Return the names of the clauses that are not true of a world."""
    return tuple(clause.name for clause in clauses if not holds(o, clause, world, clients))


def confirmed(step: Step, clients: int, values: Values) -> tuple[str, ...]:
    """Return which goals fail after the step by the word of every interpretation; none if they do not agree."""
    outcomes = {broken_by(run, step, clients, values) for run in INTERPRETATIONS}
    return outcomes.pop() if len(outcomes) == 1 else ()


def plain(kinds: Mapping[str, Kind], world: World) -> dict[str, Any]:
    """Return a world of one interpretation as plain integers and tuples, by name."""
    values = {name: (kind, getattr(world, name)) for name, kind in kinds.items()}
    return {
        name: tuple(map(int, value)) if kind in (Kind.VECTOR, Kind.MASK) else int(value)
        for name, (kind, value) in values.items()
    }
