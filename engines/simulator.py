"""A discrete-event simulator: workers as `model.worker` has them, time from a latency model, decisions from policies.

It is exact and deterministic: time is integer nanoseconds, and what happens at one instant happens in a fixed order
(steps end, workers fail, callers give up, requests arrive in order of their ids, idle workers decide).  A worker whose
batch only decodes leaps to the next instant at which anything can change: the end of the plan's validity, the end of a
request, a step that needs memory.  An arrival or cancellation in the middle of a leap settles the steps that are over
and lets the current one end.  Leaping and stepping give the same log.

A worker that fails loses its memory and its step under way; whatever ran waits again, and nothing happens there until
it is back.

Every request ends once: finished, rejected (it fits nowhere, or its policy would leave it waiting for ever), or
cancelled (by its caller, or because a call it depends on did not finish).
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

import msgspec

from fairsched.engines.failures import Failure, checked
from fairsched.model import worker as transitions
from fairsched.model.events import (
    Admitted,
    Cancelled,
    ClientConfigured,
    Event,
    Finished,
    Preempted,
    Rejected,
    WorkerJoined,
)
from fairsched.model.latency import LatencyModel
from fairsched.model.plan import StepPlan
from fairsched.model.view import ClusterView, WorkerLoad
from fairsched.model.worker_state import WorkerState
from fairsched.model.workload import Job, Workload
from fairsched.policies.base import LocalPolicy, Router

STEP_ENDS, WORKER_FAILS, CALLER_GIVES_UP, REQUEST_COMES, WORKER_WAKES = range(5)
"""What can happen, in the order in which it happens at one instant."""

FOLDED = frozenset({Admitted, Preempted})
"""Events that a policy's own decision has folded already, when its whole plan was executed."""

ENDS = frozenset({Finished, Rejected, Cancelled})
"""How a request ends."""


class PolicyStallError(ValueError):
    """A policy that returns a plan which does nothing, for ever."""


class Lane:
    """A worker in time: its state, its policy's state, the run it is in (`plan` is None while it is idle), and until
    when it is down."""

    __slots__ = ("down_until_ns", "leaving", "plan", "policy_state", "run", "start_ns", "state", "steps", "waking")

    def __init__(self, state: WorkerState, policy_state: Any) -> None:
        self.state = state
        self.policy_state = policy_state
        self.plan: StepPlan | None = None
        self.start_ns = 0
        self.steps = 0
        self.run = 0
        self.waking = False
        self.leaving: list[int] = []
        self.down_until_ns = 0


