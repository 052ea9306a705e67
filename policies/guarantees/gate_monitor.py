"""The gate monitor: a worker's admissions held to the gate's own kernels, whatever engine made them.

The monitor follows the events with a gate state of its own, told to the gate as a policy tells them.  An admission was
let in by the gate if the gate would choose its client, were the order in favour of it.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from fairsched.model import events
from fairsched.model.algebra import NO_GROUP, NO_SCORE
from fairsched.model.prefix_cache import PrefixCache
from fairsched.model.request import Prompt
from fairsched.policies.gates import (
    NO_LEDGER,
    AdmissionTransaction,
    AnyGate,
    PausesDebtors,
    computed,
    entered,
    evicted,
)
from fairsched.policies.vectors import grown

_WAITS, _FAVOURED = 0, 1


@attrs.define(eq=False)
class _Call:
    """A request: its client, its prompt, its declared output and how much of it there was before this admission,
    whether it runs, what it computes and what it takes from the cache, and the KV that it was admitted with."""

    client: int
    prompt: Prompt
    most: int
    generated: int
    runs: bool = False
    extend_tokens: int = 0
    cached_tokens: int = 0
    kv_tokens: int = 0


class GateMonitor:
    """Follows one worker; `observe` costs what the gate does, O(clients) an event.

    `skips` says that the policy may pass over a client whose request waits for a prefix or is over its cap.  A gate
    that goes on to others then (the shipped ones stop, or need no look at others) is given the benefit of the doubt.

    Of a gate that splits what is cached it also follows the cache and its books, and `moves` says who took over how
    much from whom at the last event, as (client, giver, cost units).

    Workers that share the gate's state are watched with one `shared` list, which holds that state; the cluster's events
    must then come in their order, whichever worker's they are.
    """

    def __init__(self, gate: AnyGate, skips: bool, shared: list[Any] | None = None) -> None:
        self._gate = gate
        self._skips = skips
        self._splits = gate.charging.splits
        self._pauses = gate if isinstance(gate, PausesDebtors) else None
        self._first: Counter[int] = Counter()
        self._states = [gate.init()] if shared is None else shared
        self._heads = np.zeros(0, dtype=np.int64)
        self._waiting: dict[int, int] = {}
        self._calls: dict[int, _Call] = {}
        self._cache, self._ledger = PrefixCache(), NO_LEDGER
        self.moves: list[tuple[int, int, int]] = []
        self._handlers: dict[type, Callable[[Any], str | None]] = {
            events.Arrived: self._arrived,
            events.Admitted: self._admitted,
            events.Settled: self._settled,
            events.Decoded: self._decoded,
            events.Held: self._decoded,
            events.Preempted: self._preempted,
            events.Finished: self._finished,
            events.Cancelled: self._cancelled,
            events.Migrated: self._cancelled,
            events.Rejected: self._rejected,
            events.ClientConfigured: self._configured,
            events.WorkerLeft: self._worker_left,
        }
        if self._pauses is not None:
            self._handlers[events.Prefilled] = self._prefilled
        if self._splits:
            self._handlers |= {events.Cached: self._cached, events.Evicted: self._evicted}

    @property
    def _state(self) -> Any:
        return self._states[0]

    @_state.setter
    def _state(self, state: Any) -> None:
        self._states[0] = state

    @property
    def kinds(self) -> frozenset[type]:
        """The kinds of events that a gate is told."""
        return frozenset(self._handlers)

    def observe(self, event: events.Event) -> str | None:
        """Why this event is an admission that the gate had not let in; else None."""
        handler = self._handlers.get(type(event))
        if self.moves:
            self.moves = []
        if handler is None:
            return None
        refusal = handler(event)
        if self._pauses is not None:
            self._state = self._pauses.settled_up(self._state, self._heads)
        return refusal

    # --- queue ------------------------------------------------------------------------------------------------------

    def _join(self, client: int) -> None:
        count = self._waiting.get(client, 0)
        self._state = self._gate.joined(self._state, client, self._heads, count > 0)
        self._waiting[client] = count + 1
        if not count:
            self._heads = grown(self._heads, client + 1, NO_SCORE)
            self._heads[client] = _WAITS

    def _leave(self, client: int) -> bool:
        """One request of the client waits no more; whether it was the last."""
        self._waiting[client] -= 1
        if self._waiting[client]:
            return False
        self._heads[client] = NO_SCORE
        return True

    def _arrived(self, event: events.Arrived) -> None:
        request = event.request
        most = request.max_output_tokens
        self._calls[request.id] = _Call(request.client, request.prompt, most, event.generated_tokens)
        self._join(request.client)

    def _rejected(self, event: events.Rejected) -> None:
        self._gone(event.request_id)

    def _gone(self, request_id: int) -> None:
        call = self._calls.pop(request_id, None)
        if call is not None and self._leave(call.client):
            self._state = self._gate.left(self._state, call.client)

    # --- batch ------------------------------------------------------------------------------------------------------

    def _admitted(self, event: events.Admitted) -> str | None:
        call, client = self._calls.get(event.request_id), event.client
        if call is None or not self._waiting.get(client):
            return f"request {event.request_id} of client {client} is admitted and does not wait"
        turn = self._gate.begin(self._state, self._heads)
        self._heads[client] = _FAVOURED
        chosen = turn.choose(self._heads)
        first = chosen
        while self._skips and chosen not in (client, NO_GROUP):
            turn.skip(chosen)
            chosen = turn.choose(self._heads)
        self._heads[client] = _WAITS
        charged = self._gate.charged(event.extend_tokens, event.cached_prefix_tokens)
        call.runs = True
        call.cached_tokens = event.cached_prefix_tokens
        call.extend_tokens = event.extend_tokens
        call.kv_tokens = event.extend_tokens + call.most - call.generated
        turn.admit(client, charged, call.kv_tokens, self._leave(client))
        if self._splits:
            self._enter(event.request_id, call, turn)
        self._state = self._gate.after(self._state, turn)
        if chosen == client:
            return None
        instead = "no client" if first == NO_GROUP else f"client {first}"
        return f"request {event.request_id} of client {client} is admitted where the gate lets in {instead}"

    def _settled(self, event: events.Settled) -> None:
        call = self._calls.get(event.request_id)
        if call is None:
            return
        more = -self._gate.charged(call.extend_tokens, call.cached_tokens)
        call.cached_tokens += call.extend_tokens - event.extend_tokens
        call.extend_tokens = event.extend_tokens
        more += self._gate.charged(call.extend_tokens, call.cached_tokens)
        if more:
            self._state = self._gate.settled(self._state, event.client, more, self._heads)

    def _decoded(self, event: events.Decoded | events.Held) -> str | None:
        """Charge output tokens, and say which client got one in spite of a pause: those of prompts do not count."""
        first, before = self._first, self._state
        self._state = self._gate.decoded(before, event.clients, event.tokens)
        if self._pauses is None or not isinstance(event, events.Decoded):
            return None
        self._first, steps = Counter(), event.steps
        if steps > 1 and any(self._waiting.values()):
            # The last of several steps is the one in which a client may owe too much.
            but_one = tuple([tokens - tokens // steps for tokens in event.tokens])
            before = self._gate.decoded(before, event.clients, but_one)
        may = self._pauses.may_decode(before)
        for client, tokens in zip(event.clients, event.tokens, strict=True):
            if tokens > first[client] and not may[client]:
                return f"client {client}, which owes too much, decodes while others wait"
        return None

    def _prefilled(self, event: events.Prefilled) -> None:
        """The last of a prompt brings a token, whatever its client owes."""
        if not event.remaining_tokens:
            self._first[event.client] += 1

    def _out(self, request_id: int) -> _Call | None:
        call = self._calls.get(request_id)
        if call is not None:
            self._state = self._gate.released(self._state, call.client, call.kv_tokens)
            self._cache = self._cache.release(request_id)
        return call

    def _finished(self, event: events.Finished) -> None:
        if self._out(event.request_id) is not None:
            del self._calls[event.request_id]

    def _preempted(self, event: events.Preempted) -> None:
        call = self._out(event.request_id)
        if call is not None:
            call.runs = False
            call.generated = event.generated_tokens
            self._join(event.client)

    def _cancelled(self, event: events.Cancelled | events.Migrated) -> None:
        if not event.was_running:
            self._gone(event.request_id)
        elif self._out(event.request_id) is not None:
            del self._calls[event.request_id]
            if event.uncomputed_tokens:
                self._state = self._gate.settled(self._state, event.client, -event.uncomputed_tokens, self._heads)

    def _worker_left(self, event: events.WorkerLeft) -> None:
        """All leave, running requests before waiting ones, as a policy tells it to the gate."""
        for request_id in sorted(self._calls, key=lambda known: (not self._calls[known].runs, known)):
            if self._calls[request_id].runs:
                self._out(request_id)
            else:
                self._gone(request_id)
        self._calls.clear()
        self._cache, self._ledger = PrefixCache(), NO_LEDGER

    # --- books of a gate that splits what is cached -----------------------------------------------------------------

    def _enter(self, request_id: int, call: _Call, turn: AdmissionTransaction) -> None:
        def take_over(client: int, giver: int, units: int) -> int:
            moved = turn.take_over(client, giver, units)
            self.moves.append((client, giver, moved))
            return moved

        self._cache, _, cut = self._cache.admit(request_id, call.prompt, 0)
        self._ledger = entered(self._ledger, self._cache, cut, request_id, call.client, take_over)

    def _cached(self, event: events.Cached) -> None:
        self._cache, insertion = self._cache.complete(event.owner, event.prompt, event.blocks, 0)
        owner = self._calls.get(event.owner)
        units = self._gate.rates.input * event.prompt.block_tokens
        client = None if owner is None else owner.client
        self._ledger = computed(self._ledger, self._cache.tree, insertion, client, units)

    def _evicted(self, event: events.Evicted) -> None:
        self._cache, evictions = self._cache.evicted(event.prompt, event.keep_blocks)
        self._ledger = evicted(self._ledger, self._cache.tree, evictions)

    def _configured(self, event: events.ClientConfigured) -> None:
        self._heads = grown(self._heads, event.client + 1, NO_SCORE)
        self._state = self._gate.configured(self._state, event.client, event.weight, event.groups)
