"""SGLang's requests as fairsched sees them, and what SGLang did between two looks at its waiting queue.

SGLang asks for an order before it fills a batch, and lets no request in at any other time.  So a request that has been
in a batch since then left the queue right after the last look, in that queue's order; outputs, ends and retractions
came later, and arrivals last.  Requests themselves say what happened to them, and this becomes events in that order.

Time is counted in looks, `LOOK_NS` each: the schedulers of tensor-parallel ranks must agree, and their clocks do not.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import unquote

import attrs

from fairsched.engines.adapters.common import Memory, RequestTracker, TrackedRequest
from fairsched.engines.adapters.sglang.settings import GATEWAY, SglangSettings
from fairsched.engines.serving import AdmissionGuard, ClientRegistry, EventBus, NoDecisionError, Trial, empty_worker
from fairsched.model.events import Admitted
from fairsched.model.request import TOKENS_MAX, Prompt, Request

LOOK_NS = 10_000_000
"""What a look counts for an order that knows waits: about a step of an engine."""
ROOM_TOKENS = 1 << 40
"""The size of the worker that the policy sees: SGLang itself says what fits."""


class SglangRequest(Protocol):
    """A request as SGLang's scheduler keeps it (`sglang.srt.managers.schedule_batch.Req`).

    `extend_batch_idx` counts the forward passes of its prompt since it was let in, and is 0 while it waits.
    `cached_tokens` is what its first admission found in the cache; `num_matched_prefix_tokens` what the last look did.
    """

    rid: str
    origin_input_ids: Sequence[int]
    output_ids: Sequence[int]
    sampling_params: Any
    routing_key: str | None
    cached_tokens: int
    num_matched_prefix_tokens: int
    extend_batch_idx: int
    extend_end: int | None
    retraction_count: int
    finished_reason: object | None
    finished_len: int | None


@attrs.define(eq=False, kw_only=True)
class TrackedSglang(TrackedRequest):
    """A request.

    It waits with `context` tokens to be computed if nothing is cached; let in, `cached` ones are not.  `seen` of its
    output tokens were counted of those that it shows now.  `matched` of its tokens were cached when it was last ranked.
    `place` is its place in SGLang's own queue, None if it has just joined it.
    """

    request: SglangRequest
    context: int
    retractions: int
    seen: int
    cached: int = 0
    matched: int = 0
    place: int | None = None

    def admission(self, now_ns: int, cached: int) -> Admitted:
        """Return its admission with so many tokens from the cache.  SGLang reserves no output for good."""
        cached = min(max(cached, 0), self.context - 1)
        return Admitted(now_ns, 0, self.known.id, self.known.client, self.context - cached, cached, 0)


class SglangTracker(RequestTracker[TrackedSglang]):
    """The requests of one scheduler."""

    def __init__(
        self, guard: AdmissionGuard, memory: Memory, clients: ClientRegistry, bus: EventBus, settings: SglangSettings
    ) -> None:
        self._settings = settings
        self._calls: dict[int, TrackedSglang] = {}
        self._order: list[TrackedSglang] = []
        self._places = 0
        super().__init__(guard, memory, clients, bus, 0)

    def put_back(self, queue: list[SglangRequest]) -> None:
        """Bring the queue into the order in which its requests joined it, as SGLang left it."""

        def place(request: SglangRequest) -> int:
            call = self._calls.get(id(request))
            same = call is not None and request.retraction_count == call.retractions
            return self._places if call is None or call.place is None or not same else call.place

        queue.sort(key=place)

    def look(self, queue: Sequence[SglangRequest]) -> None:
        """Tell what happened since the last look; `queue` waits now, as it joined.  O(waiting + running)."""
        self.now_ns += LOOK_NS
        for call in self._order:
            # A request that is back in the queue by now was let in, too.
            if call.request.extend_batch_idx or call.request.retraction_count > call.retractions:
                self._began(call)
        for call in self._running.values():
            self._computed(call)
        self._decoded([(call, self._fresh(call)) for call in self._running.values()])
        for call in list(self._running.values()):
            if call.request.finished_reason is not None:
                self._ended(call)
            elif call.request.retraction_count > call.retractions:
                self._retracted(call)
        there = {id(request) for request in queue}
        for call in [call for call in self._waiting.values() if id(call.request) not in there]:
            self._ended(call)
        for request in queue:
            call = self._calls.get(id(request)) or self._joined(request)
            if call.place is None:
                call.place, self._places = self._places, self._places + 1

    def calls(self, queue: Iterable[SglangRequest]) -> list[TrackedSglang]:
        return [self._calls[id(request)] for request in queue]

    def leave_in(self, order: list[TrackedSglang]) -> None:
        """Note the order in which SGLang takes from the queue until the next look."""
        self._order = order
        for call in order:
            call.matched = call.request.num_matched_prefix_tokens

    # --- the order --------------------------------------------------------------------------------------------------

    def ranked(self, calls: Sequence[TrackedSglang]) -> list[TrackedSglang] | None:
        """Return the requests in the order in which the policy would let them in, decision after decision.

        States are values, so each decision is made on the state in which the ones before have happened, charged with
        what SGLang's last look at its cache said; what SGLang really does is told to the policy's own state later.
        The first `ranked_max` requests are ranked, the others follow as they came.  With `within_client = "sglang"`
        the policy says which client is next, and a client's requests stay in the order of `calls`.  None if the policy
        failed.  O(min(ranked_max, calls)) decisions.
        """
        try:
            first = self.guard.tried(lambda trial: self._firsts(trial, calls))
        except NoDecisionError:
            return None
        if not first and calls:
            self.guard.failed("stalled", f"{len(calls)} requests wait, and none is let in")
            return None
        self.guard.worked()
        known = {call.known.id for call in first}
        return first + sorted((call for call in calls if call.known.id not in known), key=lambda call: call.known.id)

    def _firsts(self, trial: Trial, calls: Sequence[TrackedSglang]) -> list[TrackedSglang]:
        """Return the first requests as `ranked` does; none where the policy lets none in although some are left."""
        left = {call.known.id: call for call in calls}
        keeps_order = self._settings.within_client == "sglang"
        own: dict[int, deque[TrackedSglang]] = {}
        for call in calls if keeps_order else ():
            own.setdefault(call.known.client, deque()).append(call)
        first: list[TrackedSglang] = []
        view = empty_worker(self.now_ns, ROOM_TOKENS, ROOM_TOKENS)
        while left and len(first) < self._settings.ranked_max:
            admission, _ = trial.decide(view, lambda admission: admission.request_id in left)
            if admission is None:
                return []
            call = left[admission.request_id]
            if keeps_order:
                call = own[call.known.client].popleft()
            first.append(call)
            del left[call.known.id]
            trial.after(call.admission(self.now_ns, call.request.num_matched_prefix_tokens))
        return first

    # --- what happened ----------------------------------------------------------------------------------------------

    def _began(self, call: TrackedSglang) -> None:
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
        call.cached = event.cached_prefix_tokens
        self._entered(call, event)
        self._tell(event)

    def _computed(self, call: TrackedSglang) -> None:
        """Count what a forward pass has begun to compute as computed: nothing stops it."""
        if call.computed == call.extend:
            return
        request = call.request
        if outputs(request) > call.seen:
            computed = call.extend
        else:
            computed = min(max((request.extend_end or 0) - call.cached, call.computed), call.extend)
        if computed > call.computed:
            self._prefilled(call, computed - call.computed)

    def _fresh(self, call: TrackedSglang) -> int:
        before, call.seen = call.seen, outputs(call.request)
        return max(call.seen - before, 0)

    def _ended(self, call: TrackedSglang) -> None:
        del self._calls[id(call.request)]
        self._left(call, whole=not aborted(call.request))

    def _retracted(self, call: TrackedSglang) -> None:
        """SGLang took it out of the batch; what it has is computed again, and charged again."""
        call.place = None
        call.retractions = call.request.retraction_count
        call.context = call.known.prompt_tokens + call.seen
        self._preempted(call)

    def _joined(self, request: SglangRequest) -> TrackedSglang:
        prompt = min(max(len(request.origin_input_ids), 1), TOKENS_MAX)
        most = min(max(request.sampling_params.max_new_tokens or 1, 1), TOKENS_MAX)
        seen = outputs(request)
        retractions = request.retraction_count

        def make(known: Request) -> TrackedSglang:
            return TrackedSglang(
                request=request, known=known, context=prompt + seen, retractions=retractions, seen=seen
            )

        call = self._calls[id(request)] = self._arrived(self._said(request), Prompt(prompt), most, make)
        return call

    def _said(self, request: SglangRequest) -> object:
        if self._settings.client_from == GATEWAY:
            return unquote(request.routing_key or "")
        if self._settings.client_from == "routing_key":
            return request.routing_key
        said = request.sampling_params.custom_params
        return said.get(self._settings.client_key) if isinstance(said, Mapping) else None


def outputs(request: SglangRequest) -> int:
    """Output tokens so far, up to a stop."""
    return len(request.output_ids) if request.finished_len is None else request.finished_len


def aborted(request: SglangRequest) -> bool:
    """Return whether it is over before its output was whole."""
    return type(request.finished_reason).__name__ == "FINISH_ABORT"
