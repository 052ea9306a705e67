"""An idle worker takes a waiting request of a client in credit from another worker: fairness and work conservation.

Source: this library, for a gate whose credit all workers share (`policies.gates.shared.gate`).  There a worker where
only clients without credit wait may idle while a client in credit waits elsewhere.  Letting it take that request
gives up nothing: the gate's rule is followed wherever a request waits, so D2-global holds with stealing as without,
and D2-steal says that a client that waits anywhere can always be admitted.  It costs locality: the prefix of a stolen
request is cached where it came from.

Needs: the shared credit in the view, and every event at once.  With state reports that are late or lost
requests are stolen late, which costs work conservation and never fairness.
"""

from typing import Any, ClassVar, Generic, TypeVar

import attrs
import msgspec
from immutables import Map

from fairsched.model.algebra import NUMPY, Ints
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
    WorkerLeft,
)
from fairsched.model.plan import ClusterPlan, Dispatch, Migration
from fairsched.model.prefix_cache import SortedTuple
from fairsched.model.request import Request
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies.base import AnyRouter, Router
from fairsched.policies.gates import GlobalState, refill_due, refill_rounds, waits
from fairsched.policies.routers.load_based import JoinShortestQueue

Placed = TypeVar("Placed")

Queue = tuple[int, int]
"""A worker and a client."""


class StealingState(msgspec.Struct, Generic[Placed], frozen=True):
    """The router's own state, the requests that wait by worker and client, and the place and size of each."""

    placed: Placed
    queues: Map[Queue, SortedTuple[int]] = Map()
    places: Map[int, tuple[int, int, int]] = Map()


@attrs.frozen
class Stealing(Router[StealingState[object]]):
    """Places requests like `router`, and moves one to a worker that runs nothing and could admit no request.

    The client in credit with the most of it is taken, its oldest request at the worker where it has the most waiting.
    A decision costs O(clients) and, for each idle worker, O(workers * clients that wait).
    """

    name: ClassVar[str] = "stealing"
    state_type: ClassVar[type[StealingState[object]]] = StealingState
    follows_decoding: ClassVar[bool] = False

    router: AnyRouter = attrs.field(factory=JoinShortestQueue, metadata={"text": False})

    def init(self) -> StealingState[object]:
        return StealingState(self.router.init())

    @property
    def document_type(self) -> Any:
        return StealingState[self.router.document_type]  # type: ignore[name-defined]

    def route(
        self, state: StealingState[object], request: Request, view: ClusterView
    ) -> tuple[Dispatch, StealingState[object]]:
        dispatch, placed = self.router.route(state.placed, request, view)
        return dispatch, StealingState(placed, state.queues, state.places)

    # --- waiting requests --------------------------------------------------------------------------------------------

    def observe(self, state: StealingState[object], event: Event) -> StealingState[object]:
        placed = self.router.observe(state.placed, event)
        if placed is not state.placed:
            state = StealingState(placed, state.queues, state.places)
        match event:
            case Arrived() if event.worker != NOWHERE:
                request = event.request
                size = request.prompt.tokens + request.max_output_tokens
                return _joins(state, event.worker, request.client, request.id, size)
            case Admitted():
                return _leaves(state, event.request_id, keeps=True)
            case Preempted() if event.request_id in state.places:
                size = state.places[event.request_id][2]
                return _joins(state, event.worker, event.client, event.request_id, size)
            case Finished() | Cancelled() | Rejected() | Migrated():
                return _leaves(state, event.request_id, keeps=False)
            case WorkerLeft():
                for request_id, (worker, _, _) in list(state.places.items()):
                    if worker == event.worker:
                        state = _leaves(state, request_id, keeps=False)
        return state

    # --- stealing ---------------------------------------------------------------------------------------------------

    def decide(self, state: StealingState[object], view: ClusterView) -> tuple[ClusterPlan, StealingState[object]]:
        idle = [load for load in view.workers if not load.running_requests]
        if view.credit is None or not state.queues or not idle:
            return ClusterPlan(), state
        q, queues = _after_refill(view.credit), dict(state.queues)
        credit = {client: int(q[client]) if client < len(q) else 0 for _, client in queues}
        busy = {load.worker for load in view.workers if load.running_requests}
        migrations: list[Migration] = []
        for load in idle:
            if not any(worker == load.worker and credit[client] > 0 for worker, client in queues):
                stolen = self._stolen(queues, state, credit, busy, load)
                if stolen is not None:
                    migrations.append(stolen)
        return ClusterPlan((), tuple(migrations)), state

    def _stolen(
        self,
        queues: dict[Queue, SortedTuple[int]],
        state: StealingState[object],
        credit: dict[int, int],
        busy: set[int],
        load: WorkerLoad,
    ) -> Migration | None:
        """The oldest request of the client with most credit, from a worker that is busy; it is then gone from there."""
        rich = [
            (credit[client], len(requests), -client, -worker)
            for (worker, client), requests in queues.items()
            if credit[client] > 0 and worker in busy
        ]
        for _, _, client, worker in sorted(rich, reverse=True):
            requests = queues[-worker, -client]
            fitting = (each for each in requests if state.places[each][2] <= load.kv_capacity_tokens)
            request_id = next(fitting, None)
            if request_id is not None:
                left = requests.remove(request_id)
                if len(left):
                    queues[-worker, -client] = left
                else:
                    del queues[-worker, -client]
                return Migration(request_id, -worker, load.worker)
        return None


def _joins(state: StealingState[object], worker: int, client: int, request_id: int, size: int) -> StealingState[object]:
    # The report that it left where it waited before may be lost.
    state = _leaves(state, request_id, keeps=True)
    queue = state.queues.get((worker, client), SortedTuple())
    queues = state.queues.set((worker, client), queue.add(request_id))
    return StealingState(state.placed, queues, state.places.set(request_id, (worker, client, size)))


def _leaves(state: StealingState[object], request_id: int, *, keeps: bool) -> StealingState[object]:
    """The request waits no more; one that was admitted may come back."""
    place = state.places.get(request_id)
    if place is None:
        return state
    worker, client, _ = place
    queue = state.queues.get((worker, client), SortedTuple()).discard(request_id)
    key, queues = (worker, client), state.queues
    if len(queue):
        queues = queues.set(key, queue)
    elif key in queues:
        queues = queues.delete(key)
    return StealingState(state.placed, queues, state.places if keeps else state.places.delete(request_id))


def _after_refill(credit: GlobalState) -> Ints:
    """Deficits as the next decision sees them."""
    deficit = credit.deficit
    queued = waits(NUMPY, credit.places)
    q: Ints = deficit.q
    if refill_due(NUMPY, q, queued):
        q = refill_rounds(NUMPY, q, queued, deficit.known, deficit.quantum)
    return q
