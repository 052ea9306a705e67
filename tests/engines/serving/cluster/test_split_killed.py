"""Split workers as processes, killed by SIGKILL while KV moves; `test_split` has every state of a transfer."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fairsched.engines.serving import Answer, LiveCluster, Processes, Recipe, Sampling, split_roles
from fairsched.engines.serving.cluster.member import Timeouts
from fairsched.engines.serving.cluster.worker import Cadence
from fairsched.policies.batching import Chunked
from fairsched.policies.catalog import FCFS
from tests.engines.serving.test_loop import Ends
from tests.support.engines.fake_executor import FakeExecutor, answer_of
from tests.support.faults.split_router import SplitRouter

# Two run at a time, so that requests that have landed wait for a seat.
POLICY = FCFS(batching=Chunked(16, 2))
CAPACITY = 400
STEPS_MAX = 200_000
"""A test that takes more steps of the cluster hangs; no time is measured."""


class Scene:
    """A split cluster of two processes, and what is to be seen of its transfers."""

    def __init__(self, make_executor: Callable[[], Any]) -> None:
        self.ends = Ends()
        self.router = SplitRouter(reserved_output_tokens=2)
        recipe = Recipe(POLICY, make_executor, CAPACITY)
        self.cluster = LiveCluster(
            POLICY,
            self.router,
            Processes(recipe),
            kv_capacity_tokens=CAPACITY,
            roles=split_roles("1:1"),
            listeners=[self.ends],
            pace=Cadence(60.0, 1),
            timeouts=Timeouts(silent_s=600.0, start_s=600.0, restarts_max=9, deaths_max=99),
        )
        self.answers: list[Answer] = []

    def ask(self, count: int, output: int = 12) -> list[int]:
        """Send greedy and sampled requests; returns their ids."""
        for _ in range(count):
            i = self.cluster.next_id
            sampling = Sampling(temperature=0.8 * (i % 2), top_k=20, seed=i)
            prompt = [3, 1, 4, 1, 5, i % 7, i % 11]
            self.answers.append(self.cluster.ask(f"client-{i % 2}", prompt, output, sampling=sampling))
        return [answer.request_id for answer in self.answers[-count:]]

    def until(self, so: Callable[[], bool]) -> None:
        """Serve until something is so."""
        for _ in range(STEPS_MAX):
            if so():
                return
            self.cluster.step()
        pytest.fail(f"this hangs: {self.cluster.answers}, {self.cluster.moves}, {self.cluster.status}")

    def is_in(self, state: str) -> bool:
        """Whether a request is in this state of its transfer."""
        members, moves = self.cluster._members, self.cluster.moves
        if state != "decoding":
            return state in moves.values()
        there = [] if 1 not in members else [request_id for request_id in members[1].calls if request_id not in moves]
        return any(len(self.cluster.answers[request_id].tokens) > 2 for request_id in there)

    def kill(self, worker: int) -> None:
        """End a worker's process; the cluster knows when it calls it next."""
        report = self.cluster._members[worker].last
        assert report is not None
        os.kill(report.process_id, signal.SIGKILL)

    def finish(self) -> None:
        """Serve until nothing is open and both workers serve again."""
        self.router.holds.clear()
        self.until(lambda: not self.cluster.answers and len(self.cluster.status) == 2)
        self.until(lambda: all(status.phase == "serving" for status in self.cluster.status))


STATES = ("staged", "reserving", "sending", "landing", "decoding")


@pytest.fixture(scope="module")
def fakes() -> Iterator[Scene]:
    """Workers without a model."""
    scene = Scene(FakeExecutor)
    yield scene
    scene.cluster.close()


@pytest.mark.parametrize("victim", [0, 1], ids=["prefill", "decode"])
@pytest.mark.parametrize("state", STATES)
def test_a_killed_worker_loses_no_request_and_no_token(fakes: Scene, state: str, victim: int) -> None:
    """SIGKILL of either worker while a request is in this state: each request ends once with its own tokens, each told
    once, and another worker takes the number; requests that come afterwards are served over both."""
    first = len(fakes.answers)
    fakes.finish()
    ids = fakes.ask(5)
    if state == "staged":
        fakes.router.holds.update(ids)
    fakes.until(lambda: fakes.is_in(state))
    landed, deaths = fakes.cluster.transfers.landed, fakes.cluster.deaths
    fakes.kill(victim)
    fakes.router.holds.clear()
    fakes.finish()
    fakes.ask(2)
    fakes.finish()
    assert fakes.cluster.transfers.landed >= landed + 1
    assert fakes.cluster.deaths == deaths + 1
    for answer in fakes.answers[first:]:
        assert answer.outcome == "finished"
        assert answer.tokens == answer_of(answer.prompt_ids, 12)
    assert fakes.ends.ended == Counter(dict.fromkeys(range(len(fakes.answers)), 1))
    assert not any(status.interventions for status in fakes.cluster.status)
