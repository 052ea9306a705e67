"""What one decision costs, beside the schedulers that a user would take instead.

    python benchmarks/decisions.py

Prints microseconds for DLPM, VTC, Preble's groups, orders that displace and admission by predictions at the sizes
named in each line, on warm states, and the ratio to published figures of SGLang's longest-prefix order (357 ms at
10,000 waiting) and of VTC's artifact (13.7 ms for a batch from 10,000 users), both measured by us on another 2-core
machine. `observe` is the mean over a mixed stream of events, or what an event of one kind costs.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import attrs
import msgspec
import numpy as np

from fairsched.model.events import Admitted, Arrived, Cached, ClientConfigured, Decoded, Event, Preempted
from fairsched.model.plan import StepPlan
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import WorkerState, transitions
from fairsched.policies.batching import RESERVES_BY, Chunked, Reserve
from fairsched.policies.catalog import (
    DLPM,
    FCFS,
    TRAIL,
    VTC,
    BatchLLM,
    FastServe,
    HybridBatchLLM,
    LearningToRank,
    Preble,
    TetriInferLocal,
)
from fairsched.policies.gates import AnyGate, DeficitGate, HierarchicalGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.local.queue import regrouped
from fairsched.policies.orders import QueuedRequest, ShortestRemaining
from fairsched.policies.orders.abilities import Regroups

TOOLS = 1_500
SHARED_TOKENS = 1_560
OWN_TOKENS = 280
SGLANG_LPM_US = 357_000
VTC_ARTIFACT_US = 13_700


def prompts(count: int, seed: int = 0) -> list[Prompt]:
    """Toolbench-like prompts: a tool's instructions, then the request's own tokens."""
    rng = np.random.default_rng(seed)
    tools = rng.integers(0, TOOLS, count)
    return [
        Prompt.from_keys(
            np.concatenate(
                [
                    np.arange(SHARED_TOKENS) + (int(tool) + 1) * 1_000_000,
                    np.arange(OWN_TOKENS) + (i + 1) * 10_000_000_000,
                ]
            )
        )
        for i, tool in enumerate(tools)
    ]


def loaded(policy: ComposedPolicy, waiting: int, clients: int) -> Any:
    """The policy's state with a warm cache and so many requests waiting."""
    state = policy.init()
    every = prompts(waiting + 4 * TOOLS)
    for i, prompt in enumerate(every[waiting:]):
        state = policy.observe(state, Cached(0, 0, waiting + i, prompt, prompt.blocks))
        state = msgspec.structs.replace(state, cache=state.cache.release(waiting + i))
    for i in range(waiting):
        state = policy.observe(state, Arrived(0, 0, Request(i, i % clients, 0, every[i], 64)))
    return state


def timed(call: Callable[[], object], repeat: int = 200) -> float:
    """Median microseconds of a call."""
    samples = []
    for _ in range(repeat):
        start = time.perf_counter_ns()
        call()
        samples.append(time.perf_counter_ns() - start)
    return statistics.median(samples) / 1e3


def line(what: str, us: float, beside: str = "") -> None:
    """One figure."""
    print(f"{what:<78}{us:>10.1f} us  {beside}")


def dlpm() -> None:
    """DLPM at 10,000 waiting and 1,000 clients."""
    policy = DLPM()
    state = loaded(policy, 10_000, 1_000)
    full = WorkerState(0, 132_000, promised=132_000).view(0)
    line("DLPM decide, nothing fits, 10,000 waiting, 1,000 clients", timed(lambda: policy.decide(state, full)))
    decoded = Decoded(0, 0, 1, tuple(range(0, 1_000, 10)), (1,) * 100)
    after = [policy.observe(state, decoded) for _ in range(100)]
    samples = iter(after)
    line("  the first call after 100 clients decoded", timed(lambda: policy.decide(next(samples), full), 100))
    view = WorkerState(0, 10_000_000).view(0)
    many = DLPM(batching=DLPM().batching.__class__(max_batched_tokens=1 << 21, max_running=32))
    plan, _ = many.decide(state, view)
    us = timed(lambda: many.decide(state, view), 30)
    line(f"DLPM admits {len(plan.admit)} of 10,000", us, f"SGLang's LPM order: {SGLANG_LPM_US / us:,.0f} times as long")


