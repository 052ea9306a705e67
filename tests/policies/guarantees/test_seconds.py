"""Waits in seconds: no run waits longer than its bound, the bound is near what can happen, and slow steps are seen."""

from fractions import Fraction
from math import ceil
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.engines.simulation import simulate_events
from fairsched.model.events import Arrived, Event, Finished, Prefilled
from fairsched.model.machine import PRESETS, DecodePiece, LatencyModel
from fairsched.model.monitor import Monitor, MonitorReport
from fairsched.model.pricing import Rates
from fairsched.model.request import Client, Slo, Workload
from fairsched.policies.base import Limits
from fairsched.policies.batching import BATCHINGS
from fairsched.policies.gates import CounterGate, DeficitGate, InBatchGate
from fairsched.policies.guarantees import GateGuarantee, Pace, WorstWait, seconds
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import Arrival
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS, local_policy, parameters, with_parameters
from fairsched.verify.conformance.strategies import workloads
from tests.support.policies.worst_wait import waits_to_first_tokens, worst_wait_world

CLIENTS = (Client(0, "f"), Client(1, "g"))
SMALL = LatencyModel("small", "made up", 900, 13, 700, (DecodePiece(1, 1_000, 3, 11), DecodePiece(4, 800, 4, 17)), 40)


def played(policy: ComposedPolicy, workload: Workload, latency: LatencyModel, capacity: int) -> list[Event]:
    """The events of one worker."""
    return simulate_events(workload, policy, ROUTERS["round-robin"], latency, workers=1, kv_capacity_tokens=capacity)


def limits_for(policy: ComposedPolicy, workload: Workload, capacity: int) -> Limits:
    """What bounds rest on, with the longest prompt and output of the workload."""
    requests = [job.request for job in workload.jobs]
    limits = policy.guarantee.limits(capacity, max((each.max_output_tokens for each in requests), default=1))
    longest = max((each.prompt.tokens for each in requests), default=1)
    return attrs.evolve(limits, prompt_tokens_max=min(longest, limits.prompt_tokens_max))


def watched(
    policy: ComposedPolicy, clients: tuple[Client, ...], limits: Limits, latency: LatencyModel, events: list[Event]
) -> MonitorReport:
    """What the monitor says of a run that is held to its worst wait."""
    guarantee = policy.guarantee
    promise = guarantee.promise(clients, limits, latency)
    assert promise is not None
    monitor = Monitor(promise, guarantee.gate_monitor(), gaps=False)
    monitor.observe_all(event for event in events if event.worker == 0)
    return monitor.report()


def spans(events: list[Event]) -> dict[int, tuple[int, int, int]]:
    """For each finished request when it came, had its first token, and ended."""
    came: dict[int, int] = {}
    first: dict[int, int] = {}
    found = {}
    for event in events:
        match event:
            case Arrived():
                came.setdefault(event.request.id, event.time_ns)
            case Prefilled(remaining_tokens=0):
                first[event.request_id] = event.time_ns
            case Finished():
                found[event.request_id] = came[event.request_id], first[event.request_id], event.time_ns
            case _:
                pass
    return found


@pytest.mark.parametrize("name", ["fcfs+deficit", "fcfs+in-batch", "fcfs+bands", "fcfs+hierarchical", "vtc"])
@given(workload=workloads(), budget=st.integers(12, 20))
def test_no_first_token_comes_later_than_limits_of_arrivals_allow(name: str, workload: Workload, budget: int) -> None:
    """Of any workload of which all requests fit at once, in a burst of all prompts: T-limited, without a rate."""
    policy = with_parameters(local_policy(name), {"max_batched_tokens": str(budget), "max_running": "12"})
    assert isinstance(policy, ComposedPolicy)
    requests = [job.request for job in workload.jobs]
    prompts = [each.prompt.tokens for each in requests]
    context, count = max(prompts) + max(each.max_output_tokens for each in requests), len(requests)
    limits = attrs.evolve(limits_for(policy, workload, context * count), running_max=count)
    assert seconds.calls_that_fit(context * count, context, 12) == count
    pace = seconds.pace_of(SMALL, limits, budget)
    assert pace is not None
    steps = seconds.limited_steps(budget - count + 1, sum(prompts), 0)
    spans_ns = [first - came for came, first, _ in spans(played(policy, workload, SMALL, context * count)).values()]
    assert max(spans_ns, default=0) <= steps * seconds.longest_step_ns(pace)


