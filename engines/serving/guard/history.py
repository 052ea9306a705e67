"""A worker's present told as a history: the events from which a policy that saw nothing knows what waits and runs.

A policy that takes over in the middle of a load (a fallback, a policy whose state was lost) needs the queue, the batch
and the prefix cache, and learns them by events.  Requests that are over are left out, so what they were charged is
forgiven; a caller that kept the debts puts them in afterwards.
"""

from collections.abc import Iterable, Iterator

from fairsched.model import events as ev
from fairsched.model.request import Client, Prompt, Request
from fairsched.model.worker import WorkerState, generated

GHOST = 1 << 62
"""The id under which the history puts into the cache what finished requests left there."""


def history(state: WorkerState, clients: Iterable[Client], now_ns: int) -> list[ev.Event]:
    """Return events that lead an empty policy to this worker.  O(n log n) in what waits, runs and is cached."""
    worker = state.worker
    waits = list(state.queue.values()) + [run.waiting for run in state.running.values()]
    waits.sort(key=lambda waiting: (waiting.request.arrival_ns, waiting.request.id))
    memory = state.capacity, state.host.capacity_tokens
    joined = ev.WorkerJoined(now_ns, worker, *memory, adapter_slots=state.adapter_slots)
    events: list[ev.Event] = [joined]
    events += [ev.configured(client, now_ns, worker) for client in clients if not client.is_plain]
    # What a request had generated before its last preemption came with it, as from a worker that left.
    events += [ev.Arrived(now_ns, worker, waiting.request, waiting.generated_tokens) for waiting in waits]
    ghost = Request(GHOST, 0, now_ns, Prompt(tokens=1), 1)
    events += [ev.Arrived(now_ns, worker, ghost), ev.Admitted(now_ns, worker, GHOST, 0, 1, 0, 0)]
    events += _batch(state, now_ns)
    for node in sorted(state.cache.tree.nodes):
        if not state.cache.tree.nodes[node].children:
            events += _cached(state, GHOST, *state.cache.tree.prefix(node), now_ns)
    return [*events, ev.Cancelled(now_ns, worker, GHOST, 0, True, 1, 0)]


def _batch(state: WorkerState, now_ns: int) -> Iterator[ev.Event]:
    """Admit the running requests, each with just the prefix that it holds.

    In order of these prefixes' lengths: none that was cached before then makes a later one longer than it was.
    """
    held = {request_id: state.cache.tree.prefix(node) for request_id, node in state.cache.pins.items()}
    nothing = Prompt(tokens=1), 0
    flights = sorted(state.in_flight.values(), key=lambda f: (held.get(f.request_id, nothing)[1], f.rank))
    for flight in flights:
        prompt, blocks = held.get(flight.request_id, nothing)
        prefilled = not flight.remaining_tokens
        if not prefilled:
            yield from _cached(state, GHOST, prompt, blocks, now_ns)
        run, client = state.running[flight.request_id], flight.client
        reserved = run.waiting.request.max_output_tokens - run.waiting.generated_tokens if flight.reserved else 0
        cached, left = flight.context_tokens - run.extend_tokens, flight.remaining_tokens
        yield ev.Admitted(now_ns, state.worker, flight.request_id, client, run.extend_tokens, cached, reserved)
        if left < run.extend_tokens:
            yield ev.Prefilled(now_ns, state.worker, flight.request_id, client, run.extend_tokens - left, left)
        if prefilled:
            yield from _cached(state, flight.request_id, prompt, blocks, now_ns)
            produced = max(flight.decoded_tokens(state.clock), 1)
            yield ev.Decoded(now_ns, state.worker, 1, (client,), (produced,))
    for request_id in state.paused:
        client = state.in_flight[request_id].client
        yield ev.Paused(now_ns, state.worker, request_id, client, generated(state, request_id))


def _cached(state: WorkerState, owner: int, prompt: Prompt, blocks: int, now_ns: int) -> Iterator[ev.Event]:
    if blocks:
        yield ev.Cached(now_ns, state.worker, owner, prompt, blocks)
