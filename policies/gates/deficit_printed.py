"""DLPM's gate to the letter of its paper's Algorithm 1 (reconstructed), for comparison; nothing is promised of it."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import attrs
import msgspec
import numpy as np

from fairsched.model import theorem as th
from fairsched.model.algebra import NUMPY, Algebra, Ints, Mask, Vector
from fairsched.policies.gates import deficit
from fairsched.policies.validators import one_of


def refill_printed(o: Algebra, q: Vector, queued: Mask, in_flight: Vector, quantum: Vector) -> Vector:
    """The paper's round: when no client that waits or runs has credit, each of them is topped up once."""
    active = queued | (in_flight > 0)
    return o.where(active & o.any(queued) & o.none(active & (q > 0)), q + quantum, q)


class PrintedDeficitState(deficit.DeficitState, frozen=True, gc=False):
    """The deficit gate's, and how many clients (0 or 1) wait under each number."""

    waiting: Ints = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))


class _PrintedAdmissions(deficit.DeficitAdmissions):
    """A decision while nothing runs gives rounds until a client goes: the paper's loop turns, and no step passes."""

    waiting: Ints

    def give(self) -> None:
        before = self.q
        while not NUMPY.any(self.in_flight > 0):
            given = refill_printed(NUMPY, self.q, self.queued, self.in_flight, self.state.quantum)
            if np.array_equal(given, self.q):
                return
            self.before, self.q = (before,), given

    def emptied(self, group: int) -> None:
        super().emptied(group)
        self.waiting = NUMPY.put(self.waiting, group, 0)

    def stays(self, group: int, clients: Sequence[int], counts: Sequence[int]) -> int | None:
        return 1


@attrs.frozen
class PrintedDeficitGate(deficit.DeficitGate):
    """The deficit gate of DLPM's algorithm 1 as printed (reconstructed), for comparison.

    A client that comes back starts at zero, clients that only run hold back a refill, and clients that neither wait nor
    run get none.  A decode step gives one round, at its end.
    """

    name: ClassVar[str] = "deficit-printed"
    state_type: ClassVar[Any] = PrintedDeficitState
    kept: ClassVar[tuple[str, ...]] = ("in_flight", "waiting")
    rooms: ClassVar[tuple[str, ...]] = ("in_flight", "waiting")
    admissions = _PrintedAdmissions
    theorems: ClassVar[tuple[th.Theorem, ...]] = ()
    progress: ClassVar[tuple[str, ...]] = ()
    gap_theorems: ClassVar[tuple[str, ...]] = ()

    rejoin: Literal["keep", "reset"] = attrs.field(default="reset", validator=one_of("keep", "reset"))
    """What an arrival does to the deficit of a client that comes back: as printed, it starts at zero."""

    @property
    def counts_in_flight(self) -> bool:
        return True

    def joined(self, state: PrintedDeficitState, client: int, heads: Ints, waited: bool) -> PrintedDeficitState:
        return self._waits(super().joined(state, client, heads, waited), client, 1)

    def left(self, state: PrintedDeficitState, client: int) -> PrintedDeficitState:
        return self._waits(super().left(state, client), client, 0)

    def decoded(
        self, state: PrintedDeficitState, clients: tuple[int, ...], tokens: tuple[int, ...]
    ) -> PrintedDeficitState:
        paid: PrintedDeficitState = super().decoded(state, clients, tokens)
        q = refill_printed(NUMPY, paid.q, paid.waiting > 0, paid.in_flight, paid.quantum)
        return msgspec.structs.replace(paid, q=q)

    def _waits(self, state: PrintedDeficitState, client: int, waits: int) -> PrintedDeficitState:
        return msgspec.structs.replace(state, waiting=NUMPY.put(state.waiting, client, waits))
