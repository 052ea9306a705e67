"""A workload in real time through a live engine: requests are sent at their times, as the simulator sends them.

Arrivals, followers of finished requests and callers that give up are looked at between two steps, which is when an
engine can take note of them; what comes in the middle of a step waits for its end, here and in the simulator.

The clock is time on the wall, or the time that this process was given.  On a machine that is shared, what others
compute lengthens every step at random.  The processor's clock of one thread does not count that, and while no request
is open it jumps to the next arrival.  It measures what the engine costs, not what a caller would see on that machine.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Protocol

import numpy as np

from fairsched.engines.calibration.meter import StepMeter
from fairsched.engines.serving import Answer, Engine
from fairsched.engines.simulation import CallGraph
from fairsched.model.events import Cancelled
from fairsched.model.request import Job, Prompt, Workload

_SEND, _GIVE_UP = range(2)
_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03))


class Clock(Protocol):
    """Nanoseconds that never run backwards, from some origin on."""

    def now_ns(self) -> int:
        """Return the time."""

    def wait_until(self, at_ns: int) -> None:
        """Return at that time or just after it."""


class WallClock:
    """Time since it was made."""

    SPIN_NS = 200_000
    """A sleep may overrun by so much, so that the last of a wait is spent awake."""

    def __init__(self) -> None:
        self._origin = time.perf_counter_ns()

    def now_ns(self) -> int:
        return time.perf_counter_ns() - self._origin

    def wait_until(self, at_ns: int) -> None:
        left = at_ns - self.now_ns()
        if left > self.SPIN_NS:
            time.sleep((left - self.SPIN_NS) / 1e9)
        while self.now_ns() < at_ns:
            pass


class ThreadClock:
    """Processor time of the thread that made it; waits are jumps.  Only for computing in one thread."""

    def __init__(self) -> None:
        self._origin = time.thread_time_ns()

    def now_ns(self) -> int:
        return time.thread_time_ns() - self._origin

    def wait_until(self, at_ns: int) -> None:
        self._origin -= max(at_ns - self.now_ns(), 0)


def tokens_of(workload: Workload, vocab_size: int) -> dict[int, list[int]]:
    """Return tokens of each request's prompt: equal keys give equal tokens, and what has no key is drawn for the
    request."""
    return {job.request.id: _tokens(job.request.prompt, vocab_size, job.request.id) for job in workload.jobs}


def _tokens(prompt: Prompt, vocab_size: int, seed: int) -> list[int]:
    keys = np.frombuffer(prompt.keys, dtype="<u8")
    places = np.arange(prompt.block_tokens, dtype=np.uint64)
    mixed = (keys[:, None] ^ (keys[:, None] >> np.uint64(29))) * _ODD[0] + places[None, :] * _ODD[1]
    shared = ((mixed >> np.uint64(33)) % np.uint64(vocab_size)).reshape(-1)
    drawn = np.random.default_rng(seed).integers(vocab_size, size=prompt.tokens - len(shared))
    ids: list[int] = [*shared.tolist(), *drawn.tolist()]
    return ids


class Driver:
    """Sends a workload's requests to an engine and steps it until each has ended.  May be run once.

    `meter` is the engine's executor.  `progress` is called with the number of requests that have ended.  `sent_ns` and
    `left_ns` say when callers sent and gave up, which an engine notes only when its step is over.
    """

    def __init__(
        self,
        workload: Workload,
        prompt_ids: Mapping[int, Sequence[int]],
        engine: Engine,
        meter: StepMeter,
        clock: Clock,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._engine = engine
        self._meter = meter
        self._clock = clock
        self._progress = progress
        self._calls = CallGraph(workload.jobs)
        self._ids = prompt_ids
        self._agenda = sorted((job.request.arrival_ns, _SEND, job.request.id) for job in self._calls.roots())
        self._late: list[tuple[int, int, int]] = []
        self._busy = False
        self._moment_ns: int | None = None
        self.sent_ns: dict[int, int] = {}
        self.left_ns: dict[int, int] = {}

    def run(self) -> None:
        agenda, clock, step = self._agenda, self._clock, self._meter.step
        while True:
            now = clock.now_ns()
            # What comes just when a step ends is too late for the next one; an idle engine takes it at once.
            until = now if self._busy else now + 1
            while agenda and agenda[0][0] < until:
                self._moment_ns, what, request_id = heappop(agenda)
                if what == _SEND:
                    self._send(self._calls.jobs[request_id])
                elif request_id not in self._calls.over:
                    self._cancel(request_id)
            # A request that follows one that ended in the last step is sent when the next one has begun.
            late, self._late = self._late, []
            self._moment_ns = None
            self._busy = step()
            for entry in late:
                heappush(agenda, entry)
            if not self._busy and not late:
                if not agenda:
                    return
                clock.wait_until(agenda[0][0])

    def _now(self) -> int:
        """Return when it happened: what came in the middle of a step, then."""
        return self._clock.now_ns() if self._moment_ns is None else self._moment_ns

    def _send(self, job: Job) -> None:
        request = job.request
        self.sent_ns[request.id] = self._now()
        if job.cancel_after_ns is not None:
            heappush(self._agenda, (self._now() + job.cancel_after_ns, _GIVE_UP, request.id))
        self._engine.submit(request, self._ids[request.id], output_tokens=job.output_tokens, on_end=self._ended)

    def _cancel(self, request_id: int) -> None:
        self.left_ns[request_id] = self._now()
        self._engine.cancel(request_id)

    def _ended(self, answer: Answer) -> None:
        calls, now_ns = self._calls, self._now()
        due, lost = calls.end(answer.request_id, answer.outcome == "finished")
        self._late += [(now_ns + calls.jobs[child].think_ns, _SEND, child) for child in due]
        # A call that depends on one that did not finish is never sent.
        for child in lost:
            client = calls.jobs[child].request.client
            self._engine.bus.tell([Cancelled(now_ns, -1, child, client, False, 0, 0)])
        if self._progress is not None:
            self._progress(len(calls.over))
