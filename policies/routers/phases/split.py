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

**Handovers** are requests between two phases: from their dispatch to a worker that only computes the prompt until they
have arrived where they decode.

A value that any policy may keep in its state.  It follows the facts: a request is *staged* when its first token is out,
*sent* when the policy named a target, and forgotten when it is there, or over.  A transfer that failed makes a request
staged again, unless its KV is lost: then an engine places it anew.  An event costs O(1), but of workers that drain
or leave O(requests between two phases).
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar

import attrs
import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model import events as ev
from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch, Migration, WorkerLoad
from fairsched.model.events import Event
from fairsched.model.machine import LatencyModel
from fairsched.model.request import Request
from fairsched.model.theorem import Assumption
from fairsched.policies.base import AnyRouter, Router
from fairsched.policies.routers.load_based import JoinShortestQueue
from fairsched.policies.validators import one_of

# --- handovers --------------------------------------------------------------------------------------------------------


class Handover(msgspec.Struct, frozen=True, gc=False):
    """A request from its dispatch until it has arrived where it decodes.

    With its first token it is staged at `source` since `since_ns`, and then has `generated_tokens`.  When it is sent to
    `target`, it needs `owed_tokens` of memory there until they are reserved.  An `early` one still computes its prompt.
    """

    request: Request
    source: int = ev.NOWHERE
    generated_tokens: int = 0
    since_ns: int = 0
    target: int = ev.NOWHERE
    owed_tokens: int = 0
    early: bool = False

    @property
    def kv_tokens(self) -> int:
        """KV of a staged request: that of its last token is not computed yet."""
        return self.request.prompt.tokens + self.generated_tokens - 1

    @property
    def output_tokens_left(self) -> int:
        """How much more a staged request may produce."""
        return max(self.request.max_output_tokens - self.generated_tokens, 0)


class Handovers(msgspec.Struct, frozen=True):
    """Requests by id, those of them that are staged and not sent in the order in which they were staged, and by worker
    how many transfers wait there for memory, and for how much."""

    requests: Map[int, Handover] = Map()
    staged: tuple[int, ...] = ()
    owed: Map[int, tuple[int, int]] = Map()

    # --- what a policy decides --------------------------------------------------------------------------------------

    def dispatched(self, request: Request) -> "Handovers":
        """Return a copy with a request that goes to a worker for its prompt; one that was known begins again."""
        return _with(self.without(request.id), Handover(request))

    def begun(self, request_id: int, worker: int, now_ns: int) -> "Handovers":
        """Return a copy with a request that may be sent while its prompt is computed: it is staged as if it had its
        first token.

        Itself if the request is not known, or is further already.
        """
        handover = self.requests.get(request_id)
        if handover is None or handover.source != ev.NOWHERE:
            return self
        return _staged(self, replace(handover, source=worker, generated_tokens=1, since_ns=now_ns, early=True))

    def postponed(self, request_id: int) -> "Handovers":
        """Return a copy with an early request as not to be sent before it has its first token."""
        handover = self.requests[request_id]
        return _with(_unstaged(self, request_id), Handover(handover.request))

    def sent(self, request_id: int, target: int, reserved_tokens: int) -> "Handovers":
        """Return a copy with a staged request on its way to a target, where so many tokens are to be reserved beside
        its KV."""
        handover = self.requests[request_id]
        if target == handover.source:
            # A request that goes on where it is has arrived.
            return self.without(request_id)
        tokens = handover.kv_tokens + reserved_tokens
        after = _owing(_unstaged(self, request_id), target, 1, tokens)
        return _with(after, replace(handover, target=target, owed_tokens=tokens))

    def without(self, request_id: int) -> "Handovers":
        """Return a copy without a request."""
        handover = self.requests.get(request_id)
        if handover is None:
            return self
        after = _settled(_unstaged(self, request_id), handover)
        return replace(after, requests=after.requests.delete(request_id))

    def expected(self, load: WorkerLoad) -> WorkerLoad:
        """Return a worker's load with the transfers that wait there for memory, of which it does not know."""
        requests, tokens = self.owed.get(load.worker, (0, 0))
        if not requests:
            return load
        waiting, free = load.waiting_requests + requests, load.kv_free_tokens - tokens
        return replace(load, waiting_requests=waiting, kv_free_tokens=free)

    # --- what happens -----------------------------------------------------------------------------------------------

    def observed(self, event: ev.Event) -> "Handovers":
        """Observe an event; itself if that is about no request between two phases."""
        match event:
            case ev.Migrated() if event.kv_tokens:
                handover = self.requests.get(event.request_id)
                if handover is not None and handover.target == ev.NOWHERE:
                    done, since_ns = event.generated_tokens, event.time_ns
                    return _staged(self, Handover(handover.request, event.worker, done, since_ns))
            case ev.TransferStarted():
                handover = self.requests.get(event.request_id)
                if handover is not None and handover.target == event.target:
                    return _settled(self, handover)
            case ev.TransferFailed():
                handover = self.requests.get(event.request_id)
                if handover is not None and handover.target == event.target:
                    return _staged(self, handover)
            case ev.Arrived():
                handover = self.requests.get(event.request.id)
                if handover is not None and handover.target == event.worker:
                    return self.without(event.request.id)
            case ev.Finished() | ev.Cancelled() | ev.Rejected():
                return self.without(event.request_id)
            case ev.WorkerLeft():
                return _bereft(self, event.worker)
            case ev.WorkerDraining():
                # What it has not reserved memory for does not go there, whether or not the engine has said so yet.
                return _bereft(self, event.worker, reserved=True)
        return self

    def check(self) -> None:
        """Raise `AssertionError` unless what is staged, sent and owed is what the requests say."""
        # What is staged is known, once, with its place and its tokens, and is not sent.
        assert len(set(self.staged)) == len(self.staged)
        for request_id in self.staged:
            handover = self.requests[request_id]
            assert handover.source != ev.NOWHERE
            assert handover.target == ev.NOWHERE
            assert handover.generated_tokens > 0
        # What is sent was staged, and leaves its worker; what it needs there is owed until it is reserved.
        owed: dict[int, tuple[int, int]] = {}
        for request_id, handover in self.requests.items():
            assert handover.request.id == request_id
            assert handover.target == ev.NOWHERE or handover.source not in (ev.NOWHERE, handover.target)
            assert (handover.source == ev.NOWHERE) == (handover.target == ev.NOWHERE and request_id not in self.staged)
            if handover.owed_tokens:
                requests, tokens = owed.get(handover.target, (0, 0))
                owed[handover.target] = requests + 1, tokens + handover.owed_tokens
        assert owed == dict(self.owed)
        assert ev.NOWHERE not in owed