class Simulator:
    """One run of a workload over a cluster of equal workers.

    `on_events` receives the events of each transition, in order.  `progress` is called with the number of requests
    that have ended, now and then.  With `leap=False` every step is taken by itself; the log is the same.  `failures`
    happen to workers as long as there are requests left.
    """

    def __init__(
        self,
        workload: Workload,
        policy: LocalPolicy[Any],
        router: Router[Any],
        latency: LatencyModel,
        *,
        workers: int = 1,
        kv_capacity_tokens: int | None = None,
        on_events: Callable[[list[Event]], None] | None = None,
        progress: Callable[[int], None] | None = None,
        leap: bool = True,
        failures: Sequence[Failure] = (),
    ) -> None:
        if workers < 1:
            raise ValueError(f"a cluster has at least one worker, not {workers}")
        capacity = latency.kv_capacity_tokens if kv_capacity_tokens is None else kv_capacity_tokens
        if capacity < 2:
            raise ValueError(f"a worker needs room for a prompt and an output token, not for {capacity} tokens")
        self.workload = workload
        self.policy = policy
        self.router = router
        self.latency = latency
        self.on_events = on_events
        self.progress = progress
        self.leap = leap
        self.failures = checked(failures, workers)
        self.lanes = [Lane(WorkerState(worker, capacity), policy.init()) for worker in range(workers)]
        self.router_state = router.init()
        self.now_ns = 0
        self.ended = 0
        self._observe = policy.observe
        self._router_learns = type(router).observe is not Router.observe
        self._agenda: list[tuple[int, int, int, int]] = []
        self._home: dict[int, Lane] = {}
        self._jobs: dict[int, Job] = {}
        self._children: dict[int, list[int]] = {}
        self._missing: dict[int, int] = {}
        self._over: set[int] = set()

    def run(self) -> None:
        """Serve the whole workload.  May be called once."""
        for lane in self.lanes:
            self._publish(lane, [WorkerJoined(0, lane.state.worker, lane.state.capacity)])
            for client in self.workload.clients:
                if client.weight != 1:
                    self._publish(lane, [ClientConfigured(0, lane.state.worker, client.id, client.weight)])
        self._plan_arrivals(self.workload.jobs)
        agenda = self._agenda
        handlers = (self._step_ends, self._worker_fails, self._caller_gives_up, self._request_comes, self._worker_wakes)
        while agenda:
            self.now_ns, kind, key, run = heappop(agenda)
            handlers[kind](key, run)
        self._reject_stalled()

    # --- the agenda -------------------------------------------------------------------------------------------------

    def _plan_arrivals(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            request = job.request
            if request.id in self._jobs:
                raise ValueError(f"request {request.id} is in the workload twice")
            self._jobs[request.id] = job
            if job.after:
                self._missing[request.id] = len(job.after)
                for parent in job.after:
                    self._children.setdefault(parent, []).append(request.id)
            else:
                self._agenda.append((request.arrival_ns, REQUEST_COMES, request.id, 0))
        for parent, children in self._children.items():
            if parent not in self._jobs:
                raise ValueError(f"request {children[0]} comes after request {parent}, which is not in the workload")
        for i, failure in enumerate(self.failures):
            self._agenda.append((failure.at_ns, WORKER_FAILS, failure.worker, i))
        self._agenda.sort()

    def _request_comes(self, request_id: int, _: int) -> None:
        job = self._jobs[request_id]
        request = job.request
        if request.arrival_ns != self.now_ns:
            request = msgspec.structs.replace(request, arrival_ns=self.now_ns)
        up = [lane for lane in self.lanes if lane.down_until_ns <= self.now_ns] or self.lanes
        view = ClusterView(self.now_ns, tuple([self._load(lane) for lane in up]))
        dispatch, self.router_state = self.router.route(self.router_state, request, view)
        lane = self.lanes[dispatch.worker]
        self._interrupt(lane)
        refusal = self.policy.refuses(request)
        if refusal is not None:
            self._publish(lane, [Rejected(self.now_ns, dispatch.worker, request_id, request.client, refusal)])
            return
        lane.state, events = transitions.arrive(lane.state, request, job.output_tokens, self.now_ns)
        self._publish(lane, events)
        if request_id in self._over:
            return
        self._home[request_id] = lane
        if job.cancel_after_ns is not None:
            heappush(self._agenda, (self.now_ns + job.cancel_after_ns, CALLER_GIVES_UP, request_id, 0))
        self._wake(lane)

    def _load(self, lane: Lane) -> WorkerLoad:
        """What a worker reports now.  In the middle of a leap only outputs that grow into free memory have changed."""
        state = lane.state
        load = state.load()
        if lane.plan is None or lane.steps == 1 or not state.growing:
            return load
        grown = self._steps_over(lane) * state.growing
        return msgspec.structs.replace(load, kv_free_tokens=load.kv_free_tokens - grown)

    def _caller_gives_up(self, request_id: int, _: int) -> None:
        if request_id in self._over:
            return
        lane = self._home[request_id]
        self._interrupt(lane)
        if request_id in lane.state.queue or lane.plan is None:
            self._cancel(lane, request_id)
        else:
            lane.leaving.append(request_id)
        self._wake(lane)

    def _worker_fails(self, worker: int, failure: int) -> None:
        if self.ended == len(self._jobs):
            return
        lane = self.lanes[worker]
        self._interrupt(lane)
        lane.plan = None
        lane.run += 1
        self._let_go(lane)
        lane.state, events = transitions.lose(lane.state, self.now_ns)
        if events:
            self._publish(lane, events)
        lane.down_until_ns = max(lane.down_until_ns, self.now_ns + self.failures[failure].down_ns)
        lane.waking = True
        heappush(self._agenda, (lane.down_until_ns, WORKER_WAKES, worker, 0))

    def _worker_wakes(self, worker: int, _: int) -> None:
        lane = self.lanes[worker]
        if self.now_ns < lane.down_until_ns:
            return
        lane.waking = False
        if lane.plan is None:
            self._decide(lane)

    def _wake(self, lane: Lane) -> None:
        """An idle worker decides after everything else that happens now."""
        if lane.plan is None and not lane.waking:
            lane.waking = True
            heappush(self._agenda, (self.now_ns, WORKER_WAKES, lane.state.worker, 0))

    # --- steps and leaps --------------------------------------------------------------------------------------------

    def _decide(self, lane: Lane) -> None:
        """Ask the policy, apply its plan, and schedule the end of the step or leap."""
        for _ in range(len(lane.state.in_flight) + 2):
            plan, policy_state = self.policy.decide(lane.policy_state, lane.state.view(self.now_ns))
            lane.state, events = transitions.begin(lane.state, plan, self.now_ns)
            lane.policy_state = policy_state
            if events:
                self._publish(lane, events, decided=True)
            if plan.chunks or (plan.decode and lane.state.decoding):
                # What was evicted to make room may change what the policy wants next, so that nothing is leapt over.
                self._schedule(lane, plan, self.leap and not events)
                return
            if not plan.preempt and not plan.admit:
                lane.plan = None
                return
        raise PolicyStallError(f"worker {lane.state.worker}: the policy keeps changing its batch and computes nothing")

    def _schedule(self, lane: Lane, plan: StepPlan, leap: bool) -> None:
        state = lane.state
        lane.plan, lane.start_ns, lane.steps = plan, self.now_ns, 1
        if plan.chunks:
            decoding = state.decoding if plan.decode else 0
            span = self.latency.step_ns(state.chunk_contexts(plan), decoding, state.context)
        else:
            if leap:
                steps = state.decode_steps_max()
                lane.steps = steps if plan.valid_steps is None else min(steps, plan.valid_steps)
            span = self.latency.decode_run_ns(state.decoding, state.context, lane.steps)
        lane.run += 1
        heappush(self._agenda, (self.now_ns + span, STEP_ENDS, state.worker, lane.run))

    def _step_ends(self, worker: int, run: int) -> None:
        lane = self.lanes[worker]
        if run != lane.run or lane.plan is None:
            return
        lane.state, events = transitions.finish(lane.state, lane.plan, lane.steps, self.now_ns)
        if events:
            self._publish(lane, events)
        self._let_go(lane)
        self._decide(lane)

    def _steps_over(self, lane: Lane) -> int:
        """How many steps of a leap under way are complete by now."""
        return self.latency.decode_steps_within(lane.state.decoding, lane.state.context, self.now_ns - lane.start_ns)

    def _interrupt(self, lane: Lane) -> None:
        """Something is about to reach a worker in the middle of a leap: settle the steps that are over."""
        if lane.plan is None or lane.steps == 1:
            return
        state = lane.state
        over = self._steps_over(lane)
        if over:
            at_ns = lane.start_ns + self.latency.decode_run_ns(state.decoding, state.context, over)
            lane.state, events = transitions.finish(state, lane.plan, over, at_ns)
            lane.start_ns = at_ns
            self._publish(lane, events)
        lane.steps = 1
        lane.run += 1
        span = self.latency.decode_run_ns(lane.state.decoding, lane.state.context, 1)
        heappush(self._agenda, (lane.start_ns + span, STEP_ENDS, lane.state.worker, lane.run))

    # --- ends -------------------------------------------------------------------------------------------------------

    def _let_go(self, lane: Lane) -> None:
        """Whose callers gave up in the middle of a step leave when it is over."""
        for request_id in lane.leaving:
            if request_id not in self._over:
                self._cancel(lane, request_id)
        lane.leaving.clear()

    def _cancel(self, lane: Lane, request_id: int) -> None:
        lane.state, events = transitions.cancel(lane.state, request_id, self.now_ns)
        self._publish(lane, events)

    def _reject_stalled(self) -> None:
        """Nothing will happen any more: whatever still waits was left to wait for ever."""
        for lane in self.lanes:
            for request_id in sorted(lane.state.queue):
                reason = f"request {request_id} still waits at worker {lane.state.worker}, which is idle"
                lane.state, events = transitions.reject(lane.state, request_id, reason, self.now_ns)
                self._publish(lane, events)

    def _publish(self, lane: Lane, events: list[Event], decided: bool = False) -> None:
        """The policy and the router learn the events, the listener gets them, and who depends on them is released.

        What the policy has `decided` itself, it has folded already.
        """
        policy_state, observe = lane.policy_state, self._observe
        over = False
        for event in events:
            kind = type(event)
            if not decided or kind not in FOLDED:
                policy_state = observe(policy_state, event)
            if kind in ENDS:
                over = True
        lane.policy_state = policy_state
        if self._router_learns:
            for event in events:
                self.router_state = self.router.observe(self.router_state, event)
        if self.on_events is not None:
            self.on_events(events)
        if over:
            for event in events:
                if isinstance(event, (Finished, Rejected, Cancelled)):
                    self._end(event.request_id, type(event) is Finished)

    def _end(self, request_id: int, finished: bool) -> None:
        self._over.add(request_id)
        self.ended += 1
        if self.progress is not None and not self.ended % 256:
            self.progress(self.ended)
        for child in self._children.pop(request_id, ()):
            if child in self._over:
                continue
            self._missing[child] -= 1
            if not finished:
                self._abandon(child)
            elif not self._missing[child]:
                at_ns = self.now_ns + self._jobs[child].think_ns
                heappush(self._agenda, (at_ns, REQUEST_COMES, child, 0))

    def _abandon(self, request_id: int) -> None:
        """A call that this one depends on did not finish: it is never sent."""
        client = self._jobs[request_id].request.client
        if self.on_events is not None:
            self.on_events([Cancelled(self.now_ns, -1, request_id, client, False, 0, 0)])
        self._end(request_id, False)


def simulate(
    workload: Workload,
    policy: LocalPolicy[Any],
    router: Router[Any],
    latency: LatencyModel,
    **options: Any,
) -> list[Event]:
    """Run a workload and return its events: the simulator in one call, for scripts and tests."""
    events: list[Event] = []
    Simulator(workload, policy, router, latency, on_events=events.extend, **options).run()
    return events
