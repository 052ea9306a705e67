"""Routers that look at queues and counts only: round robin, per-client round robin, join the shortest queue."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import attrs
import msgspec
from immutables import Map

from fairsched.model.plan import Dispatch
from fairsched.model.request import Request
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies.base import Router
from fairsched.policies.validators import one_of


class TurnState(msgspec.Struct, frozen=True):
    """How many requests were placed."""

    placed: int = 0


@attrs.frozen
class RoundRobin(Router[TurnState]):
    """Request k goes to worker k modulo the number of workers.  O(1)."""

    name: ClassVar[str] = "round-robin"
    state_type: ClassVar[Any] = TurnState

    def init(self) -> TurnState:
        return TurnState()

    def route(self, state: TurnState, request: Request, view: ClusterView) -> tuple[Dispatch, TurnState]:
        worker = view.workers[state.placed % len(view.workers)].worker
        return Dispatch(request.id, worker), TurnState(state.placed + 1)


class ClientTurnState(msgspec.Struct, frozen=True):
    """How many requests of each client were placed."""

    placed: Map[int, int] = Map()


@attrs.frozen
class PerClientRoundRobin(Router[ClientTurnState]):
    """Each client's requests go round the workers in turn, starting at worker (client modulo workers).  O(1).

    The router that the VTC and DLPM papers put before several workers.
    """

    name: ClassVar[str] = "per-client-round-robin"
    state_type: ClassVar[Any] = ClientTurnState

    def init(self) -> ClientTurnState:
        return ClientTurnState()

    def route(self, state: ClientTurnState, request: Request, view: ClusterView) -> tuple[Dispatch, ClientTurnState]:
        turn = state.placed.get(request.client, request.client)
        worker = view.workers[turn % len(view.workers)].worker
        return Dispatch(request.id, worker), ClientTurnState(state.placed.set(request.client, turn + 1))


class NoRouterState(msgspec.Struct, frozen=True):
    """A router that remembers nothing."""


def _requests(load: WorkerLoad) -> int:
    return load.waiting_requests + load.running_requests


def _tokens(load: WorkerLoad) -> int:
    return load.waiting_tokens + load.kv_capacity_tokens - load.kv_free_tokens


Measure = Literal["requests", "tokens"]
"""How long a worker's queue is: its requests waiting and running, or its tokens waiting and promised."""
MEASURES: dict[str, Callable[[WorkerLoad], int]] = {"requests": _requests, "tokens": _tokens}
"""The queue's length by each measure."""


@attrs.frozen
class JoinShortestQueue(Router[NoRouterState]):
    """The worker with the fewest requests waiting or running (or tokens waiting or promised); the lowest id of equals.

    O(workers).
    """

    name: ClassVar[str] = "join-shortest-queue"
    state_type: ClassVar[Any] = NoRouterState

    measure: Measure = attrs.field(default="requests", validator=one_of(*MEASURES))

    def init(self) -> NoRouterState:
        return NoRouterState()

    def route(self, state: NoRouterState, request: Request, view: ClusterView) -> tuple[Dispatch, NoRouterState]:
        shortest = min(view.workers, key=MEASURES[self.measure])
        return Dispatch(request.id, shortest.worker), state
