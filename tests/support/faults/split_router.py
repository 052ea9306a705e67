"""A small router for split phases: the shortest queue prefills, and a decode worker is drawn by the request's id."""

from typing import Any

import attrs
import msgspec
from immutables import Map

from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch, Migration
from fairsched.model.events import Arrived, Cancelled, Event, Finished, Migrated, Rejected, TransferFailed, WorkerLeft
from fairsched.model.request import Request
from fairsched.policies.base import Router


class SplitState(msgspec.Struct, frozen=True):
    """Where requests are staged, by id; how often each was; and what is to be said no more of."""

    staged: Map[int, int] = Map()
    tries: Map[int, int] = Map()


@attrs.frozen
class SplitRouter(Router[SplitState]):
    """`odd` lets every third migration be one of the unusual kinds: without KV, back to its source, to a worker that
    is not there, or not at all.  No target is named for requests in `holds`."""

    reserved_output_tokens: int = 0
    odd: bool = False
    holds: set[int] = attrs.field(factory=set)
    name = "split-for-tests"
    state_type = SplitState

    def route(self, state: SplitState, request: Request, view: ClusterView) -> tuple[Dispatch, SplitState]:
        able = [load for load in view.workers if load.role != "decode"] or view.workers
        chosen = min(able, key=lambda load: load.waiting_requests + load.running_requests)
        return Dispatch(request.id, chosen.worker, prefill_only=True), state

    def observe(self, state: SplitState, event: Event) -> SplitState:
        match event:
            case Migrated(kv_tokens=tokens) if tokens:
                return msgspec.structs.replace(state, staged=state.staged.set(event.request_id, event.worker))
            case TransferFailed():
                return msgspec.structs.replace(state, staged=state.staged.set(event.request_id, event.worker))
            case Arrived(request=request):
                return _without(state, request.id)
            case Finished() | Cancelled() | Rejected():
                return _without(state, event.request_id)
            case WorkerLeft():
                gone = [request_id for request_id, worker in state.staged.items() if worker == event.worker]
                for request_id in gone:
                    state = _without(state, request_id)
        return state

    def decide(self, state: SplitState, view: ClusterView) -> tuple[ClusterPlan, SplitState]:
        able = [load.worker for load in view.workers if load.role != "prefill"] or [view.workers[0].worker]
        migrations = []
        for request_id, source in sorted(state.staged.items()):
            tries = state.tries.get(request_id, 0)
            target: Any = able[(request_id + tries) % len(able)]
            kind = (request_id + tries) % 12 if self.odd else 0
            if kind == 9 or request_id in self.holds:
                continue
            target = {3: source, 6: 99}.get(kind, target)
            migrations.append(Migration(request_id, source, target, kind != 8, self.reserved_output_tokens))
            state = SplitState(state.staged.delete(request_id), state.tries.set(request_id, tries + 1))
        return ClusterPlan(migrations=tuple(migrations)), state


def _without(state: SplitState, request_id: int) -> SplitState:
    if request_id not in state.staged:
        return state
    return msgspec.structs.replace(state, staged=state.staged.delete(request_id))
