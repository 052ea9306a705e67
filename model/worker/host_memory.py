"""What swapping does to a worker: KV goes to host memory and comes back, each in the time of a step.

A request that is swapped out leaves the batch and waits again; all of its KV is copied, its cached prefix too, so that
the cache may evict that.  Until the copy is whole, what it had of its own stays on the device, and its prefix pinned.
Coming back is an admission that counts on the copy: what of the prompt is still cached is not moved, memory is promised
as at any admission, and the request computes from the next step on.
"""

from msgspec.structs import replace

from fairsched.model.decision import Host
from fairsched.model.events import Event, HostLost, SwappedOut, Transferred
from fairsched.model.worker.batch import kv_tokens, requeue
from fairsched.model.worker.state import WorkerState


def swap_out(state: WorkerState, request_id: int, now_ns: int) -> tuple[WorkerState, list[Event]] | str:
    """Swap a running request out, with its KV, to the host; what speaks against it, if anything does."""
    flight = state.in_flight.get(request_id)
    if flight is None:
        return f"request {request_id} is swapped out and does not run"
    kv, host = kv_tokens(state, request_id), state.host
    if kv < 1:
        return f"request {request_id} is swapped out and has no KV yet"
    if kv > host.free_tokens:
        return f"request {request_id} is swapped out with {kv} tokens and {host.free_tokens} are free on the host"
    left, preempted = requeue(state, request_id, now_ns)
    own = state.used - left.used
    left = replace(
        left,
        cache=state.cache,
        used=left.used + own,
        promised=left.promised + own,
        host=replace(
            host,
            used_tokens=host.used_tokens + kv,
            kv=host.kv.set(request_id, kv),
            outgoing=(*host.outgoing, (request_id, own)),
            out_tokens=host.out_tokens + kv,
        ),
    )
    return left, [SwappedOut(now_ns, state.worker, request_id, flight.client, kv), preempted]


def fetch(host: Host, request_id: int, tokens: int) -> Host:
    """Fetch the KV of a request, of which `tokens` are moved; its place is free when they have come."""
    kv = host.kv[request_id]
    return replace(
        host,
        kv=host.kv.delete(request_id),
        in_tokens=host.in_tokens + tokens,
        vacated_tokens=host.vacated_tokens + kv,
    )


def drop(host: Host, request_id: int) -> Host:
    """Return the host without a request's KV, if it had any: it is not needed any more."""
    kv = host.kv.get(request_id)
    if kv is None:
        return host
    return replace(host, kv=host.kv.delete(request_id), used_tokens=host.used_tokens - kv)


def land(state: WorkerState, now_ns: int) -> tuple[WorkerState, Transferred]:
    """End the transfers under way: what went out is free on the device, what came back is free on the host."""
    host = state.host
    state = replace(_vacated(state), host=Host(host.capacity_tokens, host.used_tokens - host.vacated_tokens, host.kv))
    return state, Transferred(now_ns, state.worker, host.out_tokens, host.in_tokens)


def lose_host(state: WorkerState, now_ns: int) -> tuple[WorkerState, HostLost]:
    """Host memory is lost, with the transfers under way; waiting requests will be computed again."""
    state = replace(_vacated(state), host=Host(state.host.capacity_tokens))
    return state, HostLost(now_ns, state.worker)


def _vacated(state: WorkerState) -> WorkerState:
    """Free what was on its way out of the device."""
    cache, own = state.cache, 0
    for request_id, tokens in state.host.outgoing:
        cache, own = cache.release(request_id), own + tokens
    return replace(state, cache=cache, used=state.used - own, promised=state.promised - own)
