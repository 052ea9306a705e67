"""When workers of a simulated cluster fail: each failure loses a worker's memory and keeps it down for a while."""

from collections.abc import Sequence

import attrs


@attrs.frozen
class Failure:
    """Worker `worker` loses its memory at `at_ns`, on the clock of the workload's arrivals, and the step under way.

    For `down_ns` it computes nothing, and no router sees it unless all are down; then it goes on with what waits there.
    """

    worker: int
    at_ns: int
    down_ns: int = 0

    def __attrs_post_init__(self) -> None:
        if self.at_ns < 0 or self.down_ns < 0:
            raise ValueError(
                f"worker {self.worker} fails at {self.at_ns} ns for {self.down_ns} ns; neither can be negative"
            )


def checked(failures: Sequence[Failure], workers: int) -> tuple[Failure, ...]:
    """The failures; raises `ValueError` for one of a worker that is not there."""
    for failure in failures:
        if not 0 <= failure.worker < workers:
            raise ValueError(f"worker {failure.worker} cannot fail: there are {workers} workers, from 0 on")
    return tuple(failures)
