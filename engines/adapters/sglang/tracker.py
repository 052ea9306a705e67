"""SGLang's requests as fairsched sees them, and what SGLang did between two looks at its waiting queue.

SGLang asks for an order before it fills a batch, and lets nobody in at any other time.  So whoever has been in a batch
since then left the queue right after the last look, in that queue's order; outputs, ends and retractions came later,
and arrivals last.  Requests themselves say what happened to them, and this becomes events in that order.

Time is counted in looks, `LOOK_NS` each: the schedulers of tensor-parallel ranks must agree, and their clocks do not.
"""

from collections.abc import Iterable, Mapping, Sequence

import attrs

from fairsched.engines.inside.decider import Decider
from fairsched.engines.inside.names import Names
from fairsched.engines.inside.status import Memory
from fairsched.engines.serving_audience import Audience
from fairsched.engines.sglang.protocol import SglangRequest, aborted, outputs
from fairsched.engines.sglang.settings import ROUTING_KEY, Settings
from fairsched.model.events import (
    Admitted,
    Arrived,
    Cancelled,
    ClientConfigured,
    Decoded,
    Event,
    Finished,
    Preempted,
    Prefilled,
    WorkerJoined,
)
from fairsched.model.request import TOKENS_MAX, Client, Prompt, Request
from fairsched.model.workload import Job

LOOK_NS = 10_000_000
"""What a look counts for an order that knows waits: about a step of an engine."""


@attrs.define(eq=False)
class Call:
    """A request: SGLang's, ours, and how far it is.

    It waits with `context` tokens to be computed if nothing is cached.  Let in, so many of its `extend` tokens are
    `computed`, beside `cached` ones.  `seen` of its output tokens were counted of those that it shows now, `produced`
    in all.  `matched` of its tokens were cached when it was last ranked.  `place` is its place in SGLang's own queue,
    None if it has just joined it.
    """

    request: SglangRequest
    known: Request
    context: int
    retractions: int
    seen: int
    produced: int = 0
    extend: int = 0
    cached: int = 0
    computed: int = 0
    matched: int = 0
    place: int | None = None

    def admission(self, now_ns: int, cached: int) -> Admitted:
        """It is let in, with so many tokens from the cache.  SGLang reserves no output for good."""
        cached = min(max(cached, 0), self.context - 1)
        return Admitted(now_ns, 0, self.known.id, self.known.client, self.context - cached, cached, 0)


