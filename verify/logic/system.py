"""What is to be proved, as data: the state of a gate, its events, and claims about every sequence of events.

Everything here is written in the words of `fairsched.model.algebra`, so the same clause is a proof obligation over
solver terms and a check of a concrete world over numpy arrays or exact integers.  Service and reservations are *ghost*
fields: an event computes them from its own facts (what was charged, what was reserved), never from what a kernel did,
so a kernel that charges one token less is caught even when all its own books agree.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from types import SimpleNamespace
from typing import Any

import attrs

from fairsched.model.algebra import Algebra
from fairsched.model.theorem import Assumption, Theorem

World = SimpleNamespace
"""The values of fields, parameters, facts and derived scalars by name: `w.q`, `w.queued`, ..."""

Formula = Callable[[Algebra, World], Any]
"""A truth value, or a mask that is meant to hold for every client."""

Rule = Callable[[Algebra, World], Mapping[str, Any]]
"""Values by name."""


def _nothing(_o: Algebra, _w: World) -> Mapping[str, Any]:
    return {}


def same(a: Any, b: Any) -> Any:
    """Whether two values agree, as a clause says it (``==`` has no meaning on solver terms)."""
    return (a <= b) & (a >= b)


def product(a: Any, b: Any) -> Any:
    """A product of scalars, for clauses only: a kernel multiplies nothing."""
    times = getattr(a, "times", None)
    return a * b if times is None else times(b)


def implies(o: Algebra, a: Any, b: Any) -> Any:
    """b wherever a."""
    return o.where(a, b, True)


def spread(flag: Any, like: Any) -> Any:
    """One truth value as a mask over the clients of the vector `like`."""
    return (like <= like) & flag


def total(o: Algebra, v: Any) -> Any:
    """The sum of a vector over all clients, for derived values only (on solver terms it names clients)."""
    symbolic = getattr(o, "total", None)
    return sum(map(int, v)) if symbolic is None else symbolic(v)


def only(o: Algebra, like: Any, p: Any) -> Any:
    """The mask that is true at the point p and nowhere else, over the clients of the vector `like`."""
    return o.put(spread(False, like), p, True)


class Kind(Enum):
    """What a name stands for."""

    VECTOR = "vector"
    MASK = "mask"
    SCALAR = "scalar"
    FLAG = "flag"
    POINT = "point"


@attrs.frozen
class Need:
    """A hypothesis: part of what an event or a parameter is, or an `assumption` that an audit may drop."""

    holds: Formula
    assumption: Assumption | None = None


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
    needs: tuple[Need, ...] = ()
    kernels: tuple[Callable[..., Any], ...] = ()
    decides: Rule = _nothing
    happens: Formula | None = None
    excluded_by: Assumption | None = None

    def with_needs(self, *needs: Need) -> "Event":
        """This event with more hypotheses."""
        return attrs.evolve(self, needs=(*self.needs, *needs))

    def also(self, **ghosts: Callable[[World], Any]) -> "Event":
        """This event, which then also writes fields computed from the world before it."""
        step = self.step
        return attrs.evolve(
            self, step=lambda o, w: {**step(o, w), **{name: ghost(w) for name, ghost in ghosts.items()}}
        )


Ghost = Callable[[Algebra, World, Mapping[str, Any]], Any]
"""A field's value after an event, from the world before and the fields that the event writes."""


def and_also(event: Event, **ghosts: Ghost) -> Event:
    """The event, which then also writes fields computed from the worlds before and after it."""
    step = event.step

    def both_steps(o: Algebra, w: World) -> Mapping[str, Any]:
        written = step(o, w)
        return {**written, **{name: ghost(o, w, written) for name, ghost in ghosts.items()}}

    return attrs.evolve(event, step=both_steps)


@attrs.frozen
class System:
    """A gate together with everything that may happen to it.

    `derived` are values of a state (such as whether anybody waits) that clauses use; they are computed once a state.
    `hints` follow from the laws by arithmetic alone and spare the solver a search: each is proved before it is used.
    With `closed_forms` vectors may be multiplied and divided, which kernels must not and closed forms beside them do.
    With `opaque` the second solver is told laws of products and quotients in place of them (`fairsched.verify.smtlib`).
    """

    name: str
    parameters: Mapping[str, Kind]
    laws: tuple[Need, ...]
    fields: Mapping[str, Kind]
    events: tuple[Event, ...]
    derived: Mapping[str, Formula] = attrs.field(factory=dict)
    hints: tuple[Clause, ...] = ()
    closed_forms: bool = False
    opaque: bool = False

    def with_laws(self, *laws: Need) -> "System":
        """This system with more known about its parameters."""
        return attrs.evolve(self, laws=(*self.laws, *laws))

    def kernels(self) -> tuple[Callable[..., Any], ...]:
        """The kernel functions that the events run, each once."""
        return tuple(dict.fromkeys(kernel for event in self.events for kernel in event.kernels))


@attrs.frozen
class Claim:
    """How a theorem follows: `start` implies the invariants, every event keeps them, and they imply the conclusions.

    `start` describes the first state (of the gate, or of an interval).
    """

    theorem: Theorem
    system: System
    start: tuple[Clause, ...]
    invariants: tuple[Clause, ...]
    conclusions: tuple[Clause, ...]


def decided(o: Algebra, event: Event, world: World) -> World:
    """The world with what the event's kernel chooses."""
    return SimpleNamespace(**{**vars(world), **event.decides(o, world)})


def state_after(o: Algebra, system: System, event: Event, world: World) -> World:
    """The world in which `event` has happened; raises `ValueError` when it writes what is no field."""
    written = event.step(o, world)
    unknown = set(written) - set(system.fields)
    if unknown:
        raise ValueError(f"{system.name}, event {event.name}: {', '.join(sorted(unknown))} is no field of the state")
    return with_derived(o, system, SimpleNamespace(**{**vars(world), **written}))


def with_derived(o: Algebra, system: System, world: World) -> World:
    """The world with its derived scalars computed afresh."""
    return SimpleNamespace(**{**vars(world), **{name: rule(o, world) for name, rule in system.derived.items()}})
