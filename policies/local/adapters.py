"""LoRA adapters' slots, a second resource: the requests of a batch have at most so many different adapters.

Memory's rule, that the first request which does not fit ends the admissions of a step, would idle a worker for as long
as the requests of some adapter run.  So a request that lacks a slot is passed over, as one that waits for its prefix
is: requests whose adapter is loaded go on.  But then those of popular adapters would keep all slots for ever
(F-LORA-1).  So of the loaded adapters one drains while a request before lacks a slot: the one whose running requests
will be done first, by what they declared.  None of its requests goes past.

Theorem: from when a request is the first that lacks a slot, one is free before the batch has decoded L more tokens
each, with L the most that running requests of the adapter to drain may still produce (LORA-drain, exact).  No state is
kept: requests that go past make those of other adapters last longer, never those of the one that drains, so it stays
the first to be done.  Requests that gate and order put before that one go first, as ever: they are not part of L.
"""

import numpy as np

from fairsched.model.algebra import NUMPY, Algebra, Mask, Point, Vector
from fairsched.model.decision import WorkerView
from fairsched.model.theorem import SLOTS_RESPECTED, Theorem
from fairsched.policies.local.state import AnyLocalState
from fairsched.policies.orders import QueuedRequest

LORA_DRAIN = Theorem(
    "LORA-drain",
    "while a request is the first that lacks a slot for its adapter, fewer than L steps pass in which all of the batch "
    "decodes, L being the most tokens that running requests of the adapter to drain may produce when that begins",
    "this library",
    (SLOTS_RESPECTED,),
    bound="L - 1",
)
LORA_PAST = Theorem(
    "LORA-past",
    "of adapters that are loaded all but one may be let in past a request that lacks a slot, and none but those",
    "theorems of the kernel itself: what SlotsRespected means",
)

# --- kernel -----------------------------------------------------------------------------------------------------------
# Vectors over adapters: left, the most tokens that a running request of each may still produce; loaded, those of which
# requests run.


def drains(o: Algebra, left: Vector, loaded: Mask) -> Point:
    """Return the adapter whose running requests will be done first."""
    return o.argmin(left, loaded)


def goes_past(o: Algebra, left: Vector, loaded: Mask, first: Point) -> Mask:
    """Return adapters of which requests may be let in past one that lacks a slot: all that are loaded but the one to
    drain."""
    return loaded & (o.bump(left - left, first, 1) <= 0)


# --- ability of a decision --------------------------------------------------------------------------------------------


class AdapterSlots:
    """A worker's slots in one decision.  Nothing is looked at until a request names an adapter; then O(batch)."""

    def __init__(self, state: AnyLocalState, view: WorkerView) -> None:
        self._state = state
        self._view = view
        self._left: dict[str, int] | None = None
        self.open: frozenset[str] | None = None
        """Adapters that may go past a request that lacks a slot; None while there is no such request."""

    def _loaded(self) -> dict[str, int]:
        if self._left is None:
            self._left = {}
            for flight in self._state.flights.values():
                self.enter(flight.entry)
        return self._left

    def lacks(self, entry: QueuedRequest) -> bool:
        """Return whether the entry lacks a slot, or must not go past one that does."""
        adapter = entry.request.adapter
        if not isinstance(adapter, str) or not self._view.adapter_slots:
            return False
        loaded = self._loaded()
        if adapter in loaded:
            return self.open is not None and adapter not in self.open
        if len(loaded) < self._view.adapter_slots:
            return False
        if self.open is None:
            names = sorted(loaded)
            left, runs = np.array([loaded[name] for name in names]), np.ones(len(names), np.bool_)
            past = goes_past(NUMPY, left, runs, drains(NUMPY, left, runs))
            self.open = frozenset(name for name, may in zip(names, past.tolist(), strict=True) if may)
        return True

    def enter(self, entry: QueuedRequest) -> None:
        adapter = entry.request.adapter
        if self._left is not None and isinstance(adapter, str):
            in_flight = self._view.in_flight.get(entry.request.id)
            done = 0 if in_flight is None else in_flight.decoded_tokens(self._view.clock)
            self._left[adapter] = max(self._left.get(adapter, 0), entry.output_tokens_left - done)
