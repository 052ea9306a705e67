"""Cluster policies that do whatever they may do with requests and KV, at random, and much that they should not."""

from typing import Any, ClassVar

import attrs

from fairsched.model import events as ev
from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch, Migration, Overlap
from fairsched.model.request import Request
from fairsched.policies.base import ClusterPolicy, Router
from fairsched.policies.draw import draw

OVERLAPS: tuple[Overlap, ...] = ("none", "chunks", "layers")


@attrs.frozen
class Whereabouts:
    """The requests that are held, in order; where the others are, as far as it has heard; and how often it drew."""

    held: tuple[int, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    staged: tuple[int, ...] = ()
    draws: int = 0

    def without(self, request_id: int) -> "Whereabouts":
        """No place of the request is known."""
        return attrs.evolve(
            self,
            held=tuple(i for i in self.held if i != request_id),
            places=tuple(place for place in self.places if place[0] != request_id),
            staged=tuple(i for i in self.staged if i != request_id),
        )


def learned(state: Whereabouts, event: ev.Event) -> Whereabouts:
    """What an event says of a request's place."""
    match event:
        case ev.Arrived(request=request, worker=worker):
            state = state.without(request.id)
            if worker == ev.NOWHERE:
                return attrs.evolve(state, held=(*state.held, request.id))
            return attrs.evolve(state, places=(*state.places, (request.id, worker)))
        case ev.Migrated(request_id=request_id, kv_tokens=kv) if kv:
            return attrs.evolve(state, staged=(*state.staged, request_id))
        case ev.Finished() | ev.Cancelled() | ev.Rejected():
            return state.without(event.request_id)
        case ev.WorkerLeft(worker=worker):
            return attrs.evolve(state, places=tuple(place for place in state.places if place[1] != worker))
        case ev.TransferFailed(request_id=request_id, worker=worker):
            places = tuple(place for place in state.places if place[0] != request_id)
            return attrs.evolve(state, places=(*places, (request_id, worker)))
    return state


@attrs.frozen
class _Habits:
    """How often requests are moved: one in `calm` at each decision (0: never), a staged one rather sooner, and one move
    in `odd` makes no sense (0: none), until `draws_max` numbers are drawn.  Those that `split` dispatch most requests
    for their prefill alone."""

    seed: int = 0
    calm: int = 4
    odd: int = 4
    draws_max: int = 600
    split: bool = True

    def to(self, workers: int, n: int) -> int:
        """A worker, or at times none that is there."""
        return draw(self.seed, n, workers + (draw(self.seed, n + 1, 12) == 0))

    def moves(self, state: Whereabouts, view: ClusterView) -> tuple[tuple[Migration, ...], int]:
        """Some requests move; and the next draw."""
        found, n, seed = [], state.draws, self.seed
        if not self.calm or n > self.draws_max:
            return (), n
        workers = max(load.worker for load in view.workers) + 1
        for request_id, source in state.places:
            rare = 2 if request_id in state.staged else self.calm
            if draw(seed, n, rare):
                n += 1
                continue
            odd = bool(self.odd) and not draw(seed, n + 1, self.odd)
            found.append(
                Migration(
                    request_id,
                    source + draw(seed, n + 2, 3) - 1 if odd else source,
                    draw(seed, n + 3, workers + 2) - 1 if odd else draw(seed, n + 3, workers),
                    with_kv=draw(seed, n + 4, 5) > 0,
                    reserved_output_tokens=draw(seed, n + 5, 40) - 4 if odd else draw(seed, n + 5, 3),
                    overlap=OVERLAPS[draw(seed, n + 6, 3)],
                )
            )
            n += 7
        return tuple(found), n


@attrs.frozen
class Drifter(_Habits, Router[Whereabouts]):
    """Sends requests at once anywhere, for their prefill or for all of it, and moves them on and on."""

    name: ClassVar[str] = "drifter"

    def init(self) -> Whereabouts:
        return Whereabouts()

    def observe(self, state: Whereabouts, event: ev.Event) -> Whereabouts:
        return learned(state, event)

    def route(self, state: Whereabouts, request: Request, view: ClusterView) -> tuple[Dispatch, Whereabouts]:
        n = state.draws
        alone = self.split and draw(self.seed, n + 2, 4) > 0
        dispatch = Dispatch(request.id, self.to(len(view.workers), n), alone)
        return dispatch, attrs.evolve(state, draws=n + 3)

    def decide(self, state: Whereabouts, view: ClusterView) -> tuple[ClusterPlan, Whereabouts]:
        moves, draws = self.moves(state, view)
        return ClusterPlan((), moves), attrs.evolve(state, draws=draws)


@attrs.frozen
class Harbour(_Habits, ClusterPolicy[Whereabouts]):
    """Holds requests for a while, and then does as the other; asked at every instant or now and then."""

    name: ClassVar[str] = "harbour"
    every_us: int | None = None

    @property
    def decide_every_us(self) -> int | None:
        return self.every_us

    def init(self) -> Whereabouts:
        return Whereabouts()

    def observe(self, state: Whereabouts, event: ev.Event) -> Whereabouts:
        return learned(state, event)

    def decide(self, state: Whereabouts, view: ClusterView) -> tuple[ClusterPlan, Whereabouts]:
        moves, n = self.moves(state, view)
        dispatches = []
        for request_id in state.held[: 1 + draw(self.seed, n, 3)]:
            alone = self.split and draw(self.seed, n + 3, 4) > 0
            dispatches.append(Dispatch(request_id, self.to(len(view.workers), n + 1), alone))
            n += 4
        if dispatches and not draw(self.seed, n, 8):
            dispatches.append(Dispatch(10_000, 0, self.split))  # it does not hold this one
        return ClusterPlan(tuple(dispatches), moves), attrs.evolve(state, draws=n + 1)


@attrs.frozen
class Hoarder(Harbour):
    """Sends nothing anywhere."""

    name: ClassVar[str] = "hoarder"

    def decide(self, state: Whereabouts, view: ClusterView) -> tuple[ClusterPlan, Whereabouts]:
        return ClusterPlan(), state


@attrs.frozen
class Credit(ClusterPolicy[Any]):
    """Sends whoever was decoded least, while fewer than two requests are out: what was decoded matters."""

    name: ClassVar[str] = "credit"

    def init(self) -> Any:
        return ((), (), 0)

    def observe(self, state: Any, event: ev.Event) -> Any:
        held, decoded, out = state
        if isinstance(event, ev.Arrived) and event.worker == ev.NOWHERE:
            return (*held, (event.request.id, event.request.client)), decoded, out
        if isinstance(event, ev.Arrived):
            return tuple(h for h in held if h[0] != event.request.id), decoded, out + 1
        if isinstance(event, ev.Decoded):
            sums = dict(decoded)
            for client, tokens in zip(event.clients, event.tokens, strict=True):
                sums[client] = sums.get(client, 0) + tokens
            return held, tuple(sorted(sums.items())), out
        if isinstance(event, ev.Finished | ev.Cancelled | ev.Rejected):
            gone = any(h[0] == event.request_id for h in held)
            return tuple(h for h in held if h[0] != event.request_id), decoded, out - (not gone)
        return state

    def decide(self, state: Any, view: ClusterView) -> tuple[ClusterPlan, Any]:
        held, decoded, out = state
        if not held or out > 1:
            return ClusterPlan(), state
        sums = dict(decoded)
        chosen = min(held, key=lambda h: (sums.get(h[1], 0), h[0]))
        return ClusterPlan((Dispatch(chosen[0], view.workers[chosen[0] % len(view.workers)].worker),)), state
