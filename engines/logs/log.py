"""The canonical log of a run: one line an event, the same bytes on every machine, and its hash.

A decode run is one line, however many calls it took: consecutive `decoded` events of a worker with nothing of that
worker in between are summed.  So a simulator that leaps over steps and one that takes them one by one write one log.
"""

import hashlib
from collections.abc import Callable, Iterable
from itertools import compress, count

import msgspec

from fairsched.model.events import Arrived, Cached, ClientConfigured, Decoded, Event, Evicted, Migrated, WorkerJoined

_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines
_BATCH = 4096
_BY_REFERENCE = frozenset({Arrived, Cached, Evicted, ClientConfigured, Migrated, WorkerJoined})


def by_reference(event: Event) -> object:
    """An event as the log writes it: prompts are named by the request that brought them, and no groups, no host memory
    and no KV that is to be sent are left out."""
    match event:
        case Arrived(request=r):
            line = ("Arrived", event.time_ns, event.worker, r.id, r.client, r.prompt.tokens, r.max_output_tokens)
            if event.kv_tokens:
                return (*line, event.generated_tokens, event.kv_tokens)
            return (*line, event.generated_tokens) if event.generated_tokens else line
        case Cached():
            return ("Cached", event.time_ns, event.worker, event.owner, event.blocks)
        case Evicted():
            return ("Evicted", event.time_ns, event.worker, event.owner, event.keep_blocks, event.blocks)
        case Migrated(kv_tokens=0):
            return ("Migrated", *msgspec.structs.astuple(event)[:-1])
        case ClientConfigured(groups=()):
            return ("ClientConfigured", event.time_ns, event.worker, event.client, event.weight)
        case WorkerJoined(keep_ns=0, adapter_slots=0) if event.host_capacity_tokens:
            return ("WorkerJoined", *msgspec.structs.astuple(event)[:-2])
        case WorkerJoined(keep_ns=0, adapter_slots=0):
            return ("WorkerJoined", event.time_ns, event.worker, event.kv_capacity_tokens)
        case WorkerJoined(adapter_slots=0):
            return ("WorkerJoined", *msgspec.structs.astuple(event)[:-1])
    return event


def line_of(event: Event) -> bytes:
    """An event's line: kind, time, worker, and its numbers."""
    return _encode(by_reference(event))


class CanonicalLog:
    """Collects events in the order of a run, coalesces decode runs, and hashes the lines.

    `sink` receives each event as it stands in the log, with its line.
    """

    def __init__(self, sink: Callable[[Event, bytes], None] | None = None) -> None:
        self._hash = hashlib.sha256()
        self._batch: list[Event] = []
        self._decoding: dict[int, Decoded] = {}
        self._sink = sink
        self._batched = 1 if sink is not None else _BATCH

    def record(self, events: Iterable[Event]) -> None:
        """The next events of the run, in order."""
        decoding, batch = self._decoding, self._batch
        for event in events:
            worker = event.worker
            if type(event) is Decoded:
                decoding[worker] = merged(decoding[worker], event) if worker in decoding else event
                continue
            if worker in decoding:
                batch.append(decoding.pop(worker))
            batch.append(event)
        if len(batch) >= self._batched:
            self._flush()

    def _flush(self) -> None:
        """Encode and hash what was collected; a sink wants every line at once, since the run may be cut off."""
        batch = self._batch
        rows: list[object] = list(batch)
        for i in compress(count(), map(_BY_REFERENCE.__contains__, map(type, batch))):
            rows[i] = by_reference(batch[i])
        lines = _encode_lines(rows)
        self._hash.update(lines)
        if self._sink is not None:
            for event, line in zip(batch, lines.splitlines(), strict=True):
                self._sink(event, line)
        batch.clear()

    def sha256(self) -> str:
        """The hash of all lines; open decode runs are written first, in order of their workers."""
        for worker in sorted(self._decoding):
            self._batch.append(self._decoding[worker])
        self._decoding.clear()
        self._flush()
        return self._hash.hexdigest()


def merged(first: Decoded, second: Decoded) -> Decoded:
    """Two decode runs of one worker as one."""
    if first.clients == second.clients:
        tokens = tuple([a + b for a, b in zip(first.tokens, second.tokens, strict=True)])
        return Decoded(second.time_ns, second.worker, first.steps + second.steps, first.clients, tokens)
    produced = dict(zip(first.clients, first.tokens, strict=True))
    for client, more in zip(second.clients, second.tokens, strict=True):
        produced[client] = produced.get(client, 0) + more
    clients = tuple(sorted(produced))
    tokens = tuple(produced[client] for client in clients)
    return Decoded(second.time_ns, second.worker, first.steps + second.steps, clients, tokens)
