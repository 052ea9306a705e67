"""An engine's side of transfers: KV that waits to be sent, and transfers that wait for room.

The worker's state says how much memory requests between two workers hold (`model.worker.transit`), and the executor
gives and takes KV.  When a request is staged, its KV is copied out of the executor's pages, which are free for others
as soon as the state says so; when a request has landed, its KV waits beside the pages until it is admitted.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from fairsched.engines.serving.runner import Runner
from fairsched.model import worker as transitions
from fairsched.model.events import Event, Migrated
from fairsched.model.worker import NoRoomError, WorkerState

_log = logging.getLogger("fairsched.engine")


class KvExchange:
    """The KV that an engine `kept` of staged requests, and the transfers that wait for room here, in order.

    `granted` are the numbers of transfers for which memory was reserved, and `lost` the staged requests whose KV is
    gone with the executor: both since somebody asked last.
    """

    def __init__(self, runner: Runner) -> None:
        self.kept: dict[int, bytes] = {}
        self.granted: list[int] = []
        self.lost: list[int] = []
        self._line: deque[tuple[int, int, int]] = deque()
        self._runner = runner

    def keep(self, events: Iterable[Event]) -> None:
        """Copy the KV of requests that are staged, before the executor follows these events."""
        for event in events:
            if type(event) is Migrated and event.kv_tokens:
                kv = self._runner.export(event.request_id)
                if kv is not None:
                    self.kept[event.request_id] = kv

    def ask(self, number: int, request_id: int, tokens: int) -> None:
        """Transfer `number` waits for room for a request's KV, and for what it is to produce."""
        self._line.append((number, request_id, tokens))

    def serve(self, state: WorkerState) -> WorkerState:
        """Reserve memory for the transfers that wait, in order, as long as there is room.  O(granted)."""
        while self._line:
            number, request_id, tokens = self._line[0]
            try:
                state = transitions.reserve(state, request_id, tokens)
            except NoRoomError:
                break
            self._line.popleft()
            self.granted.append(number)
        return state

    def release(self, state: WorkerState, number: int, request_id: int) -> WorkerState:
        """Transfer `number` does not come: give its memory back, or take it out of the line."""
        for each in self._line:
            if each[0] == number:
                self._line.remove(each)
                return state
        return transitions.unreserve(state, request_id) if request_id in state.transit.incoming else state

    def send(self, state: WorkerState, request_id: int) -> bytes | None:
        """Return a copy of a staged request's KV; None if it is not here any more, which is said with the lost ones."""
        kv = self.kept.get(request_id)
        if kv is None or request_id not in state.transit.outgoing:
            self.lost.append(request_id)
            return None
        return kv

    def free(self, state: WorkerState, request_id: int) -> WorkerState:
        """The KV of a staged request is somewhere else, or needed no more."""
        self.kept.pop(request_id, None)
        return transitions.sent(state, request_id) if request_id in state.transit.outgoing else state

    def lose(self, state: WorkerState) -> Callable[[WorkerState], WorkerState]:
        """The executor's memory is gone: staged requests are lost, and what is to come has its memory again.

        Returns what to make of the state that has lost its memory.
        """
        incoming = state.transit.incoming
        self.lost += sorted(state.transit.outgoing)
        self.kept.clear()

        def again(state: WorkerState) -> WorkerState:
            for request_id in sorted(incoming):
                state = transitions.reserve(state, request_id, incoming[request_id])
            return state

        return again

    def make_room(self, state: WorkerState) -> WorkerState | None:
        """Drop the KV that came with the youngest waiting request, where such KV keeps all others from being admitted,
        or the only one that runs from its next token; None where it does not."""
        landed = state.transit.landed
        if not landed or len(state.in_flight) > 1 or (state.in_flight and state.growing <= state.free):
            return None
        youngest = max(landed, key=lambda request_id: (state.queue[request_id].request.arrival_ns, request_id))
        _log.warning("worker %d: KV that came with request %d is dropped to make room", state.worker, youngest)
        return transitions.drop_landed(state, youngest)

    def answers(self) -> tuple[list[int], list[int]]:
        """Return what was granted and what was lost since the last call."""
        granted, lost = self.granted, self.lost
        self.granted, self.lost = [], []
        return granted, lost


def goes_on(state: WorkerState, request_id: int) -> WorkerState:
    """A request that was to leave with its first token stays, since that token is its last."""
    run = state.running[request_id]
    if not run.waiting.prefill_only:
        return state
    run = replace(run, waiting=replace(run.waiting, prefill_only=False))
    return replace(state, running=state.running.set(request_id, run))
