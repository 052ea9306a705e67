"""Workers in simulated time: an agenda of what happens when, and what local policies make of each worker's steps.

Time is integer nanoseconds, and what happens at one instant happens in the order of `AGENDA`.  A worker whose batch
only decodes leaps to the next instant at which anything can change: the end of the plan's validity, the end of a
request, a step that needs memory.  What reaches it in the middle of a leap settles the steps that are over and lets the
current one end.  Leaping and stepping give the same log.
"""

from collections.abc import Callable, Sequence
from heapq import heappush
from typing import Any

from fairsched.engines.calls import Calls
from fairsched.engines.changes import WorkerSpec
from fairsched.engines.credit import Credit
from fairsched.engines.lane import Lane
from fairsched.model import worker as transitions
from fairsched.model.events import (
    NOWHERE,
    Admitted,
    Cancelled,
    Event,
    Finished,
    Preempted,
    Rejected,
    SwappedIn,
    SwappedOut,
)
from fairsched.model.workload import Workload
from fairsched.policies.base import LocalPolicy

AGENDA = (
    STEP_ENDS,
    WORKER_CHANGES,
    CALLER_GIVES_UP,
    REQUEST_LANDS,
    REPORT_COMES,
    REQUEST_COMES,
    REPORTS_ARE_DUE,
    CLUSTER_DECIDES,
    WORKER_WAKES,
) = range(9)
"""What can happen, in the order in which it happens at one instant."""

FOLDED = frozenset({Admitted, Preempted, SwappedIn, SwappedOut})
"""Events that a policy's own decision has folded already, when its whole plan was executed."""

_ENDS = (Finished, Rejected, Cancelled)
ENDS = frozenset(_ENDS)
"""How a request ends."""


class PolicyStallError(ValueError):
    """A policy that returns a plan which does nothing, for ever."""


