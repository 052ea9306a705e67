"""A worker in time: its state, its policy's state, and the run of steps that it is in.

A worker whose batch only decodes leaps to the next instant at which anything can change.  The steps of a leap that are
over by some time can be told before its end, and a leap can be cut short after the step under way.
"""

from typing import Any, Literal

from msgspec.structs import replace

from fairsched.engines.changes import WorkerSpec
from fairsched.model import worker as transitions
from fairsched.model.events import Event
from fairsched.model.host import NO_HOST
from fairsched.model.plan import Migration, StepPlan
from fairsched.model.view import WorkerLoad
from fairsched.model.worker_state import WorkerState

Phase = Literal["absent", "serving", "draining"]


class Lane:
    """A worker in time.

    `plan` is what it executes for `steps` steps since `start_ns` (None: it is idle), `run` numbers these runs.  When
    the step under way is over, callers of `leaving` requests have given up, and `moving` ones go to other workers.
    """

    __slots__ = (
        "down_until_ns",
        "latency",
        "leaving",
        "loaded",
        "loaded_state",
        "moving",
        "phase",
        "plan",
        "policy_state",
        "run",
        "spec",
        "start_ns",
        "state",
        "steps",
        "waking",
    )

    def __init__(self, worker: int, spec: WorkerSpec, policy_state: Any) -> None:
        self.spec = spec
        self.latency = spec.latency
        self.state = self.empty(worker)
        self.policy_state = policy_state
        self.phase: Phase = "absent"
        self.plan: StepPlan | None = None
        self.start_ns = 0
        self.steps = 0
        self.run = 0
        self.waking = False
        self.leaving: list[int] = []
        self.loaded_state, self.loaded = self.state, self.state.load()
        self.moving: dict[int, Migration] = {}
        self.down_until_ns = 0

    def empty(self, worker: int) -> WorkerState:
        """A worker of this kind that has nothing."""
        return WorkerState(worker, self.spec.capacity, host=self.spec.host)

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs there."""
        return self.plan is None and not self.state.queue and not self.state.in_flight

    def load(self, now_ns: int) -> WorkerLoad:
        """What it reports now.  In the middle of a leap only outputs that grow into free memory have changed."""
        state = self.state
        if self.loaded_state is not state:
            self.loaded_state, self.loaded = state, state.load()
        load = self.loaded
        if not state.growing or self.steps < 2:
            return load
        grown = self._steps_over(now_ns) * state.growing
        return replace(load, kv_free_tokens=load.kv_free_tokens - grown)

    def start(self, plan: StepPlan, leap: bool, now_ns: int) -> int:
        """Execute a plan that has begun, for as many steps as it holds or for one; returns when they end.

        Transfers to and from the host go on beside what is computed; a step is over when both are.
        """
        state = self.state
        self.plan, self.start_ns = plan, now_ns
        self.run += 1
        if state.host is not NO_HOST and state.host.moves:
            return now_ns + max(self._step_ns(plan), self.spec.link.transfer_ns(state.host.moving_tokens))
        if plan.chunks:
            return now_ns + self._step_ns(plan)
        steps = 1
        if leap:
            steps, valid_steps = state.decode_steps_max(), plan.valid_steps
            if valid_steps is not None and valid_steps < steps:
                steps = valid_steps
        self.steps = steps
        return now_ns + self.latency.decode_run_ns(state.decoding, state.context, steps)

    def _step_ns(self, plan: StepPlan) -> int:
        """What one step computes takes so long."""
        self.steps, state = 1, self.state
        decoding = state.decoding if plan.decode else 0
        if not plan.chunks and not decoding:
            return 0
        return self.latency.step_ns(state.chunk_contexts(plan), decoding, state.context)

    def settle(self, now_ns: int) -> list[Event]:
        """What the steps of a leap that are over by now came to; it goes on."""
        if self.steps < 2:
            return []
        over = self._steps_over(now_ns)
        if not over:
            return []
        assert self.plan is not None
        state = self.state
        at_ns = self.start_ns + self.latency.decode_run_ns(state.decoding, state.context, over)
        self.state, events = transitions.finish(state, self.plan, over, at_ns)
        self.start_ns = at_ns
        self.steps -= over
        return events

    def cut(self) -> int:
        """A leap whose steps are settled ends with the step under way; returns when."""
        self.steps = 1
        self.run += 1
        return self.start_ns + self.latency.decode_run_ns(self.state.decoding, self.state.context, 1)

    def stop(self) -> None:
        """It executes nothing from now on; a step under way is void."""
        self.plan = None
        self.steps = 0
        self.run += 1

    def _steps_over(self, now_ns: int) -> int:
        """How many steps of a leap under way are complete by now."""
        return self.latency.decode_steps_within(self.state.decoding, self.state.context, now_ns - self.start_ns)
