"""TetriInfer: prompts where the fewest tokens wait, outputs by their mix of heavy and light, and workers that flip.

Paper: "Inference without Interference: Disaggregate LLM Inference for Mixed Downstream Workloads" (TetriInfer, 2024).
A request goes to the prefill worker with the fewest tokens that wait.  Once its first chunk is computed the dispatcher
names the worker that decodes it (`heavy_light`), so that the KV of each chunk is sent while the next is computed.
Idle workers flip to the phase that has load (`flips`).  Its schedulers within a worker are the local policy
`tetriinfer`.

The paper sends KV as soon as there is some.  Where memory is short, KV that waits then takes the room into which
running outputs were to grow, and a worker may come to decode one request at a time beside dozens that wait; so here a
worker takes the KV of one more only when none waits (`pull`).
"""

from typing import Any, ClassVar, Literal, TypeAlias, get_args

import attrs
from msgspec.structs import replace

from fairsched.model.events import Event, Prefilled, WorkerLeft
from fairsched.model.plan import ClusterPlan, Dispatch, Migration
from fairsched.model.request import Request
from fairsched.model.theorem import Theorem
from fairsched.model.view import ClusterView
from fairsched.policies.base import AnyRouter
from fairsched.policies.routers.load_based import NoRouterState
from fairsched.policies.routers.phases.distserve import ShortestPromptQueue
from fairsched.policies.routers.phases.flips import (
    NO_FLIPS,
    P_TI_4,
    P_TI_5,
    Flips,
    advanced,
    as_they_serve,
    without_worker,
)
from fairsched.policies.routers.phases.heavy_light import Counts, HeavyLight, MixState
from fairsched.policies.routers.phases.split import PhasesState, Reserve, SplitPhases
from fairsched.policies.validators import not_negative, one_of, percent, positive


def _dispatcher(policy: "TetriInfer") -> HeavyLight:
    """Return the router of outputs, with the parameters of the whole."""
    return HeavyLight(policy.heavy_tokens, policy.counts, policy.bucket_tokens, policy.seed)


_DISPATCHER = attrs.Factory(_dispatcher, takes_self=True)


Pull = Literal["greedy", "one", "room"]


class TetriState(PhasesState[NoRouterState, MixState], frozen=True):
    """The state of split phases, and the roles of workers."""

    prefill: NoRouterState = NoRouterState()
    decode: MixState = MixState()
    flips: Flips = NO_FLIPS


AnyState: TypeAlias = Any
"""A `TetriState`, where the base class says only that it is a state of split phases."""


