"""TetriInfer: prompts where the fewest tokens wait, outputs by their mix of heavy and light, and workers that flip.

Paper: "Inference without Interference: Disaggregate LLM Inference for Mixed Downstream Workloads" (TetriInfer, 2024).
A request goes to the prefill worker with the fewest tokens that wait.  Once its first chunk is computed the dispatcher
names the worker that decodes it (`HeavyLight`), so that the KV of each chunk is sent while the next is computed.
Idle workers flip to the phase that has load (`Flips`).  Its schedulers within a worker are the local policy
`tetriinfer`.

The paper sends KV as soon as there is some.  Where memory is short, KV that waits then takes the room into which
running outputs were to grow, and a worker may come to decode one request at a time beside dozens that wait; so here a
worker takes the KV of one more only when none waits (`pull`).

**The dispatcher**: of two workers with room for a request, the one with the smaller share of heavy outputs.

Source: TetriInfer, section 3.3.  A request's output is predicted as a range.  Of the workers with enough room for it,
two are drawn, and the one with the lower ratio of heavy to light outputs wins, heavy being more than 128 tokens (more
than 512 in the paper's motivation; T4).  If no worker has room, the one with the most room gets it.

What the paper leaves open, and here: a worker's room is what is left of its memory beside the peaks of all requests
that were sent there; the ratio is the share of heavy ones after the request came, so that it is never a division by 0;
of equal shares the worker with fewer requests wins, then the lower id.  As printed the lower end of the range counts
(`counts="lower"`, T1), which lets every request be up to a bucket longer than was foreseen.

**Flips**: a worker with nothing to do for long changes from one phase to the other.

Source: TetriInfer, section 3.5.  A worker whose load is below 10 % for a minute (idle for a minute in its evaluation)
is drained, and then switches in 5 to 7 ms.  New work is blocked as soon as the flip begins.  The paper does not say
what keeps a phase from losing its last worker, nor what keeps two idle workers from changing places; here a worker
flips only if another one serves its phase, and if the other phase has load.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import attrs
import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model import events as ev
from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch, Migration, Role, WorkerLoad
from fairsched.model.request import Request
from fairsched.model.theorem import Theorem
from fairsched.policies.base import AnyRouter, Router
from fairsched.policies.draw import draw
from fairsched.policies.orders import predicted
from fairsched.policies.routers.load_based import NoRouterState
from fairsched.policies.routers.phases.distserve import ShortestPromptQueue
from fairsched.policies.routers.phases.split import PhasesState, Reserve, SplitPhases
from fairsched.policies.validators import not_negative, one_of, percent, positive

# --- flips ------------------------------------------------------------------------------------------------------------


Phase = Literal["prefill", "decode"]
OTHER: dict[Role, Phase] = {"prefill": "decode", "decode": "prefill"}

P_TI_4 = Theorem(
    "P-TI-4",
    "flips leave every phase a worker that serves it and is not on its way to the other, if each has one at first and "
    "no worker fails",
    "this library; TetriInfer does not say it",
    bound="1",
)
P_TI_5 = Theorem(
    "P-TI-5",
    "from the beginning of a flip until it ends the worker is given nothing new, of either phase",
    "TetriInfer; this library",
)


class Flip(msgspec.Struct, frozen=True, gc=False):
    """A worker on its way to phase `to`: it drains, and then serves from `ready_ns` on (None: it still drains)."""

    to: Phase
    ready_ns: int | None = None


class Flips(msgspec.Struct, frozen=True):
    """Roles that were changed, by worker; flips under way; and since when workers have had little load."""

    roles: Map[int, Phase] = Map()
    under_way: Map[int, Flip] = Map()
    since_ns: Map[int, int] = Map()


NO_FLIPS = Flips()
"""Every worker has the role that it came with."""


# --- kernels ----------------------------------------------------------------------------------------------------------


def may_flip(staying: int, waiting: int, for_ns: int, patience_ns: int) -> bool:
    """Return whether a worker may leave its phase: others stay there, the other phase has `waiting` workers with load,
    and it has had little load for long."""
    return staying >= 1 and waiting >= 1 and for_ns >= patience_ns


def flipped(serving: tuple[int, int], phase: int) -> tuple[int, int]:
    """Return how many workers serve each phase after one of `phase` (0 or 1) began to flip; it serves none until it is
    ready.

    >>> flipped((2, 3), 0)
    (1, 3)
    """
    prompts, outputs = serving
    return (prompts - 1, outputs) if phase == 0 else (prompts, outputs - 1)


def arrived(serving: tuple[int, int], phase: int) -> tuple[int, int]:
    """Return how many workers serve each phase after one became ready for `phase`."""
    prompts, outputs = serving
    return (prompts + 1, outputs) if phase == 0 else (prompts, outputs + 1)


def is_little(load: WorkerLoad, percent: int) -> bool:
    """Return whether the worker holds and waits for at most so much of its memory; 0: it has nothing at all to do."""
    tokens = load.waiting_tokens + load.kv_capacity_tokens - load.kv_free_tokens
    requests = load.waiting_requests + load.running_requests
    return 100 * tokens <= percent * load.kv_capacity_tokens and (percent > 0 or requests == 0)


# --- transitions ------------------------------------------------------------------------------------------------------


def as_they_serve(flips: Flips, loads: Iterable[WorkerLoad]) -> tuple[WorkerLoad, ...]:
    """Return the workers that take new requests, with the roles that they have now."""
    if not flips.roles and not flips.under_way:
        return tuple(loads)
    return tuple(
        replace(load, role=flips.roles[load.worker]) if load.worker in flips.roles else load
        for load in loads
        if load.worker not in flips.under_way
    )


def advanced(
    flips: Flips, loads: tuple[WorkerLoad, ...], now_ns: int, percent: int, patience_ns: int, switch_ns: int
) -> Flips:
    """Return the flips after workers that drained switch, those that are ready serve, and idle ones begin.  O(workers).

    One flip begins at a time, of the worker that has had little load for longest.
    """
    for load in loads:
        flip = flips.under_way.get(load.worker)
        if flip is None:
            continue
        if flip.ready_ns is None:
            if is_little(load, 0):
                ready = replace(flip, ready_ns=now_ns + switch_ns)
                flips = replace(flips, under_way=flips.under_way.set(load.worker, ready))
        elif flip.ready_ns <= now_ns:
            flips = Flips(flips.roles.set(load.worker, flip.to), flips.under_way.delete(load.worker), flips.since_ns)
    serving = as_they_serve(flips, loads)
    flips = _timed(flips, serving, now_ns, percent)
    return flips if flips.under_way else _begun(flips, serving, now_ns, patience_ns, switch_ns)


def without_worker(flips: Flips, worker: int) -> Flips:
    """Return the flips after a worker left; one that comes again has the role that it comes with."""
    roles, under_way, since_ns = flips.roles, flips.under_way, flips.since_ns
    if worker in roles:
        roles = roles.delete(worker)
    if worker in under_way:
        under_way = under_way.delete(worker)
    if worker in since_ns:
        since_ns = since_ns.delete(worker)
    return Flips(roles, under_way, since_ns)


def _timed(flips: Flips, serving: tuple[WorkerLoad, ...], now_ns: int, percent: int) -> Flips:
    """Return the flips with the time since when each serving worker has had little load."""
    since_ns = flips.since_ns
    for load in serving:
        little = is_little(load, percent)
        if little and load.worker not in since_ns:
            since_ns = since_ns.set(load.worker, now_ns)
        elif not little and load.worker in since_ns:
            since_ns = since_ns.delete(load.worker)
    return flips if since_ns is flips.since_ns else replace(flips, since_ns=since_ns)


def _begun(flips: Flips, serving: tuple[WorkerLoad, ...], now_ns: int, patience_ns: int, switch_ns: int) -> Flips:
    for since_ns, worker, role in sorted(
        (flips.since_ns[load.worker], load.worker, load.role) for load in serving if load.worker in flips.since_ns
    ):
        if role not in OTHER:
            continue
        staying = sum(load.role in (role, "both") for load in serving) - 1
        waiting = sum(load.role == OTHER[role] and load.worker not in flips.since_ns for load in serving)
        if may_flip(staying, waiting, now_ns - since_ns, patience_ns):
            load = next(load for load in serving if load.worker == worker)
            flip = Flip(OTHER[role], now_ns + switch_ns if is_little(load, 0) else None)
            return replace(flips, under_way=flips.under_way.set(worker, flip), since_ns=flips.since_ns.delete(worker))
    return flips


# --- dispatcher -------------------------------------------------------------------------------------------------------


Counts = Literal["upper", "lower"]


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A request that was sent to a worker, with the most that it is foreseen to hold there, and whether it is heavy."""

    worker: int
    tokens: int
    heavy: bool


