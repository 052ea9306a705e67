"""The runtime monitor: one worker's events held to its policy's promise while they happen, or from a log.

`Monitor.observe` takes the worker's events in order and keeps up to date which named assumptions hold
(`model.monitor.assumptions`) and the largest gaps of charged service with the moments at which one passed its bound
(`model.monitor.gap`).  What was proved says: no bound is passed unless an assumption of its theorem is broken; a report
in which one is (`MonitorReport.unexplained`) shows a failure of this library.

**Service** is what the gate charged, less all that was given back: what a cancelled, migrated or settled request was
charged for and did not compute.  It is the theorems' W, the monitor's and the reports'.

**Weights that change.**  Charges are divided by weight, so with a `ClientConfigured` that changes a weight the unit of
service changes: the intervals of both gaps begin anew at that event.  Bounds are then those of the promise that
`Promise.reweighted` makes; without it none is judged any more.

**A worker that leaves** takes its queue and batch with it: everything begins anew, and what was found stays.  It
breaks BothServe, and CapacityFloor if a client waits; it does not affect a gap's bound, since it ends the interval.

**Waits** are held to a worst wait in seconds: until a request is let in, its first token, and its last one.

A wait begins when a client's first request joins the queue, and anew with each admission that leaves some of its
requests there.  It ends with an admission.  What all clients are charged meanwhile says whether the worker kept its
service curve (CapacityFloor), and steps are held to the latency model where a request shows how long they took
(StepsInTime).
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

import attrs

from fairsched.model import events as ev
from fairsched.model.monitor.assumptions import AssumptionWatch
from fairsched.model.monitor.gap import GapWatch
from fairsched.model.monitor.guarantee import BoundBreach, Finding, Largest, MonitorReport, Promise
from fairsched.model.pricing import multipliers
from fairsched.model.theorem import CAPACITY_FLOOR, GATE_RESPECTED, PAUSES_OBEYED, STEPS_IN_TIME

# --- waits ------------------------------------------------------------------------------------------------------------


_GONE = (ev.Cancelled, ev.Migrated, ev.Rejected)
KINDS: frozenset[type] = frozenset(
    (ev.Arrived, ev.Admitted, ev.Preempted, ev.Prefilled, ev.Finished, ev.WorkerLeft, *_GONE)
)
"""Events that begin or end a wait."""


@attrs.define(eq=False)
class _Running:
    """A request in the batch: since when, what it was to compute, and when its first token came."""

    client: int
    admitted_ns: int
    extend_tokens: int
    generated_tokens: int
    first_ns: int | None = None


@attrs.define(eq=False)
class _Waiting:
    """A client's requests in the queue; since when it waits, and what had been charged by then."""

    requests: set[int] = attrs.field(factory=set)
    since_ns: int = 0
    charged: int = 0


