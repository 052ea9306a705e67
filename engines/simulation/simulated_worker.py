"""Simulated workers: their states, the steps that they execute, and how policies drive them.

A worker whose batch only decodes leaps to the next instant at which anything can change: the end of the plan's
validity, the end of a request, or a step that needs memory.  When something reaches the worker in the middle of a leap,
the finished steps are settled and the leap ends with the current step.  Leaping and stepping give the same log.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappush
from typing import Any

import attrs
from msgspec.structs import replace

from fairsched.engines.simulation.event_loop import STEP_ENDS, TOKENS_COME, WORKER_WAKES, EventLoop
from fairsched.engines.workloads import WorkerSpec
from fairsched.model import cluster
from fairsched.model import events as ev
from fairsched.model import worker as transitions
from fairsched.model.cluster import ClusterState, ReserveKv, WorkerPhase
from fairsched.model.decision import DECODE_ONLY, NO_HOST, Migration, StepPlan, WorkerLoad
from fairsched.model.events import Event, Finished, Migrated
from fairsched.model.machine import LatencyModel
from fairsched.model.request import Request
from fairsched.model.worker import Running, WorkerState
from fairsched.policies.base import AnyLocalPolicy


class PolicyStallError(ValueError):
    """A policy that returns plans without effect for ever."""


FOLDED = frozenset({ev.Admitted, ev.Paused, ev.Preempted, ev.Resumed, ev.SwappedIn, ev.SwappedOut})
"""Events that a policy's own decision has folded already, when its whole plan was executed."""
ENDS = (ev.Finished, ev.Rejected, ev.Cancelled)
"""How a request ends."""
KEPT, STANDSTILL = StepPlan(), StepPlan(decode=False)
"""What stands in for a plan that counts on memory which a preemption does not free: no request enters or leaves, and
what decodes goes on, or nothing does if there is no room."""


def begun(state: WorkerState, plan: StepPlan, now_ns: int) -> tuple[StepPlan, transitions.Step]:
    """Begin a plan, or what stands in for it where prefixes are pinned for KV in transit.

    A policy's copy of the cache does not have those pins.
    """
    try:
        return plan, transitions.begin(state, plan, now_ns)
    except transitions.InfeasiblePlanError:
        transit = state.transit
        if not any(request_id in state.cache.pins for request_id in (*transit.outgoing, *transit.landed)):
            raise
    try:
        return KEPT, transitions.begin(state, KEPT, now_ns)
    except transitions.InfeasiblePlanError:
        return STANDSTILL, transitions.begin(state, STANDSTILL, now_ns)


TOKENS = (ev.Decoded, ev.Finished, ev.Migrated)
"""What of a step that only prefills comes out of the last stage of a pipeline."""


def last_tokens(state: WorkerState, plan: StepPlan) -> dict[int, Running]:
    """Return requests of a step through a pipeline whose last token it makes, as requests that go on.

    So they keep memory and pins until that token has left the last stage.
    """
    done = [i for i, tokens in plan.chunks if state.in_flight[i].remaining_tokens == tokens]
    runs = ((request_id, state.running[request_id]) for request_id in done)
    return {
        request_id: replace(run, waiting=replace(run.waiting, output_tokens=run.waiting.output_tokens + 1))
        for request_id, run in runs
        if run.waiting.output_tokens == run.waiting.generated_tokens + 1
    }


def ending(event: ev.Event, last: Mapping[int, Running]) -> ev.Event:
    """Return what it is to leave the batch with the last token: the end."""
    if not isinstance(event, ev.Migrated) or event.request_id not in last:
        return event
    return ev.Finished(event.time_ns, event.worker, event.request_id, event.client, event.generated_tokens)