class Mix(msgspec.Struct, frozen=True, gc=False):
    """A worker's requests, how many of them are heavy, and the most that they are foreseen to hold, in tokens."""

    requests: int = 0
    heavy: int = 0
    tokens: int = 0

    def plus(self, sent: Sent, count: int) -> "Mix":
        return Mix(self.requests + count, self.heavy + count * sent.heavy, self.tokens + count * sent.tokens)


EMPTY = Mix()


class MixState(msgspec.Struct, frozen=True):
    """How many numbers were drawn, the requests that were sent, and the mix of each worker."""

    drawn: int = 0
    sent: Map[int, Sent] = Map()
    mixes: Map[int, Mix] = Map()


def lighter(first: Mix, second: Mix, heavy: int) -> int:
    """Return which of two workers has the smaller share of heavy outputs with one more request: below 0 the first,
    above 0 the second, 0 neither.  Exact, by cross multiplication."""
    one, other = first.heavy + heavy, second.heavy + heavy
    return one * (second.requests + 1) - other * (first.requests + 1)


@attrs.frozen
class HeavyLight(Router[MixState]):
    """Two of the workers with room, and of those the one with the smaller share of heavy outputs.  O(workers)."""

    name: ClassVar[str] = "heavy-light"
    state_type: ClassVar[type[MixState]] = MixState
    follows_decoding: ClassVar[bool] = False

    heavy_tokens: int = attrs.field(default=128, validator=positive)
    """An output that is foreseen to be longer is heavy."""
    counts: Counts = attrs.field(default="upper", validator=one_of("upper", "lower"))
    """Which end of a predicted range counts; a prediction is its upper end."""
    bucket_tokens: int = attrs.field(default=200, validator=positive)
    """How long a range is, where the lower end counts."""
    seed: int = attrs.field(default=0, validator=not_negative)
    """Seed of the draws."""

    def foreseen(self, request: Request) -> int:
        """Return the output tokens that are counted."""
        upper = predicted(request)
        return upper if self.counts == "upper" else max(upper - self.bucket_tokens, 0)

    def route(self, state: MixState, request: Request, view: ClusterView) -> tuple[Dispatch, MixState]:
        state = _without(state, request.id)
        output = self.foreseen(request)
        tokens, heavy = request.prompt.tokens + output, output > self.heavy_tokens
        rooms = [
            (load.kv_capacity_tokens - state.mixes.get(load.worker, EMPTY).tokens, load.worker) for load in view.workers
        ]
        able, drawn = [worker for room, worker in rooms if room >= tokens], state.drawn
        if not able:
            chosen = min(rooms, key=lambda each: (-each[0], each[1]))[1]
        elif len(able) == 1:
            chosen = able[0]
        else:
            chosen = self._better(state, able, int(heavy))
            drawn += 2
        sent = Sent(chosen, tokens, heavy)
        mixes = state.mixes.set(chosen, state.mixes.get(chosen, EMPTY).plus(sent, 1))
        return Dispatch(request.id, chosen), MixState(drawn, state.sent.set(request.id, sent), mixes)

    def _better(self, state: MixState, able: list[int], heavy: int) -> int:
        """Return the better of two different workers that are drawn."""
        one = draw(self.seed, state.drawn, len(able))
        other = draw(self.seed, state.drawn + 1, len(able) - 1)
        other += other >= one
        first, second = able[min(one, other)], able[max(one, other)]
        mixes = state.mixes.get(first, EMPTY), state.mixes.get(second, EMPTY)
        sign = lighter(*mixes, heavy) or mixes[0].requests - mixes[1].requests
        return second if sign > 0 else first

    def observe(self, state: MixState, event: ev.Event) -> MixState:
        match event:
            case ev.Finished() | ev.Cancelled() | ev.Rejected():
                return _without(state, event.request_id)
            case ev.Migrated():
                sent = state.sent.get(event.request_id)
                return _without(state, event.request_id) if sent and sent.worker == event.worker else state
            case ev.Arrived():
                sent = state.sent.get(event.request.id)
                if sent is None or event.worker == sent.worker:
                    return state
                return _without(state, event.request.id)
            case ev.WorkerLeft():
                for request_id in [i for i, sent in state.sent.items() if sent.worker == event.worker]:
                    state = _without(state, request_id)
                return state
        return state

    def check(self, state: MixState) -> None:
        mixes: dict[int, Mix] = {}
        for sent in state.sent.values():
            mixes[sent.worker] = mixes.get(sent.worker, EMPTY).plus(sent, 1)
        # Each worker's mix is that of the requests that were sent there.
        assert mixes == {worker: mix for worker, mix in state.mixes.items() if mix != EMPTY}
        assert ev.NOWHERE not in mixes


def _without(state: MixState, request_id: int) -> MixState:
    """Return the state without a request, which may be unknown."""
    sent = state.sent.get(request_id)
    if sent is None:
        return state
    mix = state.mixes[sent.worker].plus(sent, -1)
    mixes = state.mixes.set(sent.worker, mix) if mix.requests else state.mixes.delete(sent.worker)
    return replace(state, sent=state.sent.delete(request_id), mixes=mixes)


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

    def observe(self, state: AnyState, event: ev.Event) -> AnyState:
        state = super().observe(state, event)
        match event:
            case ev.Prefilled() if event.remaining_tokens:
                handovers = state.handovers.begun(event.request_id, event.worker, event.time_ns)
                return state if handovers is state.handovers else replace(state, handovers=handovers)
            case ev.WorkerLeft():
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
