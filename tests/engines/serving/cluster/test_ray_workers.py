"""Workers as Ray actors with a torch model: one is killed by SIGKILL, one comes, and nobody is lost or forgiven."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairsched.cli import main
from fairsched.engines.serving import Answer, BlockKeys, Sampling, ServingLog
from fairsched.engines.serving.cluster.cluster import LiveCluster
from fairsched.engines.serving.cluster.member import Timeouts
from fairsched.engines.serving.cluster.worker import Cadence, Recipe
from fairsched.model.events import Arrived, WorkerJoined, WorkerLeft
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import DLPM, FCFS
from fairsched.policies.gates import DeficitGate
from fairsched.policies.registry import parameters
from fairsched.policies.routers import JoinShortestQueue
from tests.engines.serving.cluster.test_cluster import gate_passed
from tests.engines.serving.cluster.test_shared_credit import CAPACITY as SMALL
from tests.engines.serving.cluster.test_shared_credit import kill_one_of_two, shared
from tests.engines.serving.test_loop import Ends
from tests.support.adapters.ray_parts import CAPACITY, SPEC, make_torch
from tests.support.engines.fake_executor import FakeExecutor
from tests.support.torch.plain import ties_of

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.integration

POLICY = DLPM(gate=DeficitGate(quantum=40), batching=Chunked(64, 4))
RECIPE = Recipe(POLICY, make_torch, CAPACITY, FCFS())
DEADLINE_S = 120.0
"""A test that is not over by then hangs."""


def until(cluster: LiveCluster, over: Callable[[], bool]) -> None:
    """Serve until something is so; fails with what is under way when that takes too long."""
    deadline = time.monotonic() + DEADLINE_S
    while not over():
        cluster.step()
        if time.monotonic() > deadline:
            pytest.fail(f"this hangs: {len(cluster.answers)} open, {cluster.status}")


def asked(cluster: LiveCluster, count: int) -> list[Answer]:
    """A load of two clients, greedy and sampled, whose prompts share prefixes."""
    answers = []
    for i in range(count):
        prompt = [*range(2, 34), 40 + i % 7, i % 200]
        sampling = Sampling(temperature=0.8 * (i % 2), top_k=20, seed=i)
        answers.append(cluster.ask(f"client-{i % 3 % 2}", prompt, 24, sampling=sampling))
    return answers


def test_one_of_three_actors_is_killed_and_each_request_ends_once(
    ray_started: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL in the middle: each request ends once with the tokens of a plain pass over it alone, the debts of the
    dead worker are its successor's, the log replays to the same states, and `explain` tells of a request that moved.

    Afterwards a worker comes in the middle of another load, and serves its share.
    """
    from fairsched.engines.serving.cluster.ray_workers import RayWorkers

    ends, path = Ends(), tmp_path / "cluster.jsonl"
    options: dict[str, Any] = {"kv_capacity_tokens": CAPACITY, "workers": 3, "listeners": [ends]}
    with ServingLog(
        path, "dlpm", parameters(POLICY), kv_capacity_tokens=CAPACITY, router="join-shortest-queue", workers=4
    ) as log:
        cluster = LiveCluster(
            POLICY,
            JoinShortestQueue(),
            RayWorkers(RECIPE, num_cpus=0.2),
            workers_max=4,
            block_keys=BlockKeys(16),
            log=log,
            pace=Cadence(60.0, 3),
            ahead=2,
            timeouts=Timeouts(silent_s=30.0, start_s=DEADLINE_S),
            **options,
        )
        cluster.configure_client("client-1", 2)
        until(cluster, lambda: all(status.phase == "serving" for status in cluster.status))
        answers = asked(cluster, 48)
        until(cluster, lambda: min(cluster.policy_states[1].gate.q.tolist()) < 0)
        moved, victim = [answer for answer in answers if answer.tokens], cluster.status[1]
        assert victim.process_id is not None
        assert victim.requests > 0
        os.kill(victim.process_id, signal.SIGKILL)
        until(cluster, lambda: cluster.deaths == 1)
        owed = cluster.policy_states[1].gate.q.tolist()
        assert min(owed) < 0
        until(cluster, lambda: not cluster.answers and len(cluster.status) == 3)
        until(cluster, lambda: all(status.phase == "serving" for status in cluster.status))
        assert [status.interventions for status in cluster.status] == [{}, {}, {}]
        _check(answers, ends)

        answers += asked(cluster, 24)
        assert cluster.add_worker() == 3
        until(cluster, lambda: cluster.status[-1].phase == "serving")
        answers += asked(cluster, 24)
        assert cluster.status[-1].requests > 0
        until(cluster, lambda: not cluster.answers)
        _check(answers, ends)
        log.complete(*cluster.policy_states)
        cluster.close()
    assert cluster.deaths == 1
    assert moved
    happened = [(type(event), event.worker) for event in ends.events if isinstance(event, WorkerJoined | WorkerLeft)]
    assert happened.count((WorkerJoined, 1)) == 2
    assert happened.index((WorkerLeft, 1)) > happened.index((WorkerJoined, 1))
    # The successor admits as a gate does that remembers what the dead worker's clients owe.
    gate_passed(POLICY, ends.events, CAPACITY)
    assert main(["audit", str(path), "--replay"]) == 0
    assert "equal: every event" in capsys.readouterr().out
    arrivals = Counter(event.request.id for event in ends.events if isinstance(event, Arrived))
    again = next(request_id for request_id, times in arrivals.items() if times == 2)
    assert main(["audit", str(path), "--explain", str(again)]) == 0
    assert "finished" in capsys.readouterr().out


def test_actors_share_one_deficit(ray_started: None) -> None:
    """As workers in processes do, with an actor killed in the middle."""
    from fairsched.engines.serving.cluster.ray_workers import RayWorkers

    kill_one_of_two(RayWorkers(Recipe(shared(), FakeExecutor, SMALL), num_cpus=0.2))


def _check(answers: list[Answer], ends: Ends) -> None:
    assert ends.ended == Counter(answer.request_id for answer in answers)
    model = SPEC.load()
    for answer in answers:
        assert answer.outcome == "finished"
        assert len(answer.tokens) == 24
        ties_of(model, answer.prompt_ids, answer.tokens, answer.sampling, answer.request_id, near=1e-4)
