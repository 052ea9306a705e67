"""Priorities for servers that order calls themselves: start tags of fair queueing, smaller ones first.

vLLM (with `--scheduling-policy priority`) and SGLang take a field `priority` with each call.  A call's tag is where its
client's service stands: the tag of the client's call before, and what that costs by weight; a client that comes back
starts no lower than the calls that are open, so no client saves up (start-time fair queueing:  Goyal, Vin and Cheng,
1996).  A call costs its estimate and all outputs that it declared until it ends, and then what it was.

**Nothing is promised.**  A server compares tags of those that wait there at that time, knows no other server's, lets in
as many as fit its memory, and may take a running call out for one with a smaller tag.
"""

import heapq

import attrs

from fairsched.model.events import Arrived, Cancelled, ClientConfigured, Event, Finished, Settled
from fairsched.model.pricing import COMMON

_UNITS = 1 << 10
"""Tags are whole; so many of them are one cost unit of a client of weight 1."""


@attrs.define
class _Open:
    """A call without an end: its client, its tag, what it was taken for, and what is known of it."""

    client: int
    tag: int
    cost: int
    weight: int
    prompt_tokens: int


class Tags:
    """A listener of the window that gives each call a tag.  O(log calls) an event."""

    def __init__(self) -> None:
        self._weights: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._open: dict[int, _Open] = {}
        self._starts: list[tuple[int, int]] = []
        self._now = 0

    def of(self, request_id: int) -> int:
        """Return the tag of an open call."""
        return self._open[request_id].tag

    def record(self, event: Event) -> None:
        """Take the window's next event."""
        match event:
            case ClientConfigured():
                self._weights[event.client] = event.weight
            case Arrived():
                request = event.request
                cost = COMMON.input * request.prompt_tokens + COMMON.output * request.max_output_tokens
                self._arrived(request.id, request.client, cost, request.prompt_tokens)
            case Settled():
                self._open[event.request_id].prompt_tokens = event.extend_tokens
            case Finished():
                self._ended(event.request_id, event.output_tokens, True)
            case Cancelled():
                self._ended(event.request_id, event.generated_tokens, event.was_running and not event.uncomputed_tokens)

    def _arrived(self, request_id: int, client: int, cost: int, prompt_tokens: int) -> None:
        while self._starts and self._starts[0][1] not in self._open:
            heapq.heappop(self._starts)
        if self._starts:
            self._now = max(self._now, self._starts[0][0])
        weight = self._weights.get(client, 1)
        tag = max(self._next.get(client, 0), self._now)
        self._next[client] = tag + cost * _UNITS // weight
        self._open[request_id] = _Open(client, tag, cost, weight, prompt_tokens)
        heapq.heappush(self._starts, (tag, request_id))

    def _ended(self, request_id: int, output_tokens: int, computed: bool) -> None:
        call = self._open.pop(request_id)
        cost = COMMON.input * call.prompt_tokens * computed + COMMON.output * output_tokens
        self._next[call.client] += (cost - call.cost) * _UNITS // call.weight
