"""Aladdin: each request ends once whatever happens, placements keep the constraints, and variants do what they say."""

from collections import Counter
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.engines.simulation import simulate_events
from fairsched.engines.workloads.fleet import Change, WorkerSpec
from fairsched.model.events import Admitted, Decoded, Finished, Prefilled
from fairsched.model.machine import PRESETS, DecodePiece, LatencyModel, Performance
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.policies.batching import BATCHINGS
from fairsched.policies.catalog import FCFS
from fairsched.policies.placement import Aladdin, AladdinGrouped, AladdinPrinted, AladdinSplit
from fairsched.policies.placement.aladdin.placement_state import OutputHistory
from fairsched.policies.placement.aladdin.policy import group_of
from fairsched.verify.conformance.strategies import workloads
from tests.support.clusters import CHANGES, ends, watched
from tests.support.scenarios import latency_of

CAPACITY = 30
UNIT = latency_of(100, prefill_token_ns=2, request_ns=3, context_token_ns=1, kv_capacity_tokens=CAPACITY)
TIGHT = {"tpot_us": 1, "ttft_us": 1, "heartbeat_us": 1, "patience_us": 5}
VARIANTS = st.sampled_from(
    (
        (Aladdin, {}),
        (Aladdin, {"reserve": "peaks", "slack": "earned", "errors": "ignore"}),
        (Aladdin, {"errors": "rebalance", "norm": "printed"}),
        (AladdinPrinted, {}),
        (AladdinSplit, {}),
        (AladdinGrouped, {"groups": 3}),
    )
)
LOCAL = st.sampled_from([FCFS(batching=kind(max_batched_tokens=7, max_running=3)) for kind in BATCHINGS.values()])


@settings(deadline=None, max_examples=60)
@given(workloads(span_ns=4_000), VARIANTS, LOCAL, CHANGES, st.integers(0, 9))
def test_each_request_ends_once_whatever_happens_to_workers(
    workload: Workload,
    variant: tuple[type[Aladdin], dict[str, Any]],
    local: FCFS,
    changes: list[Change],
    foreseen: int,
) -> None:
    """Workers crash, restart, drain and join, predictions are wrong; no request is lost, the state stays in order."""
    jobs = [_predicted(job, foreseen) for job in workload.jobs]
    workload = Workload(workload.name, tuple(jobs), workload.clients)
    kind, parameters = variant
    events = simulate_events(workload, local, watched(kind, **TIGHT | parameters), UNIT, workers=2, changes=changes)
    assert ends(events) == {job.request.id: 1 for job in workload.jobs}


def _predicted(job: Job, tokens: int) -> Job:
    """The job with a prediction; 0: with none."""
    return replace(job, request=replace(job.request, predicted_output_tokens=tokens or None))


@settings(deadline=None, max_examples=50)
@given(workloads(span_ns=4_000), LOCAL)
def test_the_clock_counts_what_every_request_has_produced(workload: Workload, local: FCFS) -> None:
    """At any time, a request that began at s of its worker's clock has produced clock - s tokens, unless it ended."""
    policy, produced = Aladdin(**TIGHT), Counter[int]()  # type: ignore[arg-type]
    state = policy.init()
    events = simulate_events(workload, local, Aladdin(**TIGHT), UNIT, workers=1)  # type: ignore[arg-type]
    for event in events:
        state = policy.observe(state, event)
        policy.check(state)
        if isinstance(event, Finished):
            produced[event.request_id] = event.output_tokens
    assert not state.home
    assert sum(count for count, _ in state.history.seen.values()) == len(produced)
    assert sum(total for _, total in state.history.seen.values()) == sum(produced.values())


