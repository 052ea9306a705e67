"""Routers that read loads and counts only: round robin, random choice, shortest queue, most free memory.

What a random router draws is a function of the seed (a parameter) and of how much was drawn before (the state), so a
replay draws the same.
"""

from collections.abc import Callable
from typing import ClassVar, Literal

import attrs
import msgspec
from immutables import Map

from fairsched.model.decision import ClusterView, Dispatch, WorkerLoad
from fairsched.model.request import Request
from fairsched.model.theorem import Assumption, Theorem
from fairsched.policies.base import Router
from fairsched.policies.draw import draw
from fairsched.policies.validators import not_negative, one_of

NOBODY_LEAVES = Assumption("NobodyLeaves", "No request ends, is given up or migrates.")
COUNTS_REQUESTS = Assumption("CountsRequests", "The queue's length is its requests.")
COUNTS_TOKENS = Assumption("CountsTokens", "The queue's length is its tokens.")
REPORTS_FRESH = Assumption("ReportsFresh", "Every worker's report includes all that was placed before.")

P_RR_1 = Theorem(
    "P-RR-1",
    "on a fixed set of workers the requests placed at two workers differ by at most the constant",
    "folklore",
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
    state_type: ClassVar[type[TurnState]] = TurnState
    theorems: ClassVar[tuple[Theorem, ...]] = (P_RR_1,)

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
    state_type: ClassVar[type[ClientTurnState]] = ClientTurnState
    theorems: ClassVar[tuple[Theorem, ...]] = (P_RR_1,)

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
    state_type: ClassVar[type[NoRouterState]] = NoRouterState
    theorems: ClassVar[tuple[Theorem, ...]] = (P_JSQ_1, P_JSQ_TOKENS)

    measure: Measure = attrs.field(default="requests", validator=one_of(*MEASURES))
    """How long a queue is: requests waiting or running, or tokens waiting or reserved."""

    @property
    def broken_assumptions(self) -> frozenset[Assumption]:
        return frozenset({COUNTS_TOKENS if self.measure == "requests" else COUNTS_REQUESTS})

    def route(self, state: NoRouterState, request: Request, view: ClusterView) -> tuple[Dispatch, NoRouterState]:
        shortest = min(view.workers, key=MEASURES[self.measure])
        return Dispatch(request.id, shortest.worker), state


# --- routers that draw ------------------------------------------------------------------------------------------------


P_P2C_1 = Theorem(
    "P-P2C-1",
    "two different workers are drawn, and the one chosen has no longer a queue than the other: one that alone has the "
    "longest is never chosen, if there is another",
    "Mitzenmacher 2001; that the two differ is our decision",
)


class DrawState(msgspec.Struct, frozen=True):
    """How many numbers were drawn."""

    drawn: int = 0


@attrs.frozen
class Random(Router[DrawState]):
    """Any worker, each as likely as the others.  O(1)."""

    name: ClassVar[str] = "random"
    state_type: ClassVar[type[DrawState]] = DrawState

    seed: int = attrs.field(default=0, validator=not_negative)
    """Seed of the draws."""

    def route(self, state: DrawState, request: Request, view: ClusterView) -> tuple[Dispatch, DrawState]:
        chosen = view.workers[draw(self.seed, state.drawn, len(view.workers))]
        return Dispatch(request.id, chosen.worker), DrawState(state.drawn + 1)


@attrs.frozen
class PowerOfTwo(Router[DrawState]):
    """Of two different workers drawn at random the one with fewer requests waiting or running (or tokens waiting or
    promised); the lower id of equals.  O(1).

    Source: Mitzenmacher, "The power of two choices in randomized load balancing", 2001.  The two are different, which
    is our decision: one that is drawn twice would win however loaded it is.
    """

    name: ClassVar[str] = "power-of-two"
    state_type: ClassVar[type[DrawState]] = DrawState
    theorems: ClassVar[tuple[Theorem, ...]] = (P_P2C_1,)

    measure: Measure = attrs.field(default="requests", validator=one_of(*MEASURES))
    """How long a queue is: requests waiting or running, or tokens waiting or reserved."""
    seed: int = attrs.field(default=0, validator=not_negative)
    """Seed of the draws."""

    def route(self, state: DrawState, request: Request, view: ClusterView) -> tuple[Dispatch, DrawState]:
        workers, drawn = view.workers, state.drawn
        if len(workers) == 1:
            return Dispatch(request.id, workers[0].worker), state
        one = draw(self.seed, drawn, len(workers))
        other = draw(self.seed, drawn + 1, len(workers) - 1)
        if other >= one:
            other += 1
        first, second = workers[min(one, other)], workers[max(one, other)]
        measure = MEASURES[self.measure]
        chosen = second if measure(second) < measure(first) else first
        return Dispatch(request.id, chosen.worker), DrawState(drawn + 2)


# --- least loaded by KV memory ----------------------------------------------------------------------------------------


def freeness(load: WorkerLoad) -> tuple[int, int]:
    """Return a worker's freeness as a ratio: free KV tokens less those that wait (may be below 0), and its requests.

    With no requests it is infinite.  Never divided: `freest` and `llumnix` multiply across.
    """
    return load.kv_free_tokens - load.waiting_tokens, load.waiting_requests + load.running_requests


def freest(view: ClusterView) -> int:
    """Return the worker with the largest freeness, one with no request before all others, the lowest id of equals.

    O(workers).
    """
    chosen, most_free, fewest = -1, 0, 0
    for load in view.workers:
        requests = load.waiting_requests + load.running_requests
        if not requests:
            return load.worker
        free = load.kv_free_tokens - load.waiting_tokens
        if chosen < 0 or free * fewest > most_free * requests:
            chosen, most_free, fewest = load.worker, free, requests
    return chosen


@attrs.frozen
class Freeness(Router[NoRouterState]):
    """The worker with the most free KV tokens, less those that wait there, for each request waiting or running; one
    with no request before all others, the lowest id of equals.  O(workers).

    Source: Llumnix (OSDI'24), whose released code dispatches by this rule; `policies.routers.llumnix` migrates by it.
    Freeness is a ratio and is compared exactly, by cross multiplication, so that it orders workers strictly.
    """

    name: ClassVar[str] = "freeness"
    state_type: ClassVar[type[NoRouterState]] = NoRouterState

    def route(self, state: NoRouterState, request: Request, view: ClusterView) -> tuple[Dispatch, NoRouterState]:
        return Dispatch(request.id, freest(view)), state
