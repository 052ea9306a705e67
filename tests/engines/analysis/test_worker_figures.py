"""Figures of workers are what one sees who follows every event; they add up to those of the run."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import attrs
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.engines.analysis.worker_figures import (
    WORKERS_NAMED,
    WORKERS_SHOWN,
    client_queues,
    imbalance,
    worker_figures,
)
from fairsched.engines.simulation import Cluster, simulate, simulate_events
from fairsched.engines.workloads import generate
from fairsched.engines.workloads.fleet import Change, Crash, Drain, Join
from fairsched.model import events as ev
from fairsched.model.machine import PRESETS, idle_nj, step_nj
from fairsched.model.request import Client, Job, Prompt, Request, Workload
from fairsched.model.service import concatenate, tables
from fairsched.policies.registry import LOCAL_POLICIES, ROUTERS

PRESET = PRESETS["llama-3.2-3b-a10g"]
S = 10**9


class Follower:
    """Who is in each worker's queue and batch, one event after the other, and for how long."""

    def __init__(self, events: Sequence[ev.Event]) -> None:
        self.waiting: dict[int, set[int]] = defaultdict(set)
        self.running: dict[int, set[int]] = defaultdict(set)
        self.busy_ns: dict[int, int] = defaultdict(int)
        self.queued_ns: dict[int, int] = defaultdict(int)
        self.work: dict[int, int] = defaultdict(int)
        self.steps: dict[int, dict[int, list[int]]] = defaultdict(dict)
        self.levels: list[tuple[int, dict[int, int], Counter[int]]] = []
        client = {event.request.id: event.request.client for event in events if isinstance(event, ev.Arrived)}
        last = events[0].time_ns
        for event in events:
            for worker, requests in self.running.items():
                self.busy_ns[worker] += bool(requests) * (event.time_ns - last)
            for worker, requests in self.waiting.items():
                self.queued_ns[worker] += len(requests) * (event.time_ns - last)
            last = event.time_ns
            self.follow(event)
            if isinstance(event, ev.Prefilled | ev.Decoded):
                step = self.steps[event.worker].setdefault(last, [self.busy_ns[event.worker], 0])
                step[1] += event.tokens if isinstance(event, ev.Prefilled) else sum(event.tokens)
            lengths = {worker: len(found) for worker, found in self.waiting.items()}
            queues = Counter(client[request] for found in self.waiting.values() for request in found)
            self.levels.append((event.time_ns, lengths, queues))

    def follow(self, event: ev.Event) -> None:
        waiting, running = self.waiting[event.worker], self.running[event.worker]
        match event:
            case ev.Arrived() if event.worker != ev.NOWHERE:
                waiting.add(event.request.id)
            case ev.Admitted():
                waiting.remove(event.request_id)
                running.add(event.request_id)
            case ev.Preempted():
                running.remove(event.request_id)
                waiting.add(event.request_id)
            case ev.Finished() | ev.Cancelled() | ev.Migrated() | ev.Rejected():
                waiting.discard(event.request_id)
                running.discard(event.request_id)
            case ev.WorkerLeft():
                waiting.clear()
                running.clear()
            case ev.Prefilled():
                self.work[event.worker] += event.tokens
            case ev.Decoded():
                self.work[event.worker] += 2 * sum(event.tokens)

    def energy_nj(self, worker: int, span_ns: int) -> int:
        """What the worker drew: each step by its tokens and time, what is left over of its batch's time, idle time."""
        drawn, before = 0, 0
        for busy_ns, tokens in [*self.steps[worker].values(), [self.busy_ns[worker], 0]]:
            drawn += int(step_nj(PRESET, np.array([tokens]), np.array([busy_ns - before]))[0])
            before = busy_ns
        return drawn + idle_nj(PRESET, span_ns - self.busy_ns[worker])


CHANGES = st.lists(
    st.one_of(
        st.builds(Crash, st.integers(0, 2), st.integers(0, 20 * S), st.none() | st.integers(0, 5 * S)),
        st.builds(Drain, st.integers(0, 2), st.integers(0, 20 * S)),
        st.builds(Join, st.integers(0, 20 * S)),
    ),
    max_size=4,
)


