"""vLLM as an engine of the simulator; tests/integration/test_vllm.py holds its steps to vLLM's own."""

import random
from collections import Counter
from typing import Any, Literal

import attrs
import numpy as np
import pytest

from fairsched.engines.adapters.vllm import VllmSettings
from fairsched.engines.analysis import Recorder
from fairsched.engines.settings import ConfigError
from fairsched.engines.simulation import VllmOptions, simulate_vllm
from fairsched.engines.simulation.vllm import VllmEngine, VllmScheduler
from fairsched.model import events as ev
from fairsched.model.machine import AttentionTable, DecodePiece, Kernels, LatencyModel, Skew, TimeTable
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.verify.conformance.event_invariants import EventLedger

PLAIN = LatencyModel("plain", "made up", 100, 10, 0, (DecodePiece(1, 50, 0, 0),), 16 * 100)
"""A step takes 100 and 10 a token of a prompt, or 50."""
SYNC = VllmOptions(async_scheduling=False)


def job(number: int, tokens: int, output: int, at_ns: int = 0, keys: tuple[int, ...] = (), **more: Any) -> Job:
    """A request with its output; `most` is what it declares."""
    prompt = Prompt.from_keys(keys, block_tokens=16, tokens=tokens)
    return Job(Request(number, more.pop("client", 0), at_ns, prompt, more.pop("most", output)), output, **more)


def load(*jobs: Job) -> Workload:
    """A workload of two clients."""
    return Workload("load", jobs, (Client(0, "a"), Client(1, "b", 2)))


def times(workload: Workload, options: VllmOptions | None = None) -> list[tuple[int, int, int]]:
    """When each request was scheduled, had its first token, and ended."""
    requests = simulate_vllm(workload, PLAIN, options).requests
    return list(zip(*(requests[name].tolist() for name in ("admitted_ns", "first_token_ns", "end_ns")), strict=True))


def drawn(rng: random.Random, count: int) -> Workload:
    """Requests of two clients that share prefixes, follow each other, end early or are given up."""
    jobs = []
    for i in range(count):
        keys = tuple(rng.choice(((), (1, 2, 3), (1, 2, 9, 10), (1,))))
        most = rng.randint(1, 90)
        jobs.append(
            job(
                i,
                16 * len(keys) + rng.randint(1, 150),
                rng.randint(1, most) if rng.random() < 0.3 else most,
                rng.randint(0, 20_000),
                keys,
                most=most,
                client=rng.randrange(2),
                after=(rng.randrange(i),) if i and rng.random() < 0.1 else (),
                think_ns=rng.randrange(500),
                cancel_after_ns=rng.randint(1, 30_000) if rng.random() < 0.1 else None,
            )
        )
    return load(*sorted(jobs, key=lambda each: each.request.arrival_ns))


OPTIONS = [
    VllmOptions(26, max_num_batched_tokens=64, max_num_seqs=8),
    VllmOptions(26, max_num_batched_tokens=64, max_num_seqs=8, async_scheduling=False),
    VllmOptions(60, max_num_batched_tokens=256, enable_prefix_caching=False, scheduler_reserve_full_isl=False),
    VllmOptions(30, max_num_batched_tokens=300, release="0.19"),
]


def test_a_step_is_decided_while_the_one_before_it_runs() -> None:
    """One request: its prompt takes 300, a token 50.  A second one that comes meanwhile enters when the first step
    ends; with asynchronous scheduling the next step runs by then, and it waits for that one, too."""
    first, second = job(0, 20, 4), job(1, 20, 1, at_ns=10)
    assert times(load(first)) == times(load(first), SYNC) == [(0, 300, 450)]
    assert times(load(first, second), SYNC) == [(0, 300, 700), (300, 600, 600)]
    assert times(load(first, second)) == [(0, 300, 700), (300, 650, 650)]


def test_blocks_of_a_finished_request_are_free_a_step_late() -> None:
    """A third request fits when the first has ended.  Without asynchronous scheduling its prompt is the next step; with
    it, a step was decided before the first one's last token was back, and runs first."""
    three, options = load(job(0, 20, 2), job(1, 20, 9), job(2, 32, 1)), VllmOptions(6)
    assert times(three, attrs.evolve(options, async_scheduling=False))[2] == (550, 970, 970)
    assert times(three, options)[2] == (550, 1_020, 1_020)


def test_a_cached_prompt_computes_its_last_block_again() -> None:
    """Of three equal prompts of three whole blocks the second finds two; one token more, and it finds all three."""
    for tokens, found in ((48, 32), (49, 48)):
        run = simulate_vllm(load(*(job(i, tokens, 1, 1_000 * i, (1, 2, 3)) for i in range(3))), PLAIN)
        assert run.requests["cached_tokens"].tolist() == [0, found, found]


