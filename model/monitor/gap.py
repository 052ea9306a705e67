"""The largest gaps of service so far, updated charge by charge: between two waiting clients, and of a waiting one.

`model.service.received` defines both and computes them from a whole run; here they grow with it, exactly.

**Pairs.**  With D = W_f - W_g, the gap of a pair is the range of D over an interval in which both wait.  Let lead[f, g]
be the largest W_f - W_g since both wait: then the range is lead[f, g] + lead[g, f].  A charge to f can raise only row f
(a refund only column f), so it costs one row; a client that begins to wait starts a row and a column anew.  Rows are
those of clients that wait now, and only differences since then count, so nothing is kept of other clients.

**Lags.**  How far g got ahead of f while f waits, whatever g does, is the largest rise of W_g - W_f: what it is now
less floor[f, g], the smallest it was since f waits.  A charge to f can lower only row f, and raise only column f.
"""

from collections.abc import Sequence
from heapq import nlargest

import numpy as np

from fairsched.model.monitor.guarantee import BoundBreach, Largest, Promise
from fairsched.model.service import CLIENTS_MAX, Ints


class _Grown:
    """The largest gap so far, and at how many events one was over its bound, the first of them kept.

    At most `clients_max` clients are compared, and `left_out` counts those that were not.
    """

    def __init__(self, clients_max: int = CLIENTS_MAX) -> None:
        self.largest = Largest()
        self.left_out = 0
        self.violations = 0
        self.first: BoundBreach | None = None
        self._max = clients_max
        self._rows: dict[int, int] = {}
        self._service = np.zeros(0, dtype=np.int64)


class PairGaps(_Grown):
    """The gaps of every two clients that wait.

    A charge to k clients of which n wait costs O(k n).  The first `clients_max` that wait are compared.
    """

    def __init__(self, clients_max: int = CLIENTS_MAX) -> None:
        super().__init__(clients_max)
        self._clients: list[int] = []
        self._lead = np.zeros((0, 0), dtype=np.int64)

    def join(self, client: int) -> None:
        """Let the client begin to wait.  O(n)."""
        n = len(self._clients)
        if n == self._max:
            self.left_out += 1
            return
        if n == len(self._service):
            self._service, self._lead = np.pad(self._service, (0, 1)), np.pad(self._lead, (0, 1))
        self._rows[client] = n
        self._clients.append(client)
        self._service[n] = 0
        self._lead[n] = -self._service
        self._lead[:, n] = self._service

    def leave(self, client: int) -> None:
        """Let the client wait no more: the last row takes its place.  O(n)."""
        row = self._rows.pop(client, None)
        if row is None:
            return
        mover = self._clients.pop()
        last = len(self._clients)
        if row != last:
            self._clients[row] = mover
            self._rows[mover] = row
            self._service[row] = self._service[last]
            self._lead[row] = self._lead[last]
            self._lead[:, row] = self._lead[:, last]

    def restart(self) -> None:
        """Begin intervals anew: the unit of service has changed.  O(n^2)."""
        self._lead[:] = self._service[:, None] - self._service

    def charge(self, clients: Sequence[int], amounts: Sequence[int], time_ns: int) -> Largest:
        """Charge `amounts[k]` to `clients[k]` in one event; returns the largest gap that it changed."""
        rows, known = self._rows, []
        for client, amount in zip(clients, amounts, strict=True):
            row = rows.get(client)
            if row is not None:
                known.append(row)
                self._service[row] += amount
        n = len(self._clients)
        if not known:
            return _NONE
        service, lead = self._service[:n], self._lead[:n, :n]
        if len(known) == 1:
            # One row and one column, as views: the common case, and the only one with refunds.
            row = known[0]
            ahead, behind = lead[row], lead[:, row]
            more = self._service[row] - service
            np.maximum(ahead, more, out=ahead)
            np.maximum(behind, -more, out=behind)
            spread = ahead + behind
            other = int(spread.argmax())
            return self._seen(row, other, int(spread[other]), time_ns)
        ahead = np.maximum(lead[known], service[known][:, None] - service)
        lead[known] = ahead
        spread = ahead + lead[:, known].T
        which, other = divmod(int(spread.argmax()), n)
        return self._seen(known[which], other, int(spread[which, other]), time_ns)

    def _seen(self, row: int, other: int, cost: int, time_ns: int) -> Largest:
        """Return the gap between two rows, the one that is ahead now first; remembered if it is the largest so far."""
        if self._service[row] - self._service[other] != self._lead[row, other]:
            row, other = other, row
        found = Largest(cost, self._clients[row], self._clients[other], time_ns)
        if cost > self.largest.cost:
            self.largest = found
        return found


_NONE = Largest()