def preble() -> None:
    """Priority groups at 10,000 waiting; the order of the queue itself is SGLang's LPM's task."""
    state = loaded(Preble(), 10_000, 1_000)
    full = WorkerState(0, 132_000, promised=132_000).view(0)
    line("Preble decide, nothing fits, 10,000 waiting", timed(lambda: Preble().decide(state, full)))
    many = Preble(batching=Preble().batching.__class__(max_batched_tokens=1 << 21, max_running=32))
    view = WorkerState(0, 10_000_000).view(0)
    plan, _ = many.decide(state, view)
    us = timed(lambda: many.decide(state, view), 30)
    beside = f"SGLang's LPM order: {SGLANG_LPM_US / us:,.0f} times as long"
    line(f"Preble admits {len(plan.admit)} of 10,000", us, beside)


def _not_computed(queued: QueuedRequest) -> bool:
    return False


def batchllm(policy: ComposedPolicy) -> None:
    """Prefix groups at 10,000 waiting: making them, and a decision afterwards."""
    policy = attrs.evolve(policy, batching=Chunked(1 << 21, 32))
    state = loaded(policy, 10_000, 1_000)
    order, grouped = policy.order, policy.gate.grouped
    assert isinstance(order, Regroups)
    line(f"{policy.name} groups 10,000", timed(lambda: regrouped(state.queue, order, grouped, _not_computed), 5))
    state = msgspec.structs.replace(state, queue=regrouped(state.queue, order, grouped, _not_computed))
    full = WorkerState(0, 132_000, promised=132_000).view(0)
    line("  decide, nothing fits", timed(lambda: policy.decide(state, full)))
    view = WorkerState(0, 10_000_000).view(0)
    plan, _ = policy.decide(state, view)
    line(f"  admits {len(plan.admit)}", timed(lambda: policy.decide(state, view), 30))


def vtc() -> None:
    """VTC with 10,000 clients."""
    policy = VTC(batching=VTC().batching.__class__(max_batched_tokens=1 << 21, max_running=16))
    state = policy.init()
    for i in range(10_000):
        state = policy.observe(state, Arrived(0, 0, Request(i, i, 0, Prompt(100), 64)))
    view = WorkerState(0, 10_000_000).view(0)
    plan, _ = policy.decide(state, view)
    us = timed(lambda: policy.decide(state, view), 50)
    line(
        f"VTC admits {len(plan.admit)} of 10,000 clients",
        us,
        f"its artifact: {VTC_ARTIFACT_US / us:,.0f} times as long",
    )


