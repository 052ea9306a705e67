"""A worker's side of transfers: KV that waits to be sent, memory kept for KV to come, and KV that came and waits.

A transfer is safe at any moment because memory is claimed in this order.  The target reserves (`reserve`), the KV is
sent, it arrives (`receive`), and only then the source frees its copy (`sent`).  If the transfer fails in between, the
target gives its reservation back (`unreserve`) and the KV is still at the source; if the source fails, the target gives
back as well, and the request is computed again.
"""

from immutables import Map
from msgspec.structs import replace

from fairsched.model.decision import Landed, StepPlan
from fairsched.model.events import Arrived, Event, Migrated
from fairsched.model.request import Request
from fairsched.model.worker.batch import evict, generated, kv_tokens, release
from fairsched.model.worker.host_memory import drop
from fairsched.model.worker.state import Outgoing, Step, Waiting, WorkerState


class NoRoomError(ValueError):
    """A worker cannot reserve memory for a transfer; the message names the request and by how much."""


def stage(state: WorkerState, request_id: int, now_ns: int) -> Step:
    """Stage a request with KV, running or waiting here, which leaves batch or queue; its KV stays until it has been
    sent.

    What was reserved for its output and it did not use is free.
    """
    waiting = state.queue.get(request_id)
    if waiting is not None:
        landed = state.transit.landed.get(request_id, Landed(0, 0))
        # What was swapped out is sent from the host, where it stays until then.
        kv = waiting.kv_tokens or state.host.kept(request_id)
        client, done = waiting.request.client, waiting.generated_tokens
        transit = replace(
            state.transit,
            landed=_without(state.transit.landed, request_id),
            outgoing=state.transit.outgoing.set(request_id, Outgoing(replace(waiting, kv_tokens=kv), landed.used)),
        )
        state = replace(
            state,
            queue=state.queue.delete(request_id),
            queue_tokens=state.queue_tokens - waiting.context_tokens,
            promised=state.promised - landed.promised + landed.used,
            transit=transit,
        )
        gone = Migrated(now_ns, state.worker, request_id, client, False, 0, done, kv)
        return state, [gone]
    flight, run = state.in_flight[request_id], state.running[request_id]
    kv, done = kv_tokens(state, request_id), generated(state, request_id)
    left = release(state, request_id)
    waiting = replace(run.waiting, generated_tokens=done, kv_tokens=kv)
    # The last token of an output is not fed back, so that its place holds no KV.
    own = state.used - left.used - int(flight.clock_start is not None)
    state = _kept(replace(left, cache=state.cache), Outgoing(waiting, own))
    gone = Migrated(now_ns, state.worker, request_id, flight.client, True, flight.remaining_tokens, done, kv)
    return state, [gone]


def _kept(state: WorkerState, outgoing: Outgoing) -> WorkerState:
    """Return the state with the KV of a request that has left the batch; its cached prefix stays pinned."""
    transit = state.transit
    return replace(
        state,
        used=state.used + outgoing.own_tokens,
        promised=state.promised + outgoing.own_tokens,
        transit=replace(transit, outgoing=transit.outgoing.set(outgoing.waiting.request.id, outgoing)),
    )


def sent(state: WorkerState, request_id: int) -> WorkerState:
    """Drop the KV of a staged request, which has arrived elsewhere or is not needed any more: its memory is free."""
    transit = state.transit
    own = transit.outgoing[request_id].own_tokens
    return replace(
        state,
        cache=state.cache.release(request_id),
        used=state.used - own,
        promised=state.promised - own,
        host=drop(state.host, request_id),
        transit=replace(transit, outgoing=transit.outgoing.delete(request_id)),
    )


def reserve(state: WorkerState, request_id: int, tokens: int, under_way: int = 0) -> WorkerState:
    """Keep memory for a request whose KV is to come, beside what a step `under_way` will take.

    Raises `NoRoomError` where it does not fit.
    """
    if tokens + under_way > state.free:
        free = state.free - under_way
        raise NoRoomError(f"worker {state.worker}: request {request_id} comes with {tokens} tokens and {free} are free")
    transit = state.transit
    return replace(
        state,
        promised=state.promised + tokens,
        transit=replace(transit, incoming=transit.incoming.set(request_id, tokens)),
    )


