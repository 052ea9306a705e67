"""A policy and a worker that execute each other's word, where every exchange between them is a claim.

`Play` holds both, and whatever must be true of each transition is asserted as it happens.  What happens, and in which
order, is up to `fairsched.verify.conformance.local`.
"""

import json
from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from fairsched.model import worker as transitions
from fairsched.model.events import (
    Admitted,
    Cancelled,
    Event,
    Finished,
    Preempted,
    Rejected,
    Settled,
    SwappedIn,
    SwappedOut,
)
from fairsched.model.monitor import Monitor
from fairsched.model.plan import StepPlan
from fairsched.model.request import Client, Request
from fairsched.model.theorem import EXTEND_AS_PLANNED, GATE_RESPECTED
from fairsched.model.view import Host, WorkerView
from fairsched.model.worker import InfeasiblePlanError, WorkerState, violations
from fairsched.policies.base import AnyClusterPolicy, AnyLocalPolicy, Explains, WaitReason
from fairsched.policies.local import AnyLocalState, LocalState
from fairsched.verify.conformance import worker_invariants
from fairsched.verify.conformance.event_invariants import Ledger

FOLDED = (Admitted, Preempted, SwappedIn, SwappedOut)
"""What `decide` has folded already into the state that it returns."""
SAVED_MAX = 4
"""How many old states are kept, to decide again from them."""
EXCUSES = (GATE_RESPECTED.name, EXTEND_AS_PLANNED.name)
"""What only an engine can break, by admitting what the policy had not let in, or for less than there was to compute."""


class WorkerPlay:
    """A local policy and its worker: requests arrive, and the worker executes what the policy decides."""

    def __init__(self, policy: AnyLocalPolicy, worker: WorkerState) -> None:
        self.policy = policy
        self.worker = worker
        self.state: Any = policy.init()

    def arrive(self, request: Request, output_tokens: int, now_ns: int, *known: int) -> list[Event]:
        """A request arrives, with the generated tokens and the KV that are `known` of it; returns what happened."""
        return self.follow(transitions.arrive(self.worker, request, output_tokens, now_ns, *known))

    def decide(self, now_ns: int) -> StepPlan:
        """Return the policy's plan, in whose state it is from now on."""
        plan, self.state = self.policy.decide(self.state, self.worker.view(now_ns))
        return plan

    def execute(self, plan: StepPlan, now_ns: int, steps: int = 1, took_ns: int = 0) -> list[Event]:
        """The worker takes so many steps of a plan that the policy decided; returns what happened."""
        begun = self.follow(transitions.begin(self.worker, plan, now_ns), decided=True)
        return begun + self.follow(transitions.finish(self.worker, plan, steps, now_ns + took_ns))

    def step(self, now_ns: int, took_ns: int = 0) -> list[Event]:
        """The policy decides and the worker takes one step; returns what happened."""
        return self.execute(self.decide(now_ns), now_ns, took_ns=took_ns)

    def follow(self, done: transitions.Step, decided: bool = False) -> list[Event]:
        """Take over the worker after a transition; the policy observes its events, except those that it `decided`."""
        self.worker, events = done
        for event in events:
            if not (decided and isinstance(event, FOLDED)):
                self.state = self.policy.observe(self.state, event)
        return events


def admitted(events: Iterable[Event]) -> list[int]:
    """Return the requests that are admitted in these events, in order."""
    return [event.request_id for event in events if isinstance(event, Admitted)]


def encoded(policy: AnyLocalPolicy | AnyClusterPolicy, state: Any) -> bytes:
    """Return a state as bytes that are equal exactly when the states are."""
    return msgspec.json.encode(policy.state_to_json(state))


def restored(policy: AnyLocalPolicy | AnyClusterPolicy, state: Any) -> Any:
    """Return the state after it was written and read; the same, as far as one can write it."""
    read = policy.state_from_json(json.loads(json.dumps(policy.state_to_json(state))))
    assert encoded(policy, read) == encoded(policy, state), "a state was read as another"
    return read


