"""Centralised DLPM: one queue and one deficit a client before all workers, at the price of asking the workers.

Paper: "Locality-aware Fair Scheduling in LLM Serving" names it to say why it is not used: a central scheduler
needs a report from a worker before each decision, and the worker waits for the answer.  Workers run FCFS behind it.

Model of that price (`AnswersWorkers`): before each step a worker says how much memory is free, and computes nothing
until the scheduler has answered.  Question and answer travel for `round_trip_us`.  The scheduler is one process that
answers one worker after the other: where the worker has room it looks at the waiting requests, `look_ns` for each.  So
a step waits longer with a longer queue, and with more workers that ask meanwhile.  With both at 0 every decision is at
once: what no real scheduler could do, and what the others are compared with.

The rule is DLPM's with the workers in place of one: of the waiting requests whose client has credit the one with the
longest cached prefix anywhere goes next, to the worker that holds most of it among those with room for it; if none has
room, no request overtakes it.  The gate is `fairsched.policies.gates.deficit`, so one client's lead over another
is that of one worker of all the workers' memory: U is m times as large, and a client is backlogged here or not at
all.
"""

from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

import attrs
import msgspec
import numpy as np
from immutables import Map
from msgspec.structs import replace

from fairsched.model import events as ev
from fairsched.model.algebra import NO_GROUP, NO_SCORE, Ints
from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch, WorkerLoad
from fairsched.model.prefix_cache import IndexMatch, PrefixIndex
from fairsched.model.pricing import Rates
from fairsched.model.request import Request
from fairsched.policies import validators
from fairsched.policies.base import ClusterPolicy
from fairsched.policies.gates import DeficitGate, DeficitState
from fairsched.policies.routers.prefix_based import cached_tokens, followed, shareable_blocks, trimmed
from fairsched.policies.validators import not_negative, positive

NO_HEADS: Ints = np.zeros(0, np.int64)
"""A deficit gate does not read heads when a client joins or is settled."""
_AGE_BITS = 32
ROUND_TRIP_US = 100
LOOK_NS = 20_000
"""Both measured by `benchmarks/central.py` on one machine, and rounded; its network is added to the round trip."""


class CentralRequest(msgspec.Struct, frozen=True, gc=False):
    """A request that was decided about, where it goes, the extend tokens that were charged, and the KV tokens that are
    kept free for it until its worker has admitted it (0: it has)."""

    request: Request
    worker: int
    extend_tokens: int
    kv_tokens: int


class CentralState(msgspec.Struct, frozen=True):
    """The gate's state, the index of what workers cache, waiting requests by client (the oldest first), what was
    sent, and the memory that is kept free for that by worker."""

    gate: DeficitState
    index: PrefixIndex
    waiting: Map[int, tuple[Request, ...]] = Map()
    sent: Map[int, CentralRequest] = Map()
    kept_free: Map[int, int] = Map()


class Head(msgspec.Struct, frozen=True, gc=False):
    """A client's request that goes first, and which workers hold how much of it."""

    request: Request
    match: IndexMatch

    @property
    def score(self) -> int:
        """More cached before less, older before younger."""
        levels = self.match.levels
        cached = cached_tokens(self.request.prompt, levels[0].blocks) if levels else 0
        return (cached << _AGE_BITS) - min(self.request.id, (1 << _AGE_BITS) - 1)


class Room:
    """What the workers have left while a decision is made: KV tokens and places."""

    def __init__(self, loads: Iterable[WorkerLoad], kept_free: Map[int, int], places: int) -> None:
        self.loads = {load.worker: load for load in loads}
        self.tokens = {w: load.kv_free_tokens - kept_free.get(w, 0) for w, load in self.loads.items()}
        self.places = {w: places - load.running_requests - load.waiting_requests for w, load in self.loads.items()}

    @property
    def any(self) -> bool:
        """Whether a worker has a place and a free token."""
        return any(self.places[w] > 0 < self.tokens[w] for w in self.places)

    def best(self, head: Head, match_percent_min: int) -> tuple[int, int] | None:
        """Return the worker with room for the request that holds most of it, then with most room, and how much it
        caches.

        Less than so much of the prompt is no reason to go anywhere.
        """
        prompt = head.request.prompt
        need = prompt.tokens + head.request.max_output_tokens
        held = head.match.blocks_by_worker(max(self.tokens) + 1)
        found: tuple[int, int, int, int] | None = None
        for worker, tokens in self.tokens.items():
            cached = cached_tokens(prompt, held[worker])
            if need - cached <= tokens and self.places[worker] > 0:
                counts = cached if cached * 100 >= match_percent_min * prompt.tokens else 0
                found = max(found or (-1, 0, 0, 0), (counts, tokens, -worker, cached))
        return None if found is None else (-found[2], found[3])

    def take(self, worker: int, tokens: int) -> WorkerLoad:
        self.tokens[worker] -= tokens
        self.places[worker] -= 1
        return self.loads[worker]