class Desk:
    """The books of one scheduler.  `audience` hears every event; its log knows the clients and requests."""

    def __init__(self, decider: Decider, names: Names, settings: Settings, audience: Audience, memory: Memory) -> None:
        self.decider = decider
        self.names = names
        self.audience = audience
        self.memory = memory
        self.now_ns = 0
        self._settings = settings
        self._calls: dict[int, Call] = {}
        self._waiting: dict[int, Call] = {}
        self._running: dict[int, Call] = {}
        self._order: list[Call] = []
        self._count = 0
        self._places = 0
        self._tell(WorkerJoined(0, 0, memory.capacity_tokens))
        for client in names.configured:
            self._greet(client)

    @property
    def waiting(self) -> Mapping[int, Call]:
        """Who waits, by number."""
        return self._waiting

    @property
    def running(self) -> Mapping[int, Call]:
        """Who was let in and has not ended."""
        return self._running

    def put_back(self, queue: list[SglangRequest]) -> None:
        """Bring the queue into the order in which its requests joined it, as SGLang left it."""

        def place(request: SglangRequest) -> int:
            call = self._calls.get(id(request))
            same = call is not None and request.retraction_count == call.retractions
            return self._places if call is None or call.place is None or not same else call.place

        queue.sort(key=place)

    def look(self, queue: Sequence[SglangRequest]) -> None:
        """Tell what happened since the last look; `queue` is who waits now, as they joined.  O(waiting + running)."""
        self.now_ns += LOOK_NS
        for call in self._order:
            # Whoever is back in the queue by now was let in, too.
            if call.request.extend_batch_idx or call.request.retraction_count > call.retractions:
                self._entered(call)
        for call in self._running.values():
            self._prefilled(call)
        self._decoded(self._running.values())
        for call in list(self._running.values()):
            if call.request.finished_reason is not None:
                self._ended(call)
            elif call.request.retraction_count > call.retractions:
                self._back(call)
        there = {id(request) for request in queue}
        for call in [call for call in self._waiting.values() if id(call.request) not in there]:
            self._gave_up(call)
        for request in queue:
            call = self._calls.get(id(request)) or self._arrived(request)
            if call.place is None:
                call.place, self._places = self._places, self._places + 1

    def calls(self, queue: Iterable[SglangRequest]) -> list[Call]:
        """Requests that wait."""
        return [self._calls[id(request)] for request in queue]

    def leave_in(self, order: list[Call]) -> None:
        """SGLang takes from the queue in this order until the next look."""
        self._order = order
        for call in order:
            call.matched = call.request.num_matched_prefix_tokens

    # --- what happened ----------------------------------------------------------------------------------------------

    def _entered(self, call: Call) -> None:
        request = call.request
        if not call.retractions:
            cached = request.cached_tokens
        elif request.retraction_count == call.retractions:
            # SGLang counts a request's first admission only; what it found at this one still stands there.
            cached = request.num_matched_prefix_tokens
        else:
            # It is out again, and that is gone.
            cached = call.matched
        event = call.admission(self.now_ns, cached)
        call.extend, call.cached, call.computed = event.extend_tokens, event.cached_prefix_tokens, 0
        del self._waiting[call.known.id]
        self._running[call.known.id] = call
        self._tell(event)

    def _prefilled(self, call: Call) -> None:
        """What a forward pass has begun to compute counts as computed: nothing stops it."""
        if call.computed == call.extend:
            return
        request = call.request
        if outputs(request) > call.seen:
            computed = call.extend
        else:
            computed = min(max((request.extend_end or 0) - call.cached, call.computed), call.extend)
        tokens, call.computed = computed - call.computed, computed
        if tokens:
            left = call.extend - computed
            self._tell(Prefilled(self.now_ns, 0, call.known.id, call.known.client, tokens, left))

    def _decoded(self, calls: Iterable[Call]) -> None:
        fresh: dict[int, int] = {}
        for call in calls:
            now = outputs(call.request)
            more = max(now - call.seen, 0)
            call.seen = now
            if more:
                call.produced += more
                fresh[call.known.client] = fresh.get(call.known.client, 0) + more
        if fresh:
            clients = tuple(sorted(fresh))
            self._tell(Decoded(self.now_ns, 0, 1, clients, tuple(fresh[client] for client in clients)))

    def _ended(self, call: Call) -> None:
        known = call.known
        del self._running[known.id], self._calls[id(call.request)]
        if aborted(call.request):
            left = call.extend - call.computed
            self._tell(Cancelled(self.now_ns, 0, known.id, known.client, True, left, call.produced))
        else:
            self._tell(Finished(self.now_ns, 0, known.id, known.client, call.produced))

    def _back(self, call: Call) -> None:
        """SGLang took it out of the batch; what it has is computed again, and charged again."""
        known = call.known
        del self._running[known.id]
        self._waiting[known.id] = call
        call.place = None
        call.retractions = call.request.retraction_count
        call.context = known.prompt_tokens + call.seen
        left = call.extend - call.computed
        self._tell(Preempted(self.now_ns, 0, known.id, known.client, call.produced, left))

    def _gave_up(self, call: Call) -> None:
        known = call.known
        del self._waiting[known.id], self._calls[id(call.request)]
        self._tell(Cancelled(self.now_ns, 0, known.id, known.client, False, 0, call.produced))

    def _arrived(self, request: SglangRequest) -> Call:
        client, new = self.names.named(self._said(request))
        if new:
            self._greet(client)
        prompt = min(max(len(request.origin_input_ids), 1), TOKENS_MAX)
        most = min(max(request.sampling_params.max_new_tokens or 1, 1), TOKENS_MAX)
        known = Request(self._count, client.id, self.now_ns, Prompt(prompt), most)
        self._count += 1
        seen = outputs(request)
        call = Call(request, known, prompt + seen, request.retraction_count, seen)
        self._calls[id(request)] = self._waiting[known.id] = call
        self.audience.request(Job(known, most))
        self._tell(Arrived(self.now_ns, 0, known))
        return call

    def _said(self, request: SglangRequest) -> object:
        if self._settings.client_from == ROUTING_KEY:
            return request.routing_key
        said = request.sampling_params.custom_params
        return said.get(self._settings.client_key) if isinstance(said, Mapping) else None

    def _greet(self, client: Client) -> None:
        self.audience.client(client)
        if client.weight != 1:
            self._tell(ClientConfigured(self.now_ns, 0, client.id, client.weight))

    def _tell(self, event: Event) -> None:
        self.decider.tell(event)
        self.audience.tell([event])
