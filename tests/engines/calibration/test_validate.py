"""The real engine and the simulator are measured alike: where steps take what the model says, nothing differs."""

import attrs
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from fairsched.engines.calibration import Fidelity, with_slo
from fairsched.engines.calibration.drive import Clock, tokens_of
from fairsched.engines.calibration.validation import (
    START_NS,
    TooFewRequestsError,
    capacity_rps,
    figures,
    real_run,
    slowed,
    typical_slo,
)
from fairsched.engines.simulation import simulate_events
from fairsched.engines.workloads import at_rate
from fairsched.model.events import Arrived, Prefilled
from fairsched.model.machine import DecodePiece, LatencyModel
from fairsched.model.request import Client, Job, Prompt, Request, Slo, Workload
from fairsched.policies.catalog import FCFS
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import LOCAL_POLICIES, with_parameters
from fairsched.policies.routers import RoundRobin
from fairsched.verify.conformance.strategies import workloads
from tests.support.engines.fake_executor import VOCABULARY
from tests.support.engines.fake_time import FakeClock, PricedExecutor
from tests.support.logs import LATENCY

CALIBRATED = attrs.evolve(
    LATENCY,
    name="calibrated",
    prefill_attention_ps=700,
    decode=(DecodePiece(1, 10, 1, 2), DecodePiece(3, 5, 2, 7)),
)
"""A model that uses every coefficient."""

CAPACITY = 40


@st.composite
def policies(draw: st.DrawFn) -> ComposedPolicy:
    """Orders without a gate, with budgets small enough to matter.

    To a gate it matters whether an arrival in the middle of a step is noted then, as in the simulator, or when the step
    is over, as an engine must: what a client missed while it was away is lifted from what the others had then.
    """
    params = {
        "batching": draw(st.sampled_from(["chunked", "iteration-level", "eager-prefill", "request-level"])),
        "reserve": draw(st.sampled_from(["static", "optimistic"])),
        "max_batched_tokens": str(draw(st.sampled_from([3, 8, 64]))),
        "max_running": str(draw(st.sampled_from([2, 16]))),
    }
    order = draw(st.sampled_from(["fcfs", "lpm", "shortest-prompt"]))
    return with_parameters(LOCAL_POLICIES[order], params)


class GuardedError(Exception):
    """The guard had to decide, and a simulator has none."""


def held(workload: Workload, policy: ComposedPolicy, latency: LatencyModel, slower: float = 1.0) -> Fidelity:
    """A policy simulated, and run on an engine whose steps take `slower` times what the model says."""
    events = simulate_events(workload, policy, RoundRobin(), latency, kv_capacity_tokens=CAPACITY)
    clock = FakeClock()

    def start() -> Clock:
        return clock

    executor = PricedExecutor(clock, latency, lambda: slower)
    ids = tokens_of(workload, VOCABULARY)
    run, engine = real_run(workload, policy, latency, executor, start, ids, kv_capacity_tokens=CAPACITY)
    if engine.guard.interventions:
        raise GuardedError
    as_fast = slowed(latency, 1 / (1 + run.step_bias))
    at_speed = simulate_events(workload, policy, RoundRobin(), as_fast, kv_capacity_tokens=CAPACITY)
    return Fidelity(policy.name, None, None, 1.0, figures(workload, events), (figures(workload, at_speed),), (run,))


def jobs(*rows: tuple[int, int, int]) -> Workload:
    """Requests of one client: when they come, and the tokens of their prompts and outputs."""
    made = [Job(Request(i, 0, at, Prompt(prompt), output), output) for i, (at, prompt, output) in enumerate(rows)]
    return Workload("by hand", tuple(made), (Client(0, "a"),))


@given(workloads(span_ns=400), policies(), st.sampled_from([LATENCY, CALIBRATED]))
@settings(max_examples=20)
def test_an_engine_that_keeps_to_the_model_has_no_error(
    workload: Workload, policy: ComposedPolicy, latency: LatencyModel
) -> None:
    """Whatever the workload (followers, callers who give up, shared prefixes), order and batching rule, on a clock on
    which each step takes exactly the model's time, real and simulated figures are the same numbers."""
    try:
        result = held(workload, policy, latency)
    except (GuardedError, TooFewRequestsError):
        reject()
    (run,) = result.runs
    assert run.figures == result.simulated
    assert run.step_mape == run.step_bias == 0
    assert set(result.errors("makespan_us")) <= {0.0}


