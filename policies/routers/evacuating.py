"""The requests of a worker that drains move to others, so that it leaves soon and not when the last one has ended.

Source: this library.  A worker that drains takes no new requests and finishes what it has, which may last as long as
its longest output.  Here its requests go where the router would send them now: those that wait without KV, those that
run with it, so that what was computed for them is not computed again.  A transfer that failed is tried again, at
wherever the router says then.  Where other workers have no room, requests wait for it where they are, and go on there
if nothing else can happen.

State: where requests are and whether they run, which workers drain, and the requests that are still to be moved.
"""

from typing import Any, ClassVar, Generic, TypeVar

import attrs
import msgspec
from immutables import Map
from msgspec.structs import replace

from fairsched.model.events import (
    NOWHERE,
    Admitted,
    Arrived,
    Cancelled,
    Event,
    Finished,
    Migrated,
    Preempted,
    Rejected,
    TransferFailed,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
)
from fairsched.model.plan import ClusterPlan, Dispatch, Migration
from fairsched.model.prefix_cache import SortedTuple
from fairsched.model.request import Request
from fairsched.model.view import ClusterView
from fairsched.policies.base import AnyRouter, Router
from fairsched.policies.routers.load_based import JoinShortestQueue

Placed = TypeVar("Placed")


class Located(msgspec.Struct, frozen=True, gc=False):
    """A request at a worker, or staged there; it `has_kv` if it runs, or ran until it was staged."""

    worker: int
    request: Request
    has_kv: bool = False


_NONE: SortedTuple[int] = SortedTuple()


class EvacuatingState(msgspec.Struct, Generic[Placed], frozen=True):
    """The router's own state, requests by id, the workers that drain, and the requests that are to be moved."""

    placed: Placed
    located: Map[int, Located] = Map()
    draining: SortedTuple[int] = _NONE
    due: SortedTuple[int] = _NONE


@attrs.frozen
class Evacuating(Router[EvacuatingState[object]]):
    """Places requests like `router`, which is asked again for each request of a worker that drains.

    An event costs O(log n); that a worker drains or leaves O(requests), and a decision what `router` takes for each
    request that moves.
    """

    name: ClassVar[str] = "evacuating"
    state_type: ClassVar[type[EvacuatingState[object]]] = EvacuatingState
    follows_decoding: ClassVar[bool] = False

    router: AnyRouter = attrs.field(factory=JoinShortestQueue, metadata={"text": False})

    def init(self) -> EvacuatingState[object]:
        return EvacuatingState(self.router.init())

    @property
    def document_type(self) -> Any:
        return EvacuatingState[self.router.document_type]  # type: ignore[name-defined]

    def route(
        self, state: EvacuatingState[object], request: Request, view: ClusterView
    ) -> tuple[Dispatch, EvacuatingState[object]]:
        dispatch, placed = self.router.route(state.placed, request, view)
        return dispatch, replace(state, placed=placed)

    # --- where requests are -----------------------------------------------------------------------------------------

    def observe(self, state: EvacuatingState[object], event: Event) -> EvacuatingState[object]:
        placed = self.router.observe(state.placed, event)
        if placed is not state.placed:
            state = replace(state, placed=placed)
        match event:
            case Arrived(worker=worker, request=request) if worker != NOWHERE:
                has_kv = bool(event.kv_tokens)
                located = state.located.set(request.id, Located(worker, request, has_kv))
                return _due(replace(state, located=located), request.id, worker in state.draining)
            case Admitted() | Preempted():
                found = state.located.get(event.request_id)
                if found is None:
                    return state
                now = replace(found, has_kv=isinstance(event, Admitted))
                return replace(state, located=state.located.set(event.request_id, now))
            case TransferFailed() if event.request_id in state.located:
                return _due(state, event.request_id, state.located[event.request_id].worker in state.draining)
            case Migrated() if not event.kv_tokens:
                return _gone(state, event.request_id)
            case Finished() | Cancelled() | Rejected():
                return _gone(state, event.request_id)
            case WorkerDraining(worker=worker):
                state = replace(state, draining=state.draining.add(worker))
                for request_id in _at(state, worker):
                    state = _due(state, request_id, True)
            case WorkerJoined(worker=worker) | WorkerLeft(worker=worker):
                for request_id in _at(state, worker):
                    state = _gone(state, request_id)
                state = replace(state, draining=state.draining.discard(worker))
        return state

    # --- what moves -------------------------------------------------------------------------------------------------

    def decide(self, state: EvacuatingState[object], view: ClusterView) -> tuple[ClusterPlan, EvacuatingState[object]]:
        """Every request of a worker that drains, once, in order of ids."""
        if not len(state.due):
            return ClusterPlan(), state
        placed, migrations = state.placed, []
        for request_id in state.due:
            at = state.located[request_id]
            dispatch, placed = self.router.route(placed, at.request, view)
            migrations.append(Migration(request_id, at.worker, dispatch.worker, with_kv=at.has_kv))
        return ClusterPlan((), tuple(migrations)), replace(state, placed=placed, due=_NONE)

    def check(self, state: EvacuatingState[object]) -> None:
        self.router.check(state.placed)
        # Only requests of workers that drain are to be moved.
        assert all(state.located[request_id].worker in state.draining for request_id in state.due)


def _at(state: EvacuatingState[object], worker: int) -> list[int]:
    return sorted(request_id for request_id, at in state.located.items() if at.worker == worker)


def _due(state: EvacuatingState[object], request_id: int, due: bool) -> EvacuatingState[object]:
    """The request is to be moved, or is not any more."""
    if due == (request_id in state.due):
        return state
    return replace(state, due=state.due.add(request_id) if due else state.due.discard(request_id))


def _gone(state: EvacuatingState[object], request_id: int) -> EvacuatingState[object]:
    if request_id not in state.located:
        return state
    state = _due(state, request_id, False)
    return replace(state, located=state.located.delete(request_id))