@attrs.frozen
class TetriInfer(SplitPhases):
    """The fewest tokens that wait, then of two workers the one with fewer heavy outputs; idle workers flip.

    As `split-phases`; a decision costs O(workers) more.
    """

    name: ClassVar[str] = "tetriinfer"
    state_type: ClassVar[Any] = TetriState
    theorems: ClassVar[tuple[Theorem, ...]] = (P_TI_4, P_TI_5)

    reserve: Reserve = attrs.field(default="optimistic", validator=one_of("static", "optimistic"))
    """What a transfer reserves at its target beside its KV: none, since the worker's own scheduler admits."""
    pull: Pull = attrs.field(default="one", validator=one_of(*get_args(Pull)))
    """When a worker takes the KV of a request: at once, if no other one waits there, or if it has room for the peaks of
    all that were sent there."""
    heavy_tokens: int = attrs.field(default=128, validator=positive)
    """An output that is foreseen to be longer is heavy."""
    counts: Counts = attrs.field(default="upper", validator=one_of("upper", "lower"))
    """Which end of a predicted range counts; a prediction is its upper end."""
    bucket_tokens: int = attrs.field(default=200, validator=positive)
    """How long a range is, where the lower end counts."""
    seed: int = attrs.field(default=0, validator=not_negative)
    """Seed of the draws."""
    flip_after_us: int = attrs.field(default=60_000_000, validator=not_negative)
    """A worker flips when it has had little load for so long."""
    flip_percent: int = attrs.field(default=0, validator=percent)
    """What is little load: at most this share of the memory in use or waited for; 0: nothing to do at all."""
    switch_us: int = attrs.field(default=6_000, validator=not_negative)
    """How long a drained worker takes to switch."""
    prefill: AnyRouter = attrs.field(factory=ShortestPromptQueue, init=False, metadata={"text": False})
    decode: AnyRouter = attrs.field(default=_DISPATCHER, init=False, metadata={"text": False})

    @property
    def document_type(self) -> Any:
        return TetriState

    def init(self) -> AnyState:
        return TetriState()

    def fitted(self, latency: Any) -> "TetriInfer":
        return self

    def informed(self, requests: Any, workers: int) -> "TetriInfer":
        return self

    # --- decisions --------------------------------------------------------------------------------------------------

    def route(self, state: AnyState, request: Request, view: ClusterView) -> tuple[Dispatch, AnyState]:
        return super().route(state, request, self._serving(state, view))

    def decide(self, state: AnyState, view: ClusterView) -> tuple[ClusterPlan, AnyState]:
        flips = advanced(
            state.flips,
            view.workers,
            view.now_ns,
            self.flip_percent,
            self.flip_after_us * 1_000,
            self.switch_us * 1_000,
        )
        if flips is not state.flips:
            state = replace(state, flips=flips)
        serving = self._serving(state, view)
        return super().decide(_without_early_at_home(state, serving), serving)

    def _serving(self, state: AnyState, view: ClusterView) -> ClusterView:
        """Return the view without workers that flip, and with the roles of the others; all if it would be empty."""
        workers = as_they_serve(state.flips, view.workers)
        return replace(view, workers=workers) if workers and workers != view.workers else view

    def _handed_over(self, state: AnyState, request_id: int, view: ClusterView) -> tuple[Migration | None, AnyState]:
        early = state.handovers.requests[request_id].early
        migration, after = super()._handed_over(state, request_id, view)
        if migration is None or not self._pulled(state, after, migration, view):
            return None, state
        if early and migration.target == migration.source:
            # It cannot go on where it is before its first token is out.
            return None, state
        return replace(migration, overlap="chunks"), after

    def _pulled(self, before: AnyState, after: AnyState, migration: Migration, view: ClusterView) -> bool:
        """Return whether the target takes the request's KV now.  O(requests between the phases)."""
        target = migration.target
        load = next((load for load in view.workers if load.worker == target), None)
        if self.pull == "greedy" or target == migration.source or load is None:
            return True
        if self.pull == "room":
            return bool(after.decode.mixes[target].tokens <= load.kv_capacity_tokens)
        on_the_way = any(handover.target == target for handover in before.handovers.requests.values())
        return not (load.waiting_requests or on_the_way)

    # --- events -----------------------------------------------------------------------------------------------------

    def observe(self, state: AnyState, event: Event) -> AnyState:
        state = super().observe(state, event)
        match event:
            case Prefilled() if event.remaining_tokens:
                handovers = state.handovers.begun(event.request_id, event.worker, event.time_ns)
                return state if handovers is state.handovers else replace(state, handovers=handovers)
            case WorkerLeft():
                return replace(state, flips=without_worker(state.flips, event.worker))
        return state


def _without_early_at_home(state: AnyState, view: ClusterView) -> AnyState:
    """Return the state in which requests whose worker may itself decode them wait for their first token."""
    able = {load.worker for load in view.workers if load.role != "prefill"}
    handovers = state.handovers
    for request_id in handovers.staged:
        handover = handovers.requests[request_id]
        if handover.early and handover.source in able:
            handovers = handovers.postponed(request_id)
    return state if handovers is state.handovers else replace(state, handovers=handovers)


@attrs.frozen
class TetriInferPrinted(TetriInfer):
    """As printed: the lower end of a predicted range counts, outputs of more than 512 tokens are heavy, KV is sent at
    once, and workers flip when their load is below 10 %.  For comparison, with `tetriinfer-printed` on the workers."""

    name: ClassVar[str] = "tetriinfer-printed"

    counts: Counts = attrs.field(default="lower", validator=one_of("upper", "lower"))
    pull: Pull = attrs.field(default="greedy", validator=one_of(*get_args(Pull)))
    heavy_tokens: int = attrs.field(default=512, validator=positive)
    flip_percent: int = attrs.field(default=10, validator=percent)
    decode: AnyRouter = attrs.field(default=_DISPATCHER, init=False, metadata={"text": False})
