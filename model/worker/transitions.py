"""One worker as a pure, untimed transition system: memory, prefix cache, batch and queue, and what a step does to them.

A step has two halves.  `begin` applies a plan's changes of the batch and makes room; `finish` computes: chunks
are prefilled, tokens decoded, requests finish.  A run of pure decode steps is one `finish` over many steps, since every
decoding request counts its tokens from a clock of decode steps and none is touched before it ends; for a paused one
the clock stands still.  Between two steps
callers give up (`cancel`), outputs end early (`stop`) and memory is lost (`lose`).  Time only labels the events;
the driver (simulator, proof, conformance machine) supplies it.
"""

from msgspec.structs import replace

from fairsched.model import events as ev
from fairsched.model.decision import NO_HOST, Admission, InFlight, StepPlan
from fairsched.model.prefix_cache import NO_FLOORS
from fairsched.model.request import Request
from fairsched.model.worker.batch import evict, generated, join_decode, keep, pause, release, requeue, unpause
from fairsched.model.worker.host_memory import drop, fetch, land, lose_host, swap_out
from fairsched.model.worker.state import Running, Step, Waiting, WorkerState
from fairsched.model.worker.transit import sent, stage, unqueue_landed, unreserve

EVICT_SHARE = 128
"""An eviction frees at least this share of the capacity (rounded down) where it can, so that it is rare."""


class InfeasiblePlanError(ValueError):
    """A plan that this worker cannot execute; the message names the request and by how much."""


def arrive(
    state: WorkerState,
    request: Request,
    output_tokens: int,
    now_ns: int,
    generated_tokens: int = 0,
    prefill_only: bool = False,
) -> Step:
    """Add the request to the queue, or reject it if it could never fit.

    Of its `output_tokens` it has `generated_tokens` already, from another worker.  With `prefill_only` it leaves the
    batch with its first token out.
    """
    if not state.fits_alone(request):
        need = request.prompt.tokens + request.max_output_tokens
        reason = f"request {request.id} needs {need} tokens, worker {state.worker} holds {state.capacity} in all"
        if state.floors:
            reason += f" and keeps {state.kept_from(request.client)} for other clients"
        if request.adapter and not state.adapter_slots:
            reason = f"request {request.id} needs adapter {request.adapter}, worker {state.worker} has no adapter slots"
        return state, [ev.Rejected(now_ns, state.worker, request.id, request.client, reason)]
    waiting = Waiting(request, output_tokens, generated_tokens, prefill_only=prefill_only)
    state = replace(
        state,
        queue=state.queue.set(request.id, waiting),
        queue_tokens=state.queue_tokens + waiting.context_tokens,
    )
    return state, [ev.Arrived(now_ns, state.worker, request, generated_tokens)]


def reject(state: WorkerState, request_id: int, reason: str, now_ns: int) -> Step:
    """Reject a waiting request, which leaves the queue and will never be served."""
    waiting = state.queue[request_id]
    client = waiting.request.client
    return _unqueued(state, waiting), [ev.Rejected(now_ns, state.worker, request_id, client, reason)]


def _unqueued(state: WorkerState, waiting: Waiting) -> WorkerState:
    """Return the queue without a request, and without what it held."""
    state = unqueue_landed(state, waiting.request.id)
    queue = state.queue.delete(waiting.request.id)
    host = drop(state.host, waiting.request.id) if state.host.kv else state.host
    return replace(state, queue=queue, queue_tokens=state.queue_tokens - waiting.context_tokens, host=host)


