"""What an audit rests on, whichever kind of log it was read from: requests, charges, waits, and what was promised."""

from collections.abc import Mapping
from pathlib import Path

import attrs
import numpy as np

from fairsched.model.monitor import Finding
from fairsched.model.request import Client
from fairsched.model.service import Charging, Ints, Table


@attrs.frozen(eq=False)
class Calls:
    """The requests, a row each; times in nanoseconds, -1 where there is none.

    `served_ns` is when the wait was over; `cost` is what the request was charged in all, in
    cost units without multipliers (what it would have been, if it was never served and is not over); `failed` says
    whether it was refused, given up or broken off.
    """

    client: Ints
    arrival_ns: Ints
    served_ns: Ints
    end_ns: Ints
    cost: Ints
    failed: Ints


@attrs.frozen(eq=False)
class Evidence:
    """A run to be audited.

    `charged` and `waited` are tables of `model.service.received`, `charging` is how they were charged.  `bound` is
    what was promised about the gap of a "worker" or of the "cluster" (`scope`), `assumptions` what was found of the
    theorems behind it.  `about` says what was run, `reading` how the log was read, `limits` what such a log cannot
    tell, and `notes` what else belongs to the figures.
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
    bound: int | None = None
    scope: str = "worker"
    assumptions: Mapping[str, Finding] = attrs.field(factory=dict)
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

    def costs(self) -> Ints:
        """The amounts of `charged` in cost units of a client of weight 1's price: without multipliers."""
        amounts = self.charged["amount"]
        if not self.charging.multipliers:
            return amounts
        return amounts // np.array(self.charging.multipliers, dtype=np.int64)[self.charged["client"]]
