"""Starvation: stretches of time in which a client waits, gets nothing at all, and others are served.

Such a stretch begins when the client begins to wait or was last charged while it waited, and ends with its next charge
or when it waits no more.  Workers are taken together: who is served anywhere does not starve.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from fairsched.engines.audit.evidence import Evidence
from fairsched.model.service_anywhere import anywhere
from fairsched.model.trace import Ints, Table


@attrs.frozen
class Stretch:
    """The client waited over [start_ns, stop_ns) for nothing, while others got `others_cost` cost units."""

    client: int
    start_ns: int
    stop_ns: int
    others_cost: int

    @property
    def length_ns(self) -> int:
        """How long."""
        return self.stop_ns - self.start_ns


def stretches(evidence: Evidence, at_least_ns: int) -> tuple[Stretch, ...]:
    """All stretches of at least so long, in order of client and time.  O(n) a client, for n charges and waits."""
    _, waited = anywhere(evidence.charged, evidence.waited)
    costs = evidence.costs()
    order = np.argsort(evidence.charged["time_ns"], kind="stable")
    when, costs, charged = evidence.charged["time_ns"][order], costs[order], evidence.charged["client"][order]
    found: list[Stretch] = []
    for client in np.unique(waited["client"]).tolist():
        mine = charged == client
        waits = _of(waited, client, evidence.last_ns)
        start, stop = without_service(waits, when[mine & (costs > 0)], at_least_ns)
        if start.size:
            total = np.concatenate(([0], np.cumsum(np.where(mine, 0, costs))))
            others = total[np.searchsorted(when, stop)] - total[np.searchsorted(when, start)]
            rows = zip(start.tolist(), stop.tolist(), others.tolist(), strict=True)
            found += [Stretch(client, *row) for row in rows if row[2] > 0]
    return tuple(found)


def _of(waited: Table, client: int, last_ns: int) -> tuple[Ints, Ints]:
    """The client's waits; one that outlives the log ends with it."""
    mine = waited["client"] == client
    return waited["start_ns"][mine], np.minimum(waited["stop_ns"][mine], last_ns)


def without_service(waits: tuple[Ints, Ints], served_ns: Ints, at_least_ns: int) -> tuple[Ints, Ints]:
    """Starts and ends of what is left of the waits when they are cut at these times, those that are long enough.

    Waits are apart and in order, and so are the times.
    """
    start, stop = waits
    first = np.searchsorted(served_ns, start, side="right")
    last = np.searchsorted(served_ns, stop, side="left")
    inside = np.concatenate([served_ns[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True)] or [start[:0]])
    which = np.repeat(np.arange(len(start)), np.maximum(last - first, 0))
    edges = np.concatenate((start, inside, stop))
    wait = np.concatenate((np.arange(len(start)), which, np.arange(len(start))))
    order = np.lexsort((edges, wait))
    edges, wait = edges[order], wait[order]
    long = (np.diff(wait) == 0) & (np.diff(edges) >= max(at_least_ns, 1))
    return edges[:-1][long], edges[1:][long]


def by_client(found: Sequence[Stretch]) -> dict[int, list[Stretch]]:
    """The stretches of each client that has any, the client with the longest first."""
    clients: dict[int, list[Stretch]] = {}
    for stretch in found:
        clients.setdefault(stretch.client, []).append(stretch)
    return dict(sorted(clients.items(), key=lambda row: -max(each.length_ns for each in row[1])))
