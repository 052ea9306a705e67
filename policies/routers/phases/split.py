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
from typing import Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar

import attrs
import msgspec
from msgspec.structs import replace

from fairsched.model.events import Event
from fairsched.model.latency import LatencyModel
from fairsched.model.plan import ClusterPlan, Dispatch, Migration
from fairsched.model.request import Request
from fairsched.model.theorem import Assumption
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies.base import AnyRouter, Router
from fairsched.policies.routers.load_based import JoinShortestQueue
from fairsched.policies.routers.phases.handover import NO_HANDOVERS, Handover, Handovers
from fairsched.policies.validators import one_of

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