def hierarchical(clients: int, gate: AnyGate) -> None:
    """So many clients in 100 organisations, each with two requests; the deficit gate takes no notice of those."""
    policy = FCFS(gate=gate, batching=Chunked(1 << 21, 32))
    state = policy.init()
    for i in range(clients):
        state = policy.observe(state, ClientConfigured(0, 0, i, 1, ((f"organisation-{i % 100}", 1),)))
    for i in range(2 * clients):
        state = policy.observe(state, Arrived(0, 0, Request(i, i % clients, 0, Prompt(100), 64)))
    full, view = WorkerState(0, 132_000, promised=132_000).view(0), WorkerState(0, 10_000_000).view(0)
    plan, after = policy.decide(state, view)
    of = f"{clients:,} clients"
    line(f"fcfs+{gate.name} decide, nothing fits, {of}", timed(lambda: policy.decide(after, full)))
    line("  the first time, when every client is to be refilled", timed(lambda: policy.decide(state, full)))
    line(f"  admits {len(plan.admit)}", timed(lambda: policy.decide(after, view), 50))
    decoded = Decoded(0, 0, 1, tuple(range(0, clients, clients // 100)), (1,) * 100)
    line("  observe, 100 clients decoded", timed(lambda: policy.observe(after, decoded)))


def displacing(policy: ComposedPolicy) -> None:
    """Time one decision with 256 requests that decode and 10,000 that wait, without and with a preemption."""
    policy = attrs.evolve(policy, batching=Chunked(1 << 21, 256, "optimistic"))
    state, worker = policy.init(), WorkerState(0, 10_000_000)
    rng = np.random.default_rng(2)
    outputs = [*rng.integers(1_000, 2_000, 256).tolist(), *rng.integers(2_001, 4_000, 10_000).tolist(), 100]
    for i, output in enumerate(outputs):
        if i in (256, len(outputs) - 1):
            for _ in range(2):
                plan, state = policy.decide(state, worker.view(0))
                worker, events = transitions.step(worker, plan, 0)
                state = _told(policy, state, events)
            line(f"{policy.name} decide, none enters, {i - 256:,} waiting", _decided(policy, state, worker)[0])
        request = Request(i, 0, 0, Prompt(100), 4_000, output)
        worker, events = transitions.arrive(worker, request, output, 0)
        state = _told(policy, state, events)
    us, plan = _decided(policy, state, worker)
    line(f"  {len(plan.preempt)} of 256 displaced, 10,001 waiting", us)
    arrived = Arrived(0, 0, Request(len(outputs), 0, 0, Prompt(100), 4_000, 50))
    line("  observe, an arrival", timed(lambda: policy.observe(state, arrived)))
    decoded = Decoded(0, 0, 1, (0,), (256,))
    line("  observe, a decode step", timed(lambda: policy.observe(state, decoded)))


def foreseeing(reserve: Reserve) -> None:
    """Time one decision in which some of 512 requests decode, and the others wait for memory."""
    policy = TetriInferLocal(batching=Chunked(1 << 21, 512, reserve))
    rng = np.random.default_rng(3)
    outputs = rng.integers(100, 1_000, 512).tolist()
    worker = WorkerState(0, 70_000)
    state = policy.init()
    for i, output in enumerate(outputs):
        request = Request(i, 0, 0, Prompt(100), output, output)
        worker, events = transitions.arrive(worker, request, output, 0)
        state = _told(policy, state, events)
        plan, state = policy.decide(state, worker.view(0))
        worker, events = transitions.step(worker, plan, 0)
        state = _told(policy, state, events)
    waits = len(worker.queue)
    line(f"tetriinfer decide, {reserve}, {len(worker.running)} run, {waits} wait", _decided(policy, state, worker)[0])


def _told(policy: ComposedPolicy, state: Any, events: list[Event]) -> Any:
    for event in events:
        if not isinstance(event, Admitted | Preempted):
            state = policy.observe(state, event)
    return state


def _decided(policy: ComposedPolicy, state: Any, worker: WorkerState) -> tuple[float, StepPlan]:
    view = worker.view(0)
    return timed(lambda: policy.decide(state, view)), policy.decide(state, view)[0]


def observing(clients: int) -> None:
    """Mean cost of an event: arrivals, and decode runs of 32 clients."""
    for policy in (DLPM(), VTC(), Preble()):
        rng = np.random.default_rng(1)
        made = prompts(2_000)
        events: list[Event] = []
        for i, prompt in enumerate(made):
            events.append(Arrived(0, 0, Request(i, int(rng.integers(clients)), 0, prompt, 64)))
        for _ in range(2_000):
            who = tuple(sorted({int(c) for c in rng.integers(0, clients, 32)}))
            events.append(Decoded(0, 0, 1, who, (1,) * len(who)))
        state = policy.observe(policy.init(), Arrived(0, 0, Request(1 << 30, clients - 1, 0, Prompt(10), 1)))
        start = time.perf_counter_ns()
        for event in events:
            state = policy.observe(state, event)
        us = (time.perf_counter_ns() - start) / 1e3 / len(events)
        line(f"{policy.name} observe, {clients:,} clients, arrivals and decode runs, mean", us)


if __name__ == "__main__":
    dlpm()
    preble()
    batchllm(BatchLLM())
    batchllm(HybridBatchLLM())
    vtc()
    for size in (1_000, 10_000):
        hierarchical(size, DeficitGate())
        hierarchical(size, HierarchicalGate())
    for each in (TRAIL(order=ShortestRemaining(100)), LearningToRank(), FastServe()):
        displacing(each)
    for rule in RESERVES_BY:
        foreseeing(rule)
    for size in (10, 1_000, 10_000):
        observing(size)
