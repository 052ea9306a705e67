"""The runtime monitor: one worker's events held to its policy's promise while they happen, or from a log.

`Monitor.observe` takes the worker's events in order and keeps up to date which named assumptions hold
(`model.monitor.assumptions`) and the largest gaps of charged service with the moments at which one passed its bound
(`model.monitor.gap`).  What was proved says: no bound is passed unless an assumption of its theorem is broken.

**Weights that change.**  Charges are divided by weight, so with a `ClientConfigured` that changes a weight the unit of
service changes: the intervals of both gaps begin anew at that event.  Bounds are then those of the promise that
`Promise.reweighted` makes; without it none is judged any more.

**A worker that leaves** takes its queue and batch with it: everything begins anew, and what was found stays.  It
breaks BothServe, and CapacityFloor if a client waits; it does not affect a gap's bound, since it ends the interval.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

import attrs

from fairsched.model.events import (
    Admitted,
    Arrived,
    Cancelled,
    ClientConfigured,
    Decoded,
    Event,
    Finished,
    Migrated,
    Preempted,
    Rejected,
    Settled,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
)
from fairsched.model.monitor.assumptions import AssumptionWatch
from fairsched.model.monitor.gap import Lags, PairGaps
from fairsched.model.monitor.guarantee import BoundBreach, Finding, Largest, MonitorReport, Promise
from fairsched.model.pricing import multipliers
from fairsched.model.service import CLIENTS_MAX
from fairsched.model.theorem import BOTH_SERVE, CAPACITY_FLOOR, GATE_RESPECTED


class GateCheck(Protocol):
    """Knows the policy's gate: follows a worker's events of some `kinds` and reports admissions past it."""

    @property
    def kinds(self) -> frozenset[type]:
        """The kinds of events that it wants to see."""

    @property
    def moves(self) -> Sequence[tuple[int, int, int]]:
        """Charges that moved at the last event, as (client charged, client refunded, cost units)."""

    def observe(self, event: Event) -> str | None:
        """Why this event is an admission that the gate had not let in, in one sentence; else None."""


class Monitor:
    """One worker's run, held to its promise.

    `gate` checks GateRespected (None: it is reported as not observable).  With `gaps=False` only assumptions are
    watched.  At most `clients_max` clients are compared with each other at a time.
    """

    def __init__(
        self,
        promise: Promise,
        gate: GateCheck | None = None,
        *,
        worker: int = 0,
        gaps: bool = True,
        clients_max: int = CLIENTS_MAX,
    ) -> None:
        self.promise = promise
        self.worker = worker
        self.watch = AssumptionWatch(promise, worker, gate is not None)
        self.watch.configure(promise, 0)
        self._gate = None if gate is None else gate.observe
        # Where a policy splits charges, only a check that follows its gate knows which clients were charged.
        self._splits = gate if promise.charging.splits else None
        self._asked: frozenset[type] = frozenset() if gate is None else gate.kinds
        self._pairs = PairGaps(clients_max) if gaps else None
        self._lags = Lags(clients_max) if gaps else None
        self._gap_count = self._lag_count = 0
        self._first_gap: BoundBreach | None = None
        self._first_lag: BoundBreach | None = None
        self._now_ns = 0
        self._weights = dict(enumerate(promise.weights))
        self._lowest = dict(self._weights)
        self._groups = {client: groups for client, groups in enumerate(promise.groups) if groups}
        self._handlers: dict[type, Callable[[Any], None]] = {
            WorkerJoined: self.watch.joined,
            Arrived: self._arrived,
            Admitted: self._admitted,
            Settled: self._settled,
            Decoded: self._decoded,
            Preempted: self._preempted,
            Finished: self.watch.finished,
            Cancelled: self._cancelled,
            Migrated: self._cancelled,
            Rejected: self._rejected,
            ClientConfigured: self._configured,
            WorkerDraining: self._drains,
            WorkerLeft: self._left,
        }

    # --- events -----------------------------------------------------------------------------------------------------

    def observe(self, event: Event) -> None:
        """The worker's next event."""
        self.observe_all((event,))

    def observe_all(self, events: Iterable[Event]) -> None:
        """The worker's next events."""
        handlers, gate, asked, watch = self._handlers, self._gate, self._asked, self.watch
        for event in events:
            kind = type(event)
            if kind in asked and gate is not None:
                refusal = gate(event)
                if refusal is not None:
                    watch.breach(GATE_RESPECTED, event.time_ns, refusal)
            handler = handlers.get(kind)
            if handler is not None:
                self._now_ns = event.time_ns
                handler(event)
                if self._splits is not None and self._splits.moves:
                    self._moved(self._splits.moves, event.time_ns)
            watch.position += 1

    def _arrived(self, event: Arrived) -> None:
        if event.request.client not in self._weights and len(set(self._weights.values())) > 1:
            self._unknown_client(event.request.client, event.time_ns)
        if self.watch.arrived(event):
            self._join(event.request.client)

    def _admitted(self, event: Admitted) -> None:
        cost, left = self.watch.admitted(event)
        self._charge((event.client,), (cost,), event.time_ns)
        if left:
            self._leave(event.client)

    def _settled(self, event: Settled) -> None:
        self._charge((event.client,), (self.watch.settled(event),), event.time_ns)

    def _decoded(self, event: Decoded) -> None:
        self._charge(event.clients, self.watch.decoded(event), event.time_ns)

    def _preempted(self, event: Preempted) -> None:
        if self.watch.preempted(event):
            self._join(event.client)

    def _cancelled(self, event: Cancelled | Migrated) -> None:
        cost, left = self.watch.cancelled(event)
        self._charge((event.client,), (cost,), event.time_ns)
        if left:
            self._leave(event.client)

    def _rejected(self, event: Rejected) -> None:
        if self.watch.rejected(event):
            self._leave(event.client)

    def _configured(self, event: ClientConfigured) -> None:
        groups = event.groups or self._groups.get(event.client, ())
        if self._weights.get(event.client, 1) == event.weight and self._groups.get(event.client, ()) == groups:
            return
        if groups:
            self._groups[event.client] = groups
        size = max(event.client + 1, len(self._weights))
        for weights in (self._weights, self._lowest):
            for client in range(size):
                weights.setdefault(client, 1)
        self._weights[event.client] = event.weight
        self._lowest[event.client] = min(self._lowest[event.client], event.weight)
        self.promise = self._reweighted()
        self.watch.configure(self.promise, event.time_ns)
        if self._pairs is not None and self._lags is not None:
            self._pairs.restart()
            self._lags.restart()

    def _unknown_client(self, client: int, time_ns: int) -> None:
        """Give an unknown client weight 1, which changes no unit; bounds include it from now on."""
        for weights in (self._weights, self._lowest):
            for each in range(client + 1):
                weights.setdefault(each, 1)
        if self.promise.reweighted is not None:
            self.promise = self._reweighted()
            self.watch.configure(self.promise, time_ns)

    def promised(self, promise: Promise, time_ns: int) -> None:
        """What it is held to is this from now on, with weights as they are: bounds for other limits than before."""
        self.promise = promise
        self.promise = self._reweighted()
        self.watch.configure(self.promise, time_ns)

    def _reweighted(self) -> Promise:
        now = tuple(self._weights[client] for client in range(len(self._weights)))
        lowest = tuple(self._lowest[client] for client in range(len(self._lowest)))
        if self.promise.reweighted is not None:
            groups = tuple(self._groups.get(client, ()) for client in range(len(now)))
            return self.promise.reweighted(now, lowest, groups)
        charging = attrs.evolve(self.promise.charging, multipliers=multipliers(now))
        return attrs.evolve(self.promise, charging=charging, weights=now, gap_bound=None, lag_bound=None)

    def _drains(self, event: WorkerDraining) -> None:
        self.watch.breach(BOTH_SERVE, event.time_ns, f"worker {self.worker} takes no more requests")

    def _left(self, event: WorkerLeft) -> None:
        self.watch.breach(BOTH_SERVE, event.time_ns, f"worker {self.worker} left")
        waiting = [client for client, account in self.watch.accounts.items() if account.waiting]
        if waiting and self.promise.capacity_floor is not None:
            text = f"worker {self.worker} left, and client {min(waiting)} waits for nothing"
            self.watch.breach(CAPACITY_FLOOR, event.time_ns, text)
        if self._pairs is not None and self._lags is not None:
            for client, account in self.watch.accounts.items():
                if account.waiting:
                    self._pairs.leave(client)
                    self._lags.leave(client)
        self.watch.emptied()

    # --- gaps -------------------------------------------------------------------------------------------------------

    def _join(self, client: int) -> None:
        if self._pairs is not None and self._lags is not None:
            self._pairs.join(client)
            self._lags.join(client)

    def _leave(self, client: int) -> None:
        if self._pairs is not None and self._lags is not None:
            self._pairs.leave(client)
            self._lags.leave(client)

    def _charge(self, clients: Sequence[int], costs: Sequence[int], time_ns: int) -> None:
        if self._pairs is None or self._lags is None:
            return
        times = self.promise.charging.multipliers
        if times:
            known = len(times)
            costs = [
                cost * times[client] if client < known else cost for client, cost in zip(clients, costs, strict=True)
            ]
        found = self._pairs.charge(clients, costs, time_ns)
        bound = self.promise.gap_bound
        if bound is not None and found.cost > bound:
            self._gap_count += 1
            self._first_gap = self._first_gap or self._over(found, bound)
        found = self._lags.charge(clients, costs, time_ns)
        bound = self.promise.lag_bound
        if bound is not None and found.cost > bound:
            self._lag_count += 1
            self._first_lag = self._first_lag or self._over(found, bound)

    def _moved(self, moves: Sequence[tuple[int, int, int]], time_ns: int) -> None:
        units: dict[int, int] = {}
        for client, giver, amount in moves:
            units[client] = units.get(client, 0) + amount
            units[giver] = units.get(giver, 0) - amount
        clients = sorted(units)
        self._charge(clients, [units[client] for client in clients], time_ns)

    def _over(self, found: Largest, bound: int) -> BoundBreach:
        assert found.ahead is not None
        assert found.behind is not None
        return BoundBreach(
            found.time_ns, self.worker, self.watch.position, found.ahead, found.behind, found.cost, bound
        )

    # --- report -----------------------------------------------------------------------------------------------------

    def report(self) -> MonitorReport:
        """What was seen so far."""
        return MonitorReport(
            worker=self.worker,
            events=self.watch.position,
            assumptions=self.watch.findings(self._now_ns),
            gap=None if self._pairs is None else self._pairs.largest,
            lag=None if self._lags is None else self._lags.largest,
            gap_bound=self.promise.gap_bound,
            lag_bound=self.promise.lag_bound,
            gap_violations=self._gap_count,
            lag_violations=self._lag_count,
            first_gap=self._first_gap,
            first_lag=self._first_lag,
            left_out=0 if self._pairs is None or self._lags is None else self._pairs.left_out + self._lags.left_out,
        )