NO_HANDOVERS = Handovers()


def _with(handovers: Handovers, handover: Handover) -> Handovers:
    return replace(handovers, requests=handovers.requests.set(handover.request.id, handover))


def _unstaged(handovers: Handovers, request_id: int) -> Handovers:
    if request_id not in handovers.staged:
        return handovers
    return replace(handovers, staged=tuple(each for each in handovers.staged if each != request_id))


def _owing(handovers: Handovers, worker: int, requests: int, tokens: int) -> Handovers:
    """Count so many more requests (or fewer) that wait for memory at a worker."""
    requests_before, tokens_before = handovers.owed.get(worker, (0, 0))
    requests, tokens = requests_before + requests, tokens_before + tokens
    owed = handovers.owed.set(worker, (requests, tokens)) if requests else handovers.owed.delete(worker)
    return replace(handovers, owed=owed)


def _settled(handovers: Handovers, handover: Handover) -> Handovers:
    """Settle what is owed to the request: its memory is reserved, or it does not go there."""
    if not handover.owed_tokens:
        return handovers
    handovers = _owing(handovers, handover.target, -1, -handover.owed_tokens)
    return _with(handovers, replace(handover, owed_tokens=0))


def _staged(handovers: Handovers, handover: Handover) -> Handovers:
    """Let the request wait to be sent, behind those that wait already."""
    request_id = handover.request.id
    handovers = _with(_settled(handovers, handover), replace(handover, target=ev.NOWHERE, owed_tokens=0))
    if request_id in handovers.staged:
        return handovers
    return replace(handovers, staged=(*handovers.staged, request_id))


def _bereft(handovers: Handovers, worker: int, reserved: bool = False) -> Handovers:
    """Forget what was staged at a worker that left, and stage what was on its way there.

    With `reserved` the worker drains: it keeps what it has, and what it has reserved memory for.
    """
    for request_id, handover in sorted(handovers.requests.items()):
        if handover.source == worker and not reserved:
            handovers = handovers.without(request_id)
        elif handover.target == worker and (handover.owed_tokens or not reserved):
            handovers = _staged(handovers, handover)
    return handovers


