"""Requests between two workers, as a machine plays them: staged, sent, on their way, and what may fail meanwhile.

The worker's own transitions reserve, receive and free memory; here stands who waits for whom, and that a request is at
one place: in a queue or batch, staged, or on its way, with KV where it is said to be and nowhere else.
"""

from collections.abc import Sequence

import msgspec

from fairsched.model import worker as transitions
from fairsched.model.events import Event, Migrated, TransferFailed, TransferStarted
from fairsched.model.plan import Migration
from fairsched.model.request import Request
from fairsched.model.worker import NoRoomError
from fairsched.verify.conformance import worker_invariants
from fairsched.verify.conformance.play import WorkerPlay


class Way(msgspec.Struct, frozen=True):
    """A staged request's way to a worker, which keeps `reserved` tokens for it; 0: it waits for room there."""

    target: int
    tokens: int
    reserved: int = 0


class TransferPlay:
    """What is between the workers of a machine: each staged request's source, and the ways of those that are sent."""

    def __init__(self, servers: dict[int, WorkerPlay]) -> None:
        self.servers = servers
        self.staged: dict[int, int] = {}
        self.ways: dict[int, Way] = {}
        self.lines: dict[int, list[int]] = {}
        """Requests that wait for room at a worker, in the order in which they were sent."""

    def note(self, events: Sequence[Event]) -> list[int]:
        """Take over the requests that were staged in these events; returns them."""
        found = [event for event in events if isinstance(event, Migrated) and event.kv_tokens]
        for event in found:
            assert event.request_id not in self.staged, f"request {event.request_id} is staged twice"
            self.staged[event.request_id] = event.worker
        return [event.request_id for event in found]

    def send(self, migration: Migration) -> None:
        """Put a staged request on its way."""
        request_id, kv = migration.request_id, self._outgoing(migration.request_id).waiting.kv_tokens
        assert request_id not in self.ways, f"request {request_id} is on its way already"
        self.ways[request_id] = Way(migration.target, kv + migration.reserved_output_tokens)
        self.lines.setdefault(migration.target, []).append(request_id)

    def begin(self, now_ns: int) -> list[Event]:
        """Begin the transfers for which there is room now, in order, at each target."""
        events: list[Event] = []
        for target, line in sorted(self.lines.items()):
            while line:
                request_id = line[0]
                way, server = self.ways[request_id], self.servers[target]
                try:
                    server.worker = transitions.reserve(server.worker, request_id, way.tokens)
                except NoRoomError:
                    break
                line.pop(0)
                self.ways[request_id] = msgspec.structs.replace(way, reserved=way.tokens)
                client, kv = self._request(request_id).client, self._outgoing(request_id).waiting.kv_tokens
                source = self.staged[request_id]
                events.append(TransferStarted(now_ns, source, request_id, client, target, kv, way.tokens))
        return events

    @property
    def under_way(self) -> list[int]:
        """Requests whose KV is being sent."""
        return sorted(i for i, way in self.ways.items() if way.reserved)

    def land(self, request_id: int, now_ns: int) -> tuple[int, list[Event]]:
        """The KV of a request has come; returns the worker where it is, and what happened."""
        way, outgoing = self.ways.pop(request_id), self._outgoing(request_id)
        target, waiting = self.servers[way.target], outgoing.waiting
        request = msgspec.structs.replace(waiting.request, arrival_ns=now_ns)
        came = (waiting.generated_tokens, waiting.kv_tokens)
        events = target.follow(transitions.receive(target.worker, request, waiting.output_tokens, now_ns, *came))
        self._freed(request_id)
        return way.target, events

    def resume(self, request_id: int, now_ns: int) -> tuple[int, list[Event]]:
        """A staged request goes on where it is."""
        source = self.staged.pop(request_id)
        server = self.servers[source]
        return source, server.follow(transitions.resume(server.worker, request_id, now_ns))

    def leave_kv(self, request_id: int) -> tuple[Request, int]:
        """A staged request goes without its KV; returns it and its tokens."""
        waiting = self._outgoing(request_id).waiting
        self.call_off(request_id)
        self._freed(request_id)
        return waiting.request, waiting.generated_tokens

    def fail(self, request_id: int, now_ns: int) -> list[Event]:
        """A link fails: the request is staged as before, and its target keeps nothing for it."""
        target, client = self.ways[request_id].target, self._request(request_id).client
        self.call_off(request_id)
        return [TransferFailed(now_ns, self.staged[request_id], request_id, client, target)]

    def call_off(self, request_id: int) -> None:
        """Give back what the target of a request keeps for it, if it is on its way."""
        way = self.ways.pop(request_id, None)
        if way is None:
            return
        if way.reserved:
            server = self.servers[way.target]
            server.worker = transitions.unreserve(server.worker, request_id)
        else:
            self.lines[way.target].remove(request_id)

    def lose(self, worker: int, now_ns: int) -> tuple[list[Event], list[tuple[Request, int]]]:
        """Call off what comes from and goes to a worker that is lost; returns what happened, and what it had staged."""
        events: list[Event] = []
        for request_id, way in sorted(self.ways.items()):
            if worker in (way.target, self.staged[request_id]):
                events += self.fail(request_id, now_ns)
        lost = []
        for request_id in sorted(i for i, source in self.staged.items() if source == worker):
            waiting = self._outgoing(request_id).waiting
            lost.append((waiting.request, waiting.generated_tokens))
            del self.staged[request_id]
        self.lines.pop(worker, None)
        return events, lost

    def makes_room(self, server: WorkerPlay, now_ns: int) -> list[Event]:
        """Drop the KV of the youngest request that waits with it, as an idle worker does that can admit no request."""
        state = server.worker
        if state.in_flight or not state.transit.landed:
            return []
        waiting = state.queue[transitions.youngest_landed(state)]
        return server.follow(transitions.again(state, waiting, now_ns))

    def check(self, home: dict[int, int]) -> None:
        """Raise `AssertionError` unless each request is at one place, with its KV there and nowhere else."""
        for number, server in self.servers.items():
            worker_invariants.check(server.worker)
            transit = server.worker.transit
            assert set(transit.outgoing) == {i for i, source in self.staged.items() if source == number}
            assert dict(transit.incoming) == {
                i: way.reserved for i, way in self.ways.items() if way.reserved and way.target == number
            }
            here = set(server.worker.queue) | set(server.worker.running)
            assert here == {i for i, worker in home.items() if worker == number}
        assert not set(home) & set(self.staged)
        assert set(self.ways) <= set(self.staged)

    def _outgoing(self, request_id: int) -> transitions.Outgoing:
        return self.servers[self.staged[request_id]].worker.transit.outgoing[request_id]

    def _request(self, request_id: int) -> Request:
        return self._outgoing(request_id).waiting.request

    def _freed(self, request_id: int) -> None:
        source = self.servers[self.staged.pop(request_id)]
        source.worker = transitions.sent(source.worker, request_id)