class Timeline:
    """The workers of a run, and the requests that they have."""

    def __init__(
        self,
        workload: Workload,
        policy: LocalPolicy[Any],
        specs: Sequence[WorkerSpec],
        on_events: Callable[[list[Event]], None] | None,
        progress: Callable[[int], None] | None,
        leap: bool,
    ) -> None:
        self.workload = workload
        self.policy = policy
        self.on_events = on_events
        self.progress = progress
        self.credit = Credit(policy)
        # What a worker is charged in a leap would reach the others too late.
        self.leap = leap and not self.credit.shared
        self.lanes = [Lane(worker, spec, policy.init()) for worker, spec in enumerate(specs)]
        self.calls = Calls(workload.jobs)
        self.now_ns = 0
        self._observe = policy.observe
        self._ignored = policy.ignored - ENDS
        self._folded = FOLDED | self._ignored
        self._informs = False
        self._shares = self.credit.shared
        self._agenda: list[tuple[int, int, int, int]] = []

    def _at(self, time_ns: int, kind: int, key: int, run: int = 0) -> None:
        heappush(self._agenda, (time_ns, kind, key, run))

    # --- steps and leaps --------------------------------------------------------------------------------------------

    def _decide(self, lane: Lane) -> None:
        """Ask the policy, apply its plan, and schedule the end of the step or leap."""
        now_ns = self.now_ns
        for _ in range(len(lane.state.in_flight) + 2):
            state, policy_state = lane.state, lane.policy_state
            if self._shares:
                policy_state = self.credit.lend(policy_state, state.worker)
            plan, policy_state = self.policy.decide(policy_state, state.view(now_ns))
            lane.state, events = transitions.begin(state, plan, now_ns)
            lane.policy_state = policy_state
            if self._shares:
                self._repaid(lane)
            if events:
                self._publish(lane, events, decided=True)
            if plan.chunks or (plan.decode and lane.state.decoding) or lane.state.host.moves:
                # What was evicted to make room may change what the policy wants next, so that nothing is leapt over.
                end_ns = lane.start(plan, self.leap and not events, now_ns)
                heappush(self._agenda, (end_ns, STEP_ENDS, state.worker, lane.run))
                return
            if not plan.preempt and not plan.admit:
                lane.stop()
                if self._shares and self.credit.rest(lane.state.worker):
                    self._wake_others(lane)
                self._idles(lane)
                return
        raise PolicyStallError(f"worker {lane.state.worker}: the policy keeps changing its batch and computes nothing")

    def _step_ends(self, worker: int, run: int) -> None:
        lane = self.lanes[worker]
        if run != lane.run or lane.plan is None:
            return
        lane.state, events = transitions.finish(lane.state, lane.plan, lane.steps, self.now_ns)
        if events:
            self._publish(lane, events)
        if lane.leaving or lane.moving:
            self._let_go(lane)
        self._decide(lane)

    def _interrupt(self, lane: Lane) -> None:
        """Something is about to reach a worker in the middle of a leap: settle the steps that are over."""
        if lane.steps > 1:
            self._settle(lane)
            self._at(lane.cut(), STEP_ENDS, lane.state.worker, lane.run)

    def _settle(self, lane: Lane) -> None:
        events = lane.settle(self.now_ns)
        if events:
            self._publish(lane, events)

    def _worker_wakes(self, worker: int, _: int) -> None:
        lane = self.lanes[worker]
        if self.now_ns < lane.down_until_ns:
            return
        lane.waking = False
        if lane.plan is None and lane.phase != "absent":
            self._decide(lane)

    def _wake(self, lane: Lane) -> None:
        """An idle worker decides after everything else that happens now."""
        if lane.plan is None and not lane.waking:
            lane.waking = True
            self._at(self.now_ns, WORKER_WAKES, lane.state.worker)

    def _idles(self, lane: Lane) -> None:
        """A worker has decided to do nothing."""

    # --- ends -------------------------------------------------------------------------------------------------------

    def _let_go(self, lane: Lane) -> None:
        """Whose callers gave up in the middle of a step leave when it is over."""
        for request_id in lane.leaving:
            if request_id not in self.calls.over:
                self._cancel(lane, request_id)
        lane.leaving.clear()

    def _cancel(self, lane: Lane, request_id: int) -> None:
        lane.state, events = transitions.cancel(lane.state, request_id, self.now_ns)
        self._publish(lane, events)

    def _reject(self, lane: Lane, request_id: int, reason: str) -> None:
        """A waiting request will never be served."""
        lane.state, events = transitions.reject(lane.state, request_id, reason, self.now_ns)
        self._publish(lane, events)

    def _publish(self, lane: Lane, events: list[Event], decided: bool = False) -> None:
        """The policy and the cluster's learn the events, the listener gets them, and who depends on them is released.

        What the policy has `decided` itself, it has folded already.
        """
        policy_state, observe = lane.policy_state, self._observe
        if self._shares:
            policy_state = self.credit.lend(policy_state, lane.state.worker)
        over = False
        untold = self._folded if decided else self._ignored
        for event in events:
            kind = type(event)
            if kind not in untold:
                policy_state = observe(policy_state, event)
                if kind in ENDS:
                    over = True
        lane.policy_state = policy_state
        if self._shares:
            self._repaid(lane)
        if self._informs:
            self._inform(events)
        if self.on_events is not None:
            self.on_events(events)
        if over:
            for event in events:
                if isinstance(event, _ENDS):
                    self._end(event.request_id, type(event) is Finished)

    def _repaid(self, lane: Lane) -> None:
        """A worker's policy has used the shared credit; who waits for it at an idle worker decides again."""
        if self.credit.repay(lane.policy_state, lane.state.worker):
            self._wake_others(lane)

    def _wake_others(self, lane: Lane) -> None:
        for other in self.lanes:
            if other.plan is None and other is not lane and other.state.queue:
                self._wake(other)

    def _inform(self, events: list[Event]) -> None:
        """The cluster's policy is told what happened at a worker."""

    def _end(self, request_id: int, finished: bool) -> None:
        due, lost = self.calls.end(request_id, finished)
        for child in due:
            self._at(self.now_ns + self.calls.jobs[child].think_ns, REQUEST_COMES, child)
        for child in lost:
            # A call that it depends on did not finish: it is never sent.
            client = self.calls.jobs[child].request.client
            if self.on_events is not None:
                self.on_events([Cancelled(self.now_ns, NOWHERE, child, client, False, 0, 0)])
        if self.progress is not None:
            ended = len(self.calls.over)
            for count in range(ended - len(lost), ended + 1):
                if not count % 256:
                    self.progress(count)
