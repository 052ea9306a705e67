"""An executor as an engine uses it: one that may fail, and one that gives and takes the KV of requests.

From its first error on an executor is not called again, and another may take its place.

The worker's state says how much memory requests between two workers hold (`model.worker.transit`), and the executor
gives and takes KV.  When a request is staged, its KV is copied out of the executor's pages, which are free for others
as soon as the state says so; when a request has landed, its KV waits beside the pages until it is admitted.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from fairsched.engines.serving.answers import Answer
from fairsched.engines.serving.executor import Executor, ExecutorError, MovesKV, Sampling, execute
from fairsched.model import worker as transitions
from fairsched.model.decision import StepPlan
from fairsched.model.events import Arrived, Event, Migrated
from fairsched.model.worker import NoRoomError, WorkerState

T = TypeVar("T")
_log = logging.getLogger("fairsched.engine")


class Runner:
    """An executor, and how to make another.  `failure` is why it is not called any more; `failures` counts them all."""

    def __init__(self, executor: Executor, make: Callable[[], Executor] | None) -> None:
        self.failure: Exception | None = None
        self.failures = 0
        self._executor: Executor | None = executor
        self._make = make

    @property
    def is_gone(self) -> bool:
        """Whether there is no executor and will be none."""
        return self._executor is None

    @property
    def moves_kv(self) -> bool:
        return isinstance(self._executor, MovesKV)

    def submit(
        self,
        request_id: int,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        generated: Sequence[int] = (),
        kv: bytes = b"",
    ) -> None:
        """Submit a request's tokens, and the KV that came with it; raises `ValueError` for tokens that are none, and
        for what cannot be its KV."""
        self._call(lambda executor: executor.submit(request_id, prompt_ids, sampling, generated), ValueError)
        if kv:
            self._call(lambda executor: _moving(executor).import_kv(request_id, kv), ValueError)

    def export(self, request_id: int) -> bytes | None:
        """Return a copy of a request's KV; None if it failed, now or before."""
        return self._call(lambda executor: _moving(executor).export_kv(request_id))

    def follow(self, events: list[Event]) -> None:
        self._call(lambda executor: executor.follow(events))

    def execute(self, plan: StepPlan, state: WorkerState) -> dict[int, int] | None:
        """Return the tokens of a step; None if it failed, now or before."""
        return self._call(lambda executor: execute(executor, plan, state))

    def _call(self, call: Callable[[Executor], T], raised: type[Exception] | tuple[()] = ()) -> T | None:
        if self._executor is not None and self.failure is None:
            try:
                return call(self._executor)
            except raised:
                raise
            except Exception as error:
                self.failure = error
        return None

    def drop(self) -> None:
        """Close what failed, whose memory is gone."""
        _log.error("the executor failed: %r", self.failure)
        self.failures += 1
        failed, self._executor = self._executor, None
        try:
            if failed is not None:
                failed.close()
        except Exception:
            _log.exception("the executor that failed cannot be closed")

    def restart(self, state: WorkerState, answers: Iterable[Answer], now_ns: int) -> None:
        """Tell another executor, if one can be made, what waits."""
        if self._make is None:
            return
        try:
            self._executor = self._make()
        except Exception as error:
            _log.exception("there is no new executor")
            self.failure = error
        else:
            self.failure = None
            self.enter(state, answers, now_ns)

    def enter(self, state: WorkerState, answers: Iterable[Answer], now_ns: int) -> None:
        """Tell the executor what waits, with the tokens that it had produced elsewhere."""
        try:
            assert self._executor is not None
            for answer in answers:
                self._executor.submit(answer.request_id, answer.prompt_ids, answer.sampling, answer.tokens)
                self._executor.follow([Arrived(now_ns, state.worker, state.queue[answer.request_id].request)])
        except Exception as error:
            self.failure = error

    def close(self) -> None:
        """Give back what is held, for good."""
        if self._executor is not None:
            self._executor.close()
        self._executor, self._make, self.failure = None, None, ExecutorError("the engine was closed")


def _moving(executor: Executor) -> MovesKV:
    if not isinstance(executor, MovesKV):
        raise ExecutorError(f"{type(executor).__name__} does not give or take the KV of requests")
    return executor


def since_now() -> Callable[[], int]:
    """Return a clock in nanoseconds that starts at 0 now."""
    start = time.perf_counter_ns()
    return lambda: time.perf_counter_ns() - start


class Times:
    """Where the time of an engine went, in nanoseconds: `decide_ns` in policy and guard, `execute_ns` in the executor,
    `books_ns` in everything else of a step; and the number of `steps` and `decisions`."""

    __slots__ = ("books_ns", "decide_ns", "decisions", "execute_ns", "steps")

    def __init__(self) -> None:
        self.decide_ns = self.execute_ns = self.books_ns = self.steps = self.decisions = 0

    @property
    def scheduler_share(self) -> float:
        """What is not the executor's, as a share of the time of all steps."""
        own = self.decide_ns + self.books_ns
        return own / (own + self.execute_ns) if own else 0.0


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
        """Free the KV of a staged request, which is somewhere else or needed no more."""
        self.kept.pop(request_id, None)
        return transitions.sent(state, request_id) if request_id in state.transit.outgoing else state

    def lose(self, state: WorkerState) -> Callable[[WorkerState], WorkerState]:
        """Lose the executor's memory: staged requests are lost, and what is to come has its memory again.

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

    def in_the_way(self, state: WorkerState) -> int | None:
        """Return the youngest waiting request that came with its KV, where such KV keeps all others from being
        admitted, or the only one that runs from its next token; None where it does not."""
        landed = state.transit.landed
        if not landed or len(state.in_flight) > 1 or (state.in_flight and state.growing <= state.free):
            return None
        youngest = transitions.youngest_landed(state)
        _log.warning("worker %d: KV that came with request %d is dropped to make room", state.worker, youngest)
        return youngest

    def answers(self) -> tuple[list[int], list[int]]:
        """Return what was granted and what was lost since the last call."""
        granted, lost = self.granted, self.lost
        self.granted, self.lost = [], []
        return granted, lost


def goes_on(state: WorkerState, request_id: int) -> WorkerState:
    """Keep a request that was to leave with its first token, since that token is its last."""
    run = state.running[request_id]
    if not run.waiting.prefill_only:
        return state
    run = replace(run, waiting=replace(run.waiting, prefill_only=False))
    return replace(state, running=state.running.set(request_id, run))
