"""TetriInfer: prompts where the fewest tokens wait, outputs by their mix of heavy and light, and workers that flip.

Paper: "Inference without Interference: Disaggregate LLM Inference for Mixed Downstream Workloads" (TetriInfer, 2024).
A request goes to the prefill worker with the fewest tokens that wait.  Once its first chunk is computed the dispatcher
names the worker that decodes it (`heavy_light`), so that the KV of each chunk is sent while the next is computed.
Idle workers flip to the phase that has load (`flips`).  Its schedulers within a worker are the local policy
`tetriinfer`.
"""

from typing import Any, ClassVar, Generic, TypeVar

import attrs
from msgspec.structs import replace

from fairsched.model.events import Event, Prefilled, WorkerLeft
from fairsched.model.plan import ClusterPlan, Dispatch, Migration
from fairsched.model.request import Request
from fairsched.model.theorem import Theorem
from fairsched.model.view import ClusterView
from fairsched.policies.base import AnyRouter
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
from fairsched.policies.routers.phases.heavy_light import Counts, HeavyLight
from fairsched.policies.routers.phases.split import PhasesState, Reserve, SplitPhases
from fairsched.policies.validators import not_negative, one_of, percent, positive

First = TypeVar("First")
Second = TypeVar("Second")


def _dispatcher(policy: "TetriInfer") -> HeavyLight:
    """Return the router of outputs, with the parameters of the whole."""
    return HeavyLight(policy.heavy_tokens, policy.counts, policy.bucket_tokens, policy.seed)


_DISPATCHER = attrs.Factory(_dispatcher, takes_self=True)


class TetriState(PhasesState[First, Second], Generic[First, Second], frozen=True):
    """The state of split phases, and the roles of workers."""

    flips: Flips = NO_FLIPS


AnyState = TetriState[Any, Any]


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
        return TetriState[self.prefill.document_type, self.decode.document_type]  # type: ignore[name-defined]

    def init(self) -> AnyState:
        return TetriState(self.prefill.init(), self.decode.init())

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
        return super().decide(state, self._serving(state, view))

    def _serving(self, state: AnyState, view: ClusterView) -> ClusterView:
        """Return the view without workers that flip, and with the roles of the others; all if it would be empty."""
        workers = as_they_serve(state.flips, view.workers)
        return replace(view, workers=workers) if workers and workers != view.workers else view

    def _handed_over(self, state: AnyState, request_id: int, view: ClusterView) -> tuple[Migration | None, AnyState]:
        migration, after = super()._handed_over(state, request_id, view)
        return None if migration is None else replace(migration, overlap="chunks"), after

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


@attrs.frozen
class TetriInferPrinted(TetriInfer):
    """As printed: the lower end of a predicted range counts, outputs of more than 512 tokens are heavy, and workers
    flip when their load is below 10 %.  For comparison, with `tetriinfer-printed` on the workers."""

    name: ClassVar[str] = "tetriinfer-printed"

    counts: Counts = attrs.field(default="lower", validator=one_of("upper", "lower"))
    heavy_tokens: int = attrs.field(default=512, validator=positive)
    flip_percent: int = attrs.field(default=10, validator=percent)
    decode: AnyRouter = attrs.field(default=_DISPATCHER, init=False, metadata={"text": False})