@attrs.define(eq=False)
class SimulatedWorker:
    """One worker of a simulation.

    - It executes `plan` for `steps` steps since `start_ns` (None: it is idle); `execution` is the number of that.
    - After the step under way `cancelling` requests are over, and `migrating` requests go to other workers.
    - Transfers in `transfer_queue` wait for memory here.
    - With `prefills_for_others`, it was sent requests for their prefills alone; `prefill_began_ns` is when each began.
    - Where steps pass through several stages, each is free from `stages_free_ns` on.  Steps whose last stage is not
      over are in `pipeline`; the one under way will be at `pipeline_end_ns` (0: it passes through none).  The pipeline
      was lost `pipeline_losses` times.
    - The policy's last plan with chunks, `kept_plan`, is its plan for `kept_steps` more steps, while the batch is
      `kept_batch`.
    - `resident` adapters are loaded, the one used last at the end; counted where loading takes time.
    - It is down until `down_until_ns`.  With `wake_scheduled` the agenda has an entry that lets it decide.

    Its `state` is replaced by `become` alone; with `load_changed` it is in `changed_workers`.
    """

    spec: WorkerSpec
    state: WorkerState
    policy_state: Any
    changed_workers: list["SimulatedWorker"] = attrs.field(factory=list)
    latency: LatencyModel = attrs.field(init=False)
    load_changed: bool = True
    plan: StepPlan | None = None
    start_ns: int = 0
    steps: int = 0
    execution: int = 0
    wake_scheduled: bool = False
    cancelling: list[int] = attrs.field(factory=list)
    migrating: dict[int, Migration] = attrs.field(factory=dict)
    down_until_ns: int = 0
    transfer_queue: deque[ReserveKv] = attrs.field(factory=deque)
    prefills_for_others: bool = False
    pipeline_losses: int = 0
    pipeline_end_ns: int = 0
    prefill_began_ns: dict[int, int] = attrs.field(factory=dict)
    stages_free_ns: list[int] = attrs.field(init=False)
    pipeline: deque[tuple[StepPlan, list[Event]]] = attrs.field(factory=deque)
    resident: dict[str, None] = attrs.field(factory=dict)
    kept_steps: int = 0
    kept_plan: StepPlan = DECODE_ONLY
    kept_batch: tuple[object, object] = (None, None)

    def __attrs_post_init__(self) -> None:
        self.latency = self.spec.latency
        self.stages_free_ns = [0] * self.latency.stages

    @property
    def idle(self) -> bool:
        state, transit = self.state, self.state.transit
        return self.plan is None and not (
            state.queue or state.in_flight or transit.outgoing or transit.incoming or self.pipeline
        )

    @property
    def growth(self) -> tuple[int, int]:
        """Tokens that the step under way computes, and how many of them are promised when it is over."""
        return (0, 0) if self.plan is None else transitions.growth(self.state, self.plan)

    def become(self, state: WorkerState) -> None:
        """Take another state, and be among the workers that have changed."""
        self.state = state
        if not self.load_changed:
            self.load_changed = True
            self.changed_workers.append(self)

    def load(self, now_ns: int) -> WorkerLoad:
        return self.grown(self.state.load(), now_ns)

    def grown(self, load: WorkerLoad, now_ns: int) -> WorkerLoad:
        """Return what has become of the state's load: in a leap outputs grow into free memory, and nothing else."""
        if not self.state.growing or self.steps < 2:
            return load
        grown = self._steps_over(now_ns) * self.state.growing
        return replace(load, kv_free_tokens=load.kv_free_tokens - grown)

    def keep(self, plan: StepPlan, steps: int) -> None:
        """Keep a plan that says that it is the policy's for so many steps."""
        self.kept_plan, self.kept_steps = plan, steps - 1
        self.kept_batch = self.state.ranks, self.state.ends

    def kept_again(self) -> StepPlan | None:
        """Return the plan that was kept, if it is that of one more step: no request has entered, left, gone on to
        decode or been paused."""
        ranks, ends = self.kept_batch
        if self.state.ranks is not ranks or self.state.ends is not ends:
            self.kept_steps = 0
            return None
        self.kept_steps -= 1
        return self.kept_plan

    def start(self, plan: StepPlan, leap: bool, now_ns: int) -> int:
        """Execute a plan that has begun, for as many steps as it is valid or for one; returns when they end.

        The first step after a standstill is no leap: no event tells the standstill, and one would spread it over all.
        Transfers to and from the host overlap with the computation; a step is over when both are.
        """
        state, leap = self.state, leap and self.plan is not None
        self.plan, self.start_ns = plan, now_ns
        self.execution += 1
        now_ns += self._load_ns(plan)
        if state.host is not NO_HOST and state.host.moves:
            return now_ns + max(self._step_ns(plan), self.spec.link.transfer_ns(state.host.moving_tokens))
        if plan.chunks:
            if self.latency.stages > 1 and self._overlaps(plan):
                return self._enter_stages(plan, now_ns)
            return now_ns + self._step_ns(plan)
        steps = 1
        if leap:
            steps, valid_steps = state.decode_steps_max(), plan.valid_steps
            if valid_steps is not None and valid_steps < steps:
                steps = valid_steps
        self.steps = steps
        return now_ns + self.latency.decode_run_ns(state.decoding, state.context, steps, *self._range())

    def _overlaps(self, plan: StepPlan) -> bool:
        """Return whether the next step may begin when this one leaves the first stage: it computes prompts, for
        others."""
        running = self.state.running
        return not self.state.decoding and all(running[i].waiting.prefill_only for i, _ in plan.chunks)

    def _enter_stages(self, plan: StepPlan, now_ns: int) -> int:
        """Let a step pass through all stages, each when the step before has left it; returns when the first is free."""
        self.steps, free_ns = 1, self.stages_free_ns
        stage_ns, done_ns = self.latency.stage_ns(self.state.chunk_contexts(plan)), now_ns
        for stage, free in enumerate(free_ns):
            done_ns = free_ns[stage] = max(done_ns, free) + stage_ns
        self.pipeline_end_ns = done_ns
        return free_ns[0]

    def _load_ns(self, plan: StepPlan) -> int:
        """Return for how long the step of a plan that has begun waits for adapters."""
        if not self.spec.adapter_load_ns:
            return 0
        loads, running = 0, self.state.running
        for admission in plan.admit:
            adapter = running[admission.request_id].waiting.request.adapter
            if not isinstance(adapter, str):
                continue
            if adapter not in self.resident:
                loads += 1
                if len(self.resident) == self.spec.adapter_slots:
                    used = {run.waiting.request.adapter for run in running.values()}
                    del self.resident[next(each for each in self.resident if each not in used)]
            self.resident.pop(adapter, None)
            self.resident[adapter] = None
        return loads * self.spec.adapter_load_ns

    def _step_ns(self, plan: StepPlan) -> int:
        self.steps, state = 1, self.state
        decoding = state.decoding if plan.decode else 0
        if not plan.chunks and not decoding:
            return 0
        chunks, rows, context = state.step_shape(plan)
        if not decoding:
            return self.latency.step_ns(chunks, rows, context)
        return self.latency.step_ns(chunks, decoding + rows, state.context + context, *self._range())

    def settle(self, now_ns: int) -> list[Event]:
        """Return the events of a leap's steps that are over by now; the leap goes on."""
        if self.steps < 2:
            return []
        over = self._steps_over(now_ns)
        if not over:
            return []
        assert self.plan is not None
        state = self.state
        at_ns = self.start_ns + self.latency.decode_run_ns(state.decoding, state.context, over, *self._range())
        settled, events = transitions.finish(state, self.plan, over, at_ns)
        self.become(settled)
        self.start_ns = at_ns
        self.steps -= over
        return events

    def cut(self) -> int:
        """End a settled leap with the step under way; returns when that step ends."""
        self.steps = 1
        self.execution += 1
        return self.start_ns + self.latency.decode_run_ns(self.state.decoding, self.state.context, 1, *self._range())

    def stop(self) -> None:
        """Execute nothing from now on; a step under way is void."""
        self.plan = None
        self.steps = 0
        self.execution += 1
        self.pipeline_end_ns = 0

    def _steps_over(self, now_ns: int) -> int:
        """Return how many steps of the leap under way are complete by now."""
        state, span_ns = self.state, now_ns - self.start_ns
        return self.latency.decode_steps_within(state.decoding, state.context, span_ns, *self._range())

    def _range(self) -> tuple[int, int]:
        """Return the longest and the shortest context of decoding requests, where the latency model asks for them."""
        return self.state.context_range() if self.latency.skewed else (0, 0)


