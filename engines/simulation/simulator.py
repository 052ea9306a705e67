"""A discrete-event simulator of a cluster: a workload over workers in time, with decisions from policies.

It is exact and deterministic.  The simulator is composed of an `EventLoop` (clock and agenda), a `WorkerPool` (workers
and their steps), a `ControlPlane` (the cluster's policy and what it knows) and a `Dispatcher` (the place of each
request).  This module begins and ends the run, lets workers come and go, and asks the cluster's policy.

Every request ends once: finished, rejected (it fits nowhere, no worker is left, or a policy would never serve it), or
cancelled (by its caller, or because a call it depends on did not finish).
"""

from collections.abc import Callable, Sequence
from heapq import heapify
from typing import Any

from attrs import evolve

from fairsched.engines.simulation.calls import CallGraph
from fairsched.engines.simulation.control_plane import ControlPlane, Reports
from fairsched.engines.simulation.dispatcher import Dispatcher
from fairsched.engines.simulation.event_loop import CLUSTER_DECIDES, REPORTS_ARE_DUE, WORKER_CHANGES, EventLoop
from fairsched.engines.simulation.predictors import Predictor
from fairsched.engines.simulation.simulated_worker import PolicyStallError, SimulatedWorker, WorkerPool
from fairsched.engines.workloads import fleet
from fairsched.model import worker as transitions
from fairsched.model.events import Event, WorkerDraining, WorkerJoined, WorkerLeft, configured
from fairsched.model.machine import LatencyModel
from fairsched.model.request import Workload, floors_of
from fairsched.policies.base import AnswersWorkers, AnyClusterPolicy, AnyLocalPolicy

FRUITLESS_MAX = 1_000
"""A policy is asked so often in a row while nothing else can happen; then the requests that it holds are rejected."""

_BACK = -1
"""The change that brings a crashed worker back."""
_LINKED = -2
"""The change that brings a worker's link back."""


