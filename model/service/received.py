"""What clients receive and when they wait: the vocabulary in which fairness is stated, over half-open intervals.

**Positions.**  A run is a sequence of events, and event number p happens at position p.  An interval [p, q) holds the
events p, ..., q - 1; since times never run backwards, every interval [t1, t2) of time is one of positions, and events
of equal time stay ordered.

**Backlogged.**  A client is backlogged on a worker at p if one of its requests waits in the worker's queue just before
event p: it joins by `Arrived` or `Preempted` and leaves by `Admitted`, by `Cancelled` or `Migrated` while waiting, by
`Rejected`, or when the worker leaves.
So a client is backlogged from the event after its arrival up to and including the admission that empties its queue,
and that admission's charge counts: it was made while the client waited, which is what the theorems speak about.

**Service** W_i[p, q) is what the gate charged client i during [p, q), divided by the client's weight (`Charging`).  A
run of decode steps is one event; between its ends each client's service is linear, so nothing larger hides inside.

**The service gap** of a worker is the largest |W_f[p, q) - W_g[p, q)| over all clients f, g and all intervals in which
both are backlogged throughout: the left side of D-4.1 (DLPM) and of V-4.4 (VTC).  With D = W_f - W_g it is the range of
D over a maximal interval in which both are backlogged, since every part of such an interval counts.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import attrs
import numpy as np
import numpy.typing as npt

from fairsched.model import events as ev
from fairsched.model.pricing import COMMON, Rates, charged_tokens
from fairsched.model.service.columns import Ints, Table, Tables
from fairsched.model.shown import short_repr

FOREVER = int(np.iinfo(np.int64).max)
"""Where an interval ends that the run did not end."""
CLIENTS_MAX = 256
"""Up to so many clients a service gap is exact; above, it is that of the clients with the most service."""

_BLOCK = 64
_NONE = -(1 << 60)


@attrs.frozen
class Charging:
    """How a gate charges: its rates, what an admission pays for, and each client's multiplier (1 where none is given).

    With `input="extend"` an admission pays for the tokens to be computed, corrected when they settle, and for
    `cached_percent` per cent of those from the cache; with "prompt" for all of those.  What was charged for and never
    computed is given back at a cancellation.
    `multipliers` are those of `model.pricing` (lcm / weight, or lcm / quantum), so W stays an integer.
    """

    rates: Rates = COMMON
    input: Literal["extend", "prompt"] = "extend"
    multipliers: tuple[int, ...] = ()
    cached_percent: int = 0

    @property
    def percent(self) -> int:
        """How many per cent of a cached token's price are charged."""
        return 100 if self.input == "prompt" else self.cached_percent

    def times(self, client: int) -> int:
        return self.multipliers[client] if client < len(self.multipliers) else 1


def _join(parts: list[Table], columns: tuple[str, ...]) -> Table:
    """Return rows of several tables in order of position."""
    whole = {column: np.concatenate([part[column] for part in parts]) for column in columns}
    order = np.argsort(whole["position"], kind="stable")
    return {column: values[order] for column, values in whole.items()}


def corrections(trace: Tables, cached_percent: int = 0) -> Ints:
    """Return for each `Settled` the input tokens that it charges for (`pricing.charged_tokens`) less those before."""
    admitted, settled = trace[ev.Admitted], trace[ev.Settled]
    context = admitted["extend_tokens"] + admitted["cached_prefix_tokens"]
    parts = [admitted | {"context": context}, settled | {"context": np.full_like(settled["position"], -1)}]
    rows = _join(parts, ("position", "request_id", "extend_tokens", "context"))
    order = np.lexsort((rows["position"], rows["request_id"]))
    extend, context = rows["extend_tokens"][order], rows["context"][order]
    # What settles was admitted before, with the same context.
    context = context[np.maximum.accumulate(np.where(context >= 0, np.arange(len(context)), 0))]
    change = np.diff(charged_tokens(extend, context - extend, cached_percent), prepend=0)
    by_position = np.empty_like(change)
    by_position[order] = change
    return by_position[np.searchsorted(rows["position"], settled["position"])]


