"""A cluster of shipped workers played in lock step: each tick clients send, a router places, and every worker steps.

Clients keep so many requests in the system: when one ends, the next is sent.  Workers and policies are those that ship;
only time is left out, so a tick is one engine step of each worker.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import msgspec

from fairsched.model import worker as transitions
from fairsched.model.events import Admitted, Arrived, Decoded, Event, Finished, Preempted, WorkerJoined
from fairsched.model.pricing import Rates
from fairsched.model.request import Prompt, Request
from fairsched.model.view import ClusterView
from fairsched.model.worker_state import WorkerState
from fairsched.policies.base import LocalPolicy, Router


class Behaviour(msgspec.Struct, frozen=True):
    """A client that keeps `in_system` requests (at most `requests` in all): `shared` tokens of prompt are the same for
    all who have this `prefix`, one token is its own, and outputs go round `outputs`."""

    prefix: int
    shared: int
    outputs: tuple[int, ...]
    in_system: int
    requests: int = 1 << 30

    def request(self, request_id: int, client: int, number: int) -> tuple[Request, int]:
        """Its `number`-th request, and how long the output will be."""
        keys = [self.prefix * 1_000 + i for i in range(self.shared)] + [-1 - request_id]
        output = self.outputs[number % len(self.outputs)]
        return Request(request_id, client, 0, Prompt.from_keys(keys), output), output


@attrs.frozen
class Tick:
    """After a tick: each client's service at each worker so far, who waits where, and which workers run nothing."""

    served: tuple[tuple[int, ...], ...]
    """By client, then worker, in cost units of computed tokens at the rates given."""
    waiting: tuple[frozenset[int], ...]
    """By client: the workers where a request of it waits."""
    idle: tuple[int, ...]

    def service(self, client: int) -> int:
        """The client's, over all workers."""
        return sum(self.served[client])


class _Server:
    """A worker and its policy's state."""

    def __init__(self, worker: int, capacity: int, local: LocalPolicy[Any]) -> None:
        self.state, self.local, self.policy_state = WorkerState(worker, capacity), local, local.init()
        self.waiting: dict[int, int] = {}

    def tell(self, events: Iterable[Event], decided: bool = False) -> None:
        """Its policy learns events, except what it has folded."""
        for event in events:
            if not (decided and isinstance(event, Admitted | Preempted)):
                self.policy_state = self.local.observe(self.policy_state, event)
            if isinstance(event, Arrived):
                self.waiting[event.request.id] = event.request.client
            elif isinstance(event, Admitted):
                del self.waiting[event.request_id]
            elif isinstance(event, Preempted):
                self.waiting[event.request_id] = event.client

    def step(self, now_ns: int) -> list[Event]:
        """One step; returns what happened."""
        plan, self.policy_state = self.local.decide(self.policy_state, self.state.view(now_ns))
        self.state, begun = transitions.begin(self.state, plan, now_ns)
        self.tell(begun, decided=True)
        self.state, done = transitions.finish(self.state, plan, 1, now_ns)
        self.tell(done)
        return begun + done


def play(
    router: Router[Any],
    local: LocalPolicy[Any],
    clients: Sequence[Behaviour],
    *,
    workers: int,
    capacity: int,
    ticks: int,
    rates: Rates,
) -> Iterator[Tick]:
    """The cluster, tick by tick."""
    servers = [_Server(worker, capacity, local) for worker in range(workers)]
    state = router.init()
    for server in servers:
        joined = WorkerJoined(0, server.state.worker, capacity)
        server.tell([joined])
        state = router.observe(state, joined)
    served = [[0] * workers for _ in clients]
    sent, in_system = [0] * len(clients), [0] * len(clients)
    for now in range(ticks):
        for client, behaviour in enumerate(clients):
            while in_system[client] < behaviour.in_system and sent[client] < behaviour.requests:
                request, output = behaviour.request(sum(sent), client, sent[client])
                view = ClusterView(now, tuple(server.state.load() for server in servers))
                dispatch, state = router.route(state, request, view)
                server = servers[dispatch.worker]
                server.state, events = transitions.arrive(server.state, request, output, now)
                server.tell(events)
                for event in events:
                    state = router.observe(state, event)
                sent[client] += 1
                in_system[client] += 1
        for worker, server in enumerate(servers):
            for event in server.step(now):
                state = router.observe(state, event)
                if isinstance(event, Admitted):
                    served[event.client][worker] += event.extend_tokens * rates.input
                elif isinstance(event, Decoded):
                    for client, tokens in zip(event.clients, event.tokens, strict=True):
                        served[client][worker] += tokens * rates.output
                elif isinstance(event, Finished):
                    in_system[event.client] -= 1
        waiting = [
            frozenset(worker for worker, server in enumerate(servers) if client in server.waiting.values())
            for client in range(len(clients))
        ]
        idle = tuple(worker for worker, server in enumerate(servers) if not server.state.in_flight)
        yield Tick(tuple(map(tuple, served)), tuple(waiting), idle)


def gap_max(ticks: Iterable[Tick], f: int, g: int) -> int:
    """The largest difference of what two clients were served over any interval of whole ticks, over all workers."""
    low = high = widest = 0
    for tick in ticks:
        ahead = tick.service(f) - tick.service(g)
        widest = max(widest, ahead - low, high - ahead)
        low, high = min(low, ahead), max(high, ahead)
    return widest