class Lags(_Grown):
    """How far each client that waits has fallen behind each client that ever came.

    A charge to k clients of which n wait and m are known costs O(k (n + m)).  The first `clients_max` that came are
    compared.
    """

    def __init__(self, clients_max: int = CLIENTS_MAX) -> None:
        super().__init__(clients_max)
        # Column 0 is no client, its service stays 0: a client that comes later starts as its copy.
        self._columns: dict[int, int] = {}
        self._names = [-1]
        self._waiting: list[int] = []
        self._service = np.zeros(len(self._names), dtype=np.int64)
        self._floor = np.zeros((len(self._waiting), len(self._names)), dtype=np.int64)

    def _column(self, client: int) -> int | None:
        column = self._columns.get(client)
        if column is None:
            if len(self._columns) == self._max:
                self.left_out += 1
                return None
            column = self._columns[client] = len(self._names)
            self._names.append(client)
            self._service = np.append(self._service, 0)
            self._floor = np.concatenate((self._floor, self._floor[:, :1]), axis=1)
        return column

    def join(self, client: int) -> None:
        """Let the client begin to wait.  O(m)."""
        column = self._column(client)
        if column is None:
            return
        row = self._rows[client] = len(self._waiting)
        self._waiting.append(column)
        if row == len(self._floor):
            self._floor = np.pad(self._floor, ((0, 1), (0, 0)))
        self._floor[row] = self._service - self._service[column]

    def leave(self, client: int) -> None:
        """Let the client wait no more: the last row takes its place.  O(m)."""
        row = self._rows.pop(client, None)
        if row is None:
            return
        column = self._waiting.pop()
        if row != len(self._waiting):
            self._floor[row] = self._floor[len(self._waiting)]
            self._waiting[row] = column
            self._rows[self._names[column]] = row

    def restart(self) -> None:
        self._floor[: len(self._waiting)] = self._service - self._service[self._waiting][:, None]

    def charge(self, clients: Sequence[int], amounts: Sequence[int], time_ns: int) -> Largest:
        """Charge `amounts[k]` to `clients[k]` in one event; returns the largest lag that it changed."""
        columns = []
        for client, amount in zip(clients, amounts, strict=True):
            column = self._column(client)
            if column is not None:
                columns.append(column)
                self._service[column] += amount
        n, service = len(self._waiting), self._service
        if not columns or not n:
            return _NONE
        rows = [self._rows.get(client) for client in clients]
        for row in rows:
            if row is not None:
                floor = self._floor[row]
                np.minimum(floor, service - service[self._waiting[row]], out=floor)
        # A refund lowers a column, which then may be a new smallest: taken into account for every row.
        lead = service[columns] - service[self._waiting][:, None]
        floors = np.minimum(self._floor[:n, columns], lead)
        self._floor[:n, columns] = floors
        lag = lead - floors
        # A refund to a waiting client raises all others' lead over it: then all columns of its row have changed.
        found = self._most(lag, list(range(n)), columns, time_ns)
        for row, amount in zip(rows, amounts, strict=True):
            if amount < 0 and row is not None:
                whole = service - service[self._waiting[row]] - self._floor[row]
                refunded = self._most(whole[None, :], [row], list(range(len(service))), time_ns)
                found = max(found, refunded, key=lambda each: each.cost)
        if found.cost > self.largest.cost:
            self.largest = found
        return found

    def _most(self, lag: Ints, rows: list[int], columns: list[int], time_ns: int) -> Largest:
        which, column = divmod(int(lag.argmax()), lag.shape[1])
        behind = self._names[self._waiting[rows[which]]]
        return Largest(int(lag[which, column]), self._names[columns[column]], behind, time_ns)


class GapWatch:
    """Both kinds of gaps on one worker, held to the bounds of a promise; with `measured=False` no gap is measured.

    `given_back` is, for each client, the most that was charged for requests in flight at one time and given back (in
    cost units of multiplier 1), and `widening` the most by which that widens the bounds between any two clients.
    """

    promise: Promise

    def __init__(self, worker: int, measured: bool) -> None:
        self.pairs, self.lags = PairGaps(), Lags()
        self._both: tuple[PairGaps | Lags, ...] = (self.pairs, self.lags) if measured else ()
        self._worker = worker
        self.given_back: dict[int, int] = {}
        self.widening = 0

    def gave_back(self, client: int, cost: int) -> None:
        """Note that so much was given back to the client for requests that were in flight at one time.  O(clients) if
        it grew."""
        if cost > self.given_back.get(client, 0):
            self.given_back[client] = cost
            self._widen()

    def _widen(self) -> None:
        charging = self.promise.charging
        each = [cost * charging.times(client) for client, cost in self.given_back.items()]
        self.widening = sum(nlargest(2, each)) if self.promise.refunds_widen else 0

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """What gap and lag are held to now."""
        promised = (self.promise.gap_bound, self.promise.lag_bound)
        gap, lag = (None if bound is None else bound + self.widening for bound in promised)
        return gap, lag

    def join(self, client: int) -> None:
        for gaps in self._both:
            gaps.join(client)

    def leave(self, client: int) -> None:
        for gaps in self._both:
            gaps.leave(client)

    def restart(self) -> None:
        self._widen()
        for gaps in self._both:
            gaps.restart()

    def charge(self, clients: Sequence[int], costs: Sequence[int], time_ns: int, position: int) -> None:
        """Charge `costs[k]` to `clients[k]`, in cost units of multiplier 1, for the worker's event at `position`."""
        if not self._both:
            return
        charging = self.promise.charging
        if charging.multipliers:
            costs = [cost * charging.times(client) for client, cost in zip(clients, costs, strict=True)]
        for gaps, bound in zip(self._both, self.bounds, strict=True):
            found = gaps.charge(clients, costs, time_ns)
            if bound is not None and found.cost > bound:
                gaps.violations += 1
                if gaps.first is None:
                    assert found.ahead is not None
                    assert found.behind is not None
                    gaps.first = BoundBreach(
                        time_ns, self._worker, position, found.ahead, found.behind, found.cost, bound
                    )
