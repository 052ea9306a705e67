"""Cluster policies that do whatever a cluster policy may do, at random, and much that it should not: for tests."""

from typing import Any, ClassVar

import attrs

from fairsched.model.events import NOWHERE, Arrived, Cancelled, Decoded, Event, Finished, Rejected, WorkerLeft
from fairsched.model.plan import ClusterPlan, Dispatch, Migration
from fairsched.model.request import Request
from fairsched.model.view import ClusterView
from fairsched.policies.base import ClusterPolicy, Router
from fairsched.policies.draw import draw


@attrs.frozen
class Known:
    """What it holds, in order; where the others are, as far as it has heard; and how often it drew."""

    held: tuple[int, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    draws: int = 0

    def without(self, request_id: int) -> "Known":
        """Nobody holds it."""
        held = tuple(i for i in self.held if i != request_id)
        return attrs.evolve(self, held=held, places=tuple(p for p in self.places if p[0] != request_id))


def learned(state: Known, event: Event) -> Known:
    """A request came, went, or is somewhere."""
    if isinstance(event, Arrived):
        request_id = event.request.id
        state = state.without(request_id)
        if event.worker == NOWHERE:
            return attrs.evolve(state, held=(*state.held, request_id))
        return attrs.evolve(state, places=(*state.places, (request_id, event.worker)))
    if isinstance(event, Finished | Cancelled | Rejected):
        return state.without(event.request_id)
    if isinstance(event, WorkerLeft):
        return attrs.evolve(state, places=tuple(p for p in state.places if p[1] != event.worker))
    return state


def migrations(seed: int, state: Known, view: ClusterView) -> tuple[tuple[Migration, ...], int]:
    """Some requests move, some of them from where they are not, or to nowhere; and the next draw."""
    found, n = [], state.draws
    for request_id, worker in state.places:
        source = worker + (draw(seed, n, 8) == 0)
        target = draw(seed, n + 1, len(view.workers) + 1)
        if draw(seed, n + 2, 2):
            found.append(Migration(request_id, source, target, bool(draw(seed, n + 3, 2))))
        n += 4
    return tuple(found), n


@attrs.frozen
class Nomads(Router[Known]):
    """Sends requests anywhere, at times to a worker that is not there, and moves them on and on."""

    name: ClassVar[str] = "nomads"
    seed: int = 0

    def init(self) -> Known:
        return Known()

    def observe(self, state: Known, event: Event) -> Known:
        return learned(state, event)

    def route(self, state: Known, request: Request, view: ClusterView) -> tuple[Dispatch, Known]:
        worker = draw(self.seed, state.draws, len(view.workers) + 1)
        return Dispatch(request.id, worker), attrs.evolve(state, draws=state.draws + 1)

    def decide(self, state: Known, view: ClusterView) -> tuple[ClusterPlan, Known]:
        moves, draws = migrations(self.seed, state, view)
        return ClusterPlan((), moves), attrs.evolve(state, draws=draws)


@attrs.frozen
class Herder(ClusterPolicy[Known]):
    """Holds requests for a while, sends a few at a time, and moves others; asked at every instant or now and then."""

    name: ClassVar[str] = "herder"
    seed: int = 0
    every_us: int | None = None

    @property
    def decide_every_us(self) -> int | None:
        return self.every_us

    def init(self) -> Known:
        return Known()

    def observe(self, state: Known, event: Event) -> Known:
        return learned(state, event)

    def decide(self, state: Known, view: ClusterView) -> tuple[ClusterPlan, Known]:
        moves, n = migrations(self.seed, state, view)
        sent = state.held[: 1 + draw(self.seed, n, 3)]
        dispatches = tuple(
            Dispatch(request_id, draw(self.seed, n + 1 + i, len(view.workers) + 1)) for i, request_id in enumerate(sent)
        )
        # At times it sends what it does not hold.
        return ClusterPlan((*dispatches, Dispatch(10_000, 0)), moves), attrs.evolve(state, draws=n + 4)


@attrs.frozen
class Hoarder(Herder):
    """Sends nothing anywhere."""

    name: ClassVar[str] = "hoarder"

    def decide(self, state: Known, view: ClusterView) -> tuple[ClusterPlan, Known]:
        return ClusterPlan(), state


@attrs.frozen
class Credit(ClusterPolicy[Any]):
    """Sends whoever was decoded least, while fewer than two requests are out: what was decoded matters."""

    name: ClassVar[str] = "credit"

    def init(self) -> Any:
        return ((), (), 0)

    def observe(self, state: Any, event: Event) -> Any:
        held, decoded, out = state
        if isinstance(event, Arrived) and event.worker == NOWHERE:
            return (*held, (event.request.id, event.request.client)), decoded, out
        if isinstance(event, Arrived):
            return tuple(h for h in held if h[0] != event.request.id), decoded, out + 1
        if isinstance(event, Decoded):
            sums = dict(decoded)
            for client, tokens in zip(event.clients, event.tokens, strict=True):
                sums[client] = sums.get(client, 0) + tokens
            return held, tuple(sorted(sums.items())), out
        if isinstance(event, Finished | Cancelled | Rejected):
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