def growth(state: WorkerState, plan: StepPlan) -> tuple[int, int]:
    """Return tokens that one step of a plan that has begun computes, and how many of those are promised when it is
    over."""
    computed, promised = (state.decoding, state.growing) if plan.decode else (0, 0)
    for request_id, tokens in plan.chunks:
        flight = state.in_flight.get(request_id)
        if flight is not None:
            computed += tokens + 1
            promised += not flight.reserved
    return computed, promised


def unreserve(state: WorkerState, request_id: int) -> WorkerState:
    """Give back what was reserved for a request whose KV does not come."""
    transit = state.transit
    return replace(
        state,
        promised=state.promised - transit.incoming[request_id],
        transit=replace(transit, incoming=transit.incoming.delete(request_id)),
    )


def receive(
    state: WorkerState,
    request: Request,
    output_tokens: int,
    now_ns: int,
    generated_tokens: int,
    kv_tokens: int,
    under_way: int = 0,
    prefill_only: bool = False,
) -> Step:
    """Receive the KV of a request: it waits here and keeps what was reserved for it.

    A step under way will compute `under_way` tokens.  With `prefill_only` it leaves with the next token out.
    """
    transit = state.transit
    promised = transit.incoming[request.id]
    waiting = Waiting(request, output_tokens, generated_tokens, kv_tokens, prefill_only)
    events: list[Event] = []
    short = kv_tokens + under_way - state.room
    if short > 0:
        state = evict(state, short, now_ns, events)
    transit = replace(transit, incoming=transit.incoming.delete(request.id))
    state = replace(state, used=state.used + kv_tokens, transit=transit)
    events.append(Arrived(now_ns, state.worker, request, generated_tokens, kv_tokens))
    return _queued(state, waiting, Landed(promised, kv_tokens)), events


def resume(state: WorkerState, request_id: int, now_ns: int) -> Step:
    """Resume a staged request where it is: it waits for admission, and its KV stays as it is."""
    transit = state.transit
    outgoing = transit.outgoing[request_id]
    waiting, own = outgoing.waiting, outgoing.own_tokens
    if request_id in state.host.kv:
        waiting = replace(waiting, kv_tokens=0)
    waiting = replace(waiting, request=replace(waiting.request, arrival_ns=now_ns), prefill_only=False)
    state = replace(state, transit=replace(transit, outgoing=transit.outgoing.delete(request_id)))
    state = _queued(state, waiting, Landed(own, own))
    request = waiting.request
    return state, [Arrived(now_ns, state.worker, request, waiting.generated_tokens, waiting.kv_tokens)]


def youngest_landed(state: WorkerState) -> int:
    """Return the request that came with its KV last, of those that wait."""
    return max(state.transit.landed, key=lambda request_id: (state.queue[request_id].request.arrival_ns, request_id))


def unqueue_landed(state: WorkerState, request_id: int) -> WorkerState:
    """Return the state in which a waiting request holds no memory, and no pin, any more."""
    transit = state.transit
    landed = transit.landed.get(request_id)
    if landed is None:
        return state
    return replace(
        state,
        cache=state.cache.release(request_id),
        used=state.used - landed.used,
        promised=state.promised - landed.promised,
        transit=replace(transit, landed=transit.landed.delete(request_id)),
    )


def _without(landed: Map[int, Landed], request_id: int) -> Map[int, Landed]:
    return landed.delete(request_id) if request_id in landed else landed


def _queued(state: WorkerState, waiting: Waiting, landed: Landed) -> WorkerState:
    """Return the state with a request that waits and holds memory."""
    request_id, transit = waiting.request.id, state.transit
    return replace(
        state,
        queue=state.queue.set(request_id, waiting),
        queue_tokens=state.queue_tokens + waiting.context_tokens,
        transit=replace(transit, landed=transit.landed.set(request_id, landed)),
    )
