"""Split phases: one router chooses the worker that computes a prompt, another the worker that decodes the output.

Any two routers make a cluster policy.  An arrival goes to a worker of role *prefill* or *both*, which keeps it until
its first token is out; then it is *staged*, and goes with its KV to a worker of role *decode* or *both*.  The target
reserves memory before anything is sent and takes transfers in their order, so KV is pulled, and the source's memory is
the buffer.

What happens when a phase has no worker, or one fails:

- without workers for decode, or with one worker for all, a request stays where its prompt is computed;
- without workers for prefill, prompts are computed by the workers for decode;
- a staged request that no worker for decode could hold goes on where it is;
- a transfer that failed is sent again, perhaps elsewhere; a request whose KV is lost starts with its prompt again.

So no request waits for a worker that is not there.  Both routers observe all events and see the workers of their phase
only.  What the second one wants to move among those moves; the first is asked to place, never to move, since a request
that leaves a worker before its first token would forget that it is to be handed over.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import attrs
import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model.events import (
    NOWHERE,
    Arrived,
    Cancelled,
    Event,
    Finished,
    Migrated,
    Rejected,
    TransferFailed,
    TransferStarted,
    WorkerLeft,
)
from fairsched.model.latency import LatencyModel
from fairsched.model.plan import ClusterPlan, Dispatch, Migration
from fairsched.model.request import Request
from fairsched.model.theorem import Assumption
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies.base import AnyRouter, Router
from fairsched.policies.routers.load_based import JoinShortestQueue
from fairsched.policies.validators import one_of

First = TypeVar("First")
Second = TypeVar("Second")
Reserve = Literal["static", "optimistic"]
Pool = tuple[WorkerLoad, ...]


class Handover(msgspec.Struct, frozen=True, gc=False):
    """A request from its dispatch until it has arrived where it decodes.

    With its first token it is staged at `source`, and then has `generated_tokens`.  When it is sent to `target`, it
    needs `owed_tokens` of memory there until they are reserved.
    """

    request: Request
    source: int = NOWHERE
    generated_tokens: int = 0
    target: int = NOWHERE
    owed_tokens: int = 0


class PhasesState(msgspec.Struct, Generic[First, Second], frozen=True):
    """The routers' own states, requests by id until they are where they decode, and which of them are staged and not
    sent, in the order in which they were staged.

    `owed` says by worker how many transfers wait there for memory, and for how much.  Until `asks_ns` the second router
    is not asked what it would move.
    """

    prefill: First
    decode: Second
    handovers: Map[int, Handover] = Map()
    staged: tuple[int, ...] = ()
    owed: Map[int, tuple[int, int]] = Map()
    asks_ns: int = 0


AnyState = PhasesState[Any, Any]


@attrs.frozen
class SplitPhases(Router[AnyState]):
    """Prompts where `prefill` says, outputs where `decode` says.

    An event costs O(1) and `decide` O(workers for each request that is staged), beside what the two routers cost.
    """

    name: ClassVar[str] = "split-phases"
    state_type: ClassVar[Any] = PhasesState

    prefill: AnyRouter = attrs.field(factory=JoinShortestQueue, metadata={"text": False})
    """The router of requests that come, among workers that compute prompts."""
    decode: AnyRouter = attrs.field(factory=JoinShortestQueue, metadata={"text": False})
    """The router of requests with a first token, among workers that decode."""
    reserve: Reserve = attrs.field(default="static", validator=one_of("static", "optimistic"))
    """What a transfer reserves at its target beside its KV: room for the rest of the longest output, or none."""

    @property
    def document_type(self) -> Any:
        return PhasesState[self.prefill.document_type, self.decode.document_type]  # type: ignore[name-defined]

    @property
    def follows_decoding(self) -> bool:  # type: ignore[override]
        """Whether one of the two wants to know."""
        return self.prefill.follows_decoding or self.decode.follows_decoding

    @property
    def broken_assumptions(self) -> frozenset[Assumption]:
        return self.prefill.broken_assumptions | self.decode.broken_assumptions

    def fitted(self, latency: LatencyModel) -> Self:
        return attrs.evolve(self, prefill=self.prefill.fitted(latency), decode=self.decode.fitted(latency))

    def informed(self, requests: Sequence[Request], workers: int) -> Self:
        prefill, decode = (router.informed(requests, workers) for router in (self.prefill, self.decode))
        return attrs.evolve(self, prefill=prefill, decode=decode)

    def init(self) -> AnyState:
        return PhasesState(self.prefill.init(), self.decode.init())

    def pools(self, view: ClusterView) -> tuple[Pool, Pool]:
        """Return the workers that compute prompts, and those that decode.  O(workers)."""
        computing = tuple([load for load in view.workers if load.role != "decode"])
        decoding = tuple([load for load in view.workers if load.role != "prefill"])
        return computing, decoding

    # --- decisions --------------------------------------------------------------------------------------------------

    def route(self, state: AnyState, request: Request, view: ClusterView) -> tuple[Dispatch, AnyState]:
        """Send a request to its prompt's worker; one that was placed before begins again."""
        computing, decoding = self.pools(view)
        state = _without(state, request.id)
        pool = computing or decoding
        splits = bool(computing and decoding) and len(view.workers) > 1
        dispatch, prefill = self.prefill.route(state.prefill, request, replace(view, workers=pool))
        handovers = state.handovers.set(request.id, Handover(request)) if splits else state.handovers
        state = replace(state, prefill=prefill, handovers=handovers)
        return Dispatch(request.id, dispatch.worker, prefill_only=splits), state

    def decide(self, state: AnyState, view: ClusterView) -> tuple[ClusterPlan, AnyState]:
        """Hand over what is staged, the first to be staged first, and ask the second router what it would move."""
        _, decoding = self.pools(view)
        migrations = []
        if state.staged:
            # What a worker is about to get it has not reported; so the requests of one batch spread.
            loads = {load.worker: _with(load, *state.owed.get(load.worker, (0, 0))) for load in decoding}
            for request_id in state.staged:
                migration, state = self._handed_over(state, request_id, loads, view)
                migrations.append(migration)
            state = replace(state, staged=())
        moved, state = self._moved(state, view, decoding)
        return ClusterPlan((), (*migrations, *moved)), state

    def _handed_over(
        self, state: AnyState, request_id: int, loads: dict[int, WorkerLoad], view: ClusterView
    ) -> tuple[Migration, AnyState]:
        """Return the transfer of a staged request to where it decodes; that may be where it is."""
        handover = state.handovers[request_id]
        request, done, source = handover.request, handover.generated_tokens, handover.source
        output = max(request.max_output_tokens - done, 0) if self.reserve == "static" else 0
        whole = request.prompt.tokens + request.max_output_tokens
        able = tuple([load for load in loads.values() if load.kv_capacity_tokens >= whole])
        target, decode = source, state.decode
        if able:
            dispatch, decode = self.decode.route(decode, request, replace(view, workers=able))
            target = dispatch.worker
        migration = Migration(request_id, source, target, with_kv=True, reserved_output_tokens=output)
        if target == source:
            return migration, _without(replace(state, decode=decode), request_id)
        # The KV of the last token is not computed yet.
        tokens = request.prompt.tokens + done - 1 + output
        loads[target] = _with(loads[target], 1, tokens)
        state = _owing(state, target, 1, tokens)
        handovers = state.handovers.set(request_id, replace(handover, target=target, owed_tokens=tokens))
        return migration, replace(state, decode=decode, handovers=handovers)

    def _moved(self, state: AnyState, view: ClusterView, decoding: Pool) -> tuple[tuple[Migration, ...], AnyState]:
        """Return the moves among workers that decode, in the second router's rhythm; none of a request that is on its
        way there."""
        if type(self.decode).decide is Router.decide or not decoding or view.now_ns < state.asks_ns:
            return (), state
        plan, decode = self.decode.decide(state.decode, replace(view, workers=decoding))
        moves = tuple(move for move in plan.migrations if move.request_id not in state.handovers)
        asks_ns = view.now_ns + (self.decode.decide_every_us or 0) * 1_000
        return moves, replace(state, decode=decode, asks_ns=asks_ns)

    # --- events -----------------------------------------------------------------------------------------------------

    def observe(self, state: AnyState, event: Event) -> AnyState:
        prefill, decode = self.prefill.observe(state.prefill, event), self.decode.observe(state.decode, event)
        if prefill is not state.prefill or decode is not state.decode:
            state = replace(state, prefill=prefill, decode=decode)
        match event:
            case Migrated() if event.kv_tokens:
                handover = state.handovers.get(event.request_id)
                if handover is not None and handover.target == NOWHERE:
                    staged = replace(handover, source=event.worker, generated_tokens=event.generated_tokens)
                    return _staged(state, staged)
            case TransferStarted():
                handover = state.handovers.get(event.request_id)
                if handover is not None and handover.target == event.target:
                    return _settled(state, handover)
            case TransferFailed():
                handover = state.handovers.get(event.request_id)
                if handover is not None and handover.target == event.target:
                    return _staged(state, handover)
            case Arrived():
                handover = state.handovers.get(event.request.id)
                if handover is not None and handover.target == event.worker:
                    return _without(state, event.request.id)
            case Finished() | Cancelled() | Rejected():
                return _without(state, event.request_id)
            case WorkerLeft():
                return _bereft(state, event.worker)
        return state

    def check(self, state: AnyState) -> None:
        self.prefill.check(state.prefill)
        self.decode.check(state.decode)
        # What is staged is known, once, with its place and its tokens, and is not sent.
        assert len(set(state.staged)) == len(state.staged)
        for request_id in state.staged:
            handover = state.handovers[request_id]
            assert handover.source != NOWHERE
            assert handover.target == NOWHERE
            assert handover.generated_tokens > 0
        # What is sent was staged, and leaves its worker; what it needs there is owed until it is reserved.
        owed: dict[int, tuple[int, int]] = {}
        for request_id, handover in state.handovers.items():
            assert handover.request.id == request_id
            assert handover.target == NOWHERE or handover.source not in (NOWHERE, handover.target)
            if handover.owed_tokens:
                requests, tokens = owed.get(handover.target, (0, 0))
                owed[handover.target] = requests + 1, tokens + handover.owed_tokens
        assert owed == dict(state.owed)
        assert NOWHERE not in owed


