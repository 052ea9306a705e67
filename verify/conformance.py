"""What every local policy must do, as one Hypothesis state machine that plays a worker against it.

The machine lets requests of several clients come, run and be given up on a worker so small that memory always binds,
lets weights change, refuses plans, and claims:

- **Pure.**  `decide` changes nothing that it is given, and the same state and view give the same plan and state, at
  once and many steps later.
- **Folded.**  The state that `decide` returns is the one that observing the plan's admissions and preemptions gives,
  so an engine that changed the plan can drop it and tell what it really did.
- **Feasible.**  The worker can execute every plan, and the policy knew how much each admission had to compute.
- **Leaps are steps.**  Within `valid_steps`, one run of decode steps ends in the same states as single steps do, and
  nothing was decided in between.
- **Kept.**  A state survives JSON, and goes on as if nothing had happened.
- **Served.**  Every step computes something as long as there is something to do; every request ends once.

A policy author calls `check_local_policy(MyPolicy())`.
"""

import json
import sys
from typing import Any, get_args

import attrs
import msgspec
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fairsched.model import worker as transitions
from fairsched.model.events import (
    Admitted,
    Cancelled,
    ClientConfigured,
    Event,
    Finished,
    Preempted,
    Rejected,
    Settled,
    WorkerJoined,
)
from fairsched.model.feasible import violations
from fairsched.model.plan import Admission, StepPlan
from fairsched.model.request import Request
from fairsched.model.view import WorkerView
from fairsched.model.worker import InfeasiblePlanError
from fairsched.model.worker_state import WorkerState
from fairsched.policies.base import LocalPolicy, WaitingFor
from fairsched.policies.local_state import LocalState
from fairsched.verify import worker_invariants
from fairsched.verify.event_invariants import Ledger
from fairsched.verify.strategies import requests

FOLDED = (Admitted, Preempted)
"""What `decide` has folded already into the state that it returns."""
SAVED_MAX = 4
"""How many old states are kept, to decide again from them."""


@attrs.frozen
class World:
    """The worker that the machine plays: prompts of up to six blocks of `block_tokens`, and room for
    `capacity_blocks` (least, most) of them and a few tokens."""

    block_tokens: int = 1
    capacity_blocks: tuple[int, int] = (7, 20)
    clients: int = 4


def machine(policy: LocalPolicy[Any], world: World | None = None) -> type["PolicyMachine"]:
    """The state machine of a policy, for those who want to run it their own way."""
    name = f"Conformance[{type(policy).__name__}]"
    return type(name, (PolicyMachine,), {"policy": policy, "world": world or World()})


def check_local_policy(
    policy: LocalPolicy[Any], world: World | None = None, settings: hypothesis_settings | None = None
) -> None:
    """Play the whole battery against a policy; raises what it finds, after the shortest way there was printed."""
    run_state_machine_as_test(machine(policy, world), settings=settings)