def test_an_engine_that_is_slower_is_found_out() -> None:
    """Steps that take a quarter longer are 20 % faster in the model: in every step, and in the time of a request."""
    result = held(jobs((0, 8, 10), (4, 8, 10)), FCFS(), LATENCY, slower=1.25)
    (run,) = result.runs
    assert run.step_bias == pytest.approx(-0.2, abs=0.02)
    assert run.step_mape == pytest.approx(0.2, abs=0.02)
    (error,) = result.errors("normalized_latency_us.p95")
    assert error == pytest.approx(-0.2, abs=0.03)
    (error,) = result.errors("makespan_us")
    assert error == pytest.approx(-0.2, abs=0.03)


def test_a_machine_that_is_slower_in_all_is_no_error_of_the_model() -> None:
    """With all times of the model multiplied by what the run took longer, the figures are those of the run."""
    result = held(jobs((0, 8, 10), (4, 8, 10)), FCFS(), slowed(LATENCY, 1000), slower=1.25)
    for name in ("ttft_us.p50", "tpot_us.p50", "normalized_latency_us.p95"):
        (error,) = result.errors(name)
        assert error == pytest.approx(-0.2, abs=0.03)
        (steady,) = result.errors(name, at_speed=True)
        assert steady == pytest.approx(0, abs=0.002)


def test_attainment_is_of_the_same_targets() -> None:
    """A target between the simulated and the slower real TTFT is met in the one run only: a hundred points."""
    # 8 tokens take 18 ns in the model, and 27 ns here.
    result = held(with_slo(jobs((0, 8, 1)), Slo(ttft_ns=20)), FCFS(), LATENCY, slower=1.5)
    assert result.simulated.slo_attainment == 1
    assert result.attainment_errors() == [1.0]


def test_capacity_is_the_rate_of_the_middle() -> None:
    """Eight requests one by one, 18 ns each: the middle half of the ends is four requests in 72 ns."""
    alone = with_parameters(FCFS(), {"max_running": "1"})
    flood = jobs(*[(50 * i, 8, 1) for i in range(8)])
    assert capacity_rps(flood, alone, RoundRobin(), LATENCY, CAPACITY) == pytest.approx(1e9 / 18)
    with pytest.raises(TooFewRequestsError, match="3 of 3 requests finish"):
        capacity_rps(jobs(*[(0, 8, 1)] * 3), alone, RoundRobin(), LATENCY, CAPACITY)


def test_arrivals_come_at_the_rate_that_is_asked_for() -> None:
    """Five arrivals over 400 ns become a hundred million a second: five in 50 ns, with their gaps in proportion."""
    world = jobs(*[(100 * i * i, 8, 1) for i in range(5)])
    times = [job.request.arrival_ns for job in at_rate(world, 1e8, START_NS).jobs]
    assert times == [START_NS + round(50 * i * i / 16) for i in range(5)]
    with pytest.raises(ValueError, match="no span"):
        at_rate(jobs((3, 8, 1), (3, 8, 1)), 1.0)


def test_typical_targets_are_met_by_nine_in_ten() -> None:
    """The default targets are the 90th percentiles of the run that they are taken from."""
    workload = jobs(*[(30 * i, 4, 1 + i % 3) for i in range(10)])
    events = simulate_events(workload, FCFS(), RoundRobin(), LATENCY, kv_capacity_tokens=CAPACITY)
    slo = typical_slo(workload, events)
    assert slo.ttft_ns is not None
    first = {e.request_id: e.time_ns for e in events if isinstance(e, Prefilled)}
    sent = {e.request.id: e.time_ns for e in events if isinstance(e, Arrived)}
    assert sum(first[i] - sent[i] <= slo.ttft_ns for i in range(10)) in (9, 10)
    assert sum(first[i] - sent[i] < slo.ttft_ns for i in range(10)) < 9


def test_equal_keys_are_equal_tokens() -> None:
    """Prompts that share blocks share exactly those tokens, and the rest is each one's own."""
    prompts = [
        Prompt.from_keys([7, 8], tokens=40, block_tokens=16),
        Prompt.from_keys([7, 9], tokens=40, block_tokens=16),
    ]
    made = tuple(Job(Request(i, 0, 0, prompt, 1), 1) for i, prompt in enumerate(prompts))
    ids = tokens_of(Workload("two", made, (Client(0, "a"),)), 4096)
    assert len(ids[0]) == len(ids[1]) == 40
    assert ids[0][:16] == ids[1][:16]
    assert ids[0][16:32] != ids[1][16:32]
    assert ids[0][32:] != ids[1][32:]
    assert all(0 <= token < 4096 for token in ids[0])
