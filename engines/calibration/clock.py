"""The clocks of a live run: time on the wall, or the time that this process was given.

On a machine that is shared, what others compute lengthens every step at random.  The processor's clock of one thread
does not count that, and while no request is open it jumps to the next arrival.  It measures what the engine
costs, not what a caller would see on that machine.
"""

import time
from typing import Protocol


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
