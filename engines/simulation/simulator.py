"""A discrete-event simulator of a cluster: a workload over workers in time, with decisions from policies.

It is exact and deterministic.  `engines.timeline` has the workers and their steps, `engines.placing` the requests,
`engines.head` the cluster's policy and what it knows; here the run begins and ends, workers come and go, and policies
are asked.

Every request ends once: finished, rejected (it fits nowhere, no worker is left, or a policy would leave it waiting for
ever), or cancelled (by its caller, or because a call it depends on did not finish).
"""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop
from typing import Any

from fairsched.engines.changes import (
    Change,
    Crash,
    Join,
    Restart,
    WorkerSpec,
    checked_changes,
    checked_workers,
)
from fairsched.engines.head import Head, Report, Reports
from fairsched.engines.lane import Lane
from fairsched.engines.moves import KvLink, Move
from fairsched.engines.placing import Placing
from fairsched.engines.predictors import Predictor
from fairsched.engines.timeline import (
    CLUSTER_DECIDES,
    REPORT_COMES,
    REPORTS_ARE_DUE,
    WORKER_CHANGES,
    WORKER_WAKES,
    PolicyStallError,
)
from fairsched.model import worker as transitions
from fairsched.model.events import (
    NOWHERE,
    Event,
    Rejected,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
    configured,
)
from fairsched.model.latency import LatencyModel
from fairsched.model.workload import Workload
from fairsched.policies.base import ClusterPolicy, LocalPolicy

__all__ = ["PolicyStallError", "Simulator", "simulate"]

FRUITLESS_MAX = 1_000
"""So often in a row a policy is asked again while nothing else can happen any more; then what it holds is rejected."""

_BACK = -1
"""The change that brings a crashed worker back."""