@example(seed=0, changes=[Crash(1, 0, 39_276_860), Drain(0, 0), Drain(2, 0)], router="round-robin", capacity=9_000)
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 99),
    changes=CHANGES,
    router=st.sampled_from(["round-robin", "join-shortest-queue", "freeness"]),
    capacity=st.sampled_from([9_000, 30_000, 132_000]),
)
def test_figures_are_those_of_who_follows_every_event(
    seed: int, changes: list[Change], router: str, capacity: int
) -> None:
    """Busy shares, mean queues, work, joules and queues over time, of workers and of clients, also where workers crash,
    drain and join."""
    workload = generate("toolbench", seed=seed, documents=5, sharers=12, rate=8, question_tokens=60)
    events = simulate_events(
        workload,
        LOCAL_POLICIES["dlpm"],
        ROUTERS[router],
        PRESET,
        workers=3,
        kv_capacity_tokens=capacity,
        changes=changes,
    )
    origin, span = events[0].time_ns, events[-1].time_ns - events[0].time_ns
    trace = concatenate([tables(events)])
    measures, series = worker_figures(trace, 3, origin, span, [PRESET] * 7)
    seen = Follower(events)
    for each in measures:
        assert each.busy_share == seen.busy_ns[each.worker] / span
        assert each.energy_j == seen.energy_nj(each.worker, span) / 1e9
        assert each.queue_mean == seen.queued_ns[each.worker] / span
        assert each.work == seen.work[each.worker] == each.computed_tokens + 2 * each.output_tokens
    assert sum(each.finished for each in measures) == sum(isinstance(event, ev.Finished) for event in events)
    at_ns = origin + np.round(series.seconds * S).astype(np.int64)
    clients = (7, 0, 3)
    queues = client_queues(trace, clients, at_ns)
    for k in range(0, len(at_ns), 16):
        levels: dict[int, int] = {}
        waiting = Counter[int]()
        for time_ns, found, by_client in seen.levels:
            if time_ns > at_ns[k]:
                break
            levels, waiting = found, by_client
        assert queues[k].tolist() == [waiting[client] for client in clients]
        assert series.waiting[k].tolist() == [levels.get(worker, 0) for worker in series.workers]
    assert series.work[-1].tolist() == [measures[worker].work for worker in series.workers]
    assert series.sent[-1].tolist() == [measures[worker].requests for worker in series.workers]


def test_the_workers_of_a_run_add_up_to_it() -> None:
    """Requests, output tokens and hits over all workers are the run's, and the document lists every worker."""
    workload = generate("toolbench", documents=8, sharers=20, rate=30)
    result = simulate(workload, "lpm", "longest-prefix", cluster=Cluster(PRESET, workers=4))
    measures, workers = result.measures, result.workers
    assert [each.worker for each in workers] == [0, 1, 2, 3]
    assert sum(each.requests for each in workers) == measures.requests
    assert sum(each.finished for each in workers) == measures.finished
    seconds = measures.makespan_us / 1e6
    assert sum(each.output_tokens for each in workers) == pytest.approx((measures.output_tokens_per_s or 0) * seconds)
    # A router that follows prefixes alone, all of which begin with one system prompt, uses one worker.
    assert [each.prefix_hit_ratio is None for each in workers] == [False, True, True, True]
    assert workers[0].prefix_hit_ratio == measures.prefix_hit_ratio
    assert result.imbalance == 4
    assert [each.busy_share == 0 for each in workers] == [False, True, True, True]
    document = result.to_json()
    assert document["imbalance"] == 4
    assert document["workers"] == [attrs.asdict(each) for each in workers]


@settings(max_examples=20)
@given(
    st.sampled_from(["fcfs-optimistic", "dlpm-in-batch", "fastserve", "lpm"]),
    st.sampled_from(["round-robin", "jsq-split", "llumnix"]),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=3, max_size=20),
)
def test_prompts_that_share_nothing_have_no_hits(policy: str, router: str, sizes: list[tuple[int, int]]) -> None:
    """Neither recomputed prompts of preempted requests nor KV that came from another worker are hits."""
    jobs = [
        Job(Request(i, i % 2, i, Prompt.from_keys(range(100 * i, 100 * i + prompt)), output), output)
        for i, (prompt, output) in enumerate(sizes)
    ]
    workload = Workload("apart", tuple(jobs), (Client(0, "a"), Client(1, "b")))
    run = simulate(workload, policy, router, cluster=Cluster(PRESET, workers=2, kv_capacity_tokens=100))
    assert run.measures.prefix_hit_ratio == 0
    assert {each.prefix_hit_ratio for each in run.workers} <= {0, None}
    assert not run.requests["cached_tokens"].any()


def test_of_many_workers_the_busiest_the_idlest_and_those_between_are_shown() -> None:
    """Up to the limit all are named in order; above, the chosen are in order of their work, its ends among them."""
    workload = generate("toolbench", documents=20, sharers=10, rate=200)
    for count in (WORKERS_NAMED, WORKERS_SHOWN + 20):
        result = simulate(workload, "lpm", "random", cluster=Cluster(PRESET, workers=count))
        work = [each.work for each in result.workers]
        assert len(work) == count
        shown = [work[worker] for worker in result.worker_series.workers]
        if count == WORKERS_NAMED:
            assert shown == work
        else:
            assert len(shown) == WORKERS_SHOWN
            assert shown == sorted(shown, reverse=True)
            assert (shown[0], shown[-1]) == (max(work), min(work))


def test_a_run_without_work_has_no_imbalance() -> None:
    """Nothing to compare is None, and one worker with work among idle ones counts as many."""
    (one,), _ = worker_figures(concatenate([]), 1, 0, 0)
    assert (one.requests, one.busy_share, one.prefix_hit_ratio, one.queue_mean) == (0, None, None, None)
    assert imbalance([one, one]) is None
    assert imbalance([one, attrs.evolve(one, work=5)]) == 2


def test_of_gpus_that_are_not_known_nothing_is_said() -> None:
    """Neither the share of a peak nor joules, of the worker and of the run; the rest is there."""
    assert PRESET.deployment is not None
    strange = attrs.evolve(PRESET, deployment=replace(PRESET.deployment, gpu="of tomorrow"))
    run = simulate(generate("toolbench", documents=2, sharers=5), "fcfs", cluster=Cluster(strange))
    (worker,) = run.workers
    assert (worker.mfu, worker.energy_j, run.measures.joules_per_token) == (None, None, None)
    assert worker.busy_share
