"""What the plots of a report show of one run: a few hundred points each, whatever the length of the run."""

from array import array

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.model.service import Ints
from fairsched.model.shown import short_repr

Floats = npt.NDArray[np.float64]

POINTS_MAX = 500
CLIENTS_MAX = 32
_SERVICE_BINS = 240
_RESPONSE_BINS = 40


class KvSamples:
    """Samples of a worker's KV memory in use: what requests hold, and what the prefix cache holds beside them.

    Every second one is dropped whenever there are too many.
    """

    def __init__(self) -> None:
        self._rows = array("q")
        self._stride = 1
        self._seen = 0

    def is_due(self) -> bool:
        """Return whether the next sample is to be taken, or passed over."""
        self._seen += 1
        return not self._seen % self._stride

    def add(self, time_ns: int, used: int, cached: int, capacity: int) -> None:
        """Take the sample that is due.  O(1) amortised."""
        self._rows.extend((time_ns, used, cached, capacity))
        if len(self._rows) >= 4 * 2 * POINTS_MAX:
            self._rows = array("q", self.rows()[1::2].ravel().tolist())
            self._stride *= 2

    def rows(self) -> Ints:
        """Return columns time_ns, used, cached, capacity (tokens); at most `2 * POINTS_MAX` rows."""
        return np.array(self._rows, dtype=np.int64).reshape(-1, 4)


@attrs.frozen(eq=False)
class Series:
    """Down-sampled courses of a run.  Times in seconds since its first arrival.

    `clients` are those with the largest demand (prompt + 2 output tokens they ask for, so the same under every policy),
    the largest first, at most `CLIENTS_MAX`, and the two of the gap. `service[k, i]` is what clients[i] had received,
    as it sees it, at `service_s[k]`, and `queue[k, i]` how many of its requests waited at workers then;
    `response_us[k, i]` its mean TTFT among requests that arrived in the part of the run centred at `response_s[k]`
    (nan: none). `gap_s` and `gap` are the largest gap so far of the worst pair.
    `ttft_us` are quantiles of the TTFT at `np.linspace(0, 1, len(ttft_us))`. `kv[worker]` has the columns seconds,
    used, cached, capacity (tokens).
    """

    __repr__ = short_repr

    clients: tuple[int, ...]
    service_s: Floats
    service: Ints
    queue: Ints
    response_s: Floats
    response_us: Floats
    gap_s: Floats
    gap: Ints
    ttft_us: Floats
    kv: dict[int, Floats]


def thinned(rows: Ints, points: int = POINTS_MAX) -> Ints:
    """Return at most `points` rows, evenly chosen, the first and the last among them."""
    if len(rows) <= points:
        return rows
    return rows[np.linspace(0, len(rows) - 1, points).round().astype(np.int64)]


def cumulative(time_ns: Ints, who: Ints, amount: Ints, clients: tuple[int, ...], span_ns: int) -> tuple[Floats, Ints]:
    """Return sums of `amount` for each of `clients` up to the ends of equal parts of [0, span_ns].

    Returns the times in seconds, a zero first, and an array (times, clients).
    """
    columns = np.full(max([*clients, int(who.max(initial=0))]) + 1, -1)
    columns[list(clients)] = np.arange(len(clients))
    column = columns[who]
    known = column >= 0
    bins = 1 + np.minimum(time_ns[known] * _SERVICE_BINS // max(span_ns, 1), _SERVICE_BINS - 1)
    sums = np.zeros((_SERVICE_BINS + 1, len(clients)), dtype=np.int64)
    np.add.at(sums, (bins, column[known]), amount[known])
    return np.linspace(0, span_ns / 1e9, _SERVICE_BINS + 1), np.cumsum(sums, axis=0)


def responses(
    arrival_ns: Ints, who: Ints, ttft_ns: Ints, clients: tuple[int, ...], span_ns: int
) -> tuple[Floats, Floats]:
    """Mean TTFT in microseconds of the requests of each client that arrived in each of equal parts of [0, span_ns]."""
    bins = np.minimum(arrival_ns * _RESPONSE_BINS // max(span_ns, 1), _RESPONSE_BINS - 1)
    means = np.full((_RESPONSE_BINS, len(clients)), np.nan)
    for i, client in enumerate(clients):
        mine = who == client
        count = np.bincount(bins[mine], minlength=_RESPONSE_BINS)
        total = np.bincount(bins[mine], weights=ttft_ns[mine], minlength=_RESPONSE_BINS)
        means[:, i] = np.divide(total, count * 1e3, out=means[:, i], where=count > 0)
    centres = (np.arange(_RESPONSE_BINS) + 0.5) * span_ns / 1e9 / _RESPONSE_BINS
    return centres, means