def prompt_hits(trace: Tables) -> Table:
    """Return what each request found in the prefix cache when it was first admitted anywhere: columns request_id,
    worker, client, context and cached (tokens).

    What it finds later is its own: prompts that were cached before a preemption, and KV that came with it.
    """
    admitted, settled = trace[ev.Admitted], trace[ev.Settled]
    requests, first = np.unique(admitted["request_id"], return_index=True)
    found = {name: admitted[name][first] for name in ("request_id", "worker", "client")}
    found["cached"] = admitted["cached_prefix_tokens"][first]
    found["context"] = found["cached"] + admitted["extend_tokens"][first]
    again = np.full(len(requests), FOREVER)
    later = np.delete(np.arange(len(admitted["position"])), first)
    np.minimum.at(again, np.searchsorted(requests, admitted["request_id"][later]), admitted["position"][later])
    of = np.searchsorted(requests, settled["request_id"])
    own = settled["position"] < again[of]
    np.subtract.at(found["cached"], of[own], corrections(trace)[own])
    return found


def charges(trace: Tables, charging: Charging) -> Table:
    """Return every charge of a run: columns position, time_ns, worker, client, amount (cost units; a refund is
    negative)."""
    admitted, settled, cancelled, decoded = (
        trace[ev.Admitted],
        trace[ev.Settled],
        trace[ev.Cancelled],
        trace[ev.Decoded],
    )
    percent, rates = charging.percent, charging.rates
    tokens = charged_tokens(admitted["extend_tokens"], admitted["cached_prefix_tokens"], percent)
    parts = [
        admitted | {"amount": tokens * rates.input},
        *(table | {"amount": table["tokens"] * rates.output} for table in (decoded, trace[ev.Held])),
        *(table | {"amount": -table["uncomputed_tokens"] * rates.input} for table in (cancelled, trace[ev.Migrated])),
    ]
    if settled["position"].size:
        parts.append(settled | {"amount": corrections(trace, percent) * rates.input})
    rows = _join(parts, ("position", "time_ns", "worker", "client", "amount"))
    if charging.multipliers:
        rows["amount"] *= np.array(charging.multipliers, dtype=np.int64)[rows["client"]]
    return rows


def service(charged: Table, clients: int, start_ns: int = 0, stop_ns: int = FOREVER) -> Ints:
    """W_i[start_ns, stop_ns) of each of `clients` clients, all workers together: int64, one entry a client."""
    inside = (charged["time_ns"] >= start_ns) & (charged["time_ns"] < stop_ns)
    total = np.zeros(clients, dtype=np.int64)
    np.add.at(total, charged["client"][inside], charged["amount"][inside])
    return total


def backlogs(trace: Tables) -> Table:
    """Return the maximal intervals in which a client is backlogged on a worker.

    Columns worker, client, start and stop (positions), start_ns and stop_ns; in order of worker, client and start.  An
    interval that outlives the run stops at `FOREVER`.
    """
    lives = _Lives(trace[ev.WorkerLeft])
    arrived, preempted, admitted, rejected = map(
        lives.number, (trace[kind] for kind in (ev.Arrived, ev.Preempted, ev.Admitted, ev.Rejected))
    )
    leaves = [lives.number(_only(trace[kind], trace[kind]["was_running"] == 0)) for kind in (ev.Cancelled, ev.Migrated)]
    # A request that is rejected at once, or cancelled before it is sent, never joined the queue.
    came = _pairs(arrived)
    leaves = [_only(table, np.isin(_pairs(table), came)) for table in (*leaves, rejected) if table["position"].size]
    parts = [table | {"change": np.ones_like(table["position"])} for table in (arrived, preempted)]
    parts += [table | {"change": -np.ones_like(table["position"])} for table in (admitted, *leaves)]
    rows = _join(parts, ("position", "time_ns", "worker", "client", "change", "life"))
    rows = _only(rows, np.lexsort((rows["position"], rows["client"], rows["life"])))
    if not rows["position"].size:
        return dict.fromkeys(("worker", "client", "start", "stop", "start_ns", "stop_ns"), rows["position"])

    last = (np.diff(rows["life"], append=-1) != 0) | (np.diff(rows["client"], append=-1) != 0)
    waiting = np.cumsum(rows["change"])
    base = np.concatenate(([0], waiting[last]))[np.cumsum(last) - last]  # what other clients left behind
    waiting -= base
    opens = (waiting == 1) & (rows["change"] == 1)
    flips = np.flatnonzero(opens | ((waiting == 0) & (rows["change"] == -1)))
    opened = np.flatnonzero(opens[flips])
    starts = flips[opened]
    closes = np.append(flips, flips[-1])[opened + 1]  # the next flip, if it is no other client's opening
    closed = rows["change"][closes] == -1
    stop, stop_ns = lives.ends(_only(rows, starts))
    waits = {
        "worker": rows["worker"][starts],
        "client": rows["client"][starts],
        "start": rows["position"][starts] + 1,
        "stop": np.where(closed, rows["position"][closes] + 1, stop),
        "start_ns": rows["time_ns"][starts],
        "stop_ns": np.where(closed, rows["time_ns"][closes], stop_ns),
    }
    # A request that joins just before its worker leaves waits through no event.
    return _only(waits, waits["start"] < waits["stop"])


