"""What is false of D2LPM and of per-client round robin as printed: worlds in which shipped workers and routers show it.

Workers are small: 16 tokens of KV and a local quantum of 4, so that U = 31 and the gap at one worker is at most
2(Q + U - 1) = 68; and so are requests.  A client is ``[prefix, shared tokens, outputs, how many requests it keeps in
the system, how many it sends in all]``.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import attrs
import msgspec

from fairsched.model.decision import ClusterView
from fairsched.model.events import Admitted, Decoded, Finished, WorkerJoined
from fairsched.model.pricing import Rates
from fairsched.model.request import Client, Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.base import AnyRouter
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM
from fairsched.policies.gates import DeficitGate
from fairsched.policies.routers import D2LPM, D2LPMPrinted, PerClientRoundRobin
from fairsched.verify.conformance import WorkerPlay
from fairsched.verify.logic import RefutedClaim, Shown, refuted


class Behaviour(msgspec.Struct, frozen=True):
    """A client that keeps `in_system` requests (at most `requests` in all): `shared` tokens of prompt are the same for
    all who have this `prefix`, one token is its own, and outputs go round `outputs`."""

    prefix: int
    shared: int
    outputs: tuple[int, ...]
    in_system: int
    requests: int = 1 << 30

    def request(self, request_id: int, client: int, number: int) -> tuple[Request, int]:
        """Return its `number`-th request, and how long the output will be."""
        keys = [self.prefix * 1_000 + i for i in range(self.shared)] + [-1 - request_id]
        output = self.outputs[number % len(self.outputs)]
        return Request(request_id, client, 0, Prompt.from_keys(keys), output), output


@attrs.frozen
class Tick:
    """After a tick: each client's service at each worker so far, where each waits, and which workers run nothing."""

    served: tuple[tuple[int, ...], ...]
    """By client, then worker, in cost units of computed tokens at the rates given."""
    waiting: tuple[frozenset[int], ...]
    """By client: the workers where a request of it waits."""
    idle: tuple[int, ...]

    def service(self, client: int) -> int:
        """Return the client's, over all workers."""
        return sum(self.served[client])


def gap_max(ticks: Iterable[Tick], f: int, g: int) -> int:
    """Return the largest difference of what two clients were served over any interval of whole ticks, over all
    workers."""
    low = high = widest = 0
    for tick in ticks:
        ahead = tick.service(f) - tick.service(g)
        widest = max(widest, ahead - low, high - ahead)
        low, high = min(low, ahead), max(high, ahead)
    return widest


CAPACITY, WORKERS = 16, 2
RATES = Rates()
LOCAL = DLPM(gate=DeficitGate(rates=RATES, quantum=4), batching=Chunked(max_batched_tokens=CAPACITY, max_running=4))
F, G = 0, 1
MANY = 1 << 30

World = Mapping[str, Any]


def bound_cost() -> int:
    """D2-5.1's sum over the workers of 2(Q_w + U_w - 1)."""
    clients = (Client(F, "f"), Client(G, "g"))
    per_worker = LOCAL.guarantee.service_gap_bound(clients, LOCAL.guarantee.limits(CAPACITY, CAPACITY))
    assert per_worker is not None
    return WORKERS * per_worker


def router_of(world: SimpleNamespace) -> AnyRouter:
    """D2LPM with the world's quantum, or per-client round robin where it has none."""
    return D2LPM(quantum=world.quantum) if world.quantum else PerClientRoundRobin()


