"""Who gained: service beyond the fair share while others were backlogged.

The run is cut into windows of equal length.  What was served in a window is divided fairly, by weight, among what
clients asked for in it: what they got, and what of theirs still waited at its end (max-min: nobody is given more than
it asked for, and of the rest everybody gets the same for its weight).  A client's gain is what it got less that, summed
over the windows; all gains and losses add up to nothing, and where nobody waits there are none.  Turns that clients
take within a window, or that even out over several, are no gain.
"""

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.engines.audit.evidence import Evidence
from fairsched.engines.audit.values import UNKNOWN
from fairsched.model.pricing import charged_tokens

Floats = npt.NDArray[np.float64]

WINDOWS_MAX = 1 << 14
CELLS_MAX = 1 << 23


@attrs.frozen(eq=False)
class Shares:
    """By window (rows) and client: cost units `served`, and `fair`, what the fair division gives.  Windows of
    `window_ns` begin at the first arrival."""

    window_ns: int
    served: Floats
    fair: Floats

    @property
    def gained(self) -> Floats:
        """Each client's gain over the whole run in cost units, negative for a loss."""
        total: Floats = (self.served - self.fair).sum(axis=0)
        return total


def shares(evidence: Evidence, window_ns: int) -> Shares:
    """The fair division, in windows of this length, or of a longer one where the run has too many of them.

    O(windows x clients x log clients).
    """
    origin, clients = evidence.origin_ns, len(evidence.clients)
    span = evidence.last_ns - origin + 1
    most = max(1, min(WINDOWS_MAX, CELLS_MAX // max(clients, 1)))
    window_ns = max(min(window_ns, span), -(-span // most))
    count = -(-span // window_ns)
    served = np.zeros((count, clients))
    row = (np.maximum(evidence.charged["time_ns"], origin) - origin) // window_ns
    np.add.at(served, (row, evidence.charged["client"]), evidence.costs())
    # What is given back may belong to an earlier window.
    served = np.maximum(served, 0.0)
    weights = np.array([client.weight for client in evidence.clients], dtype=np.float64)
    return Shares(window_ns, served, fair_division(served, served + _waiting(evidence, window_ns, count), weights))


def _waiting(evidence: Evidence, window_ns: int, count: int) -> Floats:
    """What the requests that wait at each window's end ask for, in cost units, by window and client."""
    calls, charging = evidence.calls, evidence.charging
    prompt = charged_tokens(calls.prompt, np.zeros_like(calls.prompt), charging.percent)
    cost = prompt * charging.rates.input + calls.output * charging.rates.output
    over = np.where(calls.served_ns == UNKNOWN, calls.end_ns, calls.served_ns)
    change = np.zeros((count + 1, len(evidence.clients)))
    for times, sign in ((calls.arrival_ns, 1), (over, -1)):
        known = times != UNKNOWN
        row = np.clip((times[known] - evidence.origin_ns) // window_ns, 0, count)
        np.add.at(change, (row, calls.client[known]), sign * cost[known])
    return np.maximum(np.cumsum(change, axis=0)[:-1], 0.0)


def fair_division(served: Floats, asked: Floats, weights: Floats) -> Floats:
    """For each row, the sum of `served` divided max-min by weight among clients that ask for `asked`.

    The level is looked for among the clients in order of what they ask for by weight: all below it get what they ask
    for, the others the level times their weight.
    """
    need = asked / weights
    order = np.argsort(need, axis=1, kind="stable")
    need_sorted = np.take_along_axis(need, order, axis=1)
    asked_sorted = np.take_along_axis(asked, order, axis=1)
    weight_sorted = weights[order]
    total = served.sum(axis=1, keepdims=True)
    below = np.cumsum(asked_sorted, axis=1) - asked_sorted
    left = np.cumsum(weight_sorted[:, ::-1], axis=1)[:, ::-1]
    levels = (total - below) / left
    # The first client that asks for more than an even share of what is left sets the level.
    enough = levels <= need_sorted
    first = np.argmax(enough, axis=1)
    level = np.where(enough.any(axis=1), np.take_along_axis(levels, first[:, None], axis=1)[:, 0], np.inf)
    return np.minimum(asked, level[:, None] * weights)