def _pairs(table: Table) -> Ints:
    """Return which request, in which life of which worker, as one number."""
    pairs: Ints = (table["life"] << 40) + table["request_id"]
    return pairs


class _Lives:
    """The lives of workers: each ends when the worker leaves, with all waits there."""

    def __init__(self, left: Table) -> None:
        order = np.lexsort((left["position"], left["worker"]))
        self._left = _only(left, order)
        self._keys = self._key(self._left)

    def _key(self, table: Table) -> Ints:
        keys: Ints = (table["worker"] << 44) + table["position"]
        return keys

    def number(self, table: Table) -> Table:
        """Return the rows at a worker, each with its `life`: these numbers ascend with workers, and with the lives of
        each."""
        table = _only(table, table["worker"] >= 0)  # a request that waits to be sent waits at no worker
        return table | {"life": table["worker"] + np.searchsorted(self._keys, self._key(table))}

    def ends(self, rows: Table) -> tuple[Ints, Ints]:
        """Position and time at which the life of each row ends; `FOREVER` if it outlives the run."""
        after = np.searchsorted(self._keys, self._key(rows))
        ended = np.append(self._left["worker"], -1)[after] == rows["worker"]
        position, time_ns = (np.append(self._left[name], FOREVER)[after] for name in ("position", "time_ns"))
        return np.where(ended, position, FOREVER), np.where(ended, time_ns, FOREVER)


def _only(table: Table, rows: npt.NDArray[np.generic]) -> Table:
    return {column: values[rows] for column, values in table.items()}


@attrs.frozen
class Gap:
    """A largest service gap: `ahead` received `cost` more than `behind` while both were backlogged on `worker`.

    It grew in [start_ns, stop_ns]; the two were backlogged together for `together_ns` of the run.  `progress` is the
    largest gap so far between these two, as rows (time_ns, cost), the last of which is the gap.  With no two clients
    ever backlogged together, `cost` is 0 and the rest is empty.
    """

    __repr__ = short_repr

    cost: int = 0
    worker: int | None = None
    ahead: int | None = None
    behind: int | None = None
    start_ns: int = 0
    stop_ns: int = 0
    together_ns: int = 0
    progress: Ints = attrs.field(factory=lambda: np.empty((0, 2), dtype=np.int64), eq=False)


def service_gap(charged: Table, waited: Table, clients: Ints | None = None) -> Gap:
    """Return the largest service gap of any worker, between any two of `clients` (all by default), exactly.

    `charged` is from `charges`, `waited` from `backlogs`.  Per worker with P charging events and n clients: O(n^2 P /
    64) for a bound on each pair, then O(P) for each pair whose bound exceeds the gap found so far.
    """
    best = Gap()
    wanted = waited if clients is None else _only(waited, np.isin(waited["client"], clients))
    for worker in np.unique(wanted["worker"]).tolist():
        waits = _only(wanted, wanted["worker"] == worker)
        if (waits["client"] != waits["client"][0]).any():
            best = _Ledger(_only(charged, charged["worker"] == worker), waits).largest_gap(worker, best)
    return best


