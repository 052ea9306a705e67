"""What is true of a worker between any two transitions: every sum recomputed from the requests themselves.

And what is true of a policy's copy of its prefix cache.
"""

from collections import Counter

import msgspec

from fairsched.model.decision import Host, InFlight
from fairsched.model.prefix_cache import PrefixCache, PrefixTree
from fairsched.model.request import KEY_BYTES
from fairsched.model.worker import Running, WorkerState


def check(state: WorkerState) -> None:
    """Raise `AssertionError` unless every invariant of the worker's state holds.  O(its size)."""
    _check_memory(state)
    _check_queue(state)
    _check_batch(state)
    _check_decoding(state)
    _check_pins(state)
    _check_host(state)
    _check_transit(state)


def check_lost(before: WorkerState, after: WorkerState) -> None:
    """Raise `AssertionError` unless `after` is what a worker is that was `before` and lost its memory."""
    # Nothing runs, nothing is cached, nothing is promised, nothing is on the host.
    assert after.host == Host(before.host.capacity_tokens)
    assert not after.running
    assert not after.cache.tree.cached_tokens
    assert after.free == after.room == after.capacity == before.capacity
    # Who waited waits as before; who ran waits, and has generated what it had.
    assert set(after.queue) == set(before.queue) | set(before.running)
    for i, waiting in after.queue.items():
        if i in before.queue:
            assert waiting == before.queue[i]
        else:
            known = before.running[i].waiting
            assert (waiting.request, waiting.output_tokens) == (known.request, known.output_tokens)
            assert waiting.generated_tokens == known.generated_tokens + produced(before, before.in_flight[i])


def check_copy(own: PrefixCache, true: PrefixCache) -> None:
    """Raise `AssertionError` unless a policy's own cache holds and protects what the worker's true one does.

    How either is cut into nodes may differ.
    """
    assert _leaves(own.tree) == _leaves(true.tree)
    assert own.tree.protected_tokens == true.tree.protected_tokens
    pinned = {request_id: _path(own.tree, node) for request_id, node in own.pins.items()}
    assert pinned == {request_id: _path(true.tree, node) for request_id, node in true.pins.items()}


def _leaves(tree: PrefixTree) -> set[bytes]:
    """Return every longest cached prefix: trees with the same ones hold the same."""
    return {_path(tree, i) for i, node in tree.nodes.items() if not node.children}


def _path(tree: PrefixTree, node: int) -> bytes:
    """Return keys from the root to the end of a node."""
    prompt, blocks = tree.prefix(node)
    return prompt.keys[: blocks * KEY_BYTES]


def produced(state: WorkerState, flight: InFlight) -> int:
    """Output tokens of a running request since its admission."""
    until = state.clock if flight.clock_paused is None else flight.clock_paused
    return 0 if flight.clock_start is None else 1 + until - flight.clock_start


def _check_memory(state: WorkerState) -> None:
    tree = state.cache.tree
    # What is computed fits, and so does what is promised beside what may not be evicted.
    assert tree.cached_tokens + state.used <= state.capacity
    assert tree.protected_tokens + state.promised <= state.capacity
    flights = [(state.in_flight[i], run) for i, run in state.running.items()]
    # Used is what running requests computed outside the cache, and what has not left for the host yet.
    leaving = sum(tokens for _, tokens in state.host.outgoing)
    transit = state.transit
    sent = sum(each.own_tokens for each in transit.outgoing.values())
    came = sum(each.used for each in transit.landed.values())
    assert state.used == sum(_computed(state, flight, run) for flight, run in flights) + leaving + sent + came
    # Promised is each one's own share, and what grew without a reservation.
    grown = sum(produced(state, flight) for flight, _ in flights if not flight.reserved)
    kept = sent + sum(transit.incoming.values()) + sum(each.promised for each in transit.landed.values())
    assert state.promised == sum(flight.kv_tokens for flight, _ in flights) + grown + leaving + kept
    # No request uses more than it was promised, and a reservation covers the rest of the output.
    for flight, run in flights:
        still = run.waiting.output_tokens - run.waiting.generated_tokens - produced(state, flight)
        more = flight.remaining_tokens + (still if flight.reserved else 0)
        promised = flight.kv_tokens + (0 if flight.reserved else produced(state, flight))
        assert _computed(state, flight, run) + more <= promised


def _computed(state: WorkerState, flight: InFlight, run: Running) -> int:
    return run.extend_tokens - flight.remaining_tokens - run.moved_tokens + produced(state, flight)


def _check_queue(state: WorkerState) -> None:
    # No request waits and runs at once, and whatever waits could run here and is not complete.
    assert not set(state.queue) & set(state.running)
    for i, waiting in state.queue.items():
        assert waiting.request.id == i
        assert state.fits_alone(waiting.request)
        assert 0 <= waiting.generated_tokens < waiting.output_tokens
    # The tokens that wait are prompts and what preempted requests had generated.
    assert state.queue_tokens == sum(w.request.prompt.tokens + w.generated_tokens for w in state.queue.values())


