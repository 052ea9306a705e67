"""The control plane of a simulated cluster: the cluster's policy, its state, what it knows, and when it decides.

Without `Reports` the policy learns everything at once and sees every worker as it is.  With them each worker reports
its load and its events every `every_us`; a report arrives `delay_us` later, or it is lost with all its contents.  What
a worker was sent since its last report is known here, and counts as waiting there.

Membership is known more reliably, since a closed connection is noticed: that a worker joined, drains or left arrives
`delay_us` later and is never lost.  What happens to a request that is at no worker is known at once.

Workers of a policy that `AnswersWorkers` ask it before each step, and compute nothing until the answer is back.
"""

import random
from collections.abc import Iterable, Sequence

import attrs
import msgspec
from msgspec.structs import replace

from fairsched.engines.simulation.event_loop import CLUSTER_DECIDES, REPORT_COMES, EventLoop
from fairsched.engines.simulation.simulated_worker import SimulatedWorker, WorkerPool
from fairsched.model.decision import ClusterPlan, ClusterView, Dispatch, WorkerLoad
from fairsched.model.events import NOWHERE, Decoded, Event, WorkerDraining, WorkerJoined, WorkerLeft
from fairsched.model.request import Request
from fairsched.policies.base import AnswersWorkers, AnyClusterPolicy, Router

_MEMBERSHIP = frozenset({WorkerJoined, WorkerDraining, WorkerLeft})


@attrs.frozen
class Reports:
    """How workers report: every `every_us`, arriving `delay_us` later; a share `loss` of the reports never arrives.

    The lost reports are drawn from `seed`.
    """

    every_us: int = 100_000
    delay_us: int = 0
    loss: float = 0.0
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        if self.every_us < 1 or self.delay_us < 0:
            raise ValueError(
                f"reports need every_us of 1 or more and delay_us of 0 or more, not {self.every_us} and {self.delay_us}"
            )
        if not 0 <= self.loss <= 1:
            raise ValueError(f"the share of lost reports is from 0 to 1, not {self.loss}")


class LoadReport(msgspec.Struct, frozen=True):
    """A worker's report, the `number`th of all: its load (None: it takes no requests), and its events since the last
    report."""

    number: int
    worker: int
    load: WorkerLoad | None
    events: tuple[Event, ...]


