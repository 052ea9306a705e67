"""Routers that look at queues and counts only: round robin, per-client round robin, join the shortest queue."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import attrs
import msgspec
from immutables import Map

from fairsched.model.plan import Dispatch
from fairsched.model.request import Request
from fairsched.model.theorem import Assumption, Theorem
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies.base import Router
from fairsched.policies.validators import one_of

NOBODY_LEAVES = Assumption("NobodyLeaves", "No request ends, is given up or migrates.")
COUNTS_REQUESTS = Assumption("CountsRequests", "The queue's length is its requests.")
COUNTS_TOKENS = Assumption("CountsTokens", "The queue's length is its tokens.")
REPORTS_FRESH = Assumption("ReportsFresh", "Every worker's report tells of all that was placed before.")

P_RR_1 = Theorem(
    "P-RR-1",
    "on a fixed set of workers the requests placed at two workers differ by at most the constant",
    "folklore",
    (),
    bound="1",
)
"""For per-client round robin: those of each client."""
P_JSQ_1 = Theorem(
    "P-JSQ-1",
    "queues that differ by at most one request go on to; a request raises the longest only if all are equal",
    "folklore; stated by this library",
    (NOBODY_LEAVES, REPORTS_FRESH, COUNTS_REQUESTS),
    bound="1",
)
P_JSQ_TOKENS = Theorem(
    "P-JSQ-tokens",
    "measured in tokens, queues that differ by at most those of the largest request go on to",
    "this library",
    (NOBODY_LEAVES, REPORTS_FRESH, COUNTS_TOKENS),
    bound="tokens of the largest request",
)


class TurnState(msgspec.Struct, frozen=True, gc=False):
    """How many requests were placed."""

    placed: int = 0


@attrs.frozen
class RoundRobin(Router[TurnState]):
    """Request k goes to worker k modulo the number of workers.  O(1)."""

    name: ClassVar[str] = "round-robin"
    state_type: ClassVar[Any] = TurnState
    theorems: ClassVar[tuple[Theorem, ...]] = (P_RR_1,)

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
    theorems: ClassVar[tuple[Theorem, ...]] = (P_RR_1,)

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
    theorems: ClassVar[tuple[Theorem, ...]] = (P_JSQ_1, P_JSQ_TOKENS)

    measure: Measure = attrs.field(default="requests", validator=one_of(*MEASURES))

    @property
    def broken_assumptions(self) -> frozenset[Assumption]:
        return frozenset({COUNTS_TOKENS if self.measure == "requests" else COUNTS_REQUESTS})

    def init(self) -> NoRouterState:
        return NoRouterState()

    def route(self, state: NoRouterState, request: Request, view: ClusterView) -> tuple[Dispatch, NoRouterState]:
        shortest = min(view.workers, key=MEASURES[self.measure])
        return Dispatch(request.id, shortest.worker), state