@pytest.mark.parametrize("batching", ["chunked", "iteration-level", "eager-prefill"])
def test_tokens_by_the_clock_are_all_tokens(batching: str) -> None:
    """What members have by the clock and what ended requests had is what was decoded, under each batching rule."""
    jobs = [Job(Request(i, 0, 150 * i, Prompt(3 + i % 4), 9), 1 + i % 9) for i in range(12)]
    workload = Workload("twelve", tuple(jobs), (Client(0, "a"),))
    local = FCFS(batching=BATCHINGS[batching](max_batched_tokens=7, max_running=4))
    events = simulate_events(workload, local, Aladdin(heartbeat_us=1), UNIT, workers=1, kv_capacity_tokens=200)
    assert any(isinstance(event, Prefilled) for event in events)
    policy = Aladdin()
    state, total = policy.init(), 0
    for event in events:
        state = policy.observe(state, event)
        if isinstance(event, Decoded):
            total += sum(event.tokens)
            running = [m for m in state.workers[0].members.values() if m.start is not None]
            alive = sum(state.workers[0].clock - (m.start or 0) for m in running)
            assert alive + sum(tokens for _, tokens in state.history.seen.values()) == total, running


def _arrivals(*lengths: tuple[int, int]) -> Workload:
    jobs = [Job(Request(i, 0, 0, Prompt(prompt), output), output) for i, (prompt, output) in enumerate(lengths)]
    return Workload("made", tuple(jobs), (Client(0, "a"),))


def _workers_of(
    policy: Aladdin, workload: Workload, workers: int, capacity: int, latency: LatencyModel = UNIT
) -> dict[int, int]:
    events = simulate_events(workload, FCFS(), policy, latency, workers=workers, kv_capacity_tokens=capacity)
    return {event.request_id: event.worker for event in events if isinstance(event, Admitted)}


def test_the_fullest_worker_that_fits_takes_the_request() -> None:
    """Four requests of which two fit a worker fill two of three workers."""
    at = _workers_of(Aladdin(), _arrivals(*[(5, 5)] * 4), 3, 20)
    assert sorted(Counter(at.values()).values()) == [2, 2]


def test_peaks_are_dearer_than_lock_step() -> None:
    """Two requests that end at different times share a worker in lock-step, and with peaks they do not: 5 + 1 and
    1 + 9 tokens need 5 + 1 + 1 + 1 at the first end, and at most 10 afterwards."""
    long, short = (1, 9), (5, 1)
    assert len(set(_workers_of(Aladdin(), _arrivals(long, short), 2, 11).values())) == 1
    assert len(set(_workers_of(Aladdin(reserve="peaks"), _arrivals(long, short), 2, 11).values())) == 2


def test_prompts_that_are_due_together_go_to_two_workers() -> None:
    """Two prompts of 600 ns each, due in 1,000 ns, go to two workers: neither could wait for the other."""
    policy = Aladdin(ttft_us=1, performance=Performance(100, 10, 1, 1, 1))
    at = _workers_of(policy, _arrivals((6, 2), (6, 2)), 2, 30)
    assert len(set(at.values())) == 2


@given(st.integers(1, 500), st.integers(0, 5_000), st.integers(1, 5_000))
def test_a_new_prediction_is_longer_than_what_is_there(prompt: int, done: int, other: int) -> None:
    """And within the declared output where that leaves room."""
    history = OutputHistory().with_output(prompt, other)
    foreseen = history.longer_than(prompt, done, 6_000)
    assert done < foreseen <= max(6_000, done + 1)
    if done < other and done.bit_length() < other.bit_length():
        assert foreseen == other