def test_keys_of_other_sizes_name_the_same_blocks() -> None:
    """Prompts that share 40 tokens share two blocks of 16, whatever tokens their keys stand for."""
    for size in (1, 2, 4, 8, 20, 40):
        jobs = []
        for i in range(2):
            keys = [(k if (k + 1) * size <= 40 else 100 * i + k) for k in range(60 // size)]
            prompt = Prompt.from_keys(keys, block_tokens=size, tokens=60)
            jobs.append(Job(Request(i, 0, 1_000 * i, prompt, 1), 1))
        cached = simulate_vllm(load(*jobs), PLAIN).requests["cached_tokens"].tolist()
        # A key of 20 or 40 tokens that a block's end divides still says what is before it.
        assert cached == [0, 32], size


def test_the_last_that_runs_is_preempted_and_goes_first_again() -> None:
    """The oldest request is never preempted where the others leave it room; those preempted go before all that wait,
    and find what they had computed in the cache, unless it was taken."""
    jobs = [job(i, 60, 60, 10 * i) for i in range(6)]
    events: list[ev.Event] = []
    VllmEngine(load(*jobs), PLAIN, VllmOptions(18), events.extend).run()
    out = [event.request_id for event in events if isinstance(event, ev.Preempted)]
    assert out
    assert 0 not in out
    entered = [event for event in events if isinstance(event, ev.Admitted)]
    again = [event for i, event in enumerate(entered) if event.request_id in {each.request_id for each in entered[:i]}]
    assert len(again) == len(out)
    assert any(event.cached_prefix_tokens for event in again)
    for i, event in enumerate(events):
        if isinstance(event, ev.Preempted):
            following = next(each for each in events[i:] if isinstance(each, ev.Admitted))
            assert following.request_id <= event.request_id


@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
@pytest.mark.parametrize("policy", [None, "vtc", "dlpm-in-batch"])
@pytest.mark.parametrize("seed", range(2))
def test_whatever_comes_every_request_ends_once_and_leaves_nothing(
    options: VllmOptions, policy: str | None, seed: int
) -> None:
    """Tokens are computed once and in order of time, no token is lost, and all blocks are free in the end; figures of
    times between tokens are those of the tokens one by one."""
    workload, ledger, now = drawn(random.Random(seed), 80), EventLedger(), [0]
    recorder = Recorder(workload, latencies=[PLAIN])
    settings = None if policy is None else VllmSettings(policy=policy)
    made: dict[int, list[int]] = {}
    seen: Counter[type] = Counter()

    def record(events: list[ev.Event]) -> None:
        recorder.record(events)
        for event in events:
            seen[type(event)] += 1
            ledger.record(event)
            if not isinstance(event, ev.Arrived):
                assert event.time_ns >= now[0]
                now[0] = event.time_ns

    engine = VllmEngine(workload, PLAIN, options, record, settings=settings)
    update = engine.scheduler.update

    def told(step: Any) -> Any:
        produced = update(step)
        for call in produced:
            made.setdefault(call.job.request.id, []).append(engine.now_ns)
        return produced

    engine.scheduler.update = told  # type: ignore[method-assign]
    engine.run()
    ledger.check_over(job.request.id for job in workload.jobs)
    assert 16 * len(engine.scheduler.pool.free) == engine.capacity_tokens
    assert seen[ev.Cancelled] > 0
    finished = {job.request.id for job in workload.jobs if ledger.ended[job.request.id] is ev.Finished}
    assert all(len(made[job.request.id]) == job.output_tokens for job in workload.jobs if job.request.id in finished)
    gaps = np.concatenate([np.diff(each) for each in made.values()])
    assert recorder.result(policy="vllm").measures.tbt_us.mean == pytest.approx(gaps.mean() / 1e3)


def test_a_run_s_figures_are_those_of_its_requests() -> None:
    """Of a run that preempts, TTFT, TPOT and latency are what vLLM's benchmark computes of each request's times."""
    run = simulate_vllm(drawn(random.Random(7), 60), PLAIN, OPTIONS[0])
    rows = {name: column[run.requests["outcome"] == 1] for name, column in run.requests.items()}
    latency, ttft = rows["end_ns"] - rows["arrival_ns"], rows["first_token_ns"] - rows["arrival_ns"]
    several = rows["output_tokens"] > 1
    tpot = (latency - ttft)[several] / (rows["output_tokens"][several] - 1)
    assert run.measures.preemptions > 0
    assert run.measures.latency_us.mean == pytest.approx(latency.mean() / 1e3)
    assert run.measures.tpot_us.mean == pytest.approx(tpot.mean() / 1e3)


def test_what_can_never_run_is_rejected_and_the_rest_is_served() -> None:
    """A request larger than the memory or the model's context ends at once, in one line with the numbers."""
    jobs = (job(0, 100, 10), job(1, 10, 3), job(2, 64, 1))
    said = {}
    for options in (VllmOptions(5), VllmOptions(50, max_model_len=64)):
        events: list[ev.Event] = []
        VllmEngine(load(*jobs), PLAIN, options, events.extend).run()
        said[options.num_gpu_blocks] = [event.reason for event in events if isinstance(event, ev.Rejected)]
        assert next(event.request_id for event in events if isinstance(event, ev.Finished)) == 1
    assert said[5] == ["request 0 needs 109 tokens, and all blocks hold 64"]
    assert said[50] == [
        f"request {i} may have {tokens} tokens, and max_model_len is 64" for i, tokens in ((0, 110), (2, 65))
    ]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_gpu_blocks": 1}, "num_gpu_blocks is at least 2"),
        ({"block_size": 0}, "block_size is at least 1, not 0"),
        ({"max_num_seqs": 0}, "max_num_seqs is at least 1, not 0"),
        ({"max_num_batched_tokens": 8}, r"max_num_batched_tokens \(8\) is less than max_num_seqs \(256\)"),
        ({"release": "0.1"}, "release"),
    ],
)
def test_options_that_vllm_refuses_are_refused(options: dict[str, Any], match: str) -> None:
    """With one line that says which."""
    with pytest.raises(ValueError, match=match):
        simulate_vllm(load(job(0, 1, 1)), PLAIN, VllmOptions(**options))


