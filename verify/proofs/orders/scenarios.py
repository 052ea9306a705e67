"""Small worlds of one worker for claims about queues and preemption: who comes when, and what each step does."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import attrs
import hypothesis.strategies as st

from fairsched.model.decision import Host, StepPlan
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState
from fairsched.policies.local import AnyLocalState, ComposedPolicy
from fairsched.verify.conformance import WorkerPlay, admitted

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


def arrivals(most: int) -> st.SearchStrategy[list[int]]:
    """Return how many requests come in each step: up to three, or as many in all of them, up to `most`."""
    steady = st.builds(lambda each, steps: [each] * steps, st.integers(1, most), st.integers(1, 40))
    return st.lists(st.integers(0, 3), min_size=1, max_size=40) | steady


def overtakers(
    policy: ComposedPolicy,
    capacity: int,
    coming: list[int],
    request: Callable[[int, int], Request],
    number: int = 0,
) -> tuple[int, int, int]:
    """Return who is let in before the one of this number, the longest queue, and how many came in all.

    A step takes a second, and one request is served in it; `request` makes them by their number and time in ns.
    Number 0 comes first of all.
    """
    play = WorkerPlay(policy, WorkerState(0, capacity))
    longest = came = before = 0
    for step, count in enumerate(coming):
        now_ns = step * 10**9
        for _ in range(count + (step == 0)):
            play.arrive(request(came, now_ns), 1, now_ns)
            came += 1
        longest = max(longest, len(play.worker.queue))
        entered = admitted(play.step(now_ns))
        if number in entered:
            break
        before += len(entered)
    return before, longest, came


SPARE_TOKENS = 2
"""What is declared beyond the output."""


@attrs.frozen
class ScenarioStep:
    """One step: the state and the worker before it, the plan, the state after the decision, and the worker at its
    end."""

    before: AnyLocalState
    worker: WorkerState
    plan: StepPlan
    decided: AnyLocalState
    after: WorkerState


def _predicted(number: int, row: list[int], now_ns: int) -> Request:
    _, prompt, output, predicted = row
    return Request(number, 0, now_ns, Prompt(prompt), output + SPARE_TOKENS, predicted)


def steps(
    policy: ComposedPolicy, w: SimpleNamespace, request: Callable[[int, list[int], int], Request] = _predicted
) -> Iterator[ScenarioStep]:
    """Yield the world's steps, until every request is served.  With the world's `seats`, and few tokens a step, and
    with as much host memory as it says; `request` makes them by number, row and time in ns."""
    policy = attrs.evolve(policy, batching=attrs.evolve(policy.batching, max_running=w.seats, max_batched_tokens=6))
    play, now = WorkerPlay(policy, WorkerState(0, w.capacity, host=Host(getattr(w, "host", 0)))), 0
    coming, due = list(enumerate(w.rows)), 0
    most = 40 * sum(prompt + output for _, prompt, output, *_ in w.rows) + sum(gap for gap, *_ in w.rows)
    while coming or play.worker.queue or play.worker.running:
        if now > most:
            left = f"{sorted(play.worker.queue)} wait, {sorted(play.worker.running)} run"
            raise RuntimeError(f"requests are never served: {left}")
        while coming and coming[0][1][0] + due <= now:
            i, row = coming.pop(0)
            due += row[0]
            play.arrive(request(i, row, now), row[2], now)
        before, worker = play.state, play.worker
        plan = play.decide(now)
        decided = play.state
        play.execute(plan, now, took_ns=1)
        yield ScenarioStep(before, worker, plan, decided, play.worker)
        now += 1