class WorkerPool:
    """The workers of a run: they ask their policy, execute its plans, and publish what happens.

    `on_end` is called for each request that ends (and whether it finished), `on_step` after a step of a worker that
    requests are to leave, `on_hand_over` for a request that left with its first token (worker, request, nanoseconds
    since it was admitted, tokens of its last chunk), and `on_idle` when a worker has decided to do nothing.  `joining`
    counts workers to come, and `changed` lists those whose load may have changed since the last view.  Where workers
    ask before each step, `answered_ns` says when a question of now is answered.

    The `credit` that the workers' policies share, if any, is checked out by one of them at a time, so that policies
    stay pure although the charges of one worker decide what another may do.
    """

    def __init__(
        self,
        loop: EventLoop,
        policy: AnyLocalPolicy,
        specs: Sequence[WorkerSpec],
        listeners: Sequence[Callable[[list[Event]], object]],
        leap: bool,
    ) -> None:
        self.policy = policy
        self.credit = None if policy.shared_credit is None else policy.shared_credit.credit()
        self.changed: list[SimulatedWorker] = []
        given = ((spec.empty(i), policy.init(), self.changed) for i, spec in enumerate(specs))
        self.workers = [SimulatedWorker(spec, *each) for spec, each in zip(specs, given, strict=True)]
        self.changed += self.workers
        self.cluster = ClusterState()
        self.joining = 0
        self.on_end: Callable[[int, bool], None] = lambda request_id, finished: None
        self.on_step: Callable[[SimulatedWorker], None] = lambda worker: None
        self.on_hand_over: Callable[[SimulatedWorker, int, int, int], None] = lambda worker, request_id, ns, tokens: (
            None
        )
        self.on_idle: Callable[[SimulatedWorker], None] = lambda worker: None
        self.answered_ns: Callable[[SimulatedWorker], int] | None = None
        self._loop = loop
        self._agenda = loop.agenda
        self._listeners = tuple(listeners)
        self._sharing = policy.shared_credit
        # Charges of a leap would reach the other workers too late.
        self._leap = leap and self._sharing is None
        self._rests = policy.rests
        self._ignored = policy.ignored.difference(ENDS)
        self._folded = FOLDED | self._ignored
        self._up: list[SimulatedWorker] | None = None
        self._uneven = len({spec.capacity for spec in specs}) > 1

    # --- steps and leaps --------------------------------------------------------------------------------------------

    def decide(self, worker: SimulatedWorker) -> None:
        """Ask the policy, apply its plan, and schedule the end of the step or leap."""
        now_ns = self._loop.now_ns
        for _ in range(len(worker.state.in_flight) + len(worker.state.transit.landed) + 2):
            state, policy_state = worker.state, worker.policy_state
            if self._sharing is not None:
                policy_state = self._sharing.checkout(policy_state, self.credit, state.worker)
            plan, decided = self._asked(worker, policy_state)
            plan, (begins, events) = begun(state, plan, now_ns)
            worker.become(begins)
            worker.policy_state = policy_state = policy_state if plan is KEPT or plan is STANDSTILL else decided
            if self._sharing is not None:
                self._commit(worker, self._sharing.commit(self.credit, policy_state, state.worker))
            if worker.prefills_for_others:
                worker.prefill_began_ns |= dict.fromkeys((admission.request_id for admission in plan.admit), now_ns)
            if events:
                self.publish(worker, events, decided=True)
            if plan.chunks or (plan.decode and worker.state.decoding) or worker.state.host.moves:
                # An eviction that made room may change what the policy wants next, so that nothing is leapt over.
                end_ns = worker.start(plan, self._leap and not events, now_ns)
                heappush(self._agenda, (end_ns, STEP_ENDS, state.worker, worker.execution))
                return
            if not plan.changes_batch:
                if self._makes_room(worker):
                    continue
                worker.stop()
                if self._sharing is not None:
                    self._commit(worker, self._sharing.idle(self.credit, state.worker))
                self.on_idle(worker)
                if self._sharing is not None:
                    self._end_standstill()
                return
        number = worker.state.worker
        raise PolicyStallError(f"worker {number}: the policy keeps changing its batch and computes nothing")

    def _asked(self, worker: SimulatedWorker, policy_state: Any) -> tuple[StepPlan, Any]:
        """Return the policy's plan, and its state after it, which is the same where the plan is known without asking:
        the batch goes on as it said before, or only decodes and nothing waits."""
        state = worker.state
        if self._leap:
            if worker.kept_steps and (plan := worker.kept_again()) is not None:
                return plan, policy_state
            if self._rests and not (state.queue or state.prefilling or state.paused):
                return DECODE_ONLY, policy_state
        plan, decided = self.policy.decide(policy_state, state.view(self._loop.now_ns))
        if plan.chunks and plan.valid_steps is not None:
            worker.keep(plan, plan.valid_steps)
        return plan, decided

    def step_ends(self, number: int, run: int) -> bool | None:
        """Finish the step or leap of that run; returns True if it is not under way any more."""
        worker = self.workers[number]
        if run != worker.execution or worker.plan is None:
            return True
        plan, steps, tokens_ns = worker.plan, worker.steps, worker.pipeline_end_ns
        worker.stop()
        last = last_tokens(worker.state, plan) if tokens_ns else {}
        if last:
            worker.become(replace(worker.state, running=worker.state.running.update(last)))
        done = transitions.finish(worker.state, plan, steps, self._loop.now_ns)
        if tokens_ns:
            ended, events = done
            worker.become(ended)
            tokens = [ending(event, last) for event in events if isinstance(event, TOKENS)]
            self.publish(worker, [event for event in events if not isinstance(event, TOKENS)])
            if tokens:
                worker.pipeline.append((plan, tokens))
                self._loop.at(tokens_ns, TOKENS_COME, number, worker.pipeline_losses)
        else:
            self.apply(worker, done)
            if worker.prefills_for_others:
                self._hand_over(worker, plan, done[1])
        if worker.cancelling or worker.migrating or worker.transfer_queue:
            self.on_step(worker)
        if self.answered_ns is None:
            self.decide(worker)
        else:
            self.wake(worker)
        return None

    def tokens_come(self, number: int, losses: int) -> bool | None:
        """Publish what a step brought about that has left the last stage, and hand its requests over; returns True if
        that was lost."""
        worker = self.workers[number]
        if losses != worker.pipeline_losses:
            return True
        plan, events = worker.pipeline.popleft()
        self.interrupt(worker)
        for event in events:
            if isinstance(event, Finished):
                worker.become(transitions.sent(worker.state, event.request_id))
        self.publish(worker, [replace(event, time_ns=self._loop.now_ns) for event in events])
        self._hand_over(worker, plan, events)
        self.on_step(worker)
        self.wake(worker)
        return None

    def _hand_over(self, worker: SimulatedWorker, plan: StepPlan, events: list[Event]) -> None:
        """Report the requests that left the batch with their first token in the events of a step."""
        for event in events:
            if isinstance(event, Migrated):
                request_id = event.request_id
                prefill_ns = self._loop.now_ns - worker.prefill_began_ns.pop(request_id)
                self.on_hand_over(worker, request_id, prefill_ns, dict(plan.chunks)[request_id])

    def _makes_room(self, worker: SimulatedWorker) -> bool:
        """Drop the KV that came with the youngest waiting request if memory keeps a worker from computing anything."""
        # Where nothing runs and credit is shared, what is waited for may be credit.
        return (bool(worker.state.in_flight) or self._sharing is None) and self.drop_landed(worker)

    def drop_landed(self, worker: SimulatedWorker) -> bool:
        """Drop the KV that came with the youngest waiting request of an idle worker, and return whether there was any.

        It is as if the request left, and came again without.
        """
        state, now_ns = worker.state, self._loop.now_ns
        if not state.transit.landed:
            return False
        waiting = state.queue[transitions.youngest_landed(state)]
        self.apply(worker, transitions.again(state, waiting, now_ns))
        return True

    def _end_standstill(self) -> None:
        """Drop the KV that came with the youngest waiting request when nothing runs anywhere, and none is on its way.

        Its client waits for credit, while one that has some waits for the memory that this KV holds, or that KV holds
        which waits to come here.
        """
        if any(each.plan is not None or each.wake_scheduled or each.state.transit.incoming for each in self.workers):
            return
        holding = [each for each in self.workers if each.state.transit.landed]
        if holding:
            worker = max(holding, key=lambda each: (transitions.youngest_landed(each.state), each.state.worker))
            self.drop_landed(worker)
            self.on_step(worker)
            self.wake(worker)

    def interrupt(self, worker: SimulatedWorker) -> None:
        """Settle the finished steps of a leap, since something is about to reach the worker in the middle of it."""
        if worker.steps > 1:
            self.settle(worker)
            self._loop.at(worker.cut(), STEP_ENDS, worker.state.worker, worker.execution)

    def settle(self, worker: SimulatedWorker) -> None:
        """Publish the finished steps of a leap; it goes on."""
        events = worker.settle(self._loop.now_ns)
        if events:
            self.publish(worker, events)

    def wakes(self, number: int, _: int) -> None:
        """Let an idle worker decide."""
        worker = self.workers[number]
        if self._loop.now_ns < worker.down_until_ns:
            return
        worker.wake_scheduled = False
        if worker.plan is None and number in self.cluster.workers:
            self.decide(worker)

    def wake(self, worker: SimulatedWorker) -> None:
        """Let an idle worker decide after everything else that happens now, or when its question is answered."""
        if worker.plan is None and not worker.wake_scheduled:
            worker.wake_scheduled = True
            at_ns = self._loop.now_ns if self.answered_ns is None else self.answered_ns(worker)
            self._loop.at(at_ns, WORKER_WAKES, worker.state.worker)

    def _commit(self, worker: SimulatedWorker, credit: Any) -> None:
        """Keep the shared credit that a worker's policy made; idle workers with queues decide again if it changed."""
        changed, self.credit = credit is not self.credit, credit
        if changed:
            for other in self.workers:
                if other.plan is None and other is not worker and other.state.queue:
                    self.wake(other)

    @property
    def known_credit(self) -> Any:
        """What is public of the shared credit; None if nothing is shared."""
        return None if self._sharing is None else self._sharing.snapshot(self.credit)

    # --- events -----------------------------------------------------------------------------------------------------

    def apply(self, worker: SimulatedWorker, step: transitions.Step) -> None:
        """Take a transition of a worker, and publish what happened."""
        state, events = step
        worker.become(state)
        if events:
            self.publish(worker, events)

    def publish(self, worker: SimulatedWorker, events: list[Event], decided: bool = False) -> None:
        """Tell the worker's policy and the listeners what happened, and then which requests ended.

        What the policy has `decided` itself, it has folded already.
        """
        policy_state, observe = worker.policy_state, self.policy.observe
        if self._sharing is not None:
            policy_state = self._sharing.checkout(policy_state, self.credit, worker.state.worker)
        over = False
        untold = self._folded if decided else self._ignored
        for event in events:
            kind = type(event)
            if kind not in untold:
                policy_state = observe(policy_state, event)
                if kind in ENDS:
                    over = True
        worker.policy_state = policy_state
        if self._sharing is not None:
            self._commit(worker, self._sharing.commit(self.credit, policy_state, worker.state.worker))
        for listener in self._listeners:
            listener(events)
        if over:
            for event in events:
                if isinstance(event, ENDS):
                    self.on_end(event.request_id, type(event) is Finished)

    # --- which workers take requests --------------------------------------------------------------------------------

    def enter(self, worker: SimulatedWorker, phase: WorkerPhase | None) -> None:
        """Let a worker join, drain or (None) be gone."""
        number = worker.state.worker
        self.cluster = (
            cluster.leave(self.cluster, number) if phase is None else cluster.enter(self.cluster, number, phase)
        )
        self._up = None

    def serves(self, worker: SimulatedWorker) -> bool:
        """Return whether a worker takes requests, once it is up."""
        return self.cluster.workers.get(worker.state.worker) == "serving"

    def take_down(self, worker: SimulatedWorker, until_ns: int) -> None:
        """Let a worker compute nothing until then."""
        worker.down_until_ns, self._up = max(worker.down_until_ns, until_ns), None
        worker.wake_scheduled = True
        self._loop.at(worker.down_until_ns, WORKER_WAKES, worker.state.worker)

    def takers(self, request: Request | None = None) -> list[SimulatedWorker]:
        """Return the serving workers: those that are up, all if none is; and that can hold the request, if any can."""
        takers = self._up
        if takers is None:
            serving = [self.workers[i] for i, phase in sorted(self.cluster.workers.items()) if phase == "serving"]
            takers = [worker for worker in serving if worker.down_until_ns <= self._loop.now_ns]
            if len(takers) == len(serving):
                self._up = takers  # until a worker changes
            takers = takers or serving
        if self._uneven and request is not None:
            takers = [worker for worker in takers if worker.state.fits_alone(request)] or takers
        return takers