@pytest.mark.parametrize("name", ["fcfs+deficit", "dlpm", "fcfs+in-batch", "dlpm-in-batch", "vtc"])
@given(
    workload=workloads(),
    quantum=st.integers(1, 30),
    budget=st.integers(2, 12),
    running=st.integers(1, 6),
    cap=st.sampled_from(["none", "20"]),
)
def test_no_run_waits_longer_than_its_bound(
    name: str, workload: Workload, quantum: int, budget: int, running: int, cap: str
) -> None:
    """Of any workload: each wait until an admission, each first token after it and each end is within its bound, and
    the worker keeps its service curve; or nothing is promised, since decoding may spend the budget."""
    chosen = {"quantum": quantum, "in_flight_cap_tokens": cap, "max_batched_tokens": budget, "max_running": running}
    shipped = local_policy(name)
    known = parameters(shipped)
    policy = with_parameters(shipped, {key: str(value) for key, value in chosen.items() if key in known})
    assert isinstance(policy, ComposedPolicy)
    limits = limits_for(policy, workload, 40)
    worst = policy.guarantee.worst_wait(workload.clients, limits, SMALL)
    unequal = len({client.weight for client in workload.clients}) > 1
    paused, counted = isinstance(policy.gate, InBatchGate), isinstance(policy.gate, CounterGate)
    unsaid = (unequal and (paused or counted)) or (paused and cap != "none")
    assert (worst is None) is (running > budget or unsaid)
    if worst is None:
        return
    events = played(policy, workload, SMALL, 40)
    report = watched(policy, workload.clients, limits, SMALL, events)
    refunds = report.assumptions["NothingRefunded"].violated
    alone = worst.with_nothing_in_flight
    assert (
        refunds or alone is None or max(waits_to_first_tokens(events, alone=True), default=0) <= alone.first_token_ns()
    )
    assert report.wait is not None
    assert refunds or not report.wait_violations
    assert refunds or max(waits_to_first_tokens(events), default=0) <= worst.first_token_ns()
    assert report.assumptions["StepsInTime"].violated == 0
    assert refunds or report.assumptions["CapacityFloor"].violated == 0
    assert report.unexplained is None


@attrs.frozen
class WaitConfiguration:
    """A worker and the largest request that it is sent, under first come first served with a deficit gate."""

    latency: LatencyModel
    kv_capacity_tokens: int
    prompt_tokens: int
    output_tokens: int
    quantum: int = 4096

    @property
    def policy(self) -> ComposedPolicy:
        """The policy."""
        return with_parameters(local_policy("fcfs+deficit"), {"quantum": str(self.quantum)})

    @property
    def limits(self) -> Limits:
        """What bounds rest on."""
        limits = self.policy.guarantee.limits(self.kv_capacity_tokens, self.output_tokens)
        return attrs.evolve(limits, prompt_tokens_max=self.prompt_tokens)

    def world(self, shorter: int) -> Workload:
        """The world in which a client waits longest."""
        return worst_wait_world(self.kv_capacity_tokens, self.prompt_tokens, self.output_tokens, shorter=shorter)


