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
- **As promised.**  A policy with a gate lets no client in that the gate does not, and no two clients that wait are ever
  further apart in service than it promises; Hypothesis looks for the runs that come closest to that bound.

A policy author calls `check_local_policy(MyPolicy())`.
"""

import sys

import attrs
import msgspec
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis import target
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairsched.model import worker as transitions
from fairsched.model.events import ClientConfigured, Rejected, WorkerJoined
from fairsched.model.plan import Admission, StepPlan
from fairsched.model.request import Request
from fairsched.policies.base import AnyLocalPolicy
from fairsched.verify.conformance import worker_invariants
from fairsched.verify.conformance.play import SAVED_MAX, Play
from fairsched.verify.conformance.strategies import bursts, requests, run_battery

OUTPUT_TOKENS_MAX = 12
"""Longest output that a request of the machine declares."""
KEYS_MANY = 1 << 20
"""So many keys that two prompts hardly share one."""


@attrs.frozen
class World:
    """The worker that the machine plays: prompts of up to six blocks of `block_tokens`, and room for
    `capacity_blocks` (least, most) of them and a few tokens."""

    block_tokens: int = 1
    capacity_blocks: tuple[int, int] = (7, 20)
    clients: int = 4


def check_local_policy(
    policy: AnyLocalPolicy, world: World | None = None, settings: hypothesis_settings | None = None
) -> None:
    """Play the whole battery against a policy; raises what it finds, after the shortest way there was printed.

    `settings` says how many runs of how many steps (default: the Hypothesis profile that is loaded, 100 of 50 unless it
    says otherwise; `strategies` has two).  No run is judged by the time that it takes.
    """
    name = f"Conformance[{type(policy).__name__}]"
    run_battery(type(name, (PolicyMachine,), {"policy": policy, "world": world or World()}), settings)


def arrivals(world: World) -> st.SearchStrategy[list[Request]]:
    """Who comes at once: a few, many short requests of one client, or a few whose prompts share nothing with others, so
    that whatever is cached must go."""
    some = requests(0, 0, world.clients, world.block_tokens, output_tokens_max=OUTPUT_TOKENS_MAX)
    alone = requests(0, 0, world.clients, world.block_tokens, output_tokens_max=2, keys_max=KEYS_MANY)
    flood = bursts(world.clients, world.block_tokens, blocks_max=2, output_tokens_max=3, count=(6, 9))
    return st.one_of(st.lists(some, min_size=2, max_size=6), flood, st.lists(alone, min_size=2, max_size=5))


class PolicyMachine(Play, RuleBasedStateMachine):
    """One worker, one policy, and whatever may happen to them."""

    world: World

    @initialize(share=st.integers(0, 1_000), tail=st.integers(0, 2), host=st.sampled_from([0, 1, 3]))
    def _open(self, share: int, tail: int, host: int) -> None:
        least, most = self.world.capacity_blocks
        blocks = least + share * (most - least) // 1_000
        capacity = blocks * self.world.block_tokens + 2 + tail
        self.open(capacity, self.world.clients, OUTPUT_TOKENS_MAX, host * capacity)
        self.tell(WorkerJoined(0, 0, capacity, host * capacity))

    # --- who comes --------------------------------------------------------------------------------------------------

    @rule(drawn=st.runner().flatmap(lambda m: arrivals(m.world)), early=st.integers(0, 3))
    def arrive(self, drawn: list[Request], early: int) -> None:
        """Requests come at one instant, some with predictions; those that could never be served are turned away."""
        for request in drawn:
            number = len(self.requests)
            request = msgspec.structs.replace(
                request,
                id=number,
                arrival_ns=self.now_ns,
                predicted_output_tokens=1 + number * early % OUTPUT_TOKENS_MAX if early else None,
                priority=(number + early) % 3,
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
        """The worker executes the policy's plan, a few times."""
        for _ in range(count):
            self.finish(self.begin_decided()[0], 1)
            self.check()

    @rule(patience=st.integers(1, 8), wish=st.integers(2, 12))
    def leap(self, patience: int, wish: int) -> None:
        """As soon as it only decodes, the worker leaps; taking the steps one by one comes to the same."""
        for _ in range(patience):
            plan, events = self.begin_decided()
            steps = min(wish, self.leap_max(plan, events))
            self.finish_checked(plan, steps)
            if steps > 1:
                return

    @precondition(lambda m: m.worker.decoding)
    @rule(index=st.integers(0, 99))
    def stop(self, index: int) -> None:
        """An output ends earlier than was foreseen, between two steps."""
        decoding = sorted(i for i, flight in self.worker.in_flight.items() if flight.clock_start is not None)
        self.follow(transitions.stop(self.worker, decoding[index % len(decoding)], self.now_ns))

    @rule(begun=st.booleans())
    def fail(self, begun: bool) -> None:
        """The worker loses its memory, perhaps in the middle of a step: every request waits again, and none is lost."""
        if begun:
            self.begin_decided()
        before = self.worker
        self.follow(transitions.lose(before, self.now_ns))
        worker_invariants.check_lost(before, self.worker)

    # --- what others do ---------------------------------------------------------------------------------------------

    @precondition(lambda m: m.alive)
    @rule(index=st.integers(0, 99))
    def cancel(self, index: int) -> None:
        """A caller gives up on a waiting or running request, between two steps."""
        request_id = sorted(self.alive)[index % len(self.alive)]
        self.follow(transitions.cancel(self.worker, request_id, self.now_ns))

    @rule(client=st.integers(0, 4), weight=st.integers(1, 4))
    def configure(self, client: int, weight: int) -> None:
        """A client's weight changes, whether it was seen before or not."""
        self.reweighted = True
        self.tell(ClientConfigured(self.now_ns, 0, client, weight))

    @rule(
        change=st.sampled_from(
            ["no-admissions", "not-the-first", "not-the-last", "half-chunks", "no-chunks", "no-swaps", "idle"]
        )
    )
    def refuse(self, change: str) -> None:
        """The engine changes the plan: the decided state is dropped, and the policy is told what happened instead."""
        self.obeyed = False
        plan, _ = self.decide()
        if not self.attempt(changed(plan, change)):
            # Dropping an admission may take away a prefix that others counted on: then the engine does nothing.
            assert self.attempt(StepPlan(decode=False))

    @precondition(lambda m: m.worker.running)
    @rule(index=st.integers(0, 99))
    def swap_past_policy(self, index: int) -> None:
        """An engine swaps out whom it likes, as far as host memory goes; the policy lets it in again."""
        chosen = sorted(self.worker.running)[index % len(self.worker.running)]
        self.attempt(StepPlan(swap_out=(chosen,), decode=False))

    @precondition(lambda m: m.worker.queue)
    @rule(index=st.integers(0, 99), honest=st.booleans())
    def admit_past_policy(self, index: int, honest: bool) -> None:
        """A guard's fallback admits a request of its own choice, perhaps counting on no cached prefix."""
        self.obeyed = False
        request_id = sorted(self.worker.queue)[index % len(self.worker.queue)]
        waiting = self.worker.queue[request_id]
        request = waiting.request
        context = request.prompt.tokens + waiting.generated_tokens
        cached = self.worker.cache.cached_tokens(request.prompt)
        planned = cached if honest else 0
        reserved = request.max_output_tokens - waiting.generated_tokens
        admission = Admission(request_id, request.client, context - planned, planned, reserved)
        self.attempt(StepPlan((), (admission,), ((request_id, context - cached),), decode=False), honest)

    @precondition(lambda m: m.saved)
    @rule(index=st.integers(0, SAVED_MAX - 1))
    def look_back(self, index: int) -> None:
        """An old state decides again what it decided then, and the newest one is written and read."""
        state, view, plan, decided = self.saved[index % len(self.saved)]
        again, decided_again = self.policy.decide(state, view)
        assert again == plan
        assert self.encoded(decided_again) == decided
        self.restart()

    # --- always -----------------------------------------------------------------------------------------------------

    @invariant()
    def sound(self) -> None:
        """What is true between any two of these."""
        if self.state is not None:
            self.check()

    def teardown(self) -> None:
        """Whatever is left is served; how close the run came to the policy's bound is what Hypothesis maximises."""
        if self.state is None or sys.exc_info()[0] is not None:
            return
        self.serve()
        if self.gap_share is not None:
            target(self.gap_share, label="service gap over its bound")


def changed(plan: StepPlan, change: str) -> StepPlan:
    """The plan as an engine might change it."""
    if change == "idle":
        return StepPlan(plan.preempt, decode=False, swap_out=plan.swap_out)
    if change == "no-swaps":
        return msgspec.structs.replace(plan, preempt=plan.preempt + plan.swap_out, swap_out=(), swap_in=())
    dropped = {"no-admissions": plan.admit, "not-the-first": plan.admit[:1], "not-the-last": plan.admit[-1:]}
    gone = {admission.request_id for admission in dropped.get(change, ())}
    halves = tuple((i, (tokens + 1) // 2) for i, tokens in plan.chunks)
    chunks = {"half-chunks": halves, "no-chunks": ()}.get(change, plan.chunks)
    return StepPlan(
        plan.preempt,
        tuple(admission for admission in plan.admit if admission.request_id not in gone),
        tuple(chunk for chunk in chunks if chunk[0] not in gone),
        plan.decode,
        swap_out=plan.swap_out,
        swap_in=tuple(request_id for request_id in plan.swap_in if request_id not in gone),
    )