@pytest.mark.parametrize("name", PRESETS)
def test_lines_are_on_the_safe_side(name: str) -> None:
    """No iteration of a preset takes longer than its lines say, up to the prompt that they cover."""
    latency = PRESETS[name]
    p = Performance.of(latency, 3_000)
    for tokens in (1, 100, 1_500, 3_000):
        assert latency.step_ns([(tokens, 0)], 0, 0) <= p.prefill_ns(tokens)
        assert latency.step_ns([(tokens, 0)] * 3, 0, 0) <= p.prefill_ns(3 * tokens)
    for batch in (1, 7, 94, 95, 200):
        for context in (batch, 300 * batch):
            assert latency.decode_ns(batch, context) <= p.decode_ns(batch, context)
            if p.context_max(batch, 10**9):
                assert p.decode_ns(batch, p.context_max(batch, 10**9)) <= 10**9
    for most, near in Aladdin().fitted(latency).few:
        for batch in (1, most // 2, most):
            assert latency.decode_ns(batch, 300 * batch) <= near.decode_ns(batch, 300 * batch)
            assert near.decode_ns(batch, 300 * batch) <= p.decode_ns(batch, 300 * batch)


def test_a_batch_is_held_to_the_lines_that_are_near_for_it() -> None:
    """Under (b) of two pieces of decode, a worker of few requests is not charged what a large batch takes."""
    two = attrs.evolve(UNIT, decode=(DecodePiece(1, 100, 1, 1), DecodePiece(5, 50, 1, 40)))
    rules = Aladdin(tpot_us=1, theta_percent=100).fitted(two).rules()
    assert [int(rules.decode_slack(batch, 0)) for batch in (1, 4, 5)] == [
        100 * (1_000 - took) for took in (100 + 1, 100 + 4, 100 + 5 * 40)
    ]


STEP_NS = 400
TIMED = latency_of(STEP_NS, prefill_token_ns=50, request_ns=20, context_token_ns=2, kv_capacity_tokens=250)
"""With one request of few tokens a step takes under half of a target of 1,000 ns, and with 250 tokens nearly all."""
_KEPT = {"tpot_us": 1, "ttft_us": 1_000, "gamma_percent": 100, "theta_percent": 100, "patience_us": 10**9}


def _token_times(policy: Aladdin, jobs: list[Job], workers: int, step_tokens: int) -> dict[int, tuple[int, int]]:
    """For each request, the time from its first token to its last, and how many tokens came in that time."""
    local = FCFS(batching=BATCHINGS["eager-prefill"](max_batched_tokens=step_tokens, reserve="optimistic"))
    workload = Workload("timed", tuple(jobs), (Client(0, "a"),))
    first: dict[int, int] = {}
    found: dict[int, tuple[int, int]] = {}
    for event in simulate_events(workload, local, policy, TIMED, workers=workers):
        if isinstance(event, Prefilled) and not event.remaining_tokens:
            first[event.request_id] = event.time_ns
        elif isinstance(event, Finished):
            found[event.request_id] = event.time_ns - first[event.request_id], event.output_tokens - 1
    return found


_TIMED = st.lists(st.tuples(st.integers(0, 15_000), st.integers(1, 60), st.integers(1, 12)), min_size=1, max_size=20)


@given(
    _TIMED, st.integers(1, 3), st.sampled_from((1, 20, 100)), st.sampled_from(("lock-step", "peaks")), st.integers(0, 5)
)
def test_every_request_keeps_its_target_per_token(
    drawn: list[tuple[int, int, int]], workers: int, step_tokens: int, reserve: str, longer: int
) -> None:
    """P-ALD-9 in whole runs: eager workers that do what their lines say, outputs no longer than foreseen."""
    jobs = [
        Job(Request(i, 0, at, Prompt(prompt), output + longer, predicted_output_tokens=output + longer), output)
        for i, (at, prompt, output) in enumerate(sorted(drawn))
    ]
    policy = Aladdin(**_KEPT, heartbeat_us=1, reserve=reserve, step_tokens=step_tokens)  # type: ignore[arg-type]
    times = _token_times(policy, jobs, workers, step_tokens)
    assert len(times) == len(jobs)
    assert {i: each for i, each in times.items() if each[0] > 1_000 * each[1]} == {}


def test_the_printed_rule_lets_a_prefill_stall_a_request_without_a_first_token() -> None:
    """The second prompt of two comes while the first is computed, and the first request misses its target for it."""
    jobs = [Job(Request(i, 0, 900 * i, Prompt(40), 3, predicted_output_tokens=3), 3) for i in range(2)]
    missed = {
        slack: [i for i, (took, tokens) in _token_times(policy, jobs, 1, 100).items() if took > 1_000 * tokens]
        for slack in ("earned", "printed")
        for policy in [Aladdin(**_KEPT, heartbeat_us=1, slack=slack)]  # type: ignore[arg-type]
    }
    assert missed == {"earned": [], "printed": [0]}


def test_split_phases_compute_here_and_decode_there() -> None:
    """Prompts are computed by the first worker, and outputs of any length end at another one."""
    jobs = [Job(Request(i, 0, 5_000 * i, Prompt(5), 12), 12) for i in range(4)]
    workload = Workload("split", tuple(jobs), (Client(0, "a"),))
    events = simulate_events(workload, FCFS(), AladdinSplit(heartbeat_us=1), UNIT, workers=3, kv_capacity_tokens=200)
    first = {event.request_id: event.worker for event in reversed(events) if isinstance(event, Prefilled)}
    assert set(first.values()) == {0}
    last = {event.request_id: event.worker for event in events if isinstance(event, Finished)}
    assert len(last) == 4
    assert 0 not in last.values()


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 4), st.integers(1, 6), st.integers(1, 4), st.data())
def test_prompts_that_are_late_anywhere_spread(computing: int, each: int, prompt: int, data: st.DataObject) -> None:
    """Equal prompts of which each worker can have some in time, or none, are computed by as many workers as there are,
    equally many by each but for one: those that are late go behind those that are not."""
    count = computing * each
    jobs = [Job(Request(i, 0, data.draw(st.integers(0, 1)), Prompt(prompt), 1), 1) for i in range(count)]
    in_time = data.draw(st.integers(0, each))
    late = AladdinSplit(heartbeat_us=1, ttft_us=1 + 2 * prompt * in_time, prefill_workers=computing)
    slow = latency_of(100, prefill_token_ns=2_000, request_ns=3, context_token_ns=1, kv_capacity_tokens=200)
    at = _workers_of(late, Workload("late", tuple(jobs), (Client(0, "a"),)), computing + 1, 200, slow)
    counts = Counter(at.values())
    assert max(abs(counts[worker] - each) for worker in range(computing)) <= 1, counts


