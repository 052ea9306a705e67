"""Starvation: stretches of time in which a client waits, gets nothing at all, and others are served.

Such a stretch begins when the client begins to wait or was last charged while it waited, and ends with its next charge
or when it waits no more.  Workers are taken together: a client that is served anywhere does not starve.  Where the end
of a wait is inferred, no time within its margin is part of a stretch: a client starved at least so long.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from fairsched.engines.analysis.audit.evidence import AuditRun
from fairsched.model.service import Ints, anywhere


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


def stretches(evidence: AuditRun, at_least_ns: int) -> tuple[Stretch, ...]:
    """All stretches of at least so long, in order of client and time.  O(n log n) for n charges and waits."""
    _, waited = anywhere(evidence.charged, evidence.waited)
    last_ns, count = evidence.last_ns, len(evidence.clients)
    order = np.argsort(evidence.charged["time_ns"], kind="stable")
    when, costs = evidence.charged["time_ns"][order], evidence.costs()[order]
    charges = _by_number(evidence.charged["client"][order], count)
    waits = _by_number(waited["client"], count)
    total = _summed(costs)
    calls = evidence.calls
    doubtful = np.flatnonzero(calls.wait_margin_ns > 0)
    doubts = _by_number(calls.client[doubtful], count)
    found: list[Stretch] = []
    for client, (mine, own, doubt) in enumerate(zip(waits, charges, doubts, strict=True)):
        # One that outlives the log ends with it.
        lengths = waited["start_ns"][mine], np.minimum(waited["stop_ns"][mine], last_ns)
        own_when, own_costs = when[own], costs[own]
        served, margin = (column[doubtful[doubt]] for column in (calls.served_ns, calls.wait_margin_ns))
        start, stop = _undoubted(lengths, own_when[own_costs > 0], (served - margin, served + margin), at_least_ns)
        if start.size:
            others = _between(when, total, start, stop) - _between(own_when, _summed(own_costs), start, stop)
            rows = zip(start.tolist(), stop.tolist(), others.tolist(), strict=True)
            found += [Stretch(client, *row) for row in rows if row[2] > 0]
    return tuple(found)


def _by_number(numbers: Ints, count: int) -> list[Ints]:
    """For each number below `count` where it stands, in order."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.searchsorted(numbers[order], np.arange(1, count)))


def _summed(costs: Ints) -> Ints:
    """What was charged before each charge, and in all."""
    return np.concatenate(([0], np.cumsum(costs)))


def _between(when: Ints, total: Ints, start: Ints, stop: Ints) -> Ints:
    """What was charged over each [start, stop)."""
    charged: Ints = total[np.searchsorted(when, stop)] - total[np.searchsorted(when, start)]
    return charged


def _undoubted(
    waits: tuple[Ints, Ints], served_ns: Ints, doubts: tuple[Ints, Ints], least_ns: int
) -> tuple[Ints, Ints]:
    """What is left between services, and outside of these times in which there may have been some."""
    if not len(doubts[0]):
        return without_service(waits, served_ns, least_ns)
    begin, over = map(np.sort, doubts)
    start, stop = without_service(waits, np.unique(np.concatenate((served_ns, begin, over))), least_ns)
    outside = np.searchsorted(begin, start, side="right") == np.searchsorted(over, start, side="right")
    return start[outside], stop[outside]


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