class Simulator(Placing):
    """One run of a workload over a cluster.

    `workers` are so many with the model and `kv_capacity_tokens`, or one for each `WorkerSpec`; `changes` happen to
    them while requests are left.  `router` may be any cluster policy; with `reports` it knows late, and not all, what
    happens.  KV that moves with a request takes the time of `link`.
    With a `predictor`, requests come with its predictions of their outputs, else with those of the workload.

    `on_events` receives the events of each transition, in order.  `progress` is called with the number of requests
    that have ended, now and then.  With `leap=False` every step is taken by itself; the log is the same.
    """

    def __init__(
        self,
        workload: Workload,
        policy: LocalPolicy[Any],
        router: ClusterPolicy[Any],
        latency: LatencyModel,
        *,
        workers: int | Sequence[WorkerSpec] = 1,
        kv_capacity_tokens: int | None = None,
        on_events: Callable[[list[Event]], None] | None = None,
        progress: Callable[[int], None] | None = None,
        leap: bool = True,
        changes: Sequence[Change] = (),
        reports: Reports | None = None,
        link: KvLink | None = None,
        predictor: Predictor | None = None,
    ) -> None:
        like = WorkerSpec(latency, kv_capacity_tokens)
        first = checked_workers([like] * workers if isinstance(workers, int) else workers)
        self._changes = checked_changes(changes, len(first))
        joins = [change.spec or first[0] for change in self._changes if isinstance(change, Join)]
        specs = checked_workers([*first, *joins])
        self.router = router.fitted(specs[0].latency).informed([job.request for job in workload.jobs], len(first))
        head = Head(self.router, reports)
        moves = KvLink() if link is None else link
        super().__init__(workload, policy, specs, head, moves, on_events, progress, leap, predictor)
        self._first = len(first)
        self._coming = len(joins)
        self._mail: dict[int, Report] = {}
        self._mails = 0
        self._beats = 0  # entries of the agenda that come whether or not there is anything to do
        self._fruitless = 0

    @property
    def router_state(self) -> Any:
        """The state of the cluster's policy."""
        return self.head.state

    def moved(self) -> dict[str, int]:
        """How often requests changed their worker or did not, and how many reports were lost."""
        return self.tally.counts() | {"reports_lost": self.head.reports_lost}

    def run(self) -> None:
        """Serve the whole workload.  May be called once."""
        for lane in self.lanes[: self._first]:
            self._joins(lane)
        joining = iter(range(self._first, len(self.lanes)))
        for i, change in enumerate(self._changes):
            worker = next(joining) if isinstance(change, Join) else change.worker
            self._agenda.append((change.at_ns, WORKER_CHANGES, worker, i))
        heapify(self._agenda)
        self._next_root()
        if self.head.reports is not None:
            self._beat(0, REPORTS_ARE_DUE)
        if self.head.decides and self.router.decide_every_us is not None:
            self._beat(0, CLUSTER_DECIDES)
        handlers = (
            self._step_ends,
            self._worker_changes,
            self._caller_gives_up,
            self._request_lands,
            self._report_comes,
            self._request_comes,
            self._reports_are_due,
            self._cluster_decides,
            self._worker_wakes,
        )
        agenda = self._agenda
        while agenda:
            self.now_ns, kind, key, run = heappop(agenda)
            handlers[kind](key, run)
        self._reject_stalled()

    def _reject_stalled(self) -> None:
        """Nothing will happen any more: whatever still waits was left to wait for ever."""
        for lane in self.lanes:
            for request_id in sorted(lane.state.queue):
                reason = f"request {request_id} still waits at worker {lane.state.worker}, which is idle"
                self._reject(lane, request_id, reason)
        for request_id, move in sorted(self._held.items()):
            why = "no worker takes requests" if self.head.places else "its policy sends it nowhere"
            reason = f"request {request_id} is held for ever: {why}"
            self._nowhere(Rejected(self.now_ns, NOWHERE, request_id, move.request.client, reason))

    # --- workers ----------------------------------------------------------------------------------------------------

    def _worker_changes(self, worker: int, index: int) -> None:
        lane = self.lanes[worker]
        change = Join(self.now_ns) if index == _BACK else self._changes[index]
        if isinstance(change, Join):
            self._coming -= 1
            if not self.calls.all_over:
                self._joins(lane)
        elif self.calls.all_over or lane.phase == "absent":
            return
        elif isinstance(change, Restart):
            self._restarts(lane, change.down_ns)
        elif isinstance(change, Crash):
            self._crashes(lane, change.down_ns)
        elif lane.phase == "serving":
            self._settle(lane)
            lane.phase, self._up = "draining", None
            self._announce(lane, WorkerDraining(self.now_ns, worker))
            self._idles(lane)

    def _joins(self, lane: Lane) -> None:
        worker, new = lane.state.worker, lane.run == 0
        lane.phase, lane.down_until_ns, self._up = "serving", 0, None
        told = [client for client in self.workload.clients if new and not client.is_plain]
        self._announce(
            lane,
            WorkerJoined(self.now_ns, worker, lane.state.capacity, lane.state.host.capacity_tokens),
            *(configured(client, self.now_ns, worker) for client in told),
        )
        self._place_held()

    def _announce(self, lane: Lane, *events: Event) -> None:
        """That a worker comes or goes is never lost, and at the start it is known."""
        for event in events:
            self._publish(lane, [event])
        if self.head.reports is not None:
            load = lane.load(self.now_ns) if lane.phase == "serving" else None
            self._send(Report(lane.state.worker, load, events))

    def _void(self, lane: Lane) -> None:
        """The step under way is lost; who wanted to leave after it leaves now, and nobody moves."""
        self._interrupt(lane)
        lane.stop()
        self.tally.refused += len(lane.moving)
        lane.moving.clear()
        self._let_go(lane)

    def _restarts(self, lane: Lane, down_ns: int) -> None:
        self._void(lane)
        lane.state, events = transitions.lose(lane.state, self.now_ns)
        if events:
            self._publish(lane, events)
        lane.down_until_ns, self._up = max(lane.down_until_ns, self.now_ns + down_ns), None
        lane.waking = True
        self._at(lane.down_until_ns, WORKER_WAKES, lane.state.worker)

    def _crashes(self, lane: Lane, down_ns: int | None) -> None:
        """What was there is placed again, in order of ids, each with what it has generated."""
        self._void(lane)
        if down_ns is not None and lane.phase == "serving":
            self._coming += 1
            self._at(self.now_ns + down_ns, WORKER_CHANGES, lane.state.worker, _BACK)
        lost, _ = transitions.lose(lane.state, self.now_ns)
        self.head.dies(lane.state.worker)
        self._leaves(lane)
        for request_id, waiting in sorted(lost.queue.items()):
            del self._home[request_id]
            self.tally.placed_again += 1
            self._place(Move(self.calls.jobs[request_id].request, waiting.generated_tokens))

    def _idles(self, lane: Lane) -> None:
        """A worker that drains leaves when it has nothing left to do."""
        if lane.phase == "draining" and lane.idle:
            if self.head.reports is not None:
                self._report(lane)
            self._leaves(lane)

    def _leaves(self, lane: Lane) -> None:
        lane.phase, self._up = "absent", None
        lane.waking = False
        lane.state = lane.empty(lane.state.worker)
        self._announce(lane, WorkerLeft(self.now_ns, lane.state.worker))

    def _place_held(self) -> None:
        """A router's requests that no worker took."""
        if self.head.places and self._held and self.head.view(self._takers(), self.now_ns).workers and self._takers():
            held, self._held = self._held, {}
            for _, move in sorted(held.items()):
                self._place(move)

    # --- reports ----------------------------------------------------------------------------------------------------

    def _reports_are_due(self, _: int, __: int) -> None:
        reports = self.head.reports
        assert reports is not None
        self._beats -= 1
        for lane in self.lanes:
            if lane.phase != "absent" and lane.down_until_ns <= self.now_ns:
                if self.head.follows_decoding:
                    self._settle(lane)
                self._report(lane)
        self._renew(REPORTS_ARE_DUE, reports.every_us)

    def _report(self, lane: Lane) -> None:
        report = self.head.report(lane, self.now_ns)
        if report is not None:
            self._send(report)

    def _send(self, report: Report) -> None:
        reports = self.head.reports
        assert reports is not None
        self._mail[self._mails] = report
        delay_ns = reports.delay_us * 1_000 if self.now_ns else 0
        self._beat(self.now_ns + delay_ns, REPORT_COMES, self._mails)
        self._mails += 1

    def _report_comes(self, mail: int, _: int) -> None:
        self._beats -= 1
        if self.head.hear(self._mail.pop(mail)):
            self._ask()
        self._place_held()

    def _beat(self, time_ns: int, kind: int, key: int = 0) -> None:
        self._beats += 1
        self._at(time_ns, kind, key, 1)

    def _renew(self, kind: int, every_us: int) -> None:
        """It comes again, unless all requests have ended, or nothing came of many times in a row."""
        self._fruitless = 0 if len(self._agenda) > self._beats + self._asked else self._fruitless + 1
        if not self.calls.all_over and self._fruitless < FRUITLESS_MAX:
            self._beat(self.now_ns + every_us * 1_000, kind)

    # --- decisions --------------------------------------------------------------------------------------------------

    def _cluster_decides(self, _: int, periodic: int) -> None:
        self._asked = False
        if periodic:
            self._beats -= 1
        if self.head.follows_decoding:
            self._follow_decoding()
        takers = self._takers()
        view = self.head.view(takers, self.now_ns, self.credit.known)
        if takers and view.workers:
            plan = self.head.decide(view)
            for dispatch in plan.dispatches:
                move = self._held.pop(dispatch.request_id, None)
                if move is None:
                    self.tally.refused += 1
                else:
                    self._deliver(self._taker(dispatch.worker, self._takers(move.request)), move)
            for migration in plan.migrations:
                self._migrate(migration)
        every_us = self.router.decide_every_us
        if periodic and every_us is not None:
            self._renew(CLUSTER_DECIDES, every_us)


def simulate(
    workload: Workload,
    policy: LocalPolicy[Any],
    router: ClusterPolicy[Any],
    latency: LatencyModel,
    **options: Any,
) -> list[Event]:
    """Run a workload and return its events: the simulator in one call, for scripts and tests."""
    events: list[Event] = []
    Simulator(workload, policy, router, latency, on_events=events.extend, **options).run()
    return events
