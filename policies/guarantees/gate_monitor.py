"""The gate monitor: a worker's admissions held to the gate's kernels, whatever engine and whatever gate made them.

The monitor does not run the gate.  It tells the events to an interpreter of the gate's kernels
(`policies.gates.interpreters`), in exact integers, as the theorems speak of them.  An admission was let in by the gate
if the kernels would choose its client, were the order in favour of it.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs

from fairsched.model import events
from fairsched.model.algebra import NO_GROUP
from fairsched.model.pricing import charged_tokens
from fairsched.model.service import Charging
from fairsched.policies.base import ChargingRule
from fairsched.policies.gates import GateInterpreter, LeasedDeficits, LeasedTree


@attrs.define(eq=False)
class _Call:
    """A request: its client, its declared output and how much of it there was when it came to wait, whether it names an
    adapter, whether it runs, and of its last admission what it computes and what it takes from the cache."""

    client: int
    declared: int
    generated: int
    adapter: bool
    runs: bool = False
    extend_tokens: int = 0
    cached_tokens: int = 0


class GateMonitor:
    """Follows one worker.  `observe` costs what the gate's interpreter does, O(clients) an event; memory is O(clients
    and requests that wait or run).

    `skips` says that the policy may pass over a client whose request waits for a prefix or is over its cap.  A gate
    that goes on to others then (the shipped ones stop, or need no look at others) is given the benefit of the doubt.

    Workers that share the gate's state are watched by monitors of one interpreter; the cluster's events must then come
    in their order, whichever worker's they are.
    """

    def __init__(self, gate: GateInterpreter, charging: ChargingRule, skips: bool) -> None:
        self._gate = gate
        self._skips = skips
        self._settles = type(gate).settle is not GateInterpreter.settle
        self._percent = Charging(charging.rates, charging.input, (), charging.cached_percent).percent
        self._waiting: dict[int, int] = {}
        self._slots: Counter[int] = Counter()
        self._calls: dict[int, _Call] = {}
        self._first: Counter[int] = Counter()
        self._handlers: dict[type, Callable[[Any], str | None]] = {
            events.Arrived: self._arrived,
            events.Admitted: self._admitted,
            events.Settled: self._settled,
            events.Decoded: self._produced,
            events.Held: self._produced,
            events.Lent: self._lent,
            events.Preempted: self._preempted,
            events.Finished: self._finished,
            events.Cancelled: self._cancelled,
            events.Migrated: self._cancelled,
            events.Rejected: self._rejected,
            events.ClientConfigured: self._configured,
            events.WorkerLeft: self._worker_left,
        }
        if gate.pauses:
            self._handlers |= {events.Prefilled: self._prefilled, events.Decoded: self._decoded}

    @property
    def kinds(self) -> frozenset[type]:
        """The kinds of events that a gate is told."""
        return frozenset(self._handlers)

    def observe(self, event: events.Event) -> str | None:
        """Return why this event is an admission that the gate had not let in, or a step of a request that it had
        paused."""
        handler = self._handlers.get(type(event))
        if handler is None:
            return None
        refusal = handler(event)
        if self._settles:
            self._gate.settle(self._waiting)
        return refusal

    # --- queue ------------------------------------------------------------------------------------------------------

    def _join(self, call: _Call) -> None:
        self._gate.joined(call.client, self._waiting)
        self._waiting[call.client] = self._waiting.get(call.client, 0) + 1
        self._slots[call.client] += call.adapter

    def _leave(self, call: _Call) -> None:
        """Count one waiting request less."""
        client = call.client
        self._waiting[client] -= 1
        self._slots[client] -= call.adapter
        if not self._waiting[client]:
            del self._waiting[client]

    def _arrived(self, event: events.Arrived) -> None:
        request = event.request
        # A request that lacks a slot for its adapter is passed over.
        self._skips = self._skips or bool(request.adapter)
        self._calls[request.id] = call = _Call(
            request.client, request.max_output_tokens, event.generated_tokens, bool(request.adapter)
        )
        self._join(call)

    def _rejected(self, event: events.Rejected) -> None:
        self._gone(event.request_id)

    def _gone(self, request_id: int) -> None:
        call = self._calls.pop(request_id, None)
        if call is not None:
            self._leave(call)
            if call.client not in self._waiting:
                self._gate.left(call.client)

    # --- batch ------------------------------------------------------------------------------------------------------

    def _admitted(self, event: events.Admitted) -> str | None:
        call, client = self._calls.get(event.request_id), event.client
        if call is None or call.runs or call.client != client:
            return f"request {event.request_id} of client {client} is admitted and does not wait"
        chosen = self._gate.choose(client, self._waiting, self._skips)
        if chosen != client and any(self._slots[each] for each in self._waiting):
            # Clients that lack a slot for an adapter may have been withdrawn.
            able = [each for each in self._waiting if each == client or not self._slots[each]]
            chosen = self._gate.choose(client, able, self._skips)
        call.runs, call.extend_tokens, call.cached_tokens = True, event.extend_tokens, event.cached_prefix_tokens
        kv_tokens = call.extend_tokens + call.declared - call.generated
        self._gate.admitted(client, self._charged(call), self._waiting, self._waiting[client] == 1, kv_tokens)
        self._leave(call)
        if chosen == client:
            return None
        instead = "no client" if chosen == NO_GROUP else f"client {chosen}"
        return f"request {event.request_id} of client {client} is admitted where the gate lets in {instead}"

    def _charged(self, call: _Call) -> int:
        return charged_tokens(call.extend_tokens, call.cached_tokens, self._percent)

    def _settled(self, event: events.Settled) -> None:
        call = self._calls.get(event.request_id)
        if call is None:
            return
        charged = self._charged(call)
        call.cached_tokens += call.extend_tokens - event.extend_tokens
        call.extend_tokens = event.extend_tokens
        if more := self._charged(call) - charged:
            self._gate.settled(call.client, more, self._waiting)

    def _prefilled(self, event: events.Prefilled) -> None:
        """Give the last piece of a prompt its token, whatever its client owes."""
        if not event.remaining_tokens:
            self._first[event.client] += 1

    def _produced(self, event: events.Decoded | events.Held) -> None:
        """Charge outputs."""
        self._gate.decoded(event.clients, event.tokens)

    def _decoded(self, event: events.Decoded) -> str | None:
        """Return the same where clients may have to stand still: of several steps the last is the one in which one may
        owe too much already."""
        first, self._first = self._first, Counter()
        last = [tokens // event.steps for tokens in event.tokens]
        if event.steps > 1:
            self._gate.decoded(event.clients, [tokens - one for tokens, one in zip(event.tokens, last, strict=True)])
            self._gate.settle(self._waiting)
        stopped = [
            c for c, one in zip(event.clients, last, strict=True) if one > first[c] and not self._gate.may_decode(c)
        ]
        self._gate.decoded(event.clients, last)
        return f"client {stopped[0]} owes too much, and decodes while others wait" if stopped else None

    def _lent(self, event: events.Lent) -> None:
        if isinstance(self._gate, LeasedDeficits | LeasedTree):
            self._gate.lent(event.clients, event.units)

    def _finished(self, event: events.Finished) -> None:
        self._calls.pop(event.request_id, None)

    def _preempted(self, event: events.Preempted) -> None:
        call = self._calls.get(event.request_id)
        if call is not None:
            call.runs, call.generated = False, event.generated_tokens
            self._join(call)

    def _cancelled(self, event: events.Cancelled | events.Migrated) -> None:
        if not event.was_running:
            self._gone(event.request_id)
        elif self._calls.pop(event.request_id, None) is not None and event.uncomputed_tokens:
            self._gate.settled(event.client, -event.uncomputed_tokens, self._waiting)

    def _worker_left(self, event: events.WorkerLeft) -> None:
        """Let all leave, running requests before waiting ones, as a policy tells it to the gate."""
        for request_id in sorted(request_id for request_id, call in self._calls.items() if not call.runs):
            self._gone(request_id)
        self._calls.clear()

    def _configured(self, event: events.ClientConfigured) -> None:
        self._gate.configured(event.client, event.weight, event.groups)
