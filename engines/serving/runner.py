"""An executor that may fail: from its first error on it is not called again, and another may take its place."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from fairsched.engines.serving.answers import Answer
from fairsched.engines.serving.executor import Executor, ExecutorError, MovesKV, Sampling, execute
from fairsched.model.events import Arrived, Event
from fairsched.model.plan import StepPlan
from fairsched.model.worker import WorkerState

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
        """Whether the executor gives and takes the KV of requests."""
        return isinstance(self._executor, MovesKV)

    def submit(
        self,
        request_id: int,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        generated: Sequence[int] = (),
        kv: bytes = b"",
    ) -> None:
        """A request's tokens, and the KV that came with it; raises `ValueError` for tokens that are none, and for what
        cannot be its KV."""
        self._call(lambda executor: executor.submit(request_id, prompt_ids, sampling, generated), ValueError)
        if kv:
            self._call(lambda executor: _moving(executor).import_kv(request_id, kv), ValueError)

    def export(self, request_id: int) -> bytes | None:
        """Return a copy of a request's KV; None if it failed, now or before."""
        return self._call(lambda executor: _moving(executor).export_kv(request_id))

    def follow(self, events: list[Event]) -> None:
        """What happened."""
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
        """What failed is closed, and its memory is gone."""
        _log.error("the executor failed: %r", self.failure)
        self.failures += 1
        failed, self._executor = self._executor, None
        try:
            if failed is not None:
                failed.close()
        except Exception:
            _log.exception("the executor that failed cannot be closed")

    def restart(self, state: WorkerState, answers: Iterable[Answer], now_ns: int) -> None:
        """Another executor, if one can be made, is told what waits."""
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
        """The executor learns what waits, with the tokens that it had produced elsewhere."""
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
