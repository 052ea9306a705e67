"""Gains: how far a client's service got ahead of its fair share while others wanted more.

The fair share is what a fluid would have given that served as much as was served, at every time divided by weight among
all clients with unserved requests (max-min: no client is given more than it asked for, and of the rest each gets the
same for its weight; generalised processor sharing).  What a client asks for are its requests, from their arrival on,
each with all that it was charged in the end.  A client's *lead* is what it got so far less its fair share so far: all
leads add up to nothing, they are nothing where no client waits for long, and nothing again when
all is served.  So what a client gained is its largest lead: what others had to wait for.

The run is cut into windows of equal length; turns that clients take within one do not show.
"""

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.analysis.audit.evidence import AuditRun

Floats = npt.NDArray[np.float64]

WINDOWS_MAX = 1 << 14
CELLS_MAX = 1 << 23


@attrs.frozen(eq=False)
class Shares:
    """`lead[k, i]`: how far client i was ahead of its fair share at the end of window k, in cost units.

    Negative where it was behind.  Windows of `window_ns` begin at the first arrival.
    """

    window_ns: int
    lead: Floats

    @property
    def ahead(self) -> Floats:
        """Each client's largest lead, at least 0."""
        most: Floats = np.maximum(self.lead.max(axis=0, initial=0.0), 0.0)
        return most

    @property
    def behind(self) -> Floats:
        """How far each client fell behind at most, at least 0."""
        most: Floats = np.maximum(-self.lead.min(axis=0, initial=0.0), 0.0)
        return most


def shares(evidence: AuditRun, window_ns: int) -> Shares:
    """The leads, in windows of this length, or of a longer one where the run has too many of them.

    O(windows x clients x log clients).
    """
    origin, clients = evidence.origin_ns, len(evidence.clients)
    span = evidence.last_ns - origin + 1
    most = max(1, min(WINDOWS_MAX, CELLS_MAX // max(clients, 1)))
    window_ns = max(min(window_ns, span), -(-span // most))
    count = -(-span // window_ns)
    served, came = np.zeros((count, clients)), np.zeros((count, clients))
    row = (np.maximum(evidence.charged["time_ns"], origin) - origin) // window_ns
    np.add.at(served, (row, evidence.charged["client"]), evidence.costs())
    calls = evidence.calls
    np.add.at(came, ((calls.arrival_ns - origin) // window_ns, calls.client), calls.cost)
    weights = np.array([client.weight for client in evidence.clients], dtype=np.float64)
    return Shares(window_ns, np.cumsum(served - fluid(served.sum(axis=1), came, weights), axis=0))


def fluid(served: Floats, came: Floats, weights: Floats) -> Floats:
    """What each client gets in each window of a fluid that serves `served[k]` in window k, where `came[k, i]` is asked
    for in addition."""
    fair = np.zeros_like(came)
    asked = np.zeros(len(weights))
    for k, (total, more) in enumerate(zip(served.tolist(), came, strict=True)):
        asked += more
        fair[k] = fair_division(total, asked, weights)
        asked -= fair[k]
    return fair


def fair_division(total: float, asked: Floats, weights: Floats) -> Floats:
    """The max-min fair division by weight of `total`, or of all that is asked for if that is less.  O(n log n).

    Clients are taken in order of what they ask for by weight: as long as that is less than an even share of what is
    left they get it, and the others share the rest.
    """
    need = asked / weights
    order = np.argsort(need, kind="stable")
    below = np.cumsum(asked[order]) - asked[order]
    levels = (total - below) / np.cumsum(weights[order][::-1])[::-1]
    enough = np.flatnonzero(levels <= need[order])
    return np.minimum(asked, max(levels[enough[0]], 0.0) * weights) if enough.size else asked.copy()