class WaitWatch:
    """One worker's waits beside the promise's `worst_wait`; `watch` says what was charged, and is told of breaches."""

    def __init__(self, promise: Promise, worker: int, watch: AssumptionWatch) -> None:
        self.promise = promise
        self.longest = Largest()
        self.violations = 0
        self.first: BoundBreach | None = None
        self._worker = worker
        self._watch = watch
        self._waiting: dict[int, _Waiting] = {}
        self._queued: dict[int, tuple[int, int]] = {}
        self._running: dict[int, _Running] = {}

    def restart(self, time_ns: int) -> None:
        """Let waits that were under way then begin anew: charges had other units."""
        for waiting in self._waiting.values():
            self._begin(waiting, max(time_ns, waiting.since_ns))

    def report(self) -> dict[str, Any]:
        """Return what a report says of waits."""
        worst = self.promise.worst_wait
        return {
            "wait": self.longest,
            "wait_bound_ns": None if worst is None else worst.admission_ns,
            "wait_violations": self.violations,
            "first_wait": self.first,
            "wait_theorems": self.promise.wait_theorems,
        }

    def before(self, event: ev.Event) -> None:
        """Look at an event that is about to be charged: it may end a wait."""
        if isinstance(event, ev.Admitted) and event.request_id in self._queued:
            self._let_in(event)
        elif isinstance(event, ev.Prefilled) and not event.remaining_tokens:
            self._first_token(event)
        elif isinstance(event, ev.Finished):
            self._ended(event)
        elif isinstance(event, ev.WorkerLeft):
            self._waiting.clear()
            self._queued.clear()
            self._running.clear()

    def after(self, event: ev.Event) -> None:
        """Look at an event that was charged: it may begin a wait."""
        if isinstance(event, ev.Arrived):
            self._joins(event.request.id, event.request.client, event.generated_tokens, event.time_ns)
        elif isinstance(event, ev.Preempted):
            self._running.pop(event.request_id, None)
            self._joins(event.request_id, event.client, event.generated_tokens, event.time_ns)
        elif isinstance(event, ev.Admitted):
            self._enters(event)
        elif isinstance(event, _GONE):
            self._running.pop(event.request_id, None)
            self._leaves(event.request_id)

    def _joins(self, request_id: int, client: int, generated: int, time_ns: int) -> None:
        waiting = self._waiting.setdefault(client, _Waiting())
        if not waiting.requests:
            self._begin(waiting, time_ns)
        waiting.requests.add(request_id)
        self._queued[request_id] = client, generated

    def _leaves(self, request_id: int) -> None:
        if request_id in self._queued:
            client, _ = self._queued.pop(request_id)
            self._waiting[client].requests.discard(request_id)

    def _enters(self, event: ev.Admitted) -> None:
        _, generated = self._queued.get(event.request_id, (event.client, 0))
        self._leaves(event.request_id)
        self._running[event.request_id] = _Running(event.client, event.time_ns, event.extend_tokens, generated)
        waiting = self._waiting.get(event.client)
        if waiting is not None:
            self._begin(waiting, event.time_ns)

    def _begin(self, waiting: _Waiting, time_ns: int) -> None:
        waiting.since_ns, waiting.charged = time_ns, self._watch.total

    def _let_in(self, event: ev.Admitted) -> None:
        worst = self.promise.worst_wait
        waiting, client = self._waiting[event.client], event.client
        span = event.time_ns - waiting.since_ns
        charged = self._watch.total - waiting.charged
        if span > self.longest.cost:
            self.longest = Largest(span, client, None, event.time_ns)
        if worst is None:
            return
        if span > worst.curve.time_ns(charged):
            text = f"client {client} waited {span} ns, and {charged} cost units were charged to all meanwhile"
            self._watch.breach(CAPACITY_FLOOR, event.time_ns, text)
        bound = worst.admission_ns
        if span > bound:
            self.violations += 1
            breach = BoundBreach(event.time_ns, self._worker, self._watch.position, client, client, span, bound)
            self.first = self.first or breach

    def _first_token(self, event: ev.Prefilled) -> None:
        running, worst = self._running.get(event.request_id), self.promise.worst_wait
        if running is None or worst is None:
            return
        running.first_ns = event.time_ns
        span, most = event.time_ns - running.admitted_ns, worst.prefill_ns(running.extend_tokens)
        if most is not None and span > most:
            text = f"request {event.request_id} had its first token {span} ns after its admission, and {most} is most"
            self._watch.breach(STEPS_IN_TIME, event.time_ns, text)

    def _ended(self, event: ev.Finished) -> None:
        running, worst = self._running.pop(event.request_id, None), self.promise.worst_wait
        if running is None or worst is None or running.first_ns is None:
            return
        span = event.time_ns - running.first_ns
        most = worst.decode_ns(event.output_tokens - running.generated_tokens)
        if most is not None and span > most:
            text = f"request {event.request_id} ended {span} ns after its first token, and {most} is most"
            self._watch.breach(STEPS_IN_TIME, event.time_ns, text)


class GateCheck(Protocol):
    """Knows the policy's gate: follows a worker's events of some `kinds` and reports admissions past it."""

    @property
    def kinds(self) -> frozenset[type]:
        """The kinds of events that it wants to see."""

    def observe(self, event: ev.Event) -> str | None:
        """Return why this event is an admission that the gate had not let in, in one sentence; else None."""


_CHARGES_NOTHING = frozenset({ev.Arrived, ev.ClientConfigured, ev.WorkerJoined})
"""After these no gap is measured, so that what they change of weights can wait."""


