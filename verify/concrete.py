"""Worlds of real numbers: the same events and clauses on numpy arrays and on exact integers.

A countermodel or a witness counts only when both interpretations of the same kernel text confirm it.
"""

from collections.abc import Callable, Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np

from fairsched.model.algebra import EXACT, NUMPY, Algebra, ExactVector
from fairsched.model.theorem import Assumption
from fairsched.verify.system import Clause, Event, Kind, Need, System, World

Values = Mapping[str, int | tuple[int, ...]]
"""A tuple a vector or mask, an int a scalar, flag or point (a client's index, -1 for nobody), by name."""


@attrs.frozen
class Interpretation:
    """An algebra that runs, and how its vectors and masks are made from tuples."""

    o: Algebra
    vector: Callable[[tuple[int, ...]], Any]
    mask: Callable[[tuple[int, ...]], Any]

    def world(self, kinds: Mapping[str, Kind], values: Values) -> World:
        """The values as this interpretation computes with them."""
        made: dict[Kind, Callable[[Any], Any]] = {Kind.VECTOR: self.vector, Kind.MASK: self.mask, Kind.FLAG: bool}
        return SimpleNamespace(**{name: made.get(kinds[name], int)(value) for name, value in values.items()})


INTERPRETATIONS = (
    Interpretation(EXACT, ExactVector, lambda entries: ExactVector(map(bool, entries))),
    Interpretation(
        NUMPY, lambda entries: np.array(entries, dtype=np.int64), lambda entries: np.array(entries, dtype=np.bool_)
    ),
)


def kept(needs: tuple[Need, ...], dropped: frozenset[Assumption]) -> tuple[Need, ...]:
    """The hypotheses that remain when the assumptions `dropped` are not made."""
    return tuple(need for need in needs if need.assumption is None or need.assumption not in dropped)


def permitted(o: Algebra, needs: tuple[Need, ...], world: World) -> bool:
    """Whether a world fulfils every hypothesis."""
    return all(bool(np.all(need.holds(o, world))) for need in needs)


def holds(o: Algebra, clause: Clause, world: World, clients: int) -> bool:
    """Whether a clause is true of a world of so many clients."""
    return all(
        bool(np.all(clause.holds(o, world, *points))) for points in product(range(clients), repeat=clause.points)
    )


def hypotheses(system: System, event: Event | None, dropped: frozenset[Assumption]) -> tuple[Need, ...]:
    """What must be true of a world for the event to happen in it."""
    return kept(system.laws, dropped) + (kept(event.needs, dropped) if event else ())
