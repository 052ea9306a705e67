"""What every local policy must do, as one Hypothesis state machine that plays a worker against it.

The machine lets requests of several clients come, alone and in bursts, run and be given up on a worker so small that
memory always binds; floods it with one client's requests, fills its cache with prompts that share nothing, lets outputs
end early, lets it fail and come back, lets weights change, refuses plans, and claims:

- **Pure.**  `decide` changes nothing that it is given, and the same state and view give the same plan and state, at
  once and many steps later.
- **Folded.**  The state that `decide` returns is the one that observing the plan's admissions and preemptions gives,
  so an engine that changed the plan can drop it and tell what it really did.
- **Feasible.**  The worker can execute every plan, and the policy knew how much each admission had to compute.
- **Leaps are steps.**  Within `valid_steps`, one run of decode steps ends in the same states as single steps do, and
  nothing was decided in between.
- **Kept.**  A state survives JSON, and goes on as if nothing had happened.
- **Served.**  Every step computes something as long as there is something to do; every request ends once.
- **Held.**  For as long as a gate says that its choice holds, or a plan that its chunks are computed again, decisions
  made anew after each step choose the same.
- **As promised.**  Every assumption of the gate's theorems holds, but for those that its configuration gives up and
  those that the machine itself breaks; so no client is let in that the gate does not.  No two clients that wait are
  ever further apart in service than promised, and no client that waits is further behind any other; Hypothesis looks
  for the runs that come closest to these bounds.

A policy author calls `check_local_policy(MyPolicy())`.
"""

import sys
from typing import Any, get_args

import attrs
import msgspec
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis import target
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairsched.model import theorem as th
from fairsched.model import worker as transitions
from fairsched.model.decision import Admission, Host, StepPlan, WorkerView
from fairsched.model.events import Cancelled, ClientConfigured, Event, Finished, Rejected, Settled, WorkerJoined
from fairsched.model.monitor import Monitor
from fairsched.model.request import Client, Request
from fairsched.model.worker import InfeasiblePlanError, WorkerState, violations
from fairsched.policies.base import AnyLocalPolicy, Explains, WaitReason
from fairsched.policies.local import AnyLocalState, LocalState
from fairsched.verify.conformance import worker_invariants
from fairsched.verify.conformance.event_invariants import EventLedger
from fairsched.verify.conformance.gate_holds import check_holds
from fairsched.verify.conformance.play import CHANGES, FOLDED, WorkerPlay, changed, encoded, misjudged, restored
from fairsched.verify.conformance.strategies import ADAPTERS, SAVED_MAX, TARGETS, arrivals, run_battery

OUTPUT_TOKENS_MAX = 12
"""Longest output that a request of the machine declares."""
DISOBEYED = (th.GATE_RESPECTED, th.PAUSES_OBEYED, th.BATCH_BOUNDED)
"""What only an engine breaks."""
PAST_GATE = (*DISOBEYED, th.CAPPED, th.OUTPUTS_BOUNDED)
"""What an engine may break that admits what the policy had not let in."""
MISJUDGED = (th.EXTEND_AS_PLANNED, th.NOTHING_REFUNDED)
"""What it may break by admissions for more or less than there is to compute."""


@attrs.frozen
class World:
    """The worker that the machine plays: prompts of up to six blocks of `block_tokens`, and room for
    `capacity_blocks` (least, most) of them and a few tokens; so many requests `came` before, and are over."""

    block_tokens: int = 1
    capacity_blocks: tuple[int, int] = (7, 20)
    clients: int = 4
    came: int = 0


def check_local_policy(
    policy: AnyLocalPolicy, world: World | None = None, settings: hypothesis_settings | None = None
) -> None:
    """Play the whole battery against a policy; raises what it finds, after the shortest way there was printed.

    `settings` says how many runs of how many steps (default: the Hypothesis profile that is loaded, 100 of 50 unless it
    says otherwise; `strategies` has two).  No run is judged by the time that it takes.
    """
    name = f"Conformance[{type(policy).__name__}]"
    run_battery(type(name, (PolicyMachine,), {"policy": policy, "world": world or World()}), settings)