class Monitor:
    """One worker's run, held to its promise.

    `gate` checks GateRespected (None: it is reported as not observable).  With `gaps=False` only assumptions are
    watched.  At most `CLIENTS_MAX` clients are compared with each other at a time.
    """

    def __init__(self, promise: Promise, gate: GateCheck | None = None, *, worker: int = 0, gaps: bool = True) -> None:
        self._promise = promise
        self.worker = worker
        self._measured = gaps
        self._gaps = GapWatch(worker, gaps)
        self._watch = watch = AssumptionWatch(promise, worker, gate is not None, self._gaps)
        self._waits = WaitWatch(promise, worker, watch) if promise.worst_wait is not None else None
        self._gate = None if gate is None else gate.observe
        self._asked: frozenset[type] = frozenset() if gate is None else gate.kinds
        self._now_ns = 0
        self._reweighted_ns: int | None = None
        self._restarts = False
        self._weights = dict(enumerate(promise.weights))
        self._lowest = dict(self._weights)
        self._kinds = set(promise.weights) | {1}
        self._groups = dict(enumerate(promise.groups))
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.WorkerJoined: watch.joined,
            ev.Arrived: self._arrived,
            ev.Admitted: watch.admitted,
            ev.Settled: watch.settled,
            ev.Prefilled: watch.prefilled,
            ev.Decoded: watch.decoded,
            ev.Held: watch.held,
            ev.Preempted: watch.preempted,
            ev.Finished: watch.finished,
            ev.Cancelled: watch.cancelled,
            ev.Migrated: watch.cancelled,
            ev.Rejected: watch.gone,
            ev.ClientConfigured: self._configured,
            ev.WorkerDraining: watch.draining,
            ev.WorkerLeft: watch.left,
        }

    # --- events -----------------------------------------------------------------------------------------------------

    def observe(self, event: ev.Event) -> None:
        self.observe_all((event,))

    def observe_all(self, events: Iterable[ev.Event]) -> None:
        handlers, gate, asked, watch, waits = self._handlers, self._gate, self._asked, self._watch, self._waits
        for event in events:
            kind = type(event)
            if kind in asked and gate is not None:
                refusal = gate(event)
                if refusal is not None:
                    broken = PAUSES_OBEYED if kind is ev.Decoded else GATE_RESPECTED
                    watch.breach(broken, event.time_ns, refusal)
            handler = handlers.get(kind)
            self._now_ns = event.time_ns
            if handler is not None:
                if self._reweighted_ns is not None and kind not in _CHARGES_NOTHING:
                    self._reweigh()
                if waits is not None and kind in KINDS:
                    waits.before(event)
                    handler(event)
                    waits.after(event)
                else:
                    handler(event)
            watch.position += 1

    def _arrived(self, event: ev.Arrived) -> None:
        client = event.request.client
        if client not in self._weights and (len(self._kinds) > 1 or self._waits is not None):
            # A client that nothing was said of has weight 1, which changes no unit; bounds include it from now on, and
            # each one prolongs a wait.
            self._know(client)
            if self._promise.reweighted is not None:
                self._reweighted_ns = event.time_ns
        self._watch.arrived(event)

    def _configured(self, event: ev.ClientConfigured) -> None:
        client, weight = event.client, event.weight
        groups = event.groups or self._groups.get(client, ())
        if self._weights.get(client, 1) == weight and self._groups.get(client, ()) == groups:
            return
        self._groups[client] = groups
        self._know(client)
        self._weights[client] = weight
        self._lowest[client] = min(self._lowest[client], weight)
        self._kinds.add(weight)
        self._reweighted_ns, self._restarts = event.time_ns, True

    def _know(self, client: int) -> None:
        """Give each client up to this one a weight of 1 if it has none."""
        for each in range(len(self._weights), client + 1):
            self._weights[each] = self._lowest[each] = 1

    @property
    def promise(self) -> Promise:
        if self._reweighted_ns is not None:
            self._reweigh()
        return self._promise

    def promised(self, promise: Promise, time_ns: int) -> None:
        """Hold the run to this from now on, with weights as they are: bounds for other limits than before."""
        self._promise = promise
        self._reweighted_ns = time_ns

    def _reweigh(self) -> None:
        """Take up what changed of weights and clients: once for all changes until something is charged.  O(clients)."""
        assert self._reweighted_ns is not None
        self._promise, time_ns, self._reweighted_ns = self._reweighted(), self._reweighted_ns, None
        self._watch.configure(self._promise, time_ns)
        if self._waits is not None:
            self._waits.promise = self._promise
        if self._restarts:
            self._restarts = False
            self._gaps.restart()
            if self._waits is not None:
                self._waits.restart(time_ns)

    def _reweighted(self) -> Promise:
        now = tuple(self._weights[client] for client in range(len(self._weights)))
        lowest = tuple(self._lowest[client] for client in range(len(self._lowest)))
        if self._promise.reweighted is not None:
            groups = tuple(self._groups.get(client, ()) for client in range(len(now)))
            return self._promise.reweighted(now, lowest, groups)
        charging = attrs.evolve(self._promise.charging, multipliers=multipliers(now))
        return attrs.evolve(self._promise, charging=charging, weights=now, gap_bound=None, lag_bound=None)

    # --- report -----------------------------------------------------------------------------------------------------

    def report(self) -> MonitorReport:
        promise = self.promise
        pairs, lags = self._gaps.pairs, self._gaps.lags
        gap_bound, lag_bound = self._gaps.bounds
        return MonitorReport(
            worker=self.worker,
            events=self._watch.position,
            assumptions=self._watch.findings(self._now_ns),
            gap=pairs.largest if self._measured else None,
            lag=lags.largest if self._measured else None,
            gap_bound=gap_bound,
            lag_bound=lag_bound,
            gap_violations=pairs.violations,
            lag_violations=lags.violations,
            first_gap=pairs.first,
            first_lag=lags.first,
            left_out=pairs.left_out + lags.left_out,
            given_back=dict(self._gaps.given_back),
            widening=self._gaps.widening,
            gap_theorems=promise.gap_theorems,
            lag_theorems=promise.lag_theorems,
            **({} if self._waits is None else self._waits.report()),
        )


