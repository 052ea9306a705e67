"""Goodput: the highest rate that keeps its targets, and what is said where there is no such thing."""

from itertools import pairwise
from math import inf

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.analysis import EventTables, Outcomes
from fairsched.engines.capacity import DELAY, SloTarget, goodput, nine_slos, trial
from fairsched.engines.capacity.highest_rate import RateTrial, bisected
from fairsched.engines.simulation import Cluster, RunSpec, Simulator
from fairsched.engines.workloads import at_rate, generate
from fairsched.model.machine import PRESETS, DecodePiece, LatencyModel
from fairsched.model.request import Client, Job, Prompt, Request, Workload

MS = LatencyModel("a ms a token", "made for tests", 1_000_000, 1_000_000, 0, (DecodePiece(1, 10**6, 0, 0),), 10_000)
FCFS = RunSpec.of("fcfs", params={"batching": "eager-prefill"})
JSQ = RunSpec.of("fcfs", "join-shortest-queue", params={"batching": "eager-prefill"})


def spaced(count: int, prompt: int = 9, gap_ns: int = 10**9) -> Workload:
    """Equal requests of one output token at equal gaps."""
    jobs = tuple(Job(Request(i, 0, i * gap_ns, Prompt(prompt), 1), 1) for i in range(count))
    return Workload("spaced", jobs, (Client(0, "c"),))


