"""The part of a log that is simulated: all of a short one, of a long one the stretch in which requests waited most.

A stretch begins where little is under way.  Requests that were under way when it begins, and its last ones, are
simulated with it, as load, and count in no figure: what a gate does to a request depends on those that come later.
"""

import attrs
import numpy as np

from fairsched.engines.calibration.from_log import Observed, observed
from fairsched.engines.logs.access import AccessLog

REQUESTS = 4_000
"""So many requests of a long log are simulated, unless more are asked for."""
LAST = 4
"""The last of so many parts of a stretch is load."""
_PLACES = 16
"""A stretch may begin at the quietest place of each such part of its length, if no more than such a part of it is under
way there."""


@attrs.frozen(eq=False)
class LogWindow:
    """Requests of a log in order of arrival: those judged arrived within the stretch and finished, others are load.

    `requests` came within it, and `of` is how many requests of the log could have been simulated.
    """

    seen: Observed
    requests: int
    of: int

    @property
    def whole(self) -> bool:
        """Whether nothing was left out."""
        return self.requests == self.of


def busiest_window(log: AccessLog, most: int) -> LogWindow | None:
    """Return at most about `most` requests of the log, those of the stretch in which requests waited longest in all.

    None where no request had an output.
    """
    seen = observed(log)
    count = len(seen)
    if count <= most:
        return LogWindow(seen, count, count) if bool(seen.judged.any()) else None
    end = seen.arrival + seen.latency
    waited = np.concatenate([[0.0], np.cumsum(np.where(seen.streams, seen.ttft, seen.latency).astype(np.float64))])
    under_way = (np.arange(count) - np.searchsorted(np.sort(end), seen.arrival, side="right"))[: count - most + 1]
    piece = max(most // _PLACES, 1)
    starts = np.array([at + int(np.argmin(under_way[at : at + piece])) for at in range(0, len(under_way), piece)])
    starts = starts[under_way[starts] <= piece]
    start = int(starts[int(np.argmax(waited[starts + most] - waited[starts]))])
    chosen = np.concatenate([np.flatnonzero(end[:start] > seen.arrival[start]), np.arange(start, start + most)])
    found = seen.of(chosen)
    judged = found.judged & (chosen >= start) & (chosen < start + most - most // LAST)
    return LogWindow(attrs.evolve(found, judged=judged), most, count)