class _Ledger:
    """One worker's cumulative service S_i, a row a client, and the intervals in which the client waited.

    Column k of a row is the service before the worker's charging event number k; there is one more column than events.
    """

    def __init__(self, charged: Table, waited: Table) -> None:
        self.clients: list[int] = np.unique(waited["client"]).tolist()
        another = np.diff(charged["position"], prepend=-1) != 0
        self.position, self.time_ns = charged["position"][another], charged["time_ns"][another]
        column = np.cumsum(another) - 1
        self.columns = len(self.position) + 1
        self._charges = [(column[mine] + 1, charged["amount"][mine]) for mine in self._rows_of(charged)]
        self._waits = [(waited["start"][mine], waited["stop"][mine]) for mine in self._rows_of(waited)]
        self._waited = waited
        self.row = lru_cache(maxsize=max(8, (1 << 24) // self.columns))(self._row)

    def _rows_of(self, table: Table) -> list[Ints]:
        """Return for each client where its rows are."""
        order = np.argsort(table["client"], kind="stable")
        edges = np.searchsorted(table["client"][order], [self.clients, [c + 1 for c in self.clients]])
        return [order[a:b] for a, b in edges.T]

    def _row(self, i: int) -> Ints:
        amount = np.zeros(self.columns, dtype=np.int64)
        np.add.at(amount, *self._charges[i])
        return np.cumsum(amount)

    def _bounds(self) -> Ints:
        """Return for each two clients at least their gap: from the highest and lowest service in each block of
        columns."""
        n = len(self.clients)
        edges = np.arange(0, self.columns, _BLOCK)
        high, low = np.empty((2, len(edges), n), dtype=np.int64)
        change = np.zeros((len(edges) + 1, n), dtype=np.int64)
        for i, (start, stop) in enumerate(self._waits):
            row = self.row(i)
            high[:, i] = np.maximum.reduceat(row, edges)
            low[:, i] = np.minimum.reduceat(row, edges)
            np.add.at(change[:, i], np.searchsorted(self.position, start) // _BLOCK, 1)
            np.add.at(change[:, i], np.searchsorted(self.position, stop) // _BLOCK + 1, -1)
        waits = np.cumsum(change, axis=0)[:-1] > 0

        bound = np.zeros((n, n), dtype=np.int64)
        lead = np.full((n, n), _NONE, dtype=np.int64)  # most by which f led g while both waited; the transpose trails
        for b in range(len(edges)):
            idle = ~waits[b]
            if idle.sum() < n - 1:
                np.maximum(lead, high[b][:, None] - low[b], out=lead)
                np.maximum(bound, lead + lead.T, out=bound)
            lead[idle] = _NONE
            lead[:, idle] = _NONE
        return bound

    def largest_gap(self, worker: int, best: Gap) -> Gap:
        """`best`, or a larger gap between two of this worker's clients."""
        bound = np.triu(self._bounds(), k=1)
        found: tuple[int, int] | None = None
        cost = best.cost
        for flat in np.argsort(-bound, axis=None, kind="stable").tolist():
            f, g = divmod(flat, len(self.clients))
            if bound[f, g] <= cost:
                break
            gap = self._pair_cost(f, g)
            if gap > cost:
                cost, found = gap, (f, g)
        return best if found is None else self._describe(worker, *found)

    def _together(self, f: int, g: int) -> tuple[Ints, Ints]:
        """Return the maximal intervals of positions in which both wait."""
        (start_f, stop_f), (start_g, stop_g) = self._waits[f], self._waits[g]
        starts = (start_f[_inside(start_f, start_g, stop_g)], start_g[_inside(start_g, start_f, stop_f)])
        stops = (stop_f[_inside(stop_f - 1, start_g, stop_g)], stop_g[_inside(stop_g - 1, start_f, stop_f)])
        return np.unique(np.concatenate(starts)), np.unique(np.concatenate(stops))

    def _segments(self, f: int, g: int) -> tuple[Ints, Ints]:
        """Return the same as first and last columns, without those in which nothing was charged."""
        start, stop = self._together(f, g)
        first, last = np.searchsorted(self.position, start), np.searchsorted(self.position, stop)
        return first[last > first], last[last > first]

    def _ranges(self, lead: Ints, first: Ints, last: Ints) -> Ints:
        """Range of `lead` in each segment."""
        edges = np.column_stack((first, last + 1)).ravel()
        padded = np.append(lead, 0)  # reduceat wants every edge to be an index
        return (np.maximum.reduceat(padded, edges) - np.minimum.reduceat(padded, edges))[::2]

    def _pair_cost(self, f: int, g: int) -> int:
        first, last = self._segments(f, g)
        return int(self._ranges(self.row(f) - self.row(g), first, last).max()) if first.size else 0

    def _describe(self, worker: int, f: int, g: int) -> Gap:
        lead = self.row(f) - self.row(g)
        first, last = self._segments(f, g)
        ranges = self._ranges(lead, first, last)
        worst = int(ranges.argmax())
        inside = lead[first[worst] : last[worst] + 1]
        low, high = int(inside.argmin()), int(inside.argmax())
        start, stop = self._together(f, g)
        return Gap(
            cost=int(ranges[worst]),
            worker=worker,
            ahead=self.clients[f if low < high else g],
            behind=self.clients[g if low < high else f],
            start_ns=int(self.time_ns[first[worst] + min(low, high)]),
            stop_ns=int(self.time_ns[first[worst] + max(low, high) - 1]),
            together_ns=int((self._times(stop) - self._times(start)).sum()),
            progress=_records(_range, lead, first, last, self.time_ns),
        )

    def _times(self, positions: Ints) -> Ints:
        """Return when clients began or ceased to wait; what outlives the run ends with its last charge."""
        known = np.concatenate((self._waited["start"], self._waited["stop"]))
        times = np.concatenate((self._waited["start_ns"], np.minimum(self._waited["stop_ns"], self.time_ns[-1])))
        order = np.argsort(known)
        return times[order][np.searchsorted(known, positions, sorter=order)]


def _inside(positions: Ints, start: Ints, stop: Ints) -> npt.NDArray[np.bool_]:
    """Return which positions lie in one of the intervals [start, stop); these are sorted and apart."""
    k = np.searchsorted(start, positions, side="right") - 1
    return (k >= 0) & (positions < stop[k])


def service_lag(charged: Table, waited: Table, worker: int, ahead: int, behind: int) -> Ints:
    """Return how far a client fell behind another while it waited: the left side of D-4.2, one-sided, W_ahead -
    W_behind.

    Over intervals in which `behind` is backlogged on `worker`, whatever `ahead` does.  Rows (time_ns, cost) whenever
    the largest lag so far grew; empty if it never fell behind.  O(events).
    """
    costs = _only(charged, (charged["worker"] == worker) & np.isin(charged["client"], (ahead, behind)))
    gained = np.where(costs["client"] == ahead, costs["amount"], -costs["amount"])
    first = np.flatnonzero(np.diff(costs["position"], prepend=-1))  # an event may charge both
    position, time_ns = costs["position"][first], costs["time_ns"][first]
    lead = np.concatenate(([0], np.cumsum(np.add.reduceat(gained, first) if first.size else gained)))
    waits = _only(waited, (waited["worker"] == worker) & (waited["client"] == behind))
    start, stop = np.searchsorted(position, (waits["start"], waits["stop"]))
    return _records(_rise, lead, start, stop, time_ns)


def _range(lead: Ints) -> Ints:
    """Return the range of the lead so far."""
    return np.maximum.accumulate(lead) - np.minimum.accumulate(lead)


def _rise(lead: Ints) -> Ints:
    """Return the largest rise of the lead so far."""
    return np.maximum.accumulate(lead - np.minimum.accumulate(lead))


def _records(measure: Callable[[Ints], Ints], lead: Ints, first: Ints, last: Ints, time_ns: Ints) -> Ints:
    """Return when the largest `measure` of `lead` so far, which never falls inside a segment, grew: rows (time_ns,
    cost)."""
    rows = [np.empty((0, 2), dtype=np.int64)]
    largest = 0
    for a, b in zip(first.tolist(), last.tolist(), strict=True):
        grown = np.maximum(measure(lead[a : b + 1]), largest)
        steps = np.flatnonzero(np.diff(grown) > 0)
        rows.append(np.column_stack((time_ns[a + steps], grown[steps + 1])))
        largest = int(grown[-1])
    return np.concatenate(rows)


def busiest(charged: Table, clients: int, limit: int = CLIENTS_MAX) -> Ints | None:
    """Return the `limit` clients with the most service, as ascending ids; None when there are no more than `limit`."""
    if clients <= limit:
        return None
    order = np.argsort(-service(charged, clients), kind="stable")
    return np.sort(order[:limit])


def overlap(waited: Table) -> bool:
    """Return whether two clients ever waited on one worker at the same time; waits of one client there are apart."""
    order = np.lexsort((waited["start"], waited["worker"]))
    worker, start, stop = (waited[name][order] for name in ("worker", "start", "stop"))
    within = (worker << 44) + np.minimum(start, 1 << 43), (worker << 44) + np.minimum(stop, 1 << 43)
    return bool((within[0][1:] < np.maximum.accumulate(within[1])[:-1]).any())


# --- all workers of a cluster together --------------------------------------------------------------------------------


def anywhere(charged: Table, waited: Table) -> tuple[Table, Table]:
    """Return the same as if all workers were one: a client is backlogged while it is at any of them.

    The service gap of the result is the left side of D2-global, and is said of worker 0.  O(rows log rows).
    """
    charged = _only(charged, charged["worker"] >= 0)
    shift = waited["client"] << 44  # positions are below 2^43, so that clients stay apart
    order = np.argsort(shift + waited["start"], kind="stable")
    rows = _only(waited, order)
    start, stop = (shift[order] + np.minimum(rows[name], 1 << 43) for name in ("start", "stop"))
    latest = np.maximum.accumulate(stop)
    first = np.flatnonzero(np.append(True, start[1:] > latest[:-1])[: len(start)])
    merged = _only(rows, first)
    if first.size:
        merged |= {name: np.maximum.reduceat(rows[name], first) for name in ("stop", "stop_ns")}
    return charged | {"worker": np.zeros_like(charged["worker"])}, merged | {"worker": np.zeros_like(merged["worker"])}
