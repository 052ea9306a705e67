"""How long clients wait, held to a worst wait in seconds: until a request is let in, its first token, and its last one.

A wait begins when a client's first request joins the queue, and anew with each admission that leaves some of its
requests there.  It ends with an admission.  What all clients are charged meanwhile says whether the worker kept its
service curve (CapacityFloor), and steps are held to the latency model where a request shows how long they took
(StepsInTime).
"""

from typing import Any

import attrs

from fairsched.model import events as ev
from fairsched.model.monitor.assumptions import AssumptionWatch
from fairsched.model.monitor.guarantee import BoundBreach, Largest, Promise
from fairsched.model.theorem import CAPACITY_FLOOR, STEPS_IN_TIME

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

    def configure(self, promise: Promise, time_ns: int) -> None:
        """Hold the run to another promise from now on; waits under way begin anew, since charges had other units."""
        self.promise = promise
        for waiting in self._waiting.values():
            self._begin(waiting, time_ns)

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
        if waiting is not None and waiting.requests:
            self._begin(waiting, event.time_ns)

    def _begin(self, waiting: _Waiting, time_ns: int) -> None:
        waiting.since_ns, waiting.charged = time_ns, self._watch.total

    def _let_in(self, event: ev.Admitted) -> None:
        worst = self.promise.worst_wait
        assert worst is not None
        waiting, client = self._waiting[event.client], event.client
        span = event.time_ns - waiting.since_ns
        charged = self._watch.total - waiting.charged
        if span > self.longest.cost:
            self.longest = Largest(span, client, None, event.time_ns)
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
        if span > most:
            text = f"request {event.request_id} had its first token {span} ns after its admission, and {most} is most"
            self._watch.breach(STEPS_IN_TIME, event.time_ns, text)

    def _ended(self, event: ev.Finished) -> None:
        running, worst = self._running.pop(event.request_id, None), self.promise.worst_wait
        if running is None or worst is None or running.first_ns is None:
            return
        span = event.time_ns - running.first_ns
        most = worst.decode_ns(event.output_tokens - running.generated_tokens)
        if span > most:
            text = f"request {event.request_id} ended {span} ns after its first token, and {most} is most"
            self._watch.breach(STEPS_IN_TIME, event.time_ns, text)
