"""A run beside the transition system that is proved about: each event a step of it, and each state the one after.

The kernels are told a worker's events in exact integers (`GateMonitor`), and what a policy keeps after each event is
compared with what they made (`GateInterpreter.parts`).  What is promised to running requests, which only a cap asks
for, is added up here from the events alone.  So a run whose log was replayed under the relation is one of the system's:
charges, refunds, refills, weights, units, integers of 64 bits and documents of states included.

`PromisedTokens` counts the KV that is promised to running requests, as an in-flight cap does.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs

from fairsched.model import events as ev
from fairsched.model.events import Event
from fairsched.policies.gates import AnyGate, DeficitGate, GateInterpreter, HierarchicalGate, deficit
from fairsched.policies.guarantees.gate_monitor import GateMonitor

# --- promised tokens --------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Call:
    """A request: its client, the outputs that it declared and how many of them it had, and the KV promised to it while
    it runs."""

    client: int
    output_tokens_max: int
    generated: int
    kv_tokens: int = 0


class PromisedTokens:
    """Follows one worker from its first event on; an event costs O(1)."""

    def __init__(self, gate: AnyGate) -> None:
        self._elastic = isinstance(gate, DeficitGate) and gate.elastic
        self._usual: dict[int, int] = {}
        self._calls: dict[int, _Call] = {}
        self.in_flight: Counter[int] = Counter()
        """Tokens that are promised to each client's running requests."""

    def waits(self, request_id: int) -> bool:
        """Return whether the request is in the worker's queue."""
        return request_id in self._calls and not self._calls[request_id].kv_tokens

    def observe(self, event: ev.Event) -> None:
        """Observe the worker's next event; requests that never arrived are passed over."""
        match event:
            case ev.Arrived(request=request, generated_tokens=generated):
                self._calls[request.id] = _Call(request.client, request.max_output_tokens, generated)
            case ev.Admitted() if event.request_id in self._calls:
                call = self._calls[event.request_id]
                outputs = call.output_tokens_max - call.generated
                if self._elastic:
                    outputs = deficit.likely(self._usual.get(call.client, 0), outputs)
                call.kv_tokens = event.extend_tokens + outputs
                self.in_flight[call.client] += call.kv_tokens
            case ev.Preempted() if event.request_id in self._calls:
                self._release(self._calls[event.request_id]).generated = event.generated_tokens
            case ev.Finished() | ev.Cancelled() | ev.Migrated() | ev.Rejected():
                if event.request_id in self._calls:
                    self._release(self._calls.pop(event.request_id))
                if isinstance(event, ev.Finished):
                    self._usual[event.client] = deficit.learned(self._usual.get(event.client, 0), event.output_tokens)
            case ev.WorkerLeft():
                self._calls.clear()
                self.in_flight.clear()

    def _release(self, call: _Call) -> _Call:
        self.in_flight[call.client] -= call.kv_tokens
        call.kv_tokens = 0
        return call


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