def _check_batch(state: WorkerState) -> None:
    # The public and the private half of the batch speak of the same requests.
    assert set(state.running) == set(state.in_flight)
    # Running requests have no more adapters than there are slots.
    loaded = {run.waiting.request.adapter for run in state.running.values()} - {msgspec.UNSET}
    assert len(loaded) <= state.adapter_slots
    for i, flight in state.in_flight.items():
        run = state.running[i]
        request = run.waiting.request
        assert (flight.request_id, request.id, flight.client) == (i, i, request.client)
        assert flight.context_tokens == request.prompt.tokens + run.waiting.generated_tokens
        # At least one token is computed after an admission.
        assert 1 <= run.extend_tokens <= flight.context_tokens
        assert 0 <= flight.remaining_tokens <= run.extend_tokens
        # It prefills or it decodes.
        assert (flight.clock_start is None) == (run.clock_end is None) == bool(flight.remaining_tokens)
        assert run.waiting.generated_tokens + produced(state, flight) < run.waiting.output_tokens
    # Ranks name every request in the batch, in order of admission.
    state.ranks.check()
    assert list(state.ranks) == sorted((flight.rank, i) for i, flight in state.in_flight.items())
    assert all(rank < state.rank for rank, _ in state.ranks)
    # Who prefills is listed in that order, with what is left.
    left = [(i, state.in_flight[i].remaining_tokens) for _, i in state.ranks]
    assert list(state.prefilling) == [(i, tokens) for i, tokens in left if tokens]


def _check_decoding(state: WorkerState) -> None:
    started = {i: flight for i, flight in state.in_flight.items() if flight.clock_start is not None}
    # What is paused has begun to decode, and stopped in a step that is over.
    paused = {i: flight.clock_paused for i, flight in started.items() if flight.clock_paused is not None}
    assert sorted(state.paused) == sorted(i for i, f in state.in_flight.items() if f.clock_paused is not None)
    assert set(state.paused) == set(paused)
    # It was paused in the order in which it is listed.
    since = [paused[i] for i in state.paused]
    assert since == sorted(since)
    assert all(clock <= state.clock for clock in since)
    decoding = {i: flight for i, flight in started.items() if i not in paused}
    assert state.decoding == len(decoding)
    assert state.growing == sum(not flight.reserved for flight in decoding.values())
    # Context is all that the next decode step attends to.
    contexts = [flight.context_tokens + produced(state, flight) for flight in decoding.values()]
    assert state.context == sum(contexts)
    assert state.context_range() == (max(contexts, default=0), min(contexts, default=0))
    # Clients are counted in ascending order, and none is listed without a request.
    counts = sorted(Counter(flight.client for flight in decoding.values()).items())
    assert list(zip(state.clients, state.counts, strict=True)) == counts
    # Each ends when its output is complete, which is after now.
    state.ends.check()
    expected = []
    for i, flight in started.items():
        run = state.running[i]
        assert flight.clock_start is not None
        end = flight.clock_start + run.waiting.output_tokens - run.waiting.generated_tokens - 1
        assert run.clock_end == end > paused.get(i, state.clock)
        if i in decoding:
            expected.append((end, i))
    assert list(state.ends) == sorted(expected)


def _check_pins(state: WorkerState) -> None:
    state.cache.tree.check()
    # Only what runs pins, or has KV here on its way or before its admission, and every pin is one of theirs.
    leaving = {i for i, _ in state.host.outgoing} | set(state.transit.outgoing) | set(state.transit.landed)
    assert set(state.cache.pins) <= set(state.running) | leaving
    pins = Counter(state.cache.pins.values())
    assert all(node.pins == pins[i] for i, node in state.cache.tree.nodes.items())


def _check_host(state: WorkerState) -> None:
    host = state.host
    # What is there is of requests that wait or are to be sent, less than their contexts; with what leaves, it fits.
    assert set(host.kv) <= set(state.queue) | set(state.transit.outgoing)
    assert all(1 <= kv < state.queue[i].context_tokens for i, kv in host.kv.items() if i in state.queue)
    assert host.used_tokens == sum(host.kv.values()) + host.vacated_tokens <= host.capacity_tokens
    # Nothing is on the way to two places, and all that comes back was there.
    going = [i for i, _ in host.outgoing]
    assert len(set(going)) == len(going)
    assert not set(going) & set(state.running)
    assert 0 <= host.in_tokens <= host.vacated_tokens


def _check_transit(state: WorkerState) -> None:
    transit = state.transit
    # A request is at one place: between workers, in the queue, or in the batch.
    assert not set(transit.outgoing) & (set(state.queue) | set(state.running))
    assert not set(transit.incoming) & (set(state.queue) | set(state.running) | set(transit.outgoing))
    assert set(transit.landed) <= set(state.queue)
    # What has come fits into what was reserved for it, and is KV of that request.
    for i, landed in transit.landed.items():
        assert 0 <= landed.used <= min(landed.promised, state.queue[i].kv_tokens)
    # What is to be sent is the KV of a request that goes on, in the cache and outside.
    for i, outgoing in transit.outgoing.items():
        waiting = outgoing.waiting
        assert waiting.request.id == i
        assert 0 <= outgoing.own_tokens <= waiting.kv_tokens
        assert waiting.generated_tokens < waiting.output_tokens