class PolicyMachine(RuleBasedStateMachine):
    """One worker, one policy, and whatever may happen to them."""

    policy: LocalPolicy[Any]
    world: World

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.ledger = Ledger()
        self.requests: dict[int, Request] = {}
        self.alive: set[int] = set()
        self.saved: list[tuple[Any, WorkerView, StepPlan, bytes]] = []
        self.worker = WorkerState(0, 2)
        self.state: Any = None

    # --- what happens -----------------------------------------------------------------------------------------------

    @initialize(share=st.integers(0, 1_000), tail=st.integers(0, 2))
    def _open(self, share: int, tail: int) -> None:
        least, most = self.world.capacity_blocks
        blocks = least + share * (most - least) // 1_000
        self.worker = WorkerState(0, blocks * self.world.block_tokens + 2 + tail)
        self.state = self.policy.init()
        self.tell(WorkerJoined(0, 0, self.worker.capacity))

    @rule(
        drawn=st.runner().flatmap(
            lambda m: st.lists(
                requests(0, 0, m.world.clients, m.world.block_tokens, output_tokens_max=12), min_size=2, max_size=6
            )
        ),
        early=st.integers(0, 3),
    )
    def arrive(self, drawn: list[Request], early: int) -> None:
        """Requests come at one instant; those that could never be served are turned away."""
        for request in drawn:
            request = msgspec.structs.replace(request, id=len(self.requests), arrival_ns=self.now_ns)
            output_tokens = max(request.max_output_tokens - early, 1)
            self.requests[request.id] = request
            refusal = self.policy.refuses(request)
            if refusal is not None:
                self.tell(Rejected(self.now_ns, 0, request.id, request.client, refusal))
                continue
            self.worker, events = transitions.arrive(self.worker, request, output_tokens, self.now_ns)
            self.alive.add(request.id)
            self.tell(*events)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        """The worker executes the policy's plan, a few times."""
        for _ in range(count):
            self.finish(self.begin_decided()[0], 1)
            self.sound()

    @rule(patience=st.integers(1, 8), wish=st.integers(2, 12))
    def leap(self, patience: int, wish: int) -> None:
        """As soon as it only decodes, the worker leaps; taking the steps one by one comes to the same."""
        for _ in range(patience):
            plan, events = self.begin_decided()
            steps = min(wish, self._leap_max(plan, events))
            self.finish_checked(plan, steps)
            if steps > 1:
                return

    @precondition(lambda m: m.alive)
    @rule(index=st.integers(0, 99))
    def cancel(self, index: int) -> None:
        """A caller gives up on a waiting or running request, between two steps."""
        request_id = sorted(self.alive)[index % len(self.alive)]
        self.worker, events = transitions.cancel(self.worker, request_id, self.now_ns)
        self.tell(*events)

    @rule(client=st.integers(0, 4), weight=st.integers(1, 4))
    def configure(self, client: int, weight: int) -> None:
        """A client's weight changes, whether it was seen before or not."""
        self.tell(ClientConfigured(self.now_ns, 0, client, weight))

    @rule(
        change=st.sampled_from(["no-admissions", "not-the-first", "not-the-last", "half-chunks", "no-chunks", "idle"])
    )
    def refuse(self, change: str) -> None:
        """The engine changes the plan: the decided state is dropped, and the policy is told what happened instead."""
        plan, _ = self.decide()
        plan = changed(plan, change)
        try:
            events = self.begin(plan)
        except InfeasiblePlanError:
            # Dropping an admission may take away a prefix that others counted on: then the engine does nothing.
            plan = StepPlan(decode=False)
            events = self.begin(plan)
        self.tell(*events)
        self.finish(plan, 1)

    @precondition(lambda m: m.worker.queue)
    @rule(index=st.integers(0, 99), honest=st.booleans())
    def admit_past_policy(self, index: int, honest: bool) -> None:
        """A guard's fallback admits a request of its own choice, perhaps counting on no cached prefix."""
        request_id = sorted(self.worker.queue)[index % len(self.worker.queue)]
        waiting = self.worker.queue[request_id]
        request = waiting.request
        context = request.prompt.tokens + waiting.generated_tokens
        cached = self.worker.cache.cached_tokens(request.prompt)
        planned = cached if honest else 0
        reserved = request.max_output_tokens - waiting.generated_tokens
        admission = Admission(request_id, request.client, context - planned, planned, reserved)
        plan = StepPlan((), (admission,), ((request_id, context - cached),), decode=False)
        try:
            events = self.begin(plan, honest)
        except InfeasiblePlanError:
            return
        self.tell(*events)
        self.finish(plan, 1)

    @precondition(lambda m: m.saved)
    @rule(index=st.integers(0, SAVED_MAX - 1))
    def look_back(self, index: int) -> None:
        """An old state decides again what it decided then, and the newest one is written and read."""
        state, view, plan, decided = self.saved[index % len(self.saved)]
        again, decided_again = self.policy.decide(state, view)
        assert again == plan
        assert self.encoded(decided_again) == decided
        self.restart()

    def restart(self) -> None:
        """The state is written and read, and goes on."""
        document = json.loads(json.dumps(self.policy.state_to_json(self.state)))
        restored = self.policy.state_from_json(document)
        assert self.encoded(restored) == self.encoded(self.state)
        view = self.worker.view(self.now_ns)
        plan, decided = self.policy.decide(self.state, view)
        again, decided_again = self.policy.decide(restored, view)
        assert again == plan
        assert self.encoded(decided_again) == self.encoded(decided)
        self.state = restored

    # --- what is claimed --------------------------------------------------------------------------------------------

    @invariant()
    def sound(self) -> None:
        """The policy's state and the worker's hold together, and speak of the same requests and the same cache."""
        if self.state is None:
            return
        self.policy.check(self.state)
        worker_invariants.check(self.worker)
        assert set(self.worker.queue) | set(self.worker.running) == self.alive
        if isinstance(self.state, LocalState):
            self._check_copy(self.state)

    def _check_copy(self, state: LocalState[Any]) -> None:
        assert set(state.waiting.entries) == set(self.worker.queue)
        assert set(state.flights) == set(self.worker.running)
        for i, waiting in self.worker.queue.items():
            assert state.waiting.entries[i].generated_tokens == waiting.generated_tokens
        worker_invariants.check_copy(state.cache, self.worker.cache)

    def teardown(self) -> None:
        """Whatever is left is served, and every step of that computes something."""
        if self.state is None or sys.exc_info()[0] is not None:
            return
        budget = 20 * sum(r.prompt.tokens + r.max_output_tokens for r in self.requests.values())
        while self.alive:
            budget -= 1
            assert budget >= 0, f"requests {sorted(self.alive)} are still there after very many steps"
            plan, decided = self.policy.decide(self.state, self.worker.view(self.now_ns))
            events = self._execute(plan, decided)
            assert plan.preempt or plan.chunks or (plan.decode and self.worker.decoding), (
                f"requests {sorted(self.alive)} are left and the plan computes nothing: {plan}"
            )
            self.finish_checked(plan, self._leap_max(plan, events))
        self.sound()
        self.ledger.check_over(self.requests)

    # --- how --------------------------------------------------------------------------------------------------------

    def encoded(self, state: Any) -> bytes:
        """A state as bytes that are equal exactly when the states are."""
        return msgspec.json.encode(self.policy.state_to_json(state))

    def tell(self, *events: Event, decided: bool = False) -> None:
        """The policy learns events, except those it has folded."""
        for event in events:
            self.ledger.record(event)
            if isinstance(event, Finished | Cancelled | Rejected):
                self.alive.discard(event.request_id)
            if not (decided and isinstance(event, FOLDED)):
                self.state = self.policy.observe(self.state, event)

    def decide(self) -> tuple[StepPlan, Any]:
        """The policy's decision, made twice."""
        view = self.worker.view(self.now_ns)
        before = self.encoded(self.state)
        plan, decided = self.policy.decide(self.state, view)
        after = self.encoded(decided)
        again, decided_again = self.policy.decide(self.state, view)
        assert again == plan
        assert self.encoded(decided_again) == after
        assert not violations(plan, view)
        # Nothing that was given has changed.
        assert self.encoded(self.state) == before
        assert view == self.worker.view(self.now_ns)
        if not plan.admit:
            for request_id in self.worker.queue:
                assert self.policy.waiting_for(self.state, view, request_id) in get_args(WaitingFor)
            # A decision that changes no batch changes no state either.
            assert plan.preempt or after == before
        self.saved = [*self.saved[1 - SAVED_MAX :], (self.state, view, plan, after)]
        return plan, decided

    def begin_decided(self) -> tuple[StepPlan, list[Event]]:
        """Decide and execute the whole plan up to its computation; the folded state is the told one."""
        old = self.state
        plan, decided = self.decide()
        events = self._execute(plan, decided)
        for event in events:
            if isinstance(event, FOLDED):
                old = self.policy.observe(old, event)
        assert self.encoded(old) == self.encoded(decided)
        return plan, events

    def _execute(self, plan: StepPlan, decided: Any) -> list[Event]:
        events = self.begin(plan)
        # The policy knew what each admission would have to compute.
        assert not any(isinstance(event, Settled) for event in events)
        self.state = decided
        self.tell(*events, decided=True)
        return events

    def begin(self, plan: StepPlan, honest: bool = True) -> list[Event]:
        """The worker begins a plan, or raises `InfeasiblePlanError`, as it must if the view speaks against it.

        Of a plan that is not `honest` about what is cached the view cannot tell.
        """
        refused = violations(plan, self.worker.view(self.now_ns))
        self.worker, events = transitions.begin(self.worker, plan, self.now_ns)
        assert not (honest and refused), f"the worker executed {plan} in spite of {refused}"
        return events

    def finish(self, plan: StepPlan, steps: int) -> None:
        """The worker computes `steps` steps of a plan that has begun."""
        self.now_ns += steps
        self.worker, events = transitions.finish(self.worker, plan, steps, self.now_ns)
        self.tell(*events)

    def finish_checked(self, plan: StepPlan, steps: int) -> None:
        """The same; and single steps come to the same states."""
        if steps == 1:
            self.finish(plan, 1)
            return
        worker, state = self._stepped(plan, steps)
        self.finish(plan, steps)
        assert worker == self.worker
        assert self.encoded(state) == self.encoded(self.state)

    def _leap_max(self, plan: StepPlan, events: list[Event]) -> int:
        """The longest leap that plan and worker allow; 1 if more than decoding happens, or an eviction did."""
        if events or plan.chunks or not plan.decode or not self.worker.decoding:
            return 1
        limit = self.worker.decode_steps_max()
        return limit if plan.valid_steps is None else min(limit, plan.valid_steps)

    def _stepped(self, plan: StepPlan, steps: int) -> tuple[WorkerState, Any]:
        """What becomes of worker and state in single steps, in which nothing new may be decided."""
        worker, state, now_ns = self.worker, self.state, self.now_ns
        for k in range(steps):
            if k:
                again, decided = self.policy.decide(state, worker.view(now_ns))
                assert again.decode == plan.decode
                new = again.preempt or again.admit or again.chunks
                assert not new, f"step {k} of {steps} wants {again}"
                assert self.encoded(decided) == self.encoded(state)
                worker, begun = transitions.begin(worker, again, now_ns)
                assert not begun
            now_ns += 1
            worker, events = transitions.finish(worker, plan, 1, now_ns)
            for event in events:
                state = self.policy.observe(state, event)
        return worker, state


def changed(plan: StepPlan, change: str) -> StepPlan:
    """The plan as an engine might change it."""
    gone: set[int] = set()
    chunks = plan.chunks
    if change == "idle":
        return StepPlan(plan.preempt, decode=False)
    if change == "no-admissions":
        gone = {admission.request_id for admission in plan.admit}
    elif change == "not-the-first":
        gone = {admission.request_id for admission in plan.admit[:1]}
    elif change == "not-the-last":
        gone = {admission.request_id for admission in plan.admit[-1:]}
    elif change == "half-chunks":
        chunks = tuple((i, (tokens + 1) // 2) for i, tokens in chunks)
    else:
        chunks = ()
    return StepPlan(
        plan.preempt,
        tuple(admission for admission in plan.admit if admission.request_id not in gone),
        tuple(chunk for chunk in chunks if chunk[0] not in gone),
        plan.decode,
    )