def test_a_threshold_of_long_prompts_leaves_room_for_others() -> None:
    """A prompt of 100 tokens takes steps of 20 where another request is there; alone it takes all, but in 0.19."""
    cases: list[tuple[Literal["0.19", "0.32"], int, int]] = [("0.32", 1, 20), ("0.19", 0, 20), ("0.32", 0, 100)]
    for release, others, first in cases:
        options = VllmOptions(50, long_prefill_token_threshold=20, release=release)
        scheduler = VllmScheduler(options, 50)
        for each in (job(0, 100, 1), *(job(1, 1, 1) for _ in range(others))):
            scheduler.add(each)
        assert scheduler.schedule()[0][1] == first


def test_the_first_step_waits_for_its_kernels() -> None:
    """The first step begins later, and a request that comes in that time is in the second."""
    two = load(job(0, 20, 2), job(1, 20, 1, at_ns=500))
    late = simulate_vllm(two, PLAIN, first_step_ns=1_000).requests["first_token_ns"].tolist()
    assert late == [1_000 + 300, 1_000 + 300 + 300]
    assert simulate_vllm(two, PLAIN).requests["first_token_ns"].tolist() == [300, 500 + 300]


def test_a_step_says_its_longest_and_shortest_context() -> None:
    """A latency model with a skew correction is told of decodes of unequal context."""
    decodes = TimeTable((1, 2), (TimeTable((0, 1_000), (0, 1_000)), TimeTable((0, 1_000), (0, 2_000))))
    prompts = TimeTable((1,), (TimeTable((0,), (TimeTable((0,), (TimeTable((0,), (0,)),)),)),))
    skew = Skew((2,), (1_000,), (1_000,), (1_000_000,))
    kernels = Kernels(TimeTable((0,), (0,)), AttentionTable(decodes, prompts, skew), TimeTable((0,), (0,)))
    skewed = LatencyModel.of_kernels("skewed", "made up", kernels, 1_000)
    requests = simulate_vllm(load(job(0, 20, 2), job(1, 60, 2)), skewed, SYNC).requests
    assert requests["end_ns"].tolist() == [2 * 61] * 2


def test_a_policy_orders_the_queue() -> None:
    """A client that sends one request behind thirty of another waits for them in vLLM's own order, and not under VTC;
    what a policy does not do inside vLLM is refused in a line."""
    jobs = [job(i, 40, 40) for i in range(30)] + [job(30, 40, 40, 1, client=1)]
    options = VllmOptions(100, max_num_seqs=3, max_num_batched_tokens=64)
    last = {}
    for policy in (None, "vtc"):
        ends = simulate_vllm(load(*jobs), PLAIN, options, policy=policy).requests["end_ns"].tolist()
        last[policy] = sorted(ends).index(ends[30])
    assert last[None] == 30
    assert last["vtc"] < 6
    with pytest.raises(ConfigError, match="preempts"):
        simulate_vllm(load(*jobs), PLAIN, options, policy="fastserve")