def begin(state: WorkerState, plan: StepPlan, now_ns: int) -> Step:
    """Apply the plan's changes of the batch and evict what its step needs room for.

    Raises `InfeasiblePlanError`, leaving the state as it was, if the plan cannot be executed.
    """
    chunks, valid_steps = plan.chunks, plan.valid_steps
    if valid_steps is not None and valid_steps < 1:
        raise _infeasible(state, f"the plan is valid for {valid_steps} steps, and a plan holds for at least 1")
    changes = plan.changes_batch or plan.swap_in
    if not (chunks or changes or state.growing) and state.decoding <= state.room:
        return state, []
    events: list[ev.Event] = []
    if changes:
        state, events = change_batch(state, plan, now_ns)
    growth, unreserved = (state.decoding, state.growing) if plan.decode else (0, 0)
    if chunks:
        grown, taken = _checked_growth(state, chunks)
        growth, unreserved = growth + grown, unreserved + taken
    if unreserved > state.free and (not state.floors or state.free_beside(state.growth_of(plan)) < 0):
        raise _infeasible(state, f"the step's output needs {unreserved} tokens and {state.free} are free")
    if growth > state.room:
        state = evict(state, max(growth - state.room, state.capacity // EVICT_SHARE), now_ns, events, plan)
    return state, events


def change_batch(state: WorkerState, plan: StepPlan, now_ns: int) -> Step:
    """Apply the plan's preemptions, pauses, admissions and swaps, without making room for its step."""
    events: list[ev.Event] = []
    for request_id in plan.preempt:
        if request_id not in state.in_flight:
            raise _infeasible(state, f"request {request_id} is preempted and does not run")
        state, preempted = requeue(state, request_id, now_ns)
        events.append(preempted)
    if plan.pause or plan.resume:
        state = _stop_and_go(state, plan, now_ns, events)
    if plan.swap_in:
        _check_swaps(state, plan)
    for admission in plan.admit:
        state = _admit(state, admission, now_ns, events, admission.request_id in plan.swap_in)
    for request_id in plan.swap_out:
        swapped = swap_out(state, request_id, now_ns)
        if isinstance(swapped, str):
            raise _infeasible(state, swapped)
        state = swapped[0]
        events += swapped[1]
    return state, events


def _stop_and_go(state: WorkerState, plan: StepPlan, now_ns: int, events: list[ev.Event]) -> WorkerState:
    """Pause and resume what the plan says."""
    for change, request_ids in ((pause, plan.pause), (unpause, plan.resume)):
        for request_id in request_ids:
            if request_id in plan.swap_out or (change is unpause and request_id in plan.pause):
                raise _infeasible(state, f"request {request_id} is named twice among the requests that pause or leave")
            changed = change(state, request_id, now_ns)
            if isinstance(changed, str):
                raise _infeasible(state, changed)
            state, event = changed
            events.append(event)
    return state


def finish(state: WorkerState, plan: StepPlan, steps: int, now_ns: int) -> Step:
    """Compute `steps` steps of a plan that has begun; more than one only if it has no chunks.

    The caller keeps `steps <= decode_steps_max()` for pure decode runs.
    """
    events: list[ev.Event] = []
    ended: list[int] = []
    if state.host is not NO_HOST and state.host.moves:
        state, transferred = land(state, now_ns)
        events.append(transferred)
    decoding = state.decoding if plan.decode else 0
    clock = state.clock
    if decoding:
        clock, grown = clock + steps, decoding * steps
        state = replace(
            state,
            clock=clock,
            context=state.context + grown,
            used=state.used + grown,
            promised=state.promised + state.growing * steps,
        )
    if plan.chunks:
        produced = dict(zip(state.clients, state.counts, strict=True)) if decoding else {}
        for request_id, tokens in plan.chunks:
            state = _prefill(state, request_id, tokens, now_ns, events, produced, ended)
        if produced:
            clients = tuple(sorted(produced))
            events.append(ev.Decoded(now_ns, state.worker, 1, clients, tuple([produced[c] for c in clients])))
    elif decoding:
        counts = state.counts
        in_all = counts if steps == 1 else tuple([count * steps for count in counts])
        events.append(ev.Decoded(now_ns, state.worker, steps, state.clients, in_all))
    ends = state.ends
    if ends.size and ends.first()[0] <= clock:
        for end, request_id in ends:
            if end > clock:
                break
            ended.append(request_id)
    for request_id in ended:
        waiting = state.running[request_id].waiting
        if waiting.prefill_only and generated(state, request_id) < waiting.output_tokens:
            state, left = stage(state, request_id, now_ns)
            events += left
            continue
        state = release(keep(state, request_id, now_ns), request_id)
        events.append(ev.Finished(now_ns, state.worker, request_id, waiting.request.client, waiting.output_tokens))
    return state, events


def step(state: WorkerState, plan: StepPlan, now_ns: int, steps: int = 1) -> Step:
    """Take both halves at once, with one label of time: the transition that proofs and conformance machines drive."""
    state, begun = begin(state, plan, now_ns)
    state, done = finish(state, plan, steps, now_ns)
    return state, begun + done


def cancel(state: WorkerState, request_id: int, now_ns: int) -> Step:
    """Cancel a request of this worker, waiting or running, between two steps."""
    return _leave(state, request_id, now_ns, ev.Cancelled)


def depart(state: WorkerState, request_id: int, now_ns: int) -> Step:
    """Let a request of this worker, waiting or running, leave for another one, between two steps."""
    return _leave(state, request_id, now_ns, ev.Migrated)


def _leave(state: WorkerState, request_id: int, now_ns: int, kind: type[ev.Cancelled | ev.Migrated]) -> Step:
    waiting = state.queue.get(request_id)
    if waiting is not None:
        client = waiting.request.client
        gone = kind(now_ns, state.worker, request_id, client, False, 0, waiting.generated_tokens)
        return _unqueued(state, waiting), [gone]
    flight = state.in_flight[request_id]
    done = generated(state, request_id)
    state = release(state, request_id)
    return state, [kind(now_ns, state.worker, request_id, flight.client, True, flight.remaining_tokens, done)]


def stop(state: WorkerState, request_id: int, now_ns: int) -> Step:
    """End between two steps a decoding request that produced its last token earlier than was foreseen.

    It finishes with what it produced, and the rest of its reservation is free.  Raises `ValueError` for a
    request that has produced nothing since its admission, or is not running.
    """
    flight = state.in_flight.get(request_id)
    if flight is None or flight.clock_start is None:
        doing = "is not running" if flight is None else f"has {flight.remaining_tokens} tokens left to prefill"
        raise ValueError(f"worker {state.worker}: request {request_id} cannot stop, since it {doing}")
    output_tokens = generated(state, request_id)
    state = release(keep(state, request_id, now_ns), request_id)
    return state, [ev.Finished(now_ns, state.worker, request_id, flight.client, output_tokens)]


def lose(state: WorkerState, now_ns: int) -> Step:
    """Lose the worker's memory (its process died and was started again), and with it the step under way.

    Whatever ran waits again, in order of admission, and keeps what it had generated, to be computed once more; nothing
    is cached or on the host any more; the queue stays, without the KV that came with requests.  What was staged, or
    reserved for KV to come, is for the driver to place anew.  O(batch + cache).
    """
    events: list[ev.Event] = []
    if state.host.kv or state.host.moves:
        state, lost = lose_host(state, now_ns)
        events.append(lost)
    for request_id in sorted(state.transit.landed):
        state, told = again(state, state.queue[request_id], now_ns)
        events += told
    state = _without_transit(state)
    for _, request_id in state.ranks:
        state, preempted = requeue(state, request_id, now_ns)
        events.append(preempted)
    cached_tokens = state.cache.tree.cached_tokens
    if cached_tokens:
        # What is lost is lost to all, whatever their floors.
        state = replace(evict(replace(state, floors=NO_FLOORS), cached_tokens, now_ns, events), floors=state.floors)
    return state, events


def again(state: WorkerState, waiting: Waiting, now_ns: int) -> Step:
    """Take from a waiting request the KV with which it came: as if it left, and came again without."""
    request = replace(waiting.request, arrival_ns=now_ns)
    state, left = depart(state, request.id, now_ns)
    state, came = arrive(state, request, waiting.output_tokens, now_ns, waiting.generated_tokens, waiting.prefill_only)
    return state, left + came


def _without_transit(state: WorkerState) -> WorkerState:
    """Return the worker that holds no memory for requests between two workers."""
    for request_id in sorted(state.transit.outgoing):
        state = sent(state, request_id)
    for request_id in sorted(state.transit.incoming):
        state = unreserve(state, request_id)
    return state


def _infeasible(state: WorkerState, why: str) -> InfeasiblePlanError:
    return InfeasiblePlanError(f"worker {state.worker}: {why}")


def _admit(
    state: WorkerState, admission: Admission, now_ns: int, events: list[ev.Event], swapped: bool = False
) -> WorkerState:
    request_id, planned, promised = admission.request_id, admission.extend_tokens, admission.reserved_output_tokens
    waiting = state.queue.get(request_id)
    if waiting is None:
        raise _infeasible(state, f"request {request_id} is admitted and does not wait")
    request = waiting.request
    if state.lacks_slot(request):
        why = f"needs adapter {request.adapter}, and running requests have others in all {state.adapter_slots} slots"
        raise _infeasible(state, f"request {request_id} {why}")
    context = waiting.context_tokens
    state = unqueue_landed(state, request_id)
    cache, cached_tokens, _ = state.cache.admit(request_id, request.prompt, now_ns, request.client)
    own = context - cached_tokens
    came = state.host.kv[request_id] if swapped else waiting.kv_tokens
    # Of the KV that came along, what the plan does not count on is dropped and computed.
    ready = max(min(came - cached_tokens, own - planned), 0)
    extend = own - ready
    kv_tokens = own + promised
    need = kv_tokens + cache.tree.protected_tokens - state.cache.tree.protected_tokens
    free = state.free + state.reserves().get(request.client, 0) if state.floors else state.free
    if need > free:
        raise _infeasible(state, f"request {request_id} needs {need} tokens and {free} are free")
    left = request.max_output_tokens - waiting.generated_tokens
    if 0 < promised < left:
        raise _infeasible(state, f"request {request_id} may produce {left} tokens and is promised only {promised}")
    host = state.host
    if host.comes(request_id):
        raise _infeasible(state, f"request {request_id} is admitted while its KV is on its way to the host")
    if swapped:
        host = fetch(host, request_id, ready)
        events.append(ev.SwappedIn(now_ns, state.worker, request_id, request.client, ready))
    elif host.kv:
        host = drop(host, request_id)
    events.append(ev.Admitted(now_ns, state.worker, request_id, request.client, planned, context - planned, promised))
    if extend != planned:
        events.append(ev.Settled(now_ns, state.worker, request_id, request.client, extend))
    flight = InFlight(request_id, request.client, state.rank, context, extend, kv_tokens, promised > 0)
    return replace(
        state,
        cache=cache,
        queue=state.queue.delete(request_id),
        queue_tokens=state.queue_tokens - context,
        running=state.running.set(request_id, Running(waiting, own)),
        in_flight=state.in_flight.set(request_id, flight),
        ranks=state.ranks.add((state.rank, request_id)),
        prefilling=(*state.prefilling, (request_id, extend)),
        used=state.used + ready,
        promised=state.promised + kv_tokens,
        rank=state.rank + 1,
        host=host,
    )


def _check_swaps(state: WorkerState, plan: StepPlan) -> None:
    """Check that a request that is swapped in enters, has whole KV on the host, and computes nothing during the
    transfer."""
    entering = {admission.request_id for admission in plan.admit}
    computes = {request_id for request_id, _ in plan.chunks}
    for request_id in plan.swap_in:
        if request_id not in entering or not state.host.kept(request_id) or request_id in computes:
            raise _infeasible(
                state,
                f"request {request_id} is swapped in, and does not enter with KV that is on the "
                "host, computing nothing before it has come",
            )


def _checked_growth(state: WorkerState, chunks: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """Return how many tokens chunks of a step come to, with an output token each, and how many requests have none
    reserved."""
    growth = unreserved = 0
    seen: set[int] = set()
    for request_id, tokens in chunks:
        flight = state.in_flight.get(request_id)
        if flight is None or request_id in seen or not 1 <= tokens <= flight.remaining_tokens:
            remaining = 0 if flight is None else flight.remaining_tokens
            raise _infeasible(
                state,
                f"a chunk of {tokens} tokens for request {request_id}, "
                f"which has {remaining} left to prefill{' and two chunks' if request_id in seen else ''}",
            )
        seen.add(request_id)
        growth += tokens + 1
        unreserved += not flight.reserved
    return growth, unreserved


def _prefill(
    state: WorkerState,
    request_id: int,
    tokens: int,
    now_ns: int,
    events: list[ev.Event],
    produced: dict[int, int],
    ended: list[int],
) -> WorkerState:
    """Compute one chunk; the last one caches the prompt and yields the first output token."""
    flight = state.in_flight[request_id]
    remaining = flight.remaining_tokens - tokens
    events.append(ev.Prefilled(now_ns, state.worker, request_id, flight.client, tokens, remaining))
    if remaining:
        flight = replace(flight, remaining_tokens=remaining)
        return replace(
            state,
            in_flight=state.in_flight.set(request_id, flight),
            prefilling=tuple((r, remaining if r == request_id else left) for r, left in state.prefilling),
            used=state.used + tokens,
        )
    run = state.running[request_id]
    request = run.waiting.request
    cache, moved = state.cache, 0
    if cache.cacheable(request.prompt):
        cache, _ = cache.complete(request_id, request.prompt, request.prompt.blocks, now_ns, request.client)
        moved = request.prompt.blocks * request.prompt.block_tokens - (flight.context_tokens - run.extend_tokens)
        events.append(ev.Cached(now_ns, state.worker, request_id, request.prompt, request.prompt.blocks))
    produced[flight.client] = produced.get(flight.client, 0) + 1
    left = run.waiting.output_tokens - run.waiting.generated_tokens - 1
    if run.waiting.prefill_only:
        left = 0
    if left:
        state = join_decode(state, flight, left)
    else:
        ended.append(request_id)
    return replace(
        state,
        cache=cache,
        prefilling=tuple(pair for pair in state.prefilling if pair[0] != request_id),
        in_flight=state.in_flight.set(
            request_id,
            replace(flight, remaining_tokens=0, kv_tokens=flight.kv_tokens - moved, clock_start=state.clock),
        ),
        running=state.running.set(request_id, Running(run.waiting, run.extend_tokens, moved, state.clock + left)),
        used=state.used + tokens + 1 - moved,
        promised=state.promised - moved + (0 if flight.reserved else 1),
    )