@settings(deadline=None, max_examples=20)
@given(st.integers(20, 40), st.integers(1, 60), st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_a_request_goes_on_where_it_is_if_no_decode_worker_could_hold_it(
    small: int, output: int, prompts: list[int]
) -> None:
    """It is not staged, and holds back no other one: requests that the small worker could hold decode there."""
    jobs = tuple(Job(Request(i, 0, i, Prompt(prompt), output), output) for i, prompt in enumerate(prompts))
    workload = Workload("small", jobs, (Client(0, "a"),))
    one_second = AladdinSplit(heartbeat_us=1, patience_us=1_000_000)
    workers = [WorkerSpec(UNIT, capacity) for capacity in (500, small)]
    events = simulate_events(workload, FCFS(), one_second, UNIT, workers=workers)
    ended = {event.request_id: event for event in events if isinstance(event, Finished)}
    assert {i: ended[i].worker for i in range(len(prompts))} == {
        i: int(prompt + output <= small and output > 1) for i, prompt in enumerate(prompts)
    }
    assert max(event.time_ns for event in ended.values()) < 10**9


def test_groups_keep_to_their_workers() -> None:
    """A request of group g is at a worker of group g, and no other group has more than its share by much."""
    workload = _arrivals(*[(1, 2)] * 40)
    at = _workers_of(AladdinGrouped(groups=2), workload, 4, 1_000)
    assert {request_id: worker % 2 for request_id, worker in at.items()} == {i: group_of(i, (0, 1)) for i in range(40)}
    assert 10 <= sum(worker % 2 for worker in at.values()) <= 30
