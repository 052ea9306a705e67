"""A run beside the transition system that is proved about: each event a step of it, and each state the one after.

The kernels are told a worker's events in exact integers (`GateMonitor`), and what a policy keeps after each event is
compared with what they made (`GateInterpreter.parts`).  What is promised to running requests, which only a cap asks
for, is added up here from the events alone.  So a run whose log was replayed under the relation is one of the system's:
charges, refunds, refills, weights, units, integers of 64 bits and documents of states included.
"""

from collections.abc import Sequence
from typing import Any

from fairsched.model.events import Event
from fairsched.policies.gates import AnyGate, GateInterpreter, HierarchicalGate
from fairsched.policies.guarantees.gate_monitor import GateMonitor
from fairsched.policies.guarantees.promised import PromisedTokens


class KernelRelation:
    """Follows one worker and its policy's gate from the first event on; an event costs O(clients)."""

    def __init__(self, gate: AnyGate, rules: GateInterpreter, monitor: GateMonitor) -> None:
        self._gate = gate
        self._rules = rules
        self._monitor = monitor
        self._cap: int | None = getattr(gate, "in_flight_cap_tokens", None)
        self._promised = PromisedTokens(gate)
        self._due = False
        self.refused: str | None = None
        """Why the last event is an admission that the gate had not let in, if it is one: an engine's doing."""

    def observe(self, event: Event) -> None:
        """Observe the worker's next event."""
        self.refused = self._monitor.observe(event)
        self._due = self._due or type(event) in self._monitor.kinds
        self._promised.observe(event)

    def difference(self, state: Any) -> str | None:
        """Return where the state of the policy is not the one that the gate's kernels made of the events; None if it
        is."""
        if not self._due:
            return None
        self._due = False
        found = self._rules.difference(state.gate)
        return found if found is not None or self._cap is None else self._over(state.gate)

    def _over(self, state: Any) -> str | None:
        """Return where what is in flight of a client, or of its organisation, is not what its requests were
        promised."""
        kept, top = _in_flight(self._gate, state)
        made = [0] * len(kept)
        for client, kv_tokens in self._promised.in_flight.items():
            made[top[client]] += kv_tokens
        for client, place in enumerate(top):
            if kept[place] != made[place]:
                return f"{kept[place]} tokens of client {client} are in flight, and {made[place]} were promised"
        return None


def _in_flight(gate: AnyGate, state: Any) -> tuple[Sequence[int], Sequence[int]]:
    """Return what is in flight, and where what counts under the cap of each client stands there."""
    if not isinstance(gate, HierarchicalGate):
        kept: list[int] = state.in_flight.tolist()
        return kept, range(len(kept))
    own = zip(state.node.tolist(), state.inner.tolist(), state.outer.tolist(), strict=True)
    return state.in_flight.tolist(), [outer or inner or node for node, inner, outer in own]
