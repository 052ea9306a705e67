"""A policy and a worker that execute each other's word, and states that are written and read.

And what an engine makes of a plan that it does not execute as it is.
"""

import json
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import msgspec
from msgspec.structs import replace

from fairsched.model import worker as transitions
from fairsched.model.decision import Admission, StepPlan
from fairsched.model.events import Admitted, Event, Paused, Preempted, Resumed, SwappedIn, SwappedOut, WorkerJoined
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.base import AnyClusterPolicy, AnyLocalPolicy

FOLDED = (Admitted, Paused, Preempted, Resumed, SwappedIn, SwappedOut)
"""What `decide` has folded already into the state that it returns."""


class WorkerPlay:
    """A local policy and its worker: requests arrive, and the worker executes what the policy decides."""

    def __init__(self, policy: AnyLocalPolicy, worker: WorkerState) -> None:
        self.policy = policy
        self.worker = worker
        self.state: Any = policy.init()

    def arrive(
        self, request: Request, output_tokens: int, now_ns: int, generated_tokens: int = 0, prefill_only: bool = False
    ) -> list[Event]:
        """Let a request arrive, with the tokens that it has from another worker; returns what happened."""
        came = (generated_tokens, prefill_only)
        return self.follow(transitions.arrive(self.worker, request, output_tokens, now_ns, *came))

    def decide(self, now_ns: int) -> StepPlan:
        """Return the policy's plan, in whose state it is from now on."""
        plan, self.state = self.policy.decide(self.state, self.worker.view(now_ns))
        return plan

    def execute(self, plan: StepPlan, now_ns: int, steps: int = 1, took_ns: int = 0) -> list[Event]:
        """Take so many steps of a plan that the policy decided; returns what happened."""
        begun = self.follow(transitions.begin(self.worker, plan, now_ns), decided=True)
        return begun + self.follow(transitions.finish(self.worker, plan, steps, now_ns + took_ns))

    def step(self, now_ns: int, took_ns: int = 0) -> list[Event]:
        """Decide, and take one step; returns what happened."""
        return self.execute(self.decide(now_ns), now_ns, took_ns=took_ns)

    def follow(self, done: transitions.Step, decided: bool = False) -> list[Event]:
        """Take over the worker after a transition; the policy observes its events, except those that it `decided`."""
        self.worker, events = done
        for event in events:
            if not (decided and isinstance(event, FOLDED)):
                self.state = self.policy.observe(self.state, event)
        return events


def differing_plans(policy: AnyLocalPolicy) -> str:
    """Return the first plan that two copies of a policy decide differently in the same small world; empty if none.

    Three clients flood a worker that holds three of their requests, one after the other for each copy: what one copy
    leaves behind outside its state, the other finds.
    """
    decided = []
    for _ in range(2):
        play, now_ns, plans = WorkerPlay(deepcopy(policy), WorkerState(0, 90)), 0, []
        play.follow((play.worker, [WorkerJoined(0, 0, 90)]))
        for number in range(24):
            prompt = Prompt.from_keys(range(number % 5 + 1, 4 + number % 7), tokens=12 + number % 9)
            play.arrive(Request(number, number % 3, now_ns, prompt, max_output_tokens=8), 1 + number % 8, now_ns)
            for _ in range(number % 3):
                now_ns += 1_000_000
                plans.append(play.decide(now_ns))
                play.execute(plans[-1], now_ns, took_ns=500_000)
        decided.append(plans)
    for step, (one, other) in enumerate(zip(*decided, strict=True)):
        if one != other:
            return f"in step {step} one copy decides {one} and another {other}"
    return ""


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


# --- disobedience -----------------------------------------------------------------------------------------------------


def misjudged(admissions: tuple[Admission, ...], more: int) -> tuple[Admission, ...]:
    """Return the admissions, the last of them for so many more tokens to compute, at least 1 and at most all."""
    last = admissions[-1]
    context = last.extend_tokens + last.cached_prefix_tokens
    planned = min(max(last.extend_tokens + more, 1), context)
    wrong = replace(last, extend_tokens=planned, cached_prefix_tokens=context - planned)
    return (*admissions[:-1], wrong)


CHANGES = (
    *("no-admissions", "not-the-first", "not-the-last", "half-chunks", "no-chunks"),
    *("no-swaps", "no-pauses", "idle"),
)
"""How `changed` may change a plan."""


def changed(plan: StepPlan, change: str) -> StepPlan:
    """Return the plan as an engine might change it."""
    if change == "idle":
        return StepPlan(plan.preempt, decode=False, swap_out=plan.swap_out)
    if change == "no-swaps":
        return replace(plan, preempt=plan.preempt + plan.swap_out, swap_out=(), swap_in=())
    if change == "no-pauses":
        return replace(plan, pause=(), resume=())
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
        pause=plan.pause,
        resume=plan.resume,
    )