def drawn(seed: int, count: int = 40) -> Workload:
    """Prompts of 1, 2 or 20 tokens and one output token, on Poisson arrivals."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1e9, count)).astype(np.int64).tolist()
    prompts = rng.choice([1, 2, 20], size=count, p=[0.45, 0.45, 0.1]).tolist()
    jobs = tuple(
        Job(Request(i, 0, at, Prompt(tokens), 1), 1) for i, (at, tokens) in enumerate(zip(times, prompts, strict=True))
    )
    return Workload("drawn", jobs, (Client(0, "c"),))


def up_to(threshold: float, rate: float) -> RateTrial:
    """A fleet that keeps its target up to a rate."""
    return RateTrial((rate / threshold,), 1, 1)


@given(st.floats(0.01, 5_000), st.floats(0.05, 1_000))
def test_a_threshold_is_found_from_any_start(threshold: float, start: float) -> None:
    """Where attainment is monotone, the result keeps the targets, and a rate at most 2.5 % above it misses them."""
    found = bisected(lambda rate: up_to(threshold, rate), start=start)
    assert found.is_monotone
    assert found.rate is not None
    assert found.rate <= threshold
    missed = min(rate for rate, each in found.tried.items() if not each.kept)
    assert threshold < missed <= found.rate * 1.025 + 1e-9


def test_nothing_keeps_the_targets_or_everything_does() -> None:
    """A target out of reach has no rate, and one that every rate keeps is open above."""
    never = bisected(lambda rate: RateTrial((2.0,), 1, 1))
    assert (never.rate, never.open_above, never.highest) == (None, False, None)
    always = bisected(lambda rate: RateTrial((0.5,), 1, 1))
    assert (always.rate, always.open_above) == (1e5, True)


@given(st.floats(0.1, 100), st.floats(0.1, 100))
def test_a_hole_is_seen_or_below_every_rate_tried(hole: float, start: float) -> None:
    """Whatever is returned, no rate that was tried misses below it, and a hole among the rates tried is said."""

    def measure(rate: float) -> RateTrial:
        return RateTrial((2.0 if hole <= rate <= 2 * hole or rate > 10 * hole else 0.5,), 1, 1)

    found = bisected(measure, start=start)
    assert all(each.kept for rate, each in found.tried.items() if found.rate is not None and rate <= found.rate)
    rows = list(found.tried.values())
    assert found.is_monotone == (not any(b.kept and not a.kept for a, b in pairwise(rows)))


@pytest.mark.parametrize("start", [0.7, 13.0, 500.0])
def test_a_server_without_randomness_has_its_service_rate(start: float) -> None:
    """Requests of 10 ms at equal gaps never wait up to 100 a second, and beyond that wait ever longer."""
    found = goodput(spaced(400), FCFS, Cluster(MS), [SloTarget(100, (("ttft", 10_000.0),))], start=start)
    assert found.is_monotone
    assert found.rate is not None
    # 400 requests a span have 399 gaps.
    assert 100 / 1.025 <= found.rate * 399 / 400 <= 100.1


def test_requests_that_do_not_finish_keep_no_target() -> None:
    """A prompt larger than the memory is rejected, and a tenth of the requests is more than P91 lets miss."""
    jobs = list(spaced(10).jobs)
    jobs[3] = Job(Request(3, 0, 3 * 10**9, Prompt(20_000), 1), 1)
    cluster, loose = Cluster(MS), (("ttft", 1e12),)
    workload = Workload("one too large", jobs, (Client(0, "c"),))
    said = trial(workload, FCFS, cluster, [SloTarget(90, loose), SloTarget(91, loose)])
    assert said.finished == 9
    assert said.excess[0] < 1
    assert said.excess[1] == inf
    assert not said.kept


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(50, 100), st.floats(5, 80))
def test_one_first_come_first_served_server_is_monotone(seed: int, percentile: int, limit_ms: float) -> None:
    """With one server that takes requests in order, more load never keeps more targets (Lindley's recursion)."""
    found = [
        trial(
            at_rate(drawn(seed, 30), rate),
            FCFS_ALONE,
            Cluster(MS),
            [SloTarget(percentile, (("ttft", limit_ms * 1e3),))],
        )
        for rate in (20, 60, 180, 540)
    ]
    assert [each.worst for each in found] == sorted(each.worst for each in found)


FCFS_ALONE = RunSpec.of("fcfs", params={"batching": "eager-prefill", "max_running": 1})
TIGHT = (SloTarget(100, (("ttft", 30_000.0),)),)


def test_f_vi_1_and_f_ds_2_bisection_depends_on_where_it_starts() -> None:
    """A bisection does not return the largest feasible rate: attainment is not monotone behind JSQ (F-DS-2), so that
    the same requests on the same two workers have two results, by the bracket alone (F-VI-1)."""
    world, cluster = drawn(3), Cluster(MS, 2)
    low = goodput(world, JSQ, cluster, TIGHT, start=50.0, probes=())
    high = goodput(world, JSQ, cluster, TIGHT, start=230.0, probes=())
    assert low.rate is not None
    assert high.rate is not None
    assert low.rate < 185 < 230 <= high.rate
    # Each of them looks exact.
    assert low.is_monotone
    assert high.is_monotone


def test_the_shipped_search_says_that_attainment_is_not_monotone() -> None:
    """From either start the probes see it, and the result has no rate below it that was tried and missed."""
    world, cluster = drawn(3), Cluster(MS, 2)
    for start in (50.0, 230.0):
        found = goodput(world, JSQ, cluster, TIGHT, start=start)
        assert not found.is_monotone
        assert found.rate is not None
        assert found.highest is not None
        assert found.rate < 185 < 220 <= found.highest
        (missed, kept), *_ = found.surprises
        assert found.rate < missed < kept


def test_f_ds_3_ninety_percent_on_each_metric_is_not_ninety_percent() -> None:
    """One in ten misses the first token and another one in ten the further tokens: both separate targets are kept, and
    the joint one is missed, since four in five keep both."""
    both = (("ttft", 10.0), ("tpot", 1.0))
    outcomes = _outcomes([(11, 1.0)] + [(10, 1.5)] + [(10, 1.0)] * 8)
    separate = [SloTarget(90, (limit,)).excess(outcomes) for limit in both]
    assert separate == [1.0, 1.0]
    assert SloTarget(90, both).excess(outcomes) > 1
    assert SloTarget(80, both).excess(outcomes) == 1.0


def _outcomes(rows: list[tuple[int, float]]) -> Outcomes:
    """Outcomes of requests of three tokens, with a time to the first token and one for each of two more, in us."""
    workload = generate("azure-chat", requests=len(rows))
    events = EventTables()
    Simulator(workload, FCFS.policy, FCFS.router, MS, on_events=events.add).run()
    outcomes = Outcomes(workload, events.whole())
    outcomes.finished = np.ones(len(rows), dtype=np.bool_)
    outcomes.arrival = np.zeros(len(rows), dtype=np.int64)
    outcomes.output = np.full(len(rows), 3, dtype=np.int64)
    outcomes.first = np.array([first * 1_000 for first, _ in rows], dtype=np.int64)
    outcomes.finish = outcomes.first + np.array([int(2_000 * each) for _, each in rows], dtype=np.int64)
    return outcomes


def test_the_nine_slos_are_slowdowns_against_an_idle_machine() -> None:
    """A request alone on the reference has a slowdown of 1 in all; a machine with steps three times as long keeps only
    the targets above 3."""
    reference = PRESETS["llama-3.1-8b-a100"]
    apart = at_rate(generate("azure-chat", requests=20), 0.001)
    nine = nine_slos(reference)
    assert len(nine) == 9
    alone = RunSpec.of("fcfs", params={"max_batched_tokens": 8_192})
    same = trial(apart, alone, Cluster(reference), nine)
    expected = [1 / limit for target in nine for _, limit in target.limits]
    assert same.excess == pytest.approx(expected)
    (piece,) = reference.decode
    slow = attrs.evolve(
        reference,
        prefill_constant_ns=3 * reference.prefill_constant_ns,
        prefill_token_ns=3 * reference.prefill_token_ns,
        prefill_attention_ps=3 * reference.prefill_attention_ps,
        decode=(DecodePiece(1, 3 * piece.constant_ns, 3 * piece.context_token_ns, 3 * piece.request_ns),),
    )
    thrice = trial(apart, alone, Cluster(slow), nine)
    assert thrice.excess == pytest.approx([3 * each for each in same.excess])
    assert [excess <= 1.001 for excess in thrice.excess] == [False, True, True, False, False, True, False, False, True]


def test_times_between_tokens_are_of_all_requests_together() -> None:
    """Alone, a request of nine tokens has eight gaps of one step each; the P99 of them is the longest."""
    latency = LatencyModel("grows", "made for tests", 10**6, 0, 0, (DecodePiece(1, 10**6, 1_000, 0),), 10_000)
    jobs = tuple(Job(Request(i, 0, i * 10**9, Prompt(5), 9), 9) for i in range(3))
    world = Workload("apart", jobs, (Client(0, "c"),))
    steps = [latency.decode_ns(1, 6 + i) for i in range(8)]
    said = trial(world, FCFS, Cluster(latency), [SloTarget(p, (("tbt", max(steps) / 1e3),)) for p in (50, 99)])
    assert said.excess[1] == 1.0
    assert said.excess[0] == sorted(steps)[3] / max(steps)


def test_vidur_s_capacity_counts_only_the_wait_for_admission() -> None:
    """A run within 5 s of scheduling delay is kept however late its tokens come."""
    slow = attrs.evolve(MS, prefill_constant_ns=9 * 10**9)
    said = trial(at_rate(spaced(3), 0.01), FCFS, Cluster(slow), [DELAY, SloTarget(99, (("ttft", 5e6),))])
    assert said.excess[0] == 0
    assert said.excess[1] > 1


@pytest.mark.parametrize(
    ("percentile", "limits", "said"),
    [
        (0, (("ttft", 1.0),), "a percentile from 1 to 100 and limits above 0, not P0 ttft <= 1 us"),
        (90, (), "limits above 0, not P90"),
        (90, (("ttft", -1.0),), "limits above 0"),
        (90, (("speed", 1.0),), r"limits each of ttft, tpot, latency, delay, tbt at most once, not \['speed'\]"),
        (90, (("tbt", 1.0), ("ttft", 1.0)), "tbt has a target of its own, not P90 tbt <= 1 us and ttft <= 1 us"),
    ],
)
def test_bad_targets_are_refused(percentile: int, limits: tuple[tuple[str, float], ...], said: str) -> None:
    """With what was given."""
    with pytest.raises(ValueError, match=said):
        SloTarget(percentile, limits)


def test_bad_searches_are_refused() -> None:
    """Without targets, without requests, or from a rate that is none."""
    with pytest.raises(ValueError, match="at least one target"):
        goodput(spaced(5), FCFS, Cluster(MS), [])
    with pytest.raises(ValueError, match="two requests or more, and spaced has 1"):
        goodput(spaced(1), FCFS, Cluster(MS), TIGHT)
    with pytest.raises(ValueError, match="not at 0"):
        bisected(lambda rate: up_to(1, rate), start=0)