First = TypeVar("First")
Second = TypeVar("Second")
Reserve = Literal["static", "optimistic"]
Pool = tuple[WorkerLoad, ...]


class PhasesState(msgspec.Struct, Generic[First, Second], frozen=True):
    """The routers' own states, and the requests between the two; until `asks_ns` the second router is not asked what it
    would move."""

    prefill: First
    decode: Second
    handovers: Handovers = NO_HANDOVERS
    asks_ns: int = 0


AnyState: TypeAlias = Any
"""A `PhasesState` of two routers, or of a subclass that keeps more."""


@attrs.frozen
class SplitPhases(Router[AnyState]):
    """Prompts where `prefill` says, outputs where `decode` says.

    An event costs O(1) and `decide` O(workers for each request that is staged), beside what the two routers cost.
    """

    name: ClassVar[str] = "split-phases"
    state_type: ClassVar[Any] = PhasesState
    splits_phases: ClassVar[bool] = True

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
        pool = computing or decoding
        splits = bool(computing and decoding) and len(view.workers) > 1
        dispatch, prefill = self.prefill.route(state.prefill, request, replace(view, workers=pool))
        handovers = state.handovers.dispatched(request) if splits else state.handovers.without(request.id)
        state = replace(state, prefill=prefill, handovers=handovers)
        return Dispatch(request.id, dispatch.worker, prefill_only=splits), state

    def decide(self, state: AnyState, view: ClusterView) -> tuple[ClusterPlan, AnyState]:
        """Hand over what is staged, the first to be staged first, and ask the second router what it would move."""
        _, decoding = self.pools(view)
        migrations = []
        for request_id in state.handovers.staged:
            migration, after = self._handed_over(state, request_id, replace(view, workers=decoding))
            if migration is None:
                break
            migrations.append(migration)
            state = after
        moved, state = self._moved(state, view, decoding)
        return ClusterPlan((), (*migrations, *moved)), state

    def accepts(self, load: WorkerLoad, handover: Handover) -> bool:
        """Return whether a worker for decode is sent a request now; if not, all that are staged wait."""
        return True

    def _handed_over(self, state: AnyState, request_id: int, view: ClusterView) -> tuple[Migration | None, AnyState]:
        """Return the transfer of a staged request to where it decodes; that may be where it is."""
        handover = state.handovers.requests[request_id]
        request, target, decode = handover.request, handover.source, state.decode
        whole = request.prompt.tokens + request.max_output_tokens
        # What a worker is about to get it has not reported, and the requests of one batch are to spread.
        able = [state.handovers.expected(load) for load in view.workers if load.kv_capacity_tokens >= whole]
        if able:
            dispatch, decode = self.decode.route(decode, request, replace(view, workers=tuple(able)))
            target = dispatch.worker
            chosen = next(load for load in able if load.worker == target)
            if target != handover.source and not self.accepts(chosen, handover):
                return None, state
        output = handover.output_tokens_left if self.reserve == "static" else 0
        handovers = state.handovers.sent(request_id, target, output)
        migration = Migration(request_id, handover.source, target, with_kv=True, reserved_output_tokens=output)
        return migration, replace(state, decode=decode, handovers=handovers)

    def _moved(self, state: AnyState, view: ClusterView, decoding: Pool) -> tuple[tuple[Migration, ...], AnyState]:
        """Return the moves among workers that decode, in the second router's rhythm; none of a request that is on its
        way there."""
        if type(self.decode).decide is Router.decide or not decoding or view.now_ns < state.asks_ns:
            return (), state
        plan, decode = self.decode.decide(state.decode, replace(view, workers=decoding))
        moves = tuple(move for move in plan.migrations if move.request_id not in state.handovers.requests)
        asks_ns = view.now_ns + (self.decode.decide_every_us or 0) * 1_000
        return moves, replace(state, decode=decode, asks_ns=asks_ns)

    # --- events -----------------------------------------------------------------------------------------------------

    def observe(self, state: AnyState, event: Event) -> AnyState:
        prefill, decode = self.prefill.observe(state.prefill, event), self.decode.observe(state.decode, event)
        handovers = state.handovers.observed(event)
        if prefill is state.prefill and decode is state.decode and handovers is state.handovers:
            return state
        return replace(state, prefill=prefill, decode=decode, handovers=handovers)

    def check(self, state: AnyState) -> None:
        self.prefill.check(state.prefill)
        self.decode.check(state.decode)
        state.handovers.check()
