"""The clock of a serving loop, and where its time goes."""

import time
from collections.abc import Callable


def since_now() -> Callable[[], int]:
    """A clock in nanoseconds that starts at 0 now."""
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