class Simulator:
    """One run of a workload over a cluster.

    `workers` is a number of workers with the model and `kv_capacity_tokens`, or one `WorkerSpec` for each; `changes`
    happen to them while requests are left.  `router` may be any cluster policy; with `reports` it knows late, and not
    all, what happens.  KV that moves with a request takes the time of `link`.
    With a `checkpoint`, the KV of prompts is copied there, at no cost, and comes back from there over that link when a
    worker lost a request that has its first token; without, the request is computed again.
    With a `predictor`, requests come with its predictions of their outputs, else with those of the workload.

    `on_events` receives the events of each transition, in order.  `progress` is called with the number of requests
    that have ended, now and then.  With `leap=False` every step is taken by itself; the log is the same.
    """

    def __init__(
        self,
        workload: Workload,
        policy: AnyLocalPolicy,
        router: AnyClusterPolicy,
        latency: LatencyModel,
        *,
        workers: int | Sequence[fleet.WorkerSpec] = 1,
        kv_capacity_tokens: int | None = None,
        on_events: Callable[[list[Event]], None] | None = None,
        progress: Callable[[int], None] | None = None,
        leap: bool = True,
        changes: Sequence[fleet.Change] = (),
        reports: Reports | None = None,
        link: fleet.KvLink | None = None,
        checkpoint: fleet.KvLink | None = None,
        predictor: Predictor | None = None,
    ) -> None:
        like = fleet.WorkerSpec(latency, kv_capacity_tokens)
        first = fleet.checked_workers([like] * workers if isinstance(workers, int) else workers)
        self._changes = fleet.checked_changes(changes, len(first))
        joins = [change.spec or first[0] for change in self._changes if isinstance(change, fleet.Join)]
        specs = fleet.checked_workers([*first, *joins])
        if floors := floors_of(workload.clients):
            specs = tuple(evolve(spec, floors=floors) for spec in specs)
        self.workload = workload
        self.router = router.fitted(specs[0].latency).informed([job.request for job in workload.jobs], len(first))
        self.loop = EventLoop()
        self.control = ControlPlane(self.loop, self.router, reports)
        listeners: list[Callable[[list[Event]], object]] = [self.control.happened] if self.control.learns else []
        if on_events is not None:
            listeners.append(on_events)
        asks = isinstance(self.router, AnswersWorkers)
        self.pool = WorkerPool(self.loop, policy, specs, listeners, leap and not asks)
        if asks:
            self.pool.answered_ns = self.control.answered_ns
        self.pool.joining = len(joins)
        self.pool.on_idle = self._idles
        self._calls = CallGraph(workload.jobs)
        self.dispatcher = Dispatcher(
            self.loop,
            self.pool,
            self.control,
            self._calls,
            fleet.KvLink() if link is None else link,
            checkpoint,
            None if predictor is None else predictor.start(),
            on_events or (lambda events: None),
            progress,
        )
        self._first = len(first)
        self._told = [client for client in workload.clients if not client.is_plain]
        self._fruitless = 0
        self._wakes_ns = -1

    @property
    def workers(self) -> list[SimulatedWorker]:
        """The workers by number, those that join later included."""
        return self.pool.workers

    def moved(self) -> dict[str, int]:
        """Return how often requests changed their worker or did not, and how many reports were lost."""
        return self.dispatcher.counts | {"reports_lost": self.control.reports_lost}

    def run(self) -> None:
        """Serve the whole workload.  May be called once."""
        for worker in self.workers[: self._first]:
            self._joins(worker)
        joining = iter(range(self._first, len(self.workers)))
        for i, change in enumerate(self._changes):
            number = next(joining) if isinstance(change, fleet.Join) else change.worker
            self.loop.agenda.append((change.at_ns, WORKER_CHANGES, number, i))
        heapify(self.loop.agenda)
        self.dispatcher.schedule_next()
        if self.control.reports is not None:
            self.loop.beat(0, REPORTS_ARE_DUE)
        if self.control.decides and self.router.decide_every_us is not None:
            self.loop.beat(0, CLUSTER_DECIDES)
        handlers = (
            self.pool.step_ends,
            self.pool.tokens_come,
            self._worker_changes,
            self.dispatcher.caller_gives_up,
            self.dispatcher.request_lands,
            self._report_comes,
            self.dispatcher.request_comes,
            self._reports_are_due,
            self._cluster_decides,
            self.pool.wakes,
        )
        self.loop.run(handlers)
        while self.dispatcher.go_on():
            self.loop.run(handlers)
        self._reject_stalled()

    def _reject_stalled(self) -> None:
        """Reject the requests that still wait when nothing will happen any more.

        Raises `PolicyStallError` where requests are still paused.
        """
        for worker in self.workers:
            if worker.state.paused:
                held = f"{len(worker.state.paused)} requests, {worker.state.paused[0]} first"
                raise PolicyStallError(f"worker {worker.state.worker}: the policy never resumes {held}")
            for request_id in sorted(worker.state.queue):
                reason = f"request {request_id} still waits at worker {worker.state.worker}, which is idle"
                self.pool.apply(worker, transitions.reject(worker.state, request_id, reason, self.loop.now_ns))
        self.dispatcher.reject_held()

    # --- workers ----------------------------------------------------------------------------------------------------

    def _worker_changes(self, number: int, index: int) -> None:
        worker = self.workers[number]
        if index == _LINKED:
            self.dispatcher.link_is_back(number)
            return
        change = fleet.Join(self.loop.now_ns) if index == _BACK else self._changes[index]
        if isinstance(change, fleet.Join):
            self.pool.joining -= 1
            if not self._calls.all_over:
                self._joins(worker)
        elif self._calls.all_over or number not in self.pool.cluster.workers:
            return
        elif isinstance(change, fleet.Restart):
            self._restarts(worker, change.down_ns)
        elif isinstance(change, fleet.Crash):
            self._crashes(worker, change.down_ns)
        elif isinstance(change, fleet.LinkDown):
            self._link_fails(number, change.down_ns)
        elif self.pool.serves(worker):
            self.pool.settle(worker)
            self.pool.enter(worker, "draining")
            self.dispatcher.drains(worker)
            self._announce(worker, WorkerDraining(self.loop.now_ns, number))
            self._idles(worker)

    def _joins(self, worker: SimulatedWorker) -> None:
        now_ns, state, new = self.loop.now_ns, worker.state, worker.execution == 0
        self.pool.enter(worker, "serving")
        worker.down_until_ns = 0
        told = self._told if new else []
        self._announce(
            worker,
            WorkerJoined(
                now_ns, state.worker, state.capacity, state.host.capacity_tokens, state.keep_ns, state.adapter_slots
            ),
            *(configured(client, now_ns, state.worker) for client in told),
        )
        self.dispatcher.place_held()

    def _link_fails(self, number: int, down_ns: int | None) -> None:
        until_ns = None if down_ns is None else self.loop.now_ns + down_ns
        self.dispatcher.link_fails(number, until_ns)
        if until_ns is not None:
            self.loop.at(until_ns, WORKER_CHANGES, number, _LINKED)

    def _announce(self, worker: SimulatedWorker, *events: Event) -> None:
        for event in events:
            self.pool.publish(worker, [event])
        self.control.announce(worker, events, self.pool.serves(worker))

    def _void(self, worker: SimulatedWorker) -> None:
        """Void the step under way: cancelled requests leave now, and no request migrates."""
        self.pool.interrupt(worker)
        worker.stop()
        self.dispatcher.stay(worker)
        self.dispatcher.let_go(worker)

    def _restarts(self, worker: SimulatedWorker, down_ns: int) -> None:
        self._void(worker)
        lost = self.dispatcher.worker_lost(worker, is_gone=False)
        self.pool.apply(worker, transitions.lose(worker.state, self.loop.now_ns))
        self.pool.take_down(worker, self.loop.now_ns + down_ns)
        for unplaced in lost:
            self.dispatcher.place_again(unplaced)

    def _crashes(self, worker: SimulatedWorker, down_ns: int | None) -> None:
        """Place the requests of a dead worker again, in order of ids, each with the output that it has."""
        now_ns, number = self.loop.now_ns, worker.state.worker
        self._void(worker)
        if down_ns is not None and self.pool.serves(worker):
            self.pool.joining += 1
            self.loop.at(now_ns + down_ns, WORKER_CHANGES, number, _BACK)
        lost = self.dispatcher.worker_lost(worker, is_gone=True)
        self.control.forget(number)
        self._leaves(worker)
        for unplaced in lost:
            self.dispatcher.place_again(unplaced)

    def _idles(self, worker: SimulatedWorker) -> None:
        """Let a draining worker leave when it has nothing left to do."""
        if self.pool.cluster.workers[worker.state.worker] == "draining" and worker.idle:
            if self.control.reports is not None:
                self.control.report(worker, self.pool.serves(worker))
            self._leaves(worker)

    def _leaves(self, worker: SimulatedWorker) -> None:
        self.pool.enter(worker, None)
        worker.wake_scheduled = False
        worker.become(worker.spec.empty(worker.state.worker))
        self._announce(worker, WorkerLeft(self.loop.now_ns, worker.state.worker))

    # --- reports and decisions --------------------------------------------------------------------------------------

    def _reports_are_due(self, _: int, __: int) -> None:
        reports = self.control.reports
        assert reports is not None
        self.loop.beats -= 1
        for worker in self.workers:
            if worker.state.worker in self.pool.cluster.workers and worker.down_until_ns <= self.loop.now_ns:
                if self.control.follows_decoding:
                    self.pool.settle(worker)
                self.control.report(worker, self.pool.serves(worker))
        self._renew(REPORTS_ARE_DUE, reports.every_us)

    def _report_comes(self, mail: int, _: int) -> None:
        self.loop.beats -= 1
        self.control.receive(mail)
        self.dispatcher.place_held()

    def _renew(self, kind: int, every_us: int) -> None:
        """Schedule the next beat, unless all requests have ended, or nothing came of many beats in a row."""
        busy = len(self.loop.agenda) > self.loop.beats + self.control.asked
        self._fruitless = 0 if busy else self._fruitless + 1
        if not self._calls.all_over and self._fruitless < FRUITLESS_MAX:
            self.loop.beat(self.loop.now_ns + every_us * 1_000, kind)

    def _cluster_decides(self, _: int, periodic: int) -> None:
        self.control.asked = False
        if periodic:
            self.loop.beats -= 1
        self.dispatcher.follow_decoding()
        takers = self.pool.takers()
        view = self.control.view(self.pool, takers)
        if takers and view.workers:
            plan = self.control.decide(view)
            for dispatch in plan.dispatches:
                self.dispatcher.dispatch(dispatch)
            for migration in plan.migrations:
                self.dispatcher.migrate(migration)
        wakes_ns, every_us = self.router.wakes_ns(self.control.state), self.router.decide_every_us
        if wakes_ns is not None and wakes_ns > self.loop.now_ns and wakes_ns != self._wakes_ns:
            self.loop.at(wakes_ns, CLUSTER_DECIDES, 0)
            self._wakes_ns = wakes_ns
        if periodic and every_us is not None:
            self._renew(CLUSTER_DECIDES, every_us)


def simulate_events(
    workload: Workload, policy: AnyLocalPolicy, router: AnyClusterPolicy, latency: LatencyModel, **options: Any
) -> list[Event]:
    """Run a workload and return its events: the simulator in one call, for scripts and tests."""
    events: list[Event] = []
    Simulator(workload, policy, router, latency, on_events=events.extend, **options).run()
    return events