class PolicyMachine(RuleBasedStateMachine):
    """One worker, one policy, all that is said between them, and whatever may happen to them."""

    policy: AnyLocalPolicy
    world: World

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.ledger = EventLedger()
        self.requests: dict[int, Request] = {}
        self.alive: set[int] = set()
        self.saved: list[tuple[Any, WorkerView, StepPlan, bytes]] = []
        self.worker = WorkerState(0, 2)
        self.state: Any = None
        self.monitor: Monitor | None = None
        self.excused: set[str] = set()
        """Assumptions that the policy gives up, or that the machine may have broken so far."""
        self.shares: dict[str, float] = {}
        """The largest gap and lag over their bounds, until a weight changed or a client passed the gate by."""
        self.reweighted = False

    @initialize(
        share=st.integers(0, 1_000),
        tail=st.integers(0, 2),
        host=st.sampled_from([0, 1, 3]),
        slots=st.sampled_from([0, 0, 1, 2]),
    )
    def _open(self, share: int, tail: int, host: int, slots: int) -> None:
        """Open an empty worker, perhaps with host memory or slots for adapters, and what the policy promises to clients
        of weight 1."""
        least, most = self.world.capacity_blocks
        blocks = least + share * (most - least) // 1_000
        capacity = blocks * self.world.block_tokens + 2 + tail
        self.worker = WorkerState(0, capacity, host=Host(host * capacity), adapter_slots=slots)
        self.state = self._opened()
        clients = tuple(Client(i, str(i)) for i in range(self.world.clients))
        limits = attrs.evolve(self.policy.guarantee.limits(capacity, OUTPUT_TOKENS_MAX), slots_lack=bool(slots))
        promise = self.policy.guarantee.promise(clients, limits)
        if promise is not None:
            self.monitor = Monitor(promise, self.policy.guarantee.gate_monitor())
            self.excused = {assumption.name for assumption, _ in promise.defects()}
        self.tell(WorkerJoined(0, 0, capacity, host * capacity, adapter_slots=slots))

    def _opened(self) -> Any:
        state = self.policy.init()
        if not self.world.came:
            return state
        assert isinstance(state, LocalState)
        return msgspec.structs.replace(state, queue=msgspec.structs.replace(state.queue, arrivals=self.world.came))

    # --- who comes --------------------------------------------------------------------------------------------------

    @rule(
        drawn=st.runner().flatmap(lambda m: arrivals(m.world.clients, m.world.block_tokens, OUTPUT_TOKENS_MAX)),
        early=st.integers(0, 3),
    )
    def arrive(self, drawn: list[Request], early: int) -> None:
        """Let requests come at one instant, some with predictions or targets; those that never fit are turned away."""
        for request in drawn:
            number = len(self.requests)
            request = msgspec.structs.replace(
                request,
                id=number,
                arrival_ns=self.now_ns,
                predicted_output_tokens=1 + number * early % OUTPUT_TOKENS_MAX if early else None,
                priority=(number + early) % 3,
                slo=TARGETS[(number + early) % len(TARGETS)],
                adapter=ADAPTERS[(number + early) % len(ADAPTERS)] if self.worker.adapter_slots else msgspec.UNSET,
            )
            output_tokens = max(request.max_output_tokens - early, 1)
            self.requests[request.id] = request
            refusal = self.policy.refuses(request)
            if refusal is not None:
                self.tell(Rejected(self.now_ns, 0, request.id, request.client, refusal))
                continue
            self.alive.add(request.id)
            self.follow(transitions.arrive(self.worker, request, output_tokens, self.now_ns))

    # --- what the worker does ---------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        """Execute the policy's plan at the worker, a few times."""
        for _ in range(count):
            self.finish(self.begin_decided()[0], 1)
            self.check()

    @rule(patience=st.integers(1, 8), wish=st.integers(2, 12))
    def leap(self, patience: int, wish: int) -> None:
        """Leap as soon as the worker only decodes; taking the steps one by one comes to the same."""
        for _ in range(patience):
            plan, events = self.begin_decided()
            steps = min(wish, self.leap_max(plan, events))
            self.finish_checked(plan, steps)
            if steps > 1:
                return

    @precondition(lambda m: m.worker.decoding)
    @rule(index=st.integers(0, 99))
    def stop(self, index: int) -> None:
        """End an output earlier than was foreseen, between two steps."""
        decoding = sorted(i for i, flight in self.worker.in_flight.items() if flight.clock_start is not None)
        self.follow(transitions.stop(self.worker, decoding[index % len(decoding)], self.now_ns))

    @rule(begun=st.booleans())
    def fail(self, begun: bool) -> None:
        """Lose the worker's memory, perhaps in the middle of a step: every request waits again, and none is lost."""
        if begun:
            self.begin_decided()
        before = self.worker
        self.follow(transitions.lose(before, self.now_ns))
        worker_invariants.check_lost(before, self.worker)

    # --- what others do ---------------------------------------------------------------------------------------------

    @precondition(lambda m: m.alive)
    @rule(index=st.integers(0, 99))
    def cancel(self, index: int) -> None:
        """Give up a waiting or running request, between two steps."""
        self.excuse(th.NOTHING_REFUNDED)
        request_id = sorted(self.alive)[index % len(self.alive)]
        self.follow(transitions.cancel(self.worker, request_id, self.now_ns))

    @rule(index=st.integers(0, 99), weight=st.integers(1, 4))
    def configure(self, index: int, weight: int) -> None:
        """Change a client's weight, whether it was seen before or not."""
        self.tell(ClientConfigured(self.now_ns, 0, index % (self.world.clients + 1), weight))

    @rule(change=st.sampled_from(CHANGES))
    def refuse(self, change: str) -> None:
        """Let the engine change the plan: the decided state is dropped, and the policy is told what happened
        instead."""
        self.excuse(*PAST_GATE)
        plan, _ = self.decide()
        if not self.attempt(changed(plan, change)):
            # Dropping an admission may take away a prefix that others counted on: then the engine does nothing.
            assert self.attempt(StepPlan(decode=False))

    @precondition(lambda m: m.worker.decoding)
    @rule(index=st.integers(0, 99), decode=st.booleans())
    def pause_past_policy(self, index: int, decode: bool) -> None:
        """Let a guard pause a request of its own choice; the policy lets it go on in its time."""
        decoding = sorted(i for i, flight in self.worker.in_flight.items() if flight.decodes)
        self.attempt(StepPlan(pause=(decoding[index % len(decoding)],), decode=decode))

    @precondition(lambda m: m.worker.running)
    @rule(index=st.integers(0, 99))
    def swap_past_policy(self, index: int) -> None:
        """Let an engine swap out any requests, as far as host memory goes; the policy lets it in again."""
        chosen = sorted(self.worker.running)[index % len(self.worker.running)]
        self.attempt(StepPlan(swap_out=(chosen,), decode=False))

    @precondition(lambda m: m.worker.queue)
    @rule(index=st.integers(0, 99), honest=st.booleans())
    def admit_past_policy(self, index: int, honest: bool) -> None:
        """Let a guard's fallback admit a request of its own choice, perhaps counting on no cached prefix."""
        self.excuse(*PAST_GATE, *([] if honest else MISJUDGED))
        request_id = sorted(self.worker.queue)[index % len(self.worker.queue)]
        waiting = self.worker.queue[request_id]
        request = waiting.request
        context = request.prompt.tokens + waiting.generated_tokens
        cached = self.worker.cache.cached_tokens(request.prompt)
        planned = cached if honest else 0
        reserved = request.max_output_tokens - waiting.generated_tokens
        admission = Admission(request_id, request.client, context - planned, planned, reserved)
        self.attempt(StepPlan((), (admission,), ((request_id, context - cached),), decode=False), honest)

    @precondition(lambda m: m.worker.queue)
    @rule(more=st.integers(-3, 3).filter(bool))
    def misjudge(self, more: int) -> None:
        """Execute the plan, and misjudge how much its last admission computes, which settles."""
        self.excuse(*MISJUDGED)
        plan, _ = self.decide()
        if plan.admit:
            self.attempt(msgspec.structs.replace(plan, admit=misjudged(plan.admit, more)), honest=False)

    @precondition(lambda m: m.saved)
    @rule(index=st.integers(0, SAVED_MAX - 1))
    def look_back(self, index: int) -> None:
        """Decide again from an old state what it decided then, and write and read the newest one."""
        state, view, plan, decided = self.saved[index % len(self.saved)]
        again, decided_again = self.policy.decide(state, view)
        assert again == plan
        assert self.encoded(decided_again) == decided
        self.restart()

    # --- always -----------------------------------------------------------------------------------------------------

    @invariant()
    def sound(self) -> None:
        """Check what is true between any two of these."""
        if self.state is not None:
            self.check()

    def teardown(self) -> None:
        """Serve whatever is left; how close the run came to the policy's bound is what Hypothesis maximises."""
        if self.state is None or sys.exc_info()[0] is not None:
            return
        self.serve()
        for kind, share in self.shares.items():
            target(share, label=f"service {kind} over its bound")

    # --- between two exchanges --------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that the policy's state and the worker's hold together, and speak of the same requests and the same
        cache."""
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
        """Check that what the policy claims to hold holds, and the bounds that follow from it."""
        report = monitor.report()
        for name, finding in report.violated().items():
            assert name in self.excused, (name, finding)
        assert report.unexplained is None, report.unexplained
        if not self.reweighted and not any(report.assumptions[each.name].violated for each in DISOBEYED):
            for kind, largest, bound in (("gap", report.gap, report.gap_bound), ("lag", report.lag, report.lag_bound)):
                if largest is not None and bound:
                    self.shares[kind] = largest.cost / bound

    def excuse(self, *assumptions: th.Assumption) -> None:
        """Excuse these assumptions, which the machine may break from now on."""
        self.excused.update(assumption.name for assumption in assumptions)

    def restart(self) -> None:
        """Write and read the state, and go on."""
        read = restored(self.policy, self.state)
        view = self.worker.view(self.now_ns)
        plan, decided = self.policy.decide(self.state, view)
        again, decided_again = self.policy.decide(read, view)
        assert again == plan
        assert self.encoded(decided_again) == self.encoded(decided)
        self.state = read

    def serve(self) -> None:
        """Serve whatever is left, and compute something in every step of that.

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
            assert plan.preempt or plan.pause or computes, (
                f"requests {sorted(self.alive)} are left and the plan computes nothing: {plan}"
            )
            self.finish_checked(plan, self.leap_max(plan, events))
        self.check()
        self.ledger.check_over(self.requests)

    # --- exchanges --------------------------------------------------------------------------------------------------

    def encoded(self, state: Any) -> bytes:
        """Return a state as bytes that are equal exactly when the states are."""
        return encoded(self.policy, state)

    def same(self, one: Any, other: Any) -> bool:
        return one is other or self.encoded(one) == self.encoded(other)

    def tell(self, *events: Event, decided: bool = False) -> None:
        """Tell the policy events, except those it has folded."""
        for event in events:
            self.ledger.record(event)
            if self.monitor is not None:
                self.monitor.observe(event)
            if isinstance(event, Finished | Cancelled | Rejected):
                self.alive.discard(event.request_id)
            elif isinstance(event, ClientConfigured):
                self.reweighted = True
                self.excuse(th.EQUAL_QUANTA)
            if not (decided and isinstance(event, FOLDED)):
                self.state = self.policy.observe(self.state, event)

    def follow(self, done: transitions.Step) -> None:
        """Take over the worker after a transition; the policy learns its events."""
        self.worker, events = done
        self.tell(*events)

    def attempt(self, plan: StepPlan, honest: bool = True) -> bool:
        """Take one step of a plan that the policy did not decide, if the worker can; returns whether it could."""
        try:
            events = self.begin(plan, honest)
        except InfeasiblePlanError:
            return False
        self.tell(*events)
        self.finish(plan, 1)
        return True

    def decide(self) -> tuple[StepPlan, Any]:
        """Return the policy's decision, made twice."""
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
            assert plan.changes_batch or after == before
            check_holds(self.policy, self.worker, self.state, plan, self.now_ns)
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
        """Begin a plan at the worker, or raise `InfeasiblePlanError`, as it must if the view speaks against it.

        Of a plan that is not `honest` about what is cached the view cannot tell.
        """
        refused = violations(plan, self.worker.view(self.now_ns))
        self.worker, events = transitions.begin(self.worker, plan, self.now_ns)
        assert not (honest and refused), f"the worker executed {plan} in spite of {refused}"
        return events

    def finish(self, plan: StepPlan, steps: int) -> None:
        """Compute `steps` steps of a plan that has begun."""
        self.now_ns += steps
        self.follow(transitions.finish(self.worker, plan, steps, self.now_ns))

    def finish_checked(self, plan: StepPlan, steps: int) -> None:
        """Finish the same; and single steps come to the same states."""
        if steps == 1:
            self.finish(plan, 1)
            return
        worker, state = self._stepped(plan, steps)
        self.finish(plan, steps)
        assert worker == self.worker
        assert self.same(state, self.state)

    def leap_max(self, plan: StepPlan, events: list[Event]) -> int:
        """Return the longest leap that plan and worker allow; 1 if more than decoding happens, or an eviction did."""
        if events or plan.chunks or not plan.decode or not self.worker.decoding:
            return 1
        limit = self.worker.decode_steps_max()
        return limit if plan.valid_steps is None else min(limit, plan.valid_steps)

    def _stepped(self, plan: StepPlan, steps: int) -> tuple[WorkerState, Any]:
        """Return what becomes of worker and state in single steps, in which nothing new may be decided."""
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