class ClusterMonitor:
    """A monitor for each worker of a cluster, made by `make(worker)` when its first event comes.

    Events of no worker (-1, a call that was never sent) are skipped.
    """

    def __init__(self, make: Callable[[int], Monitor]) -> None:
        self.workers: dict[int, Monitor] = {}
        self._make = make

    def observe(self, event: ev.Event) -> None:
        self.observe_all((event,))

    def observe_all(self, events: Iterable[ev.Event]) -> None:
        """Observe the cluster's next events; those of one worker that follow each other go there together."""
        for worker, several in groupby(events, key=attrgetter("worker")):
            monitor = self._of(worker)
            if monitor is not None:
                monitor.observe_all(several)

    def _of(self, worker: int) -> Monitor | None:
        if worker not in self.workers and worker >= 0:
            self.workers[worker] = self._make(worker)
        return self.workers.get(worker)

    def reports(self) -> tuple[MonitorReport, ...]:
        """Return each worker's report, in order of their ids."""
        return tuple(self.workers[worker].report() for worker in sorted(self.workers))


def together(reports: Sequence[MonitorReport]) -> dict[str, Finding]:
    """Return the findings of several workers as one: counts added, the first breach of any, each worker's note.

    What is watched on some workers only is judged by those.
    """
    found: dict[str, Finding] = {}
    for name in reports[0].assumptions if reports else ():
        several = {report.worker: report.assumptions[name] for report in reports}
        watched = [finding for finding in several.values() if finding.violated is not None]
        one = next(iter(watched or several.values()))
        counts = [finding.violated for finding in several.values() if finding.violated is not None]
        breaches = [finding.first for finding in watched if finding.first is not None]
        notes = [f"worker {worker}: {finding.note}" for worker, finding in several.items() if finding.note]
        found[name] = attrs.evolve(
            one,
            violated=sum(counts) if counts else None,
            first=min(breaches, key=lambda breach: (breach.time_ns, breach.worker), default=None),
            note="; ".join(notes) or None if len(several) > 1 else one.note,
        )
    return found
