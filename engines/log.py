"""The canonical log of a run: one line an event, the same bytes on every machine, and its hash.

A decode run is one line, however many calls it took: consecutive `decoded` events of a worker with nothing of that
worker in between are summed.  So a simulator that leaps over steps and one that takes them one by one write one log.
"""

import hashlib
from collections.abc import Callable, Iterable

import msgspec

from fairsched.model.events import Arrived, Cached, Decoded, Event, Evicted

_encode = msgspec.json.Encoder().encode
_BATCH = 512
_BY_REFERENCE = frozenset({Arrived, Cached, Evicted})


def line_of(event: Event) -> bytes:
    """An event as the log writes it: kind, time, worker, and its numbers.  Prompts are named by their request."""
    kind = type(event)
    if kind is Arrived:
        assert isinstance(event, Arrived)
        r = event.request
        return _encode(("Arrived", event.time_ns, event.worker, r.id, r.client, r.prompt.tokens, r.max_output_tokens))
    if kind is Cached:
        assert isinstance(event, Cached)
        return _encode(("Cached", event.time_ns, event.worker, event.owner, event.blocks))
    if kind is Evicted:
        assert isinstance(event, Evicted)
        return _encode(("Evicted", event.time_ns, event.worker, event.owner, event.keep_blocks, event.blocks))
    return _encode(event)


class CanonicalLog:
    """Collects events in the order of a run, coalesces decode runs, and hashes the lines.

    `sink` receives each event as it stands in the log, with its line.
    """

    def __init__(self, sink: Callable[[Event, bytes], None] | None = None) -> None:
        self._hash = hashlib.sha256()
        self._lines: list[bytes] = []
        self._decoding: dict[int, Decoded | None] = {}
        self._sink = sink
        self.count = 0

    def record(self, events: Iterable[Event]) -> None:
        """The next events of the run, in order."""
        decoding = self._decoding
        for event in events:
            worker = event.worker
            pending = decoding.get(worker)
            if type(event) is Decoded:
                decoding[worker] = event if pending is None else merged(pending, event)
                continue
            if pending is not None:
                decoding[worker] = None
                self._write(pending)
            self._write(event)

    def _write(self, event: Event) -> None:
        line = _encode(event) if type(event) not in _BY_REFERENCE else line_of(event)
        self.count += 1
        self._lines.append(line)
        if len(self._lines) >= _BATCH:
            self._flush()
        if self._sink is not None:
            self._sink(event, line)

    def _flush(self) -> None:
        if self._lines:
            self._hash.update(b"\n".join(self._lines) + b"\n")
            self._lines.clear()

    def sha256(self) -> str:
        """The hash of all lines; open decode runs are written first, in order of their workers."""
        for worker in sorted(self._decoding):
            pending = self._decoding[worker]
            if pending is not None:
                self._write(pending)
        self._decoding.clear()
        self._flush()
        return self._hash.hexdigest()


def merged(first: Decoded, second: Decoded) -> Decoded:
    """Two decode runs of one worker as one."""
    if first.clients == second.clients:
        tokens = tuple(map(int.__add__, first.tokens, second.tokens))
        return Decoded(second.time_ns, second.worker, first.steps + second.steps, first.clients, tokens)
    produced = dict(zip(first.clients, first.tokens, strict=True))
    for client, count in zip(second.clients, second.tokens, strict=True):
        produced[client] = produced.get(client, 0) + count
    clients = tuple(sorted(produced))
    tokens = tuple(produced[client] for client in clients)
    return Decoded(second.time_ns, second.worker, first.steps + second.steps, clients, tokens)