class ControlPlane:
    """The cluster's policy in a run.

    It `places` requests at once when they come, or holds them and `decides` later; a policy may do both.
    """

    def __init__(self, loop: EventLoop, policy: AnyClusterPolicy, reports: Reports | None) -> None:
        kind = type(policy)
        self.policy = policy
        self.state = policy.init()
        self.reports = reports
        self.places = isinstance(policy, Router)
        self.decides = not self.places or kind.decide is not Router.decide
        observes = not self.places or kind.observe is not Router.observe
        self.learns = observes or self.decides
        self.follows_decoding = observes and policy.follows_decoding
        self.reports_lost = 0
        self.asked = False
        self._free_ns = 0
        self._loop = loop
        self._random = random.Random(None if reports is None else reports.seed)
        self._loads: dict[int, WorkerLoad] = {}
        self._sent: dict[int, list[tuple[int, int]]] = {}
        self._all_loads: list[WorkerLoad] = []
        self._growing: dict[int, tuple[SimulatedWorker, WorkerLoad]] = {}
        self._unreported: dict[int, list[Event]] = {}
        self._mail: dict[int, LoadReport] = {}
        self._mails = 0

    # --- what the policy learns -------------------------------------------------------------------------------------

    def happened(self, events: list[Event]) -> None:
        if self.reports is None or events[0].worker == NOWHERE:
            if self._tell(events):
                self._ask()
        elif self.learns:
            self._unreported.setdefault(events[0].worker, []).extend(e for e in events if type(e) not in _MEMBERSHIP)

    def report(self, worker: SimulatedWorker, serves: bool) -> None:
        """Send a worker's report of now, unless it gets lost; one that `serves` takes requests."""
        assert self.reports is not None
        events = tuple(self._unreported.pop(worker.state.worker, ()))
        if self._random.random() < self.reports.loss:
            self.reports_lost += 1
        else:
            self._send(worker, events, serves)

    def announce(self, worker: SimulatedWorker, events: Sequence[Event], serves: bool) -> None:
        """Send news of a worker's membership, which are never lost, and at the start are known."""
        if self.reports is not None:
            self._send(worker, tuple(events), serves)

    def _send(self, worker: SimulatedWorker, events: tuple[Event, ...], serves: bool) -> None:
        assert self.reports is not None
        now_ns = self._loop.now_ns
        load = worker.load(now_ns) if serves else None
        self._mail[self._mails] = LoadReport(self._mails, worker.state.worker, load, events)
        delay_ns = self.reports.delay_us * 1_000 if now_ns else 0
        self._loop.beat(now_ns + delay_ns, REPORT_COMES, self._mails)
        self._mails += 1

    def receive(self, mail: int) -> None:
        report = self._mail.pop(mail)
        if report.load is None:
            self._loads.pop(report.worker, None)
        else:
            self._loads[report.worker] = report.load
            sent = self._sent.pop(report.worker, [])
            for number, tokens in sent:
                if number > report.number:
                    self._count(report.worker, number, tokens)
        if self._tell(report.events) or self.decides:
            self._ask()

    def forget(self, worker: int) -> None:
        """Drop what a dead worker has not reported."""
        self._unreported.pop(worker, None)

    def sent(self, worker: int, tokens: int) -> None:
        """Count a request that a worker gets now, and that only its next report will have."""
        if worker in self._loads:
            self._count(worker, self._mails, tokens)

    def _count(self, worker: int, number: int, tokens: int) -> None:
        load = self._loads[worker]
        waiting_requests, waiting_tokens = load.waiting_requests + 1, load.waiting_tokens + tokens
        self._loads[worker] = replace(load, waiting_requests=waiting_requests, waiting_tokens=waiting_tokens)
        self._sent.setdefault(worker, []).append((number, tokens))

    def unanswered(self, worker: int) -> None:
        """Note that a worker did not take a request: it is not seen any more until it reports again."""
        self._loads.pop(worker, None)

    def _tell(self, events: Iterable[Event]) -> bool:
        """Let the policy observe events; returns whether any may be a reason to decide.

        Decode runs are no reason, so that it does not matter how an engine cuts them.
        """
        reason = False
        if self.learns:
            state, observe = self.state, self.policy.observe
            for event in events:
                if type(event) is not Decoded:
                    state, reason = observe(state, event), True
                elif self.follows_decoding:
                    state = observe(state, event)
            self.state = state
        return reason

    def _ask(self) -> None:
        """Let the policy decide after everything else that happens now."""
        if self.decides and not self.asked and self.policy.decide_every_us is None:
            self.asked = True
            self._loop.at(self._loop.now_ns, CLUSTER_DECIDES, 0)

    # --- what the policy sees and does ------------------------------------------------------------------------------

    def view(self, pool: WorkerPool, takers: Sequence[SimulatedWorker]) -> ClusterView:
        """Return the workers that take requests, as they are or as they were last reported."""
        now_ns = self._loop.now_ns
        if self.reports is not None:
            loads = [load for _, load in sorted(self._loads.items())]
        elif len(takers) == len(pool.workers):
            loads = self._now(pool)
        else:
            every = self._now(pool)
            loads = [every[worker.state.worker] for worker in takers]
        return ClusterView(now_ns, tuple(loads), pool.known_credit)

    def _now(self, pool: WorkerPool) -> list[WorkerLoad]:
        """Return the loads of all workers by number; only those are computed that may have changed since the last time.

        So a view costs what has changed, and not what there is.
        """
        now_ns, loads, growing = self._loop.now_ns, self._all_loads, self._growing
        if not loads:
            loads += [worker.state.load() for worker in pool.workers]
        for worker in pool.changed:
            state, worker.load_changed = worker.state, False
            number = state.worker
            loads[number] = load = state.load()
            if state.growing and worker.steps > 1:
                growing[number] = worker, load
            elif number in growing:
                del growing[number]
        pool.changed.clear()
        for number, (worker, load) in growing.items():
            loads[number] = worker.grown(load, now_ns)
        return loads

    def route(self, request: Request, view: ClusterView) -> Dispatch:
        assert isinstance(self.policy, Router)
        dispatch: Dispatch
        dispatch, self.state = self.policy.route(self.state, request, view)
        return dispatch

    def answered_ns(self, worker: SimulatedWorker) -> int:
        """Return when the answer to a question that a worker asks now is back; those who asked before go first."""
        policy, now_ns = self.policy, self._loop.now_ns
        assert isinstance(policy, AnswersWorkers)
        there_ns = now_ns + policy.round_trip_ns // 2
        self._free_ns = max(self._free_ns, there_ns) + policy.answer_ns(self.state, worker.load(now_ns))
        return self._free_ns + policy.round_trip_ns - policy.round_trip_ns // 2

    def decide(self, view: ClusterView) -> ClusterPlan:
        plan, self.state = self.policy.decide(self.state, view)
        return plan
