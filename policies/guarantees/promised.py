"""KV tokens that are promised to running requests, told from a worker's events alone: what an in-flight cap counts."""

from collections import Counter

import attrs

from fairsched.model import events as ev
from fairsched.policies.gates import AnyGate, DeficitGate, deficit


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
