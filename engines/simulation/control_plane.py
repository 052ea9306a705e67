"""The head of a simulated cluster: the cluster's policy with its state, what it is told and what it sees.

Without `Reports` it is told everything at once and sees every worker as it is.  With them each worker reports its load
and what happened there every `every_us`; a report is heard `delay_us` later, or it is lost, with all that it tells.
Dispatches are not part of a report until the worker has them, so a policy that cares adds its own to what it heard.

Which workers there are is known more reliably, since a connection that closes is noticed: that a worker joined, drains
or left is heard `delay_us` later and never lost.  What a request does at no worker is told at once.
"""

import random
from collections.abc import Iterable
from typing import Any

import attrs
import msgspec

from fairsched.engines.lane import Lane
from fairsched.model.events import NOWHERE, Decoded, Event, WorkerDraining, WorkerJoined, WorkerLeft
from fairsched.model.plan import ClusterPlan, Dispatch
from fairsched.model.request import Request
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.policies.base import ClusterPolicy, Router

_MEMBERSHIP = frozenset({WorkerJoined, WorkerDraining, WorkerLeft})


@attrs.frozen
class Reports:
    """How workers report: every `every_us`, heard `delay_us` later; a share `loss` of the reports never is.

    Which ones are lost is drawn from `seed`.
    """

    every_us: int = 100_000
    delay_us: int = 0
    loss: float = 0.0
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        if self.every_us < 1 or self.delay_us < 0:
            raise ValueError(f"reports come every {self.every_us} us, {self.delay_us} us late; neither can be")
        if not 0 <= self.loss <= 1:
            raise ValueError(f"a share of reports is lost, from 0 to 1, not {self.loss}")


class Report(msgspec.Struct, frozen=True):
    """What a worker says: its load (None: it takes no requests), and what happened since it last said something."""

    worker: int
    load: WorkerLoad | None
    events: tuple[Event, ...]


class Head:
    """The cluster's policy in a run.

    `places` requests at once when they come, or holds them and `decides` later; a policy may do both.  `reports_lost`
    counts.
    """

    def __init__(self, policy: ClusterPolicy[Any], reports: Reports | None) -> None:
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
        self._random = random.Random(None if reports is None else reports.seed)
        self._loads: dict[int, WorkerLoad] = {}
        self._untold: dict[int, list[Event]] = {}

    # --- what it is told --------------------------------------------------------------------------------------------

    def tell(self, events: Iterable[Event]) -> bool:
        """The policy learns events; whether any may be a reason to decide.

        Runs of decode steps are none, so that it does not matter how an engine cuts them.
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

    def happened(self, events: list[Event]) -> bool:
        """What happened is told at once, or is part of a report; whether there is a reason to decide now."""
        if self.reports is None or events[0].worker == NOWHERE:
            return self.tell(events)
        if self.learns:
            self._untold.setdefault(events[0].worker, []).extend(e for e in events if type(e) not in _MEMBERSHIP)
        return False

    def report(self, lane: Lane, now_ns: int) -> Report | None:
        """A worker's report of now, if it is there to make one; None if it gets lost."""
        worker = lane.state.worker
        events = tuple(self._untold.pop(worker, ()))
        lost = self._random.random() < (0.0 if self.reports is None else self.reports.loss)
        if lost:
            self.reports_lost += 1
            return None
        return Report(worker, lane.load(now_ns) if lane.phase == "serving" else None, events)

    def dies(self, worker: int) -> None:
        """What a worker had not reported will never be."""
        self._untold.pop(worker, None)

    def hear(self, report: Report) -> bool:
        """A report has come; whether there is a reason to decide."""
        if report.load is None:
            self._loads.pop(report.worker, None)
        else:
            self._loads[report.worker] = report.load
        return self.tell(report.events) or self.decides

    # --- what it sees and does ----------------------------------------------------------------------------------------

    def view(self, takers: list[Lane], now_ns: int, credit: Any = None) -> ClusterView:
        """The workers that take requests, as they are or as they were last heard of."""
        if self.reports is None:
            return ClusterView(now_ns, tuple([lane.load(now_ns) for lane in takers]), credit)
        return ClusterView(now_ns, tuple([load for _, load in sorted(self._loads.items())]), credit)

    def gone(self, worker: int) -> None:
        """A worker that was sent a request does not answer: it is not seen any more until it reports again."""
        self._loads.pop(worker, None)

    def route(self, request: Request, view: ClusterView) -> Dispatch:
        """Where a request goes."""
        assert isinstance(self.policy, Router)
        dispatch: Dispatch
        dispatch, self.state = self.policy.route(self.state, request, view)
        return dispatch

    def decide(self, view: ClusterView) -> ClusterPlan:
        """What is dispatched and what moves."""
        plan, self.state = self.policy.decide(self.state, view)
        return plan
