"""What a live engine adds to a policy: the time of a step in policy, guard and books, and of a budget's thread.

The executor computes nothing, so everything that is timed is the scheduler's.  100 clients, 1,000 requests waiting,
prompts of 64 shared and 64 own tokens, batches of up to 64 requests.
"""

import gc
import time
from collections.abc import Sequence
from typing import Any

import attrs
from prometheus_client import CollectorRegistry

from fairsched.engines.serving import Engine, Sampling
from fairsched.engines.serving.guard import guard
from fairsched.engines.serving.guard.advisor import Advisor
from fairsched.engines.serving.metrics import EngineMetrics
from fairsched.engines.serving.status import monitor_of
from fairsched.model.decision import StepPlan, WorkerView
from fairsched.model.events import Event
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM, FCFS, VTC

CLIENTS, WAITING, REQUESTS, OUTPUT = 100, 1_000, 3_000, 64


class Nothing:
    """An executor whose tokens cost nothing: it keeps count of who decodes."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.engine: Engine | None = None

    def submit(
        self, request_id: int, prompt_ids: Sequence[int], sampling: Sampling, generated: Sequence[int] = ()
    ) -> None: ...

    def follow(self, events: Sequence[Event]) -> None: ...

    def execute(self, plan: StepPlan) -> dict[int, int]:
        assert self.engine is not None
        flights = self.engine.state.in_flight
        done = {i: 0 for i, n in plan.chunks if flights[i].remaining_tokens == n}
        return {**({i: 0 for i, f in flights.items() if f.clock_start is not None} if plan.decode else {}), **done}

    def close(self) -> None: ...


class Timed(Advisor):
    """Times a policy inside its guard."""

    spent_ns = 0

    def entrust(self, policy: Any) -> None:
        """Time this policy's decisions."""
        super().entrust(policy)
        self.policy = Timely(policy)


@attrs.frozen
class Timely:
    """A policy, and the time of its decisions."""

    policy: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def decide(self, state: Any, view: WorkerView) -> tuple[StepPlan, Any]:
        """Decide, and add up the time."""
        start = time.perf_counter_ns()
        try:
            decided: tuple[StepPlan, Any] = self.policy.decide(state, view)
            return decided
        finally:
            Timed.spent_ns += time.perf_counter_ns() - start


class Mine(DLPM):
    """A policy that does not come with fairsched, and so is asked in a thread."""


def run(policy: Any, budget_ns: int | None = None, watched: bool = False) -> tuple[float, float, float, float]:
    """Microseconds a step: policy, guard, books, all but the executor."""
    executor, Timed.spent_ns = Nothing(), 0
    guard.Advisor = Timed  # type: ignore[attr-defined]
    engine = Engine(policy, executor, kv_capacity_tokens=65_536, fallback=FCFS(), decision_budget_ns=budget_ns)
    executor.engine = engine
    if watched:
        EngineMetrics(CollectorRegistry()).watch(engine, monitor_of(policy, 65_536, OUTPUT))
    sent = 0
    while sent < REQUESTS or engine.answers:
        while sent < REQUESTS and len(engine.state.queue) < WAITING:
            client = sent * 7919 % CLIENTS
            engine.ask(f"client-{client}", [client] * 64 + [sent] * 64, OUTPUT)
            sent += 1
        engine.step()
    assert not engine.guard.interventions
    engine.close()
    times, steps = engine.times, engine.times.steps * 1e3
    own = times.decide_ns + times.books_ns
    return Timed.spent_ns / steps, (times.decide_ns - Timed.spent_ns) / steps, times.books_ns / steps, own / steps


def main() -> None:
    """Print the table."""
    print(f"{'':24}{'policy':>10}{'guard':>10}{'books':>10}{'all':>10}   us a step")
    batching = Chunked(2048, 64)
    for name, options in (
        ("fcfs", {"policy": FCFS(batching=batching)}),
        ("vtc", {"policy": VTC(batching=batching)}),
        ("dlpm", {"policy": DLPM(batching=batching)}),
        ("dlpm, budget", {"policy": DLPM(batching=batching), "budget_ns": 10**9}),
        ("of one's own, budget", {"policy": Mine(batching=batching), "budget_ns": 10**9}),
        ("dlpm, metrics+monitor", {"policy": DLPM(batching=batching), "watched": True}),
    ):
        gc.collect()
        best = min((run(**options) for _ in range(3)), key=lambda row: row[3])
        print(f"{name:24}" + "".join(f"{value:10.1f}" for value in best))


if __name__ == "__main__":
    main()
