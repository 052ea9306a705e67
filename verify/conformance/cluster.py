"""The cluster of a machine: workers that do what follows from the transitions of `model.cluster`, one after the other.

Nothing takes time here: KV that is sent lands, or fails to, when the machine says so.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from fairsched.model import cluster
from fairsched.model import worker as transitions
from fairsched.model.cluster import ClusterState
from fairsched.model.events import Event, TransferFailed, TransferStarted
from fairsched.model.request import Request
from fairsched.model.worker import NoRoomError, Waiting
from fairsched.verify.conformance import worker_invariants
from fairsched.verify.conformance.play import WorkerPlay


class ClusterPlay:
    """The state of a cluster with its workers `servers`; `requests` and their `outputs` are those that came, by id."""

    def __init__(
        self, servers: Mapping[int, WorkerPlay], requests: Mapping[int, Request], outputs: Mapping[int, int]
    ) -> None:
        self.servers = servers
        self.requests = requests
        self.outputs = outputs
        self.state = ClusterState()
        self.lines: dict[int, list[cluster.ReserveKv]] = {}
        """Transfers that wait for room at a worker, in the order in which they were asked for."""
        self._left: dict[int, int] = {}
        """The tokens of requests that left their KV behind."""

    def do(self, step: cluster.Transition, now_ns: int) -> list[Event]:
        """Take a transition, and do what follows from it; returns what happened."""
        self.state, effects = step
        events: list[Event] = []
        for number, effect in effects:
            request_id, server = effect.request_id, self.servers.get(number)
            client = self.requests[request_id].client
            if isinstance(effect, cluster.TellFailed):
                events.append(TransferFailed(now_ns, number, request_id, client, effect.target))
                continue
            assert server is not None
            match effect:
                case cluster.LeaveBatch(with_kv=with_kv):
                    events += self._leave(server, request_id, with_kv, now_ns)
                case cluster.ReserveKv():
                    self.lines.setdefault(number, []).append(effect)
                case cluster.ReleaseKv():
                    self._release(server, effect)
                case cluster.SendKv():
                    move = self.state.moves[request_id]
                    sent = (now_ns, number, request_id, client, move.target, move.kv_tokens, move.reserved)
                    events.append(TransferStarted(*sent))
                case cluster.FreeKv():
                    self._left[request_id] = server.worker.transit.outgoing[request_id].waiting.generated_tokens
                    server.worker = transitions.sent(server.worker, request_id)
                case cluster.ResumeRequest():
                    events += server.follow(transitions.resume(server.worker, request_id, now_ns))
                case cluster.GoWithoutKv():
                    self.state = cluster.arrive(self.state, request_id)
                    request = self.requests[request_id]
                    events += server.arrive(request, self.outputs[request_id], now_ns, self._left.pop(request_id))
        return events

    def _leave(self, server: WorkerPlay, request_id: int, with_kv: bool, now_ns: int) -> list[Event]:
        """Let a request leave queue or batch, its KV staged if it has any and that is to go along."""
        state = server.worker
        waiting = state.queue.get(request_id)
        has_kv = request_id in state.transit.landed if waiting else transitions.kv_tokens(state, request_id) > 0
        if with_kv and has_kv:
            return server.follow(transitions.stage(state, request_id, now_ns))
        self._left[request_id] = waiting.generated_tokens if waiting else transitions.generated(state, request_id)
        events = server.follow(transitions.depart(state, request_id, now_ns))
        return events + self.do(cluster.left(self.state, request_id, 0, takes=True), now_ns)

    def _release(self, server: WorkerPlay, released: cluster.ReleaseKv) -> None:
        number, request_id = server.worker.worker, released.request_id
        if request_id in server.worker.transit.incoming:
            server.worker = transitions.unreserve(server.worker, request_id)
        self.lines[number] = [asked for asked in self.lines[number] if asked.number != released.number]

    def begin(self, now_ns: int) -> list[Event]:
        """Begin the transfers for which there is room now, in order, at each target."""
        events: list[Event] = []
        for target, line in sorted(self.lines.items()):
            while line:
                request_id, tokens, server = line[0].request_id, line[0].tokens, self.servers[target]
                try:
                    server.worker = transitions.reserve(server.worker, request_id, tokens)
                except NoRoomError:
                    break
                line.pop(0)
                events += self.do(cluster.grant(self.state, request_id, tokens, now_ns), now_ns)
        return events

    def moving(self, *phases: cluster.MovePhase) -> list[int]:
        """Return the requests that are in these phases of a move, in order."""
        return sorted(i for i, move in self.state.moves.items() if move.phase in phases)

    def land(self, request_id: int, now_ns: int) -> list[Event]:
        """The KV of a request has come; returns what happened."""
        move, waiting = self.state.moves[request_id], self.staged(request_id)
        self.state = cluster.pass_on(self.state, request_id)
        target = self.servers[move.target]
        request = replace(waiting.request, arrival_ns=now_ns)
        came = (waiting.generated_tokens, waiting.kv_tokens)
        events = target.follow(transitions.receive(target.worker, request, waiting.output_tokens, now_ns, *came))
        return events + self.do(cluster.land(self.state, request_id), now_ns)

    def lose(self, worker: int, now_ns: int) -> tuple[list[Event], list[Waiting]]:
        """A worker is gone with all that it has; returns what happened, and the requests that it lost, in order."""
        server = self.servers[worker]
        left, _ = transitions.lose(server.worker, now_ns)
        staged = {i: outgoing.waiting for i, outgoing in server.worker.transit.outgoing.items()}
        state, effects, lost = cluster.lose(self.state, worker, left.queue)
        self.lines.pop(worker, None)
        events = self.do((cluster.leave(state, worker), effects), now_ns)
        return events, [staged.get(i) or left.queue[i] for i in lost]

    def makes_room(self, server: WorkerPlay, now_ns: int) -> list[Event]:
        """Drop the KV of the youngest request that waits with it, as an idle worker does that can admit no request."""
        state = server.worker
        if state.in_flight or not state.transit.landed:
            return []
        waiting = state.queue[transitions.youngest_landed(state)]
        return server.follow(transitions.again(state, waiting, now_ns))

    def check(self) -> None:
        """Raise `AssertionError` unless each request is at one place, with its KV there and nowhere else."""
        cluster.check(self.state)
        moves = self.state.moves.values()
        for number, server in self.servers.items():
            worker_invariants.check(server.worker)
            transit = server.worker.transit
            assert set(transit.outgoing) == {m.request_id for m in moves if m.is_staged and m.source == number}
            kept = {m.request_id: m.reserved for m in moves if m.reserved and m.target == number}
            assert dict(transit.incoming) == kept
            here = set(server.worker.queue) | set(server.worker.running)
            assert here == {i for i, worker in self.state.at.items() if worker == number}

    def staged(self, request_id: int) -> Waiting:
        """Return a staged request as its source knows it."""
        return self.servers[self.state.moves[request_id].source].worker.transit.outgoing[request_id].waiting
