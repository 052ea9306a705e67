"""A worker's batch: joining and leaving it, with every sum over running and decoding requests.

These are the parts of the transitions in `fairsched.model.worker.transitions`; each leaves some sums for its caller
to finish.
"""

from bisect import bisect_left

from msgspec.structs import replace

from fairsched.model.decision import InFlight, StepPlan
from fairsched.model.events import Event, Evicted, Paused, Preempted, Resumed
from fairsched.model.worker.state import WorkerState


def generated(state: WorkerState, request_id: int) -> int:
    """Output tokens of a running request so far, earlier admissions included."""
    return state.running[request_id].waiting.generated_tokens + produced(state, state.in_flight[request_id])


def produced(state: WorkerState, flight: InFlight) -> int:
    """Output tokens since this admission."""
    return flight.decoded_tokens(state.clock)


def kv_tokens(state: WorkerState, request_id: int) -> int:
    """Return tokens of a running request's prompt and output whose KV is here: all but the last, which is not fed back
    yet."""
    flight = state.in_flight[request_id]
    return flight.context_tokens - flight.remaining_tokens + max(produced(state, flight) - 1, 0)


def join_decode(state: WorkerState, flight: InFlight, left: int) -> WorkerState:
    """Let the request decode from the next step on, for `left` steps."""
    clients, counts = _counted(state.clients, state.counts, flight.client, 1)
    return replace(
        state,
        ends=state.ends.add((state.clock + left, flight.request_id)),
        clients=clients,
        counts=counts,
        decoding=state.decoding + 1,
        growing=state.growing + (not flight.reserved),
        context=state.context + flight.context_tokens + 1,
    )


def keep(state: WorkerState, request_id: int, now_ns: int) -> WorkerState:
    """Count the cached prompt of a request that ends now, and that others of its program follow, as used `keep_ns`
    later: until then it is evicted after prompts that are used before.  Nothing is promised to it."""
    if not state.keep_ns or not state.running[request_id].waiting.request.downstream_levels:
        return state
    return replace(state, cache=state.cache.keep(request_id, now_ns + state.keep_ns))


def release(state: WorkerState, request_id: int) -> WorkerState:
    """Take the request out of the batch: its own memory is free, its cached prompt stays until evicted."""
    run, flight = state.running[request_id], state.in_flight[request_id]
    clock_end, output = run.clock_end, flight.decoded_tokens(state.clock)
    computed = run.extend_tokens - flight.remaining_tokens - run.moved_tokens + output
    prefilling, ends, clients, counts = state.prefilling, state.ends, state.clients, state.counts
    decodes, paused = 0, state.paused
    if flight.remaining_tokens:
        prefilling = tuple([pair for pair in prefilling if pair[0] != request_id])
    if flight.clock_paused is not None:
        paused = tuple([other for other in paused if other != request_id])
    elif clock_end is not None and clock_end != flight.clock_start:
        decodes = 1
        ends = ends.remove((clock_end, request_id))
        clients, counts = _counted(clients, counts, flight.client, -1)
    return replace(
        state,
        cache=state.cache.release(request_id),
        running=state.running.delete(request_id),
        in_flight=state.in_flight.delete(request_id),
        ranks=state.ranks.remove((flight.rank, request_id)),
        prefilling=prefilling,
        ends=ends,
        clients=clients,
        counts=counts,
        decoding=state.decoding - decodes,
        growing=state.growing - (0 if flight.reserved else decodes),
        context=state.context - decodes * (flight.context_tokens + output),
        used=state.used - computed,
        promised=state.promised - flight.kv_tokens - (0 if flight.reserved else output),
        paused=paused,
    )


