"""Routers that draw: a random worker, and the better of two.

What they draw is a function of the seed (a parameter) and of how much was drawn before (the state), so a replay draws
the same.
"""

from typing import Any, ClassVar

import attrs
import msgspec

from fairsched.model.plan import Dispatch
from fairsched.model.request import Request
from fairsched.model.theorem import Theorem
from fairsched.model.view import ClusterView
from fairsched.policies.base import Router
from fairsched.policies.draw import draw
from fairsched.policies.router import MEASURES, Measure
from fairsched.policies.validators import not_negative, one_of

P_P2C_1 = Theorem(
    "P-P2C-1",
    "two different workers are drawn, and the one chosen has no longer a queue than the other: one that alone has the "
    "longest is never chosen, if there is another",
    "Mitzenmacher 2001; that the two differ is our decision",
    (),
)


class DrawState(msgspec.Struct, frozen=True):
    """How many numbers were drawn."""

    drawn: int = 0


@attrs.frozen
class Random(Router[DrawState]):
    """Any worker, each as likely as the others.  O(1)."""

    name: ClassVar[str] = "random"
    state_type: ClassVar[Any] = DrawState

    seed: int = attrs.field(default=0, validator=not_negative)

    def init(self) -> DrawState:
        return DrawState()

    def route(self, state: DrawState, request: Request, view: ClusterView) -> tuple[Dispatch, DrawState]:
        chosen = view.workers[draw(self.seed, state.drawn, len(view.workers))]
        return Dispatch(request.id, chosen.worker), DrawState(state.drawn + 1)


@attrs.frozen
class PowerOfTwo(Router[DrawState]):
    """Of two different workers drawn at random the one with fewer requests waiting or running (or tokens waiting or
    promised); the lower id of equals.  O(1).

    Source: Mitzenmacher, "The power of two choices in randomized load balancing", 2001.  The two are different, which
    is our decision: one that is drawn twice would win however loaded it is.
    """

    name: ClassVar[str] = "power-of-two"
    state_type: ClassVar[Any] = DrawState
    theorems: ClassVar[tuple[Theorem, ...]] = (P_P2C_1,)

    measure: Measure = attrs.field(default="requests", validator=one_of(*MEASURES))
    seed: int = attrs.field(default=0, validator=not_negative)

    def init(self) -> DrawState:
        return DrawState()

    def route(self, state: DrawState, request: Request, view: ClusterView) -> tuple[Dispatch, DrawState]:
        workers, drawn = view.workers, state.drawn
        if len(workers) == 1:
            return Dispatch(request.id, workers[0].worker), state
        one = draw(self.seed, drawn, len(workers))
        other = draw(self.seed, drawn + 1, len(workers) - 1)
        if other >= one:
            other += 1
        first, second = workers[min(one, other)], workers[max(one, other)]
        measure = MEASURES[self.measure]
        chosen = second if measure(second) < measure(first) else first
        return Dispatch(request.id, chosen.worker), DrawState(drawn + 2)