def played(world: SimpleNamespace) -> Iterator[Tick]:
    """Yield the world, tick by tick."""
    router = router_of(world)
    clients = [Behaviour(prefix, shared, tuple(outputs), *kept) for prefix, shared, outputs, *kept in world.clients]
    servers = [WorkerPlay(LOCAL, WorkerState(worker, CAPACITY)) for worker in range(WORKERS)]
    state = router.init()
    for server in servers:
        joined = WorkerJoined(0, server.worker.worker, CAPACITY)
        server.follow((server.worker, [joined]))
        state = router.observe(state, joined)
    served = [[0] * WORKERS for _ in clients]
    sent, in_system = [0] * len(clients), [0] * len(clients)
    for now in range(world.ticks):
        for client, behaviour in enumerate(clients):
            while in_system[client] < behaviour.in_system and sent[client] < behaviour.requests:
                request, output = behaviour.request(sum(sent), client, sent[client])
                view = ClusterView(now, tuple(server.worker.load() for server in servers))
                dispatch, state = router.route(state, request, view)
                for event in servers[dispatch.worker].arrive(request, output, now):
                    state = router.observe(state, event)
                sent[client] += 1
                in_system[client] += 1
        for worker, server in enumerate(servers):
            for event in server.step(now):
                state = router.observe(state, event)
                if isinstance(event, Admitted):
                    served[event.client][worker] += event.extend_tokens * RATES.input
                elif isinstance(event, Decoded):
                    for client, tokens in zip(event.clients, event.tokens, strict=True):
                        served[client][worker] += tokens * RATES.output
                elif isinstance(event, Finished):
                    in_system[event.client] -= 1
        queues = [{each.request.client for each in server.worker.queue.values()} for server in servers]
        waiting = [frozenset(i for i, queue in enumerate(queues) if client in queue) for client in range(len(clients))]
        idle = tuple(worker for worker, server in enumerate(servers) if not server.worker.in_flight)
        yield Tick(tuple(map(tuple, served)), tuple(waiting), idle)


def _world(quantum: int, ticks: int, *clients: list[Any]) -> World:
    return {"quantum": quantum, "ticks": ticks, "clients": list(clients)}


# --- CD1: a worker idles while a request waits elsewhere --------------------------------------------------------------


def _nobody_waits_beside_an_idle_worker(w: SimpleNamespace) -> Shown:
    return {"no worker idles while a request waits": not any(tick.idle and any(tick.waiting) for tick in played(w))}


CD1 = _world(100, 4, [1, 4, [4], 3, 3])
"""Three requests with one prefix, of which a worker holds two: all go where the prefix is."""

# --- CD2: backlogged somewhere is not backlogged everywhere -----------------------------------------------------------


def _gap_within_the_sum(w: SimpleNamespace) -> Shown:
    """Compare clients that wait somewhere at each tick; there is nothing to show if one ever waits nowhere."""
    ticks = list(played(w))[WARM_UP:]
    if not all(tick.waiting[client] for tick in ticks for client in (F, G)):
        return {}
    return {"|W_f - W_g| <= sum over w of 2(Q_w + U_w - 1)": gap_max(ticks, F, G) <= bound_cost()}


def _waits_everywhere(w: SimpleNamespace) -> Shown:
    ticks = list(played(w))[WARM_UP:]
    if not all(tick.waiting[F] for tick in ticks):
        return {}
    return {"f waits at every worker": all(len(tick.waiting[F]) == WORKERS for tick in ticks)}


WARM_UP = 20
_CROWD = ([1, 4, [4], 6, MANY], [2, 4, [4], 6, MANY], [1, 4, [4], 6, MANY])
"""f and a third client share a prefix and so a worker; g has the other one alone."""


def cd2(quantum: int, ticks: int) -> World:
    """f and g always wait somewhere, for so many ticks, with this Q_w."""
    return _world(quantum, ticks, *_CROWD)


ALTERNATING = ([1, 0, [9, 1], 4, MANY], [2, 0, [5], 4, MANY])
"""CD3: f's outputs alternate, so each second request, the long one, goes to the same worker."""


def cd3(ticks: int) -> World:
    """f waits at worker 0 all the time, and never at worker 1."""
    return _world(0, ticks, *ALTERNATING)


# --- CD4: one quantum may not be enough -------------------------------------------------------------------------------


