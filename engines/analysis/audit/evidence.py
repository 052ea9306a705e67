"""What an audit rests on, whichever kind of log it was read from: requests, charges, waits, and what was promised."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.analysis.audit.inference import Inference
from fairsched.engines.analysis.figures import time
from fairsched.engines.logs.access import UNKNOWN, Ending
from fairsched.model.monitor import Finding
from fairsched.model.request import Client
from fairsched.model.service import Charging, Ints, Table

Mask = npt.NDArray[np.bool_]

APART_NS = 10**8
"""While outputs come, service is looked at so often."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FINE_NS = 10 * 60 * 10**9
"""Moments of shorter logs are shown to a tenth of a second."""


@attrs.frozen(eq=False)
class Calls:
    """The requests, a row each; times in nanoseconds, -1 where there is none.

    `number` is the request's id in an event log; in an access log that of its line, in the file that `file` numbers.
    `served_ns` is when the wait was over and `first_ns` the first token; where that is inferred, it may be off by
    `margin_ns` (else 0).  `untold` is 1 for a call that was served and whose first token is not known.
    `cost` is what the request was charged in all, in cost units without multipliers (what it would have been, if it was
    never served and is not over).  `doubtful` is 1 for a call that failed, and nothing tells whether it waited.
    `outcome` is an `Ending` (FINISHED for one that is not over: `end_ns` is -1), and `attempt` the number of the try.
    `model`, `worker` and `status` number the names in `AuditRun`.
    """

    number: Ints
    file: Ints
    client: Ints
    arrival_ns: Ints
    served_ns: Ints
    first_ns: Ints
    end_ns: Ints
    cost: Ints
    outcome: Ints
    attempt: Ints
    model: Ints
    worker: Ints
    status: Ints
    margin_ns: Ints
    untold: Ints
    doubtful: Ints

    @property
    def failed(self) -> Ints:
        """Whether each was refused, given up or broken off."""
        failed: Ints = (self.outcome != Ending.FINISHED).astype(np.int64)
        return failed

    @property
    def kept_out(self) -> Mask:
        """Which calls were served, nothing tells when: they count in no wait."""
        mask: Mask = (self.untold == 1) & (self.served_ns == UNKNOWN)
        return mask

    @property
    def wait_margin_ns(self) -> Ints:
        """By how much each wait may be off: not at all where the log has the time in the queue."""
        return np.where(self.served_ns == self.first_ns, self.margin_ns, 0)

    @property
    def left_ns(self) -> Ints:
        """When each ceased to wait: served or over; UNKNOWN for one that waits still, its arrival for one kept out."""
        left = np.where(self.served_ns == UNKNOWN, self.end_ns, self.served_ns)
        return np.where(self.kept_out, self.arrival_ns, left)


@attrs.frozen
class LogClock:
    """How moments of a log are told: the time of day in the log's zone, or, where it has no dates, since its start."""

    origin_ns: int
    last_ns: int
    zone: tzinfo | None

    @property
    def wall(self) -> bool:
        """Whether the log has dates."""
        return self.zone is not None

    def date(self, ns: int) -> datetime:
        """Return a moment with the log's zone, where it has dates."""
        return (_EPOCH + timedelta(microseconds=ns // 1000)).astimezone(self.zone)

    def at(self, ns: int) -> str:
        """Return a moment: as `18:00:05`, with its date where the log is of several days, else as `20 s`."""
        if self.zone is None:
            return time((ns - self.origin_ns) / 1e3)
        fine = self.last_ns - self.origin_ns < _FINE_NS
        moment = self.date(round(ns, -8) if fine else ns)
        text = f"{moment:%H:%M:%S}" + (f".{moment.microsecond // 100_000}" if fine else "")
        several = self.date(self.origin_ns).date() != self.date(self.last_ns).date()
        return f"{moment:%Y-%m-%d} {text}" if several else text

    def span(self) -> str:
        """Return from when to when, with date and zone; nothing where the log has no dates."""
        if self.zone is None:
            return ""
        first, last = self.date(self.origin_ns), self.date(self.last_ns)
        several = first.date() != last.date()
        return f"{first:%Y-%m-%d %H:%M:%S} to {last:{'%Y-%m-%d ' * several}%H:%M:%S} {last.tzname()}"

    def iso(self, ns: int) -> str | None:
        """Return a moment in ISO 8601 with its zone; None where the log has no dates."""
        return None if self.zone is None else self.date(ns).isoformat(timespec="milliseconds")


@attrs.frozen(eq=False)
class AuditRun:
    """A run to be audited.

    `charged` and `waited` are tables of `model.service.received`, `charging` is how they were charged.  `decoding` says
    from when to when each request of a client decodes, with tokens so far apart, where that is not in `charged`: a row
    has `client`, `start_ns`, `stop_ns` and `apart_ns`. `at_most` is the same run with requests of which nothing
    tells when they were served waiting until their ends, for nothing. `bound` is what was promised about the gap of
    a "worker" or of the "cluster" (`scope`), `assumptions` what was found of the theorems behind it. `about` says
    what was run, `opening` what is read first, `reading` how the log was read, `limits` what such a log cannot
    tell, and `notes` what else belongs to the figures. `model` names the models that it is about, where a log has
    others beside them; `models`, `upstreams` and `statuses` are names, `inferences` what was done about missing
    first tokens, and `zone` is that of the log's clock (None: it counts from its own start).
    """

    path: Path
    kind: str
    about: str
    clients: tuple[Client, ...]
    calls: Calls
    charged: Table
    waited: Table
    charging: Charging
    workers: int
    decoding: Table | None = None
    at_most: "AuditRun | None" = None
    bound: int | None = None
    scope: str = "worker"
    assumptions: Mapping[str, Finding] = attrs.field(factory=dict)
    excuses: tuple[str, ...] = ()
    model: str | None = None
    files: tuple[Path, ...] = ()
    models: tuple[str, ...] = ()
    upstreams: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    inferences: tuple[Inference, ...] = ()
    zone: tzinfo | None = None
    opening: tuple[str, ...] = ()
    reading: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def origin_ns(self) -> int:
        """The first arrival."""
        return int(self.calls.arrival_ns.min(initial=np.iinfo(np.int64).max)) if len(self.calls.client) else 0

    @property
    def last_ns(self) -> int:
        """When the last thing happened."""
        ends = (self.calls.end_ns, self.calls.arrival_ns, self.charged["time_ns"])
        return max(int(each.max(initial=self.origin_ns)) for each in ends)

    @property
    def clock(self) -> LogClock:
        """How its moments are told."""
        return LogClock(self.origin_ns, self.last_ns, self.zone)

    def costs(self) -> Ints:
        """Return the amounts of `charged` in cost units of a client of weight 1's price: without multipliers."""
        amounts = self.charged["amount"]
        if not self.charging.multipliers:
            return amounts
        return amounts // np.array(self.charging.multipliers, dtype=np.int64)[self.charged["client"]]