class ClusterMonitor:
    """A monitor for each worker of a cluster, made by `make(worker)` when its first event comes.

    Events of no worker (-1, a call that was never sent) are skipped.
    """

    def __init__(self, make: Callable[[int], Monitor]) -> None:
        self.workers: dict[int, Monitor] = {}
        self._make = make

    def observe(self, event: Event) -> None:
        """The cluster's next event."""
        monitor = self._of(event.worker)
        if monitor is not None:
            monitor.observe(event)

    def observe_all(self, events: Iterable[Event]) -> None:
        """The cluster's next events; those of one worker that follow each other go there together."""
        for worker, several in groupby(events, key=attrgetter("worker")):
            monitor = self._of(worker)
            if monitor is not None:
                monitor.observe_all(several)

    def _of(self, worker: int) -> Monitor | None:
        if worker not in self.workers and worker >= 0:
            self.workers[worker] = self._make(worker)
        return self.workers.get(worker)

    def reports(self) -> tuple[MonitorReport, ...]:
        """Each worker's report, in order of their ids."""
        return tuple(self.workers[worker].report() for worker in sorted(self.workers))


def together(reports: Sequence[MonitorReport]) -> dict[str, Finding]:
    """The findings of several workers as one: counts added, the first breach of any, each worker's note.

    What is watched on some workers only is judged by those.
    """
    found: dict[str, Finding] = {}
    for name in reports[0].assumptions if reports else ():
        several = {report.worker: report.assumptions[name] for report in reports}
        watched = [finding for finding in several.values() if finding.violated is not None]
        one = next(iter(watched or several.values()))
        breaches = [finding.first for finding in watched if finding.first is not None]
        notes = [f"worker {worker}: {finding.note}" for worker, finding in several.items() if finding.note]
        found[name] = attrs.evolve(
            one,
            violated=sum(finding.violated or 0 for finding in watched) if watched else None,
            first=min(breaches, key=lambda breach: (breach.time_ns, breach.worker), default=None),
            note="; ".join(notes) or None if len(several) > 1 else one.note,
        )
    return found