def _goes_where_it_has_credit(w: SimpleNamespace) -> Shown:
    """Send requests of one client one by one, each to the emptier of two workers, to end with these outputs."""
    router = D2LPMPrinted(quantum=w.quantum)
    state, in_credit = router.init(), True
    for i, output in enumerate([*w.outputs, 0]):
        loads = tuple(WorkerState(worker, 1 << 20).load() for worker in range(WORKERS))
        queues = tuple(msgspec.structs.replace(load, waiting_requests=abs(load.worker - i) % WORKERS) for load in loads)
        request = Request(i, F, i, Prompt.from_keys([-1 - i]), 1)
        dispatch, state = router.route(state, request, ClusterView(i, queues))
        charged = state.sent[i].extend_tokens * router.input_rate
        in_credit &= state.accounts[F].deficits.get(dispatch.worker, w.quantum) + charged > 0
        if output:
            state = router.observe(state, Finished(i, dispatch.worker, i, F, output))
    return {"a request goes where its client has credit": in_credit}


CD4 = {"quantum": 2, "outputs": [4, 4]}
"""Two outputs of 4 tokens, one at each worker, cost four quanta each; the third request comes after one refill."""


def refutations() -> tuple[RefutedClaim, ...]:
    """Return each with the smallest of its worlds that was looked at."""
    as_printed = "requests are placed when they come and stay, as printed and as shipped"
    wide, endless, alternating = cd2(100, 300), cd2(1_000_000, 300), cd3(200)
    return (
        refuted(
            "CD1",
            "D2LPM is work-conserving: no worker idles while a request waits",
            "D2LPM, on work conservation (reconstructed)",
            _nobody_waits_beside_an_idle_worker,
            CD1,
            variant=as_printed,
            instead="D-wc",
            text="two workers, three requests with one prefix: one waits at worker 0, and worker 1 never runs",
        ),
        refuted(
            "CD2",
            "D2-5.1 for clients that are backlogged: the gap is bounded whatever Q_w is",
            "D2LPM, theorem 5.1 (reconstructed)",
            _gap_within_the_sum,
            wide,
            variant="backlogged means: a request waits somewhere",
            instead="D2-5.1",
            text="f shares a worker with a third client, g has one alone until Q_w = 100 is used up: a gap of more "
            "than 136",
        ),
        refuted(
            "CD2-LEMMA",
            "who is backlogged is backlogged at every worker",
            "D2LPM, the lemma to theorem 5.1 (reconstructed)",
            _waits_everywhere,
            endless,
            variant=as_printed,
            instead="D2-5.1",
            text="all of f's requests wait where its prefix is, as long as it has credit there",
        ),
        refuted(
            "CD3",
            "per-client round robin is fair, with a fair gate at each worker",
            "D2LPM, appendix A.6 (reconstructed), whose title says unbounded where its statement says bounded",
            _gap_within_the_sum,
            alternating,
            variant="requests go round by their number",
            instead="D2-5.1",
            text="outputs of 9 and 1 in turn: f waits at worker 0 only, and all of worker 1 is g's",
        ),
        refuted(
            "CD4",
            "after a refill of one quantum a request goes to a worker where its client has credit",
            "D2LPM's rule (reconstructed)",
            _goes_where_it_has_credit,
            CD4,
            variant="a refill adds one quantum, as printed: `d2lpm-printed`",
            instead="D2-gate",
            text="Q_w = 2 and a debt of 7 at both workers: after the refill the client owes 5 at both, and no worker "
            "is left to choose",
        ),
        refuted(
            "D2-A.5",
            "D2LPM is fair without a limit to Q_w",
            "this library; that it is not is D2LPM's appendix A.5",
            _gap_within_the_sum,
            endless,
            variant="Q_w larger than all that is ever charged",
            instead="D2-spread",
            text="f stays where its prefix is, beside a third client, and gets half of what g gets for as long as one"
            " likes",
        ),
    )