def pause(state: WorkerState, request_id: int, now_ns: int) -> tuple[WorkerState, Paused] | str:
    """Pause a decoding request, which produces nothing more until it is resumed; what speaks against it, if anything
    does."""
    flight = state.in_flight.get(request_id)
    if flight is None:
        return f"request {request_id} is paused and does not run"
    if flight.clock_start is None:
        return f"request {request_id} is paused and has {flight.remaining_tokens} tokens left to prefill"
    clock_end = state.running[request_id].clock_end
    if flight.clock_paused is not None or clock_end is None:
        return f"request {request_id} is paused already"
    clients, counts = _counted(state.clients, state.counts, flight.client, -1)
    paused = replace(
        state,
        in_flight=state.in_flight.set(request_id, replace(flight, clock_paused=state.clock)),
        ends=state.ends.remove((clock_end, request_id)),
        clients=clients,
        counts=counts,
        decoding=state.decoding - 1,
        growing=state.growing - (not flight.reserved),
        context=state.context - flight.context_tokens - produced(state, flight),
        paused=(*state.paused, request_id),
    )
    return paused, Paused(now_ns, state.worker, request_id, flight.client, generated(state, request_id))


def unpause(state: WorkerState, request_id: int, now_ns: int) -> tuple[WorkerState, Resumed] | str:
    """Let a paused request decode again, with as many steps before it as it had; what speaks against it, if anything
    does."""
    flight, run = state.in_flight.get(request_id), state.running.get(request_id)
    if flight is None or run is None or flight.clock_paused is None:
        return f"request {request_id} is resumed and is not paused"
    assert flight.clock_start is not None
    assert run.clock_end is not None
    steps = state.clock - flight.clock_paused
    clock_end = run.clock_end + steps
    again = replace(flight, clock_start=flight.clock_start + steps, clock_paused=None)
    clients, counts = _counted(state.clients, state.counts, flight.client, 1)
    resumed = replace(
        state,
        running=state.running.set(request_id, replace(run, clock_end=clock_end)),
        in_flight=state.in_flight.set(request_id, again),
        ends=state.ends.add((clock_end, request_id)),
        clients=clients,
        counts=counts,
        decoding=state.decoding + 1,
        growing=state.growing + (not flight.reserved),
        context=state.context + flight.context_tokens + produced(state, again),
        paused=tuple([other for other in state.paused if other != request_id]),
    )
    return resumed, Resumed(now_ns, state.worker, request_id, flight.client)


def requeue(state: WorkerState, request_id: int, now_ns: int) -> tuple[WorkerState, Preempted]:
    """Take the memory of a running request, which waits again; what it generated is kept, to be computed once more."""
    run, flight = state.running[request_id], state.in_flight[request_id]
    done = generated(state, request_id)
    state = release(state, request_id)
    waiting = replace(run.waiting, generated_tokens=done, kv_tokens=0)
    state = replace(
        state,
        queue=state.queue.set(request_id, waiting),
        queue_tokens=state.queue_tokens + waiting.request.prompt.tokens + done,
    )
    return state, Preempted(now_ns, state.worker, request_id, flight.client, done, flight.remaining_tokens)


def evict(
    state: WorkerState, tokens: int, now_ns: int, events: list[Event], plan: StepPlan | None = None
) -> WorkerState:
    """Evict at least `tokens` tokens of the cache, or all that is not pinned, nor below a floor, for a step."""
    cache, evictions = state.cache.evict(tokens, state.evictor(plan) if state.floors else None)
    for e in evictions:
        events.append(Evicted(now_ns, state.worker, e.owner, e.prompt, e.keep_blocks, e.blocks))
    return replace(state, cache=cache)


def _counted(
    clients: tuple[int, ...], counts: tuple[int, ...], client: int, change: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sorted multiset of clients with `change` more (or fewer) of `client`."""
    i = bisect_left(clients, client)
    if i == len(clients) or clients[i] != client:
        return (*clients[:i], client, *clients[i:]), (*counts[:i], change, *counts[i:])
    count = counts[i] + change
    if not count:
        return clients[:i] + clients[i + 1 :], counts[:i] + counts[i + 1 :]
    return clients, counts[:i] + (count,) + counts[i + 1 :]