A10G, A100, H100 = (PRESETS[name] for name in ("llama-3.2-3b-a10g", "llama-3.1-8b-a100", "llama-3-70b-fp8-h100-tp4"))
CONFIGURATIONS = {
    "A10G": WaitConfiguration(A10G, A10G.kv_capacity_tokens, 8_192, 1_024),
    "A100": WaitConfiguration(A100, A100.kv_capacity_tokens, 16_384, 2_048),
    "H100": WaitConfiguration(H100, H100.kv_capacity_tokens, 8_192, 1_024),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_bound_is_within_a_factor_of_two_of_what_can_happen(name: str) -> None:
    """In a world that was built for it a client waits for its first token more than half of what is proved."""
    of = CONFIGURATIONS[name]
    worst = of.policy.guarantee.worst_wait(CLIENTS, of.limits, of.latency)
    assert worst is not None
    workload = of.world(64)
    events = played(of.policy, workload, of.latency, of.kv_capacity_tokens)
    came, first, ended = spans(events)[len(workload.jobs) - 1]
    assert worst.first_token_ns() / 2 < first - came <= worst.first_token_ns()
    most = worst.completion_ns()
    assert most is not None
    assert ended - came <= most


def test_the_first_in_order_waits_more_than_half_of_its_bound() -> None:
    """T-late in the same world, where its last request alone has a target: without the gate that waits for the memory
    that its client fills, which is less than half as long."""
    of = CONFIGURATIONS["H100"]
    alone, gated = (
        with_parameters(local_policy(name), {"reserve": "static"}) for name in ("edf", f"edf+{of.policy.gate.name}")
    )
    assert isinstance(gated.guarantee, GateGuarantee)
    worst = gated.guarantee.worst_late(CLIENTS, of.limits, of.latency)
    assert worst is not None
    workload = of.world(64)
    *others, last = workload.jobs
    targeted = replace(last, request=replace(last.request, slo=Slo(ttft_ns=1)))
    workload = replace(workload, jobs=(*others, targeted))
    waits = []
    for policy in (alone, gated):
        came, first, _ = spans(played(policy, workload, of.latency, of.kv_capacity_tokens))[last.request.id]
        waits.append(first - came)
    assert 2 * waits[0] < waits[1]
    assert worst.first_token_ns() / 2 < waits[1] <= worst.first_token_ns()


def test_the_bound_of_a_client_with_nothing_in_flight_is_within_a_factor_of_three() -> None:
    """Inside the batch, of four clients, in a world in which it waits when its own requests have just ended."""
    chosen = {"quantum": "512", "max_running": "64", "output_rate": "12"}
    policy, capacity = with_parameters(local_policy("fcfs+in-batch"), chosen), A100.kv_capacity_tokens
    assert isinstance(policy, ComposedPolicy)
    workload = worst_wait_world(capacity, 8_192, 1_024, running_max=64, others=3, own_output_tokens=11)
    limits = limits_for(policy, workload, capacity)
    worst = policy.guarantee.worst_wait(workload.clients, limits, A100)
    assert worst is not None
    assert worst.with_nothing_in_flight is not None
    bound_ns = worst.with_nothing_in_flight.first_token_ns()
    assert bound_ns < 10**10
    waits = waits_to_first_tokens(played(policy, workload, A100, capacity), alone=True)
    assert bound_ns / 3 < max(waits) <= bound_ns


@pytest.mark.parametrize("factor", [2, 50])
def test_slow_steps_are_seen(factor: int) -> None:
    """A worker whose steps take longer than its latency model says breaks StepsInTime or keeps every bound: what passes
    a bound is never unexplained."""
    of = WaitConfiguration(SMALL, 40, 8, 12, quantum=8)
    workload = of.world(1)
    piece = [attrs.evolve(each, constant_ns=each.constant_ns * factor) for each in SMALL.decode]
    slow = attrs.evolve(SMALL, decode=tuple(piece), prefill_constant_ns=SMALL.prefill_constant_ns * factor)
    report = watched(of.policy, CLIENTS, of.limits, SMALL, played(of.policy, workload, slow, 40))
    assert report.unexplained is None
    broken = {name for name in ("StepsInTime", "CapacityFloor") if report.assumptions[name].violated}
    assert bool(broken) is (factor == 50)


@pytest.mark.parametrize("name", sorted(BATCHINGS))
def test_only_batching_that_serves_all_promises_seconds(name: str) -> None:
    """A rule under which a step may leave out what runs promises no wait in time."""
    rule: Any = BATCHINGS[name]
    policy = ComposedPolicy("p", Arrival(), DeficitGate(), rule())
    worst = policy.guarantee.worst_wait(CLIENTS, policy.guarantee.limits(40, 10), SMALL)
    assert (worst is not None) is (name == "chunked")


@pytest.mark.parametrize("name", sorted(LOCAL_POLICIES))
def test_a_policy_has_a_bound_of_waits_or_a_reason(name: str) -> None:
    """Of every policy that ships either a wait in seconds is promised, or it is said why none is."""
    guarantee = LOCAL_POLICIES[name].guarantee
    limits = guarantee.limits(4_096, 256)
    worst = guarantee.worst_wait(CLIENTS, limits, SMALL)
    assert (worst is None) is bool(guarantee.no_wait(limits, SMALL))


# --- the numbers of the theorems --------------------------------------------------------------------------------------


@st.composite
def paces(draw: st.DrawFn) -> Pace:
    """Steps of a worker with at most as many requests as its token budget."""
    budget = draw(st.integers(1, 40))
    running = draw(st.integers(1, budget))
    constant_ns, token_ns, row_ns = (draw(st.integers(0, most)) for most in (2_000, 60, 60))
    return Pace(constant_ns, token_ns, row_ns, budget, running, draw(st.integers(1, running)))


@given(paces(), st.integers(1, 50), st.integers(1, 50), st.integers(1, 4), st.integers(1, 4), st.integers(0, 9_000))
def test_each_number_is_the_one_of_its_theorem(
    pace: Pace, prompt: int, output: int, input_rate: int, output_rate: int, cost: int
) -> None:
    """T-step, T-pace, T-curve, T-first, T-longest and T-wait, from their formulas in exact fractions."""
    c, k_e, k_q, budget, k, m = attrs.astuple(pace)
    assert seconds.step_ns_max(pace, prompt, output) == c + k_e * prompt + k_q * output
    longest = c + k_e * budget + max(k_q - k_e, 0) * k
    assert seconds.longest_step_ns(pace) == longest
    per_input, per_output = k_e + ceil(Fraction(c, budget)), k_q + ceil(Fraction(c, m))
    curve = seconds.worker_curve(pace, Rates(input_rate, output_rate), prompt)
    slope = max(Fraction(per_output, output_rate), Fraction(per_input, input_rate))
    delay = c + per_input * (budget - 1 + prompt)
    assert (curve.delay_ns, Fraction(curve.ns, curve.cost)) == (delay, slope)
    short = seconds.refills_max(output, prompt)
    assert short == 1 + (prompt - 1) // output
    assert seconds.worker_curve(pace, Rates(input_rate, output_rate), prompt, short).delay_ns == delay + c * short
    assert seconds.paused_costs(k, output, prompt, cost) == (2 * (k - 1) * output, 2 * (k - 1) * (prompt - 1), k * cost)
    assert sum(seconds.counted_costs(k, cost)) == (2 * k - 1) * cost
    steps = 1 + ceil(Fraction(prompt - 1, budget - k + 1))
    assert seconds.prefill_steps(prompt, budget, k) == steps
    turns = cost // 3
    worst = WorstWait(turns, cost - turns, curve, pace, prompt, output)
    admission = delay + int(cost * slope)
    assert (worst.cost, worst.admission_ns) == (cost, admission)
    assert worst.first_token_ns() == admission + steps * longest
    assert worst.first_token_ns(1) == admission + longest
    assert (worst.decode_ns(1), worst.decode_ns(output)) == (0, (output - 1) * longest)
    assert worst.completion_ns() == admission + (steps + output - 1) * longest
    assert worst.completion_ns(1, 3) == admission + 3 * longest
    gate, memory, queue, prefill, decode = (ns for _, ns in worst.parts())
    assert (gate, queue) == (int(turns * slope), delay)
    assert (prefill, decode) == (steps * longest, (output - 1) * longest)
    assert gate + memory + queue + prefill + decode == worst.completion_ns()


@given(st.integers(1, 200), st.integers(1, 60), st.integers(1, 30))
def test_so_many_requests_run_where_one_more_finds_no_room(memory: int, context: int, running: int) -> None:
    """T-batch: as many as it takes until less than a request is left of the memory, or all that may run."""
    enough = next(n for n in range(1, memory + 2) if n * context > memory - context)
    assert seconds.least_batch(memory, context, running) == min(enough, running)


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 20), st.integers(1, 90), st.integers(1, 20))
def test_a_pace_is_that_of_the_latency_model(prompt: int, output: int, running: int, memory: int, budget: int) -> None:
    """Both constants, attention over the longest context, the dearest piece of decode that so many requests reach; no
    pace where decoding may spend the budget, and one request where nothing is known of the memory."""
    limits = Limits(80, prompt, output, running, True)
    pace = seconds.pace_of(SMALL, limits, budget, memory)
    assert (pace is None) is (running > budget)
    if pace is None:
        return
    context = min(prompt + output, 80)
    request_ns, constant_ns = (17, 1_000) if running >= 4 else (11, 1_000)
    least = seconds.least_batch(memory, context, running)
    token_ns = 13 + ceil(Fraction(700 * context, 1000))
    expected = Pace(max(900, constant_ns), token_ns, request_ns + 4 * context, budget, running, least)
    assert pace == expected
    assert seconds.pace_of(SMALL, limits, budget) == attrs.evolve(expected, least=1)
    crowd = attrs.evolve(limits, running_max=1_000)
    assert [seconds.pace_of(SMALL, crowd, tokens) is None for tokens in (79, 80)] == [True, False]
