"""The part of a log that is simulated: all of a short one, of a long one the stretch in which requests waited most.

A stretch begins where little is under way, since what waited before it is not simulated.  Requests that were under way
when it begins are simulated with it, as load, and count in no figure.
"""

from collections.abc import Mapping

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.logs.access import UNKNOWN, AccessLog, Ending
from fairsched.engines.workloads import workload_of_columns
from fairsched.model.request import Client, Workload
from fairsched.model.service import Ints

Mask = npt.NDArray[np.bool_]

REQUESTS = 4_000
"""So many requests of a long log are simulated, unless more are asked for."""
_PLACES = 8
"""Stretches are tried at every so many parts of their length, and begin up to such a part earlier."""


@attrs.frozen(eq=False)
class LogWindow:
    """Rows of a log in order of arrival, of which those in `counted` arrived within the stretch.

    `of` is how many requests of the log could have been simulated.
    """

    log: AccessLog
    rows: Ints
    counted: Mask
    of: int

    @property
    def start_ns(self) -> int:
        """When its first request that counts came."""
        return int(self.log.arrival_ns[self.rows[self.counted]].min())

    @property
    def stop_ns(self) -> int:
        """When its last request came."""
        return int(self.log.arrival_ns[self.rows].max())

    @property
    def requests(self) -> int:
        """How many count."""
        return int(self.counted.sum())

    @property
    def whole(self) -> bool:
        """Whether nothing was left out."""
        return self.requests == self.of

    def workload(self, weights: Mapping[str, int]) -> Workload:
        """Return what was asked for, from the first arrival on, by clients with these weights (else 1).

        What came from the prefix cache had not to be computed, and is left out of prompts.
        """
        log, rows = self.log, self.rows
        origin = int(log.arrival_ns[rows[0]])
        prompt = np.maximum(log.prompt[rows] - log.cached[rows], 1)
        columns = (log.client[rows], log.arrival_ns[rows] - origin, prompt, log.output[rows], log.output[rows])
        clients = tuple(Client(i, name, weights.get(name, 1)) for i, name in enumerate(log.clients))
        return workload_of_columns(log.path.name, clients, columns)

    def as_logged(self) -> AccessLog:
        """Return the rows that count, as the log has them."""
        return self.log.rows(self.rows[self.counted])

    def as_simulated(self, requests: dict[str, Ints]) -> AccessLog:
        """Return the rows that count, with the times of a simulation of `workload` (`Run.requests`)."""
        log, rows = self.log, self.rows[self.counted]
        shift = int(log.arrival_ns[self.rows[0]])
        admitted, first, end = (
            np.where(times[self.counted] == UNKNOWN, UNKNOWN, times[self.counted] + shift)
            for times in (requests["admitted_ns"], requests["first_token_ns"], requests["end_ns"])
        )
        last = int(np.maximum(end, log.end_ns[rows]).max(initial=0))
        done = end != UNKNOWN
        return attrs.evolve(
            log.rows(rows),
            served_ns=np.where(done, admitted if "queue" in log.fields else first, UNKNOWN),
            first_ns=np.where(done, first, UNKNOWN),
            end_ns=np.where(done, end, last),
            outcome=np.where(done, int(Ending.FINISHED), int(Ending.REJECTED)),
            fields=log.fields | {"ttft"},
        )


def busiest_window(log: AccessLog, most: int) -> LogWindow | None:
    """Return at most about `most` requests of the log, those of the stretch in which requests waited longest in all.

    None where no request had an output.
    """
    rows = np.flatnonzero((log.output > 0) & (log.end_ns > log.arrival_ns))
    rows = rows[np.argsort(log.arrival_ns[rows], kind="stable")]
    count = len(rows)
    if not count:
        return None
    if count <= most:
        return LogWindow(log, rows, np.ones(count, dtype=np.bool_), count)
    arrival, end = log.arrival_ns[rows], log.end_ns[rows]
    over = np.where(log.first_ns[rows] == UNKNOWN, end, log.first_ns[rows])
    waited = np.concatenate([[0.0], np.cumsum((over - arrival).astype(np.float64))])
    piece = max(most // _PLACES, 1)
    starts = np.arange(0, count - most + 1, piece)
    best = int(starts[int(np.argmax(waited[starts + most] - waited[starts]))])
    under_way = np.arange(count) - np.searchsorted(np.sort(end), arrival, side="right")
    earliest = max(best - piece, 0)
    start = earliest + int(np.argmin(under_way[earliest : best + 1]))
    before = np.flatnonzero(end[:start] > arrival[start])
    chosen = np.concatenate([before, np.arange(start, start + most)])
    return LogWindow(log, rows[chosen], chosen >= start, count)