def _with(load: WorkerLoad, requests: int, tokens: int) -> WorkerLoad:
    """A worker's load with requests that are about to come, and the memory that they take."""
    if not requests:
        return load
    waiting, free = load.waiting_requests + requests, load.kv_free_tokens - tokens
    return replace(load, waiting_requests=waiting, kv_free_tokens=free)


def _owing(state: AnyState, worker: int, requests: int, tokens: int) -> AnyState:
    """So many more requests (or fewer) wait for memory at a worker."""
    requests_before, tokens_before = state.owed.get(worker, (0, 0))
    requests, tokens = requests_before + requests, tokens_before + tokens
    owed = state.owed.set(worker, (requests, tokens)) if requests else state.owed.delete(worker)
    return replace(state, owed=owed)


def _settled(state: AnyState, handover: Handover) -> AnyState:
    """Nothing is owed to the request any more: its memory is reserved, or it does not go there."""
    if not handover.owed_tokens:
        return state
    state = _owing(state, handover.target, -1, -handover.owed_tokens)
    settled = replace(handover, owed_tokens=0)
    return replace(state, handovers=state.handovers.set(handover.request.id, settled))


def _staged(state: AnyState, handover: Handover) -> AnyState:
    """The request waits to be sent."""
    request_id = handover.request.id
    state = _settled(state, handover)
    staged = state.staged if request_id in state.staged else (*state.staged, request_id)
    handovers = state.handovers.set(request_id, replace(handover, target=NOWHERE, owed_tokens=0))
    return replace(state, handovers=handovers, staged=staged)


def _without(state: AnyState, request_id: int) -> AnyState:
    """The request is handed over, or over."""
    handover = state.handovers.get(request_id)
    if handover is None:
        return state
    state = _settled(state, handover)
    staged = state.staged
    if request_id in staged:
        staged = tuple(each for each in staged if each != request_id)
    return replace(state, handovers=state.handovers.delete(request_id), staged=staged)


def _bereft(state: AnyState, worker: int) -> AnyState:
    """What was staged at a worker that left is gone, and what was on its way there is staged.  O(handovers)."""
    for request_id, handover in sorted(state.handovers.items()):
        if handover.source == worker:
            state = _without(state, request_id)
        elif handover.target == worker:
            state = _staged(state, handover)
    return state