class Play:
    """One worker, one policy, and all that was said between them."""

    policy: AnyLocalPolicy

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.ledger = Ledger()
        self.requests: dict[int, Request] = {}
        self.alive: set[int] = set()
        self.saved: list[tuple[Any, WorkerView, StepPlan, bytes]] = []
        self.worker = WorkerState(0, 2)
        self.state: Any = None
        self.monitor: Monitor | None = None
        self.obeyed = True
        """Whether the engine did all that the policy decided, and nothing else."""
        self.gap_share: float | None = None
        """The largest service gap over its bound, until a weight changed or a client passed the gate by."""
        self.reweighted = False

    def open(self, capacity: int, clients: int, output_tokens_max: int, host_tokens: int = 0) -> None:
        """An empty worker with so much host memory, and the policy's promise to clients of weight 1 if it makes one."""
        self.worker = WorkerState(0, capacity, host=Host(host_tokens))
        self.state = self.policy.init()
        all_clients = tuple(Client(i, str(i)) for i in range(clients))
        promise = self.policy.guarantee.promise(all_clients, self.policy.guarantee.limits(capacity, output_tokens_max))
        if promise is not None:
            self.monitor = Monitor(promise, self.policy.guarantee.gate_monitor())

    # --- between two exchanges --------------------------------------------------------------------------------------

    def check(self) -> None:
        """The policy's state and the worker's hold together, and speak of the same requests and the same cache."""
        self.policy.check(self.state)
        worker_invariants.check(self.worker)
        assert set(self.worker.queue) | set(self.worker.running) == self.alive
        if isinstance(self.state, LocalState):
            self._check_copy(self.state)
        if self.monitor is not None:
            self._check_promise(self.monitor)

    def _check_copy(self, state: AnyLocalState) -> None:
        assert set(state.queue.entries) == set(self.worker.queue)
        assert set(state.flights) == set(self.worker.running)
        for i, waiting in self.worker.queue.items():
            assert state.queue.entries[i].generated_tokens == waiting.generated_tokens
        worker_invariants.check_copy(state.cache, self.worker.cache)

    def _check_promise(self, monitor: Monitor) -> None:
        """A request that is let in was let in by the gate, and no two clients that wait are further apart than
        promised."""
        report = monitor.report()
        broken = [name for name in EXCUSES if report.assumptions[name].violated]
        assert not (self.obeyed and broken), report.assumptions[broken[0]]
        assert broken or not report.gap_violations, report.first_gap
        if report.gap is not None and report.gap_bound and not broken and not self.reweighted:
            self.gap_share = report.gap.cost / report.gap_bound

    def restart(self) -> None:
        """The state is written and read, and goes on."""
        read = restored(self.policy, self.state)
        view = self.worker.view(self.now_ns)
        plan, decided = self.policy.decide(self.state, view)
        again, decided_again = self.policy.decide(read, view)
        assert again == plan
        assert self.encoded(decided_again) == self.encoded(decided)
        self.state = read

    def serve(self) -> None:
        """Whatever is left is served, and every step of that computes something.

        Only the first decision is held to all that `begin_decided` asks, since there may be many.
        """
        begin = self.begin_decided
        budget = 20 * sum(r.prompt.tokens + r.max_output_tokens for r in self.requests.values())
        while self.alive:
            budget -= 1
            assert budget >= 0, f"requests {sorted(self.alive)} are still there after very many steps"
            plan, events = begin()
            begin = self._begin_unchecked
            computes = plan.chunks or (plan.decode and self.worker.decoding) or self.worker.host.moves
            assert plan.preempt or computes, (
                f"requests {sorted(self.alive)} are left and the plan computes nothing: {plan}"
            )
            self.finish_checked(plan, self.leap_max(plan, events))
        self.check()
        self.ledger.check_over(self.requests)

    # --- exchanges --------------------------------------------------------------------------------------------------

    def encoded(self, state: Any) -> bytes:
        """A state as bytes that are equal exactly when the states are."""
        return encoded(self.policy, state)

    def same(self, one: Any, other: Any) -> bool:
        """Whether two states are equal."""
        return one is other or self.encoded(one) == self.encoded(other)

    def tell(self, *events: Event, decided: bool = False) -> None:
        """The policy learns events, except those it has folded."""
        for event in events:
            self.ledger.record(event)
            if self.monitor is not None:
                self.monitor.observe(event)
            if isinstance(event, Finished | Cancelled | Rejected):
                self.alive.discard(event.request_id)
            if not (decided and isinstance(event, FOLDED)):
                self.state = self.policy.observe(self.state, event)

    def follow(self, done: transitions.Step) -> None:
        """Take over the worker after a transition; the policy learns its events."""
        self.worker, events = done
        self.tell(*events)

    def attempt(self, plan: StepPlan, honest: bool = True) -> bool:
        """The worker takes one step of a plan that the policy did not decide, if it can; returns whether it could."""
        try:
            events = self.begin(plan, honest)
        except InfeasiblePlanError:
            return False
        self.tell(*events)
        self.finish(plan, 1)
        return True

    def decide(self) -> tuple[StepPlan, Any]:
        """The policy's decision, made twice."""
        view = self.worker.view(self.now_ns)
        before = self.encoded(self.state)
        plan, decided = self.policy.decide(self.state, view)
        after = before if decided is self.state else self.encoded(decided)
        again, decided_again = self.policy.decide(self.state, view)
        assert again == plan
        assert self.encoded(decided_again) == after
        assert not violations(plan, view)
        # Nothing that was given has changed.
        assert self.encoded(self.state) == before
        assert view == self.worker.view(self.now_ns)
        if not plan.admit:
            if isinstance(self.policy, Explains):
                for request_id in self.worker.queue:
                    assert self.policy.wait_reason(self.state, view, request_id) in get_args(WaitReason)
            # A decision that changes no batch changes no state either.
            assert plan.preempt or plan.swap_out or after == before
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
        assert self.same(old, decided)
        return plan, events

    def _begin_unchecked(self) -> tuple[StepPlan, list[Event]]:
        plan, decided = self.policy.decide(self.state, self.worker.view(self.now_ns))
        return plan, self._execute(plan, decided)

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
        self.follow(transitions.finish(self.worker, plan, steps, self.now_ns))

    def finish_checked(self, plan: StepPlan, steps: int) -> None:
        """The same; and single steps come to the same states."""
        if steps == 1:
            self.finish(plan, 1)
            return
        worker, state = self._stepped(plan, steps)
        self.finish(plan, steps)
        assert worker == self.worker
        assert self.same(state, self.state)

    def leap_max(self, plan: StepPlan, events: list[Event]) -> int:
        """The longest leap that plan and worker allow; 1 if more than decoding happens, or an eviction did."""
        if events or plan.chunks or not plan.decode or not self.worker.decoding:
            return 1
        limit = self.worker.decode_steps_max()
        return limit if plan.valid_steps is None else min(limit, plan.valid_steps)

    def _stepped(self, plan: StepPlan, steps: int) -> tuple[WorkerState, Any]:
        """What becomes of worker and state in single steps, in which nothing new may be decided."""
        single, now_ns = WorkerPlay(self.policy, self.worker), self.now_ns
        single.state = self.state
        for k in range(steps):
            if k:
                again, decided = self.policy.decide(single.state, single.worker.view(now_ns))
                assert again.decode == plan.decode
                new = again.changes_batch or again.chunks
                assert not new, f"step {k} of {steps} wants {again}"
                assert self.same(decided, single.state)
                assert not single.follow(transitions.begin(single.worker, again, now_ns))
            now_ns += 1
            single.follow(transitions.finish(single.worker, plan, 1, now_ns))
        return single.worker, single.state
