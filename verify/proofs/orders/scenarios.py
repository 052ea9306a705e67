"""Small worlds of one worker for claims about queues and preemption: who comes when, and what each step does."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import attrs
import hypothesis.strategies as st

from fairsched.model import worker as transitions
from fairsched.model.events import Admitted, Preempted
from fairsched.model.host import Host
from fairsched.model.plan import StepPlan
from fairsched.model.request import Prompt, Request
from fairsched.model.worker_state import WorkerState
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.local_state import LocalState

WORLDS = st.fixed_dictionaries(
    {
        "capacity": st.integers(22, 45),
        "seats": st.integers(1, 3),
        "rows": st.lists(
            st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 10), st.integers(1, 12)).map(list),
            min_size=2,
            max_size=12,
        ),
    }
)
"""Requests as (steps after the one before, prompt, output, predicted output)."""


SPARE_TOKENS = 2
"""What is declared beyond the output."""


@attrs.frozen
class Step:
    """One step: the state and the worker before it, the plan, the state after the decision, and the worker at its
    end."""

    before: LocalState[Any]
    worker: WorkerState
    plan: StepPlan
    decided: LocalState[Any]
    after: WorkerState


def steps(policy: ComposedPolicy, w: SimpleNamespace) -> Iterator[Step]:
    """The world's steps, until everybody is served.  With the world's `seats`, and few tokens a step, and with as much
    host memory as it says."""
    policy = attrs.evolve(policy, batching=attrs.evolve(policy.batching, max_running=w.seats, max_batched_tokens=6))
    state, worker, now = policy.init(), WorkerState(0, w.capacity, host=Host(getattr(w, "host", 0))), 0
    coming, due = list(enumerate(w.rows)), 0
    most = 40 * sum(prompt + output for _, prompt, output, _ in w.rows) + sum(gap for gap, *_ in w.rows)
    while coming or worker.queue or worker.running:
        if now > most:
            raise RuntimeError(f"somebody is never served: {sorted(worker.queue)} wait, {sorted(worker.running)} run")
        while coming and coming[0][1][0] + due <= now:
            i, (gap, prompt, output, predicted) = coming.pop(0)
            due += gap
            request = Request(i, 0, now, Prompt(prompt), output + SPARE_TOKENS, predicted)
            worker, events = transitions.arrive(worker, request, output, now)
            for event in events:
                state = policy.observe(state, event)
        plan, decided = policy.decide(state, worker.view(now))
        begun, events = transitions.begin(worker, plan, now)
        ended, done = transitions.finish(begun, plan, 1, now + 1)
        yield Step(state, worker, plan, decided, ended)
        state = decided
        for event in (*events, *done):
            if not isinstance(event, Admitted | Preempted):
                state = policy.observe(state, event)
        worker, now = ended, now + 1