@attrs.frozen
class CentralDLPM(ClusterPolicy[CentralState]):
    """Longest prefix among clients with credit, in one queue before all workers, for whose answers workers wait.

    Of each client the `lookahead` oldest requests are looked at.  O(clients x lookahead) matches for a decision if a
    worker has a place, and O(workers + lookahead) for each request that it sends.
    """

    name: ClassVar[str] = "dlpm-central"
    state_type: ClassVar[type[CentralState]] = CentralState

    round_trip_us: int = attrs.field(default=ROUND_TRIP_US, validator=not_negative)
    """How long a worker's question and the answer travel, together."""
    look_ns: int = attrs.field(default=LOOK_NS, validator=not_negative)
    """How long the scheduler takes for each waiting request that it looks at, in nanoseconds."""
    quantum: int = attrs.field(default=4096, validator=validators.quantum)
    """Credit of one refill for weight 1, in cost units."""
    input_rate: int = attrs.field(default=Rates().input, validator=validators.rate)
    """Cost units of a computed token."""
    output_rate: int = attrs.field(default=Rates().output, validator=validators.rate)
    """Cost units of an output token."""
    match_percent_min: int = attrs.field(default=50, validator=not_negative)
    """A cached part of less than this share of the prompt is no reason to go where it is."""
    lookahead: int = attrs.field(default=32, validator=positive)
    """How many of a client's oldest requests are looked at."""
    max_running: int = attrs.field(default=256, validator=validators.running)
    """Most requests at a worker; it should be the workers' own."""
    gate: DeficitGate = attrs.field(init=False, eq=False, repr=False)

    @gate.default
    def _gate(self) -> DeficitGate:
        return DeficitGate(Rates(self.input_rate, self.output_rate), self.quantum)

    @property
    def round_trip_ns(self) -> int:
        """How long question and answer travel, together."""
        return self.round_trip_us * 1_000

    def answer_ns(self, state: CentralState, load: WorkerLoad) -> int:
        """Return how long the scheduler works on a worker's question: it looks at what waits, if that worker has
        room."""
        if not Room((load,), state.kept_free, self.max_running).any:
            return 0
        return self.look_ns * self.looked_at(state)

    def looked_at(self, state: CentralState) -> int:
        """Return how many waiting requests a pass looks at."""
        return sum(min(len(queue), self.lookahead) for queue in state.waiting.values())

    def init(self) -> CentralState:
        # Nothing is counted in a window, so any will do.
        return CentralState(self.gate.init(), PrefixIndex.empty(window_ns=1))

    # --- decisions --------------------------------------------------------------------------------------------------

    def decide(self, state: CentralState, view: ClusterView) -> tuple[ClusterPlan, CentralState]:
        """Decide by DLPM's pass over the waiting requests, with all workers' room."""
        room = Room(view.workers, state.kept_free, self.max_running)
        if not state.waiting or not room.any:
            return ClusterPlan(), state
        found = {client: self._head(state, requests) for client, requests in sorted(state.waiting.items())}
        scores = np.full(len(state.gate.q), NO_SCORE, np.int64)
        for client, head in found.items():
            scores[client] = head.score
        turn = self.gate.begin(state.gate, scores)
        dispatches = []
        while (client := turn.choose(scores)) != NO_GROUP:
            head = found[client]
            target = room.best(head, self.match_percent_min)
            if target is None:
                break
            state = self._sent(state, head.request, *target, room)
            rest = state.waiting.get(client)
            sent = state.sent[head.request.id]
            turn.admit(client, sent.extend_tokens, sent.kv_tokens, rest is None)
            if rest is None:
                scores[client] = NO_SCORE
            else:
                found[client] = self._head(state, rest)
                scores[client] = found[client].score
            dispatches.append(Dispatch(head.request.id, sent.worker))
        return ClusterPlan(tuple(dispatches)), replace(state, gate=self.gate.after(state.gate, turn))

    def _head(self, state: CentralState, requests: tuple[Request, ...]) -> Head:
        """Return of the oldest the one of which most is cached somewhere."""
        heads = (Head(request, state.index.match(request.prompt)) for request in requests[: self.lookahead])
        return max(heads, key=lambda head: head.score)

    def _sent(self, state: CentralState, request: Request, worker: int, cached: int, room: Room) -> CentralState:
        """Return the state in which the request was sent."""
        extend = request.prompt.tokens - cached
        kept = extend + request.max_output_tokens
        load = room.take(worker, kept)
        index = state.index
        if blocks := shareable_blocks(index, request.prompt):
            index, _ = index.insert(request.prompt, blocks, worker, index.now_ns, hit=False)
            index = trimmed(index, worker, load.kv_capacity_tokens + load.waiting_tokens + request.prompt.tokens)
        return replace(
            _unqueued(state, request),
            index=index,
            sent=state.sent.set(request.id, CentralRequest(request, worker, extend, kept)),
            kept_free=state.kept_free.set(worker, state.kept_free.get(worker, 0) + kept),
        )

    # --- events ---------------------------------------------------------------------------------------------

    def observe(self, state: CentralState, event: ev.Event) -> CentralState:
        match event:
            case ev.Decoded() | ev.Held():
                return replace(state, gate=self.gate.decoded(state.gate, event.clients, event.tokens))
            case ev.Arrived() if event.worker == ev.NOWHERE:
                return self._comes(state, event.request)
            case ev.Admitted() if event.request_id in state.sent:
                return self._admitted(state, event)
            case ev.Evicted() | ev.Cached():
                return replace(state, index=followed(state.index, event))
            case ev.Finished() | ev.Rejected():
                return self._gone(state, event.request_id, event.client)
            case ev.Cancelled():
                state = self._settled(state, event.client, -event.uncomputed_tokens if event.was_running else 0)
                return self._gone(state, event.request_id, event.client)
            case ev.ClientConfigured():
                return replace(state, gate=self.gate.configured(state.gate, event.client, event.weight))
            case ev.WorkerLeft() | ev.WorkerJoined():
                return self._without(state, event)
            case _:
                return state

    def _comes(self, state: CentralState, request: Request) -> CentralState:
        if request.id in state.sent:
            state = self._gone(state, request.id, request.client)
        queue = state.waiting.get(request.client, ())
        gate = self.gate.joined(state.gate, request.client, NO_HEADS, bool(queue))
        return replace(state, gate=gate, waiting=state.waiting.set(request.client, (*queue, request)))

    def _admitted(self, state: CentralState, event: ev.Admitted) -> CentralState:
        """Take what was kept free, and charge what was computed otherwise than planned, or all of it if it is computed
        again."""
        sent = state.sent[event.request_id]
        planned = sent.extend_tokens if sent.kv_tokens else 0
        state = self._settled(_released(state, sent), event.client, event.extend_tokens - planned)
        return replace(state, sent=state.sent.set(event.request_id, replace(sent, kv_tokens=0)))

    def _settled(self, state: CentralState, client: int, extend_tokens: int) -> CentralState:
        return replace(state, gate=self.gate.settled(state.gate, client, extend_tokens, NO_HEADS))

    def _gone(self, state: CentralState, request_id: int, client: int) -> CentralState:
        """Forget a request that is over, or back: what it was charged and never entered with is given back."""
        sent = state.sent.get(request_id)
        if sent is None:
            queue = state.waiting.get(client, ())
            left = next((request for request in queue if request.id == request_id), None)
            return state if left is None else _unqueued(state, left)
        if sent.kv_tokens:
            state = self._settled(_released(state, sent), client, -sent.extend_tokens)
        return replace(state, sent=state.sent.delete(request_id))

    def _without(self, state: CentralState, event: ev.WorkerLeft | ev.WorkerJoined) -> CentralState:
        """Forget what was sent there, since it comes again by itself."""
        for request_id in sorted(i for i, sent in state.sent.items() if sent.worker == event.worker):
            state = self._gone(state, request_id, state.sent[request_id].request.client)
        return replace(state, index=followed(state.index, event))

    def check(self, state: CentralState) -> None:
        self.gate.check(state.gate)
        state.index.check()
        # Every waiting client has a request, and no request that was sent waits.
        waiting = [request.id for queue in state.waiting.values() for request in queue]
        assert all(state.waiting.values())
        assert len(waiting) == len(set(waiting) - set(state.sent))
        # Memory is kept free for exactly what was sent and has not entered.
        kept = Counter[int]()
        for sent in state.sent.values():
            kept[sent.worker] += sent.kv_tokens
        assert {w: tokens for w, tokens in kept.items() if tokens} == dict(state.kept_free)


def _unqueued(state: CentralState, request: Request) -> CentralState:
    queue = tuple(each for each in state.waiting[request.client] if each.id != request.id)
    waiting = state.waiting.set(request.client, queue) if queue else state.waiting.delete(request.client)
    return replace(state, waiting=waiting)


def _released(state: CentralState, sent: CentralRequest) -> CentralState:
    """Release the memory that was kept free for it."""
    if not sent.kv_tokens:
        return state
    left = state.kept_free[sent.worker] - sent.kv_tokens
    kept = state.kept_free.set(sent.worker, left) if left else state.kept_free.delete(sent.worker)
    return replace(state, kept_free=kept)
