"""Split workers as processes, killed by SIGKILL in every state of a transfer; a torch model on the CPU among them."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fairsched.engines.serving import Answer, InProcess, LiveCluster, Processes, Recipe, Sampling, split_roles
from fairsched.engines.serving.cluster.member import Timeouts
from fairsched.engines.serving.cluster.worker import Cadence
from fairsched.engines.torch import TorchSpec
from fairsched.engines.torch.executor import TorchExecutor
from fairsched.model.cluster import FreeKv
from fairsched.model.events import Admitted, Arrived
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
        if state in ("staged", "reserving", "sending", "landing"):
            return state in moves.values()
        if state == "arrived and not freed":
            return any(isinstance(command, FreeKv) for member in members.values() for command in member.outbox)
        decoder = members.get(1)
        there = [] if decoder is None else [request_id for request_id in decoder.calls if request_id not in moves]
        if state == "landed and not admitted":
            return any(not self._is_admitted(request_id) for request_id in there)
        assert state == "decoding"
        return any(len(self.cluster.answers[request_id].tokens) > 2 for request_id in there)

    def _is_admitted(self, request_id: int) -> bool:
        for event in reversed(self.ends.events):
            if isinstance(event, Admitted) and event.request_id == request_id:
                return True
            if isinstance(event, Arrived) and event.request.id == request_id:
                return False
        return False

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


STATES = (
    "staged",
    "reserving",
    "sending",
    "landing",
    "arrived and not freed",
    "landed and not admitted",
    "decoding",
)


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


@pytest.mark.parametrize("state", STATES)
def test_a_caller_that_gives_up_ends_its_request_once(fakes: Scene, state: str) -> None:
    """In every state of a transfer; the others' tokens are whole, and memory is free for as many again."""
    first = len(fakes.answers)
    fakes.finish()
    ids = fakes.ask(4)
    if state == "staged":
        fakes.router.holds.update(ids)
    fakes.until(lambda: fakes.is_in(state))
    for request_id in ids[::2]:
        fakes.cluster.cancel(request_id)
    fakes.finish()
    for answer in fakes.answers[first:]:
        expected = answer_of(answer.prompt_ids, 12)
        assert answer.outcome in ("finished", "cancelled")
        assert answer.tokens == expected[: len(answer.tokens)]
        assert answer.outcome == "cancelled" or len(answer.tokens) == 12
    assert sum(answer.outcome == "cancelled" for answer in fakes.answers[first:]) >= 1
    assert fakes.ends.ended == Counter(dict.fromkeys(range(len(fakes.answers)), 1))


SPEC = TorchSpec("tiny", batch_max=8)


def make_torch() -> TorchExecutor:
    """A tiny model on the CPU, the same weights in every process."""
    return SPEC.executor(SPEC.load(), CAPACITY)


@pytest.mark.nightly
def test_a_model_that_is_split_answers_as_one_worker_does(full_budget: bool) -> None:
    """Greedy and sampled requests through two torch processes, of which each is killed once, have the tokens that one
    worker that does everything gives them."""
    if not full_budget:
        pytest.skip("four processes import torch; test_split has the same within one")
    whole = LiveCluster(POLICY, SplitRouter(), InProcess(Recipe(POLICY, make_torch, CAPACITY)), **_alone())
    expected = _asked(whole)
    whole.run_until_idle()
    whole.close()
    scene = Scene(make_torch)
    scene.finish()
    answers = _asked(scene.cluster)
    scene.until(lambda: scene.is_in("landing"))
    scene.kill(1)
    scene.until(lambda: scene.cluster.deaths == 1 and scene.is_in("decoding"))
    scene.kill(0)
    scene.finish()
    # One more, since a worker that is not called is not missed.
    last = scene.cluster.ask("a", [1, 2, 3], 2)
    scene.finish()
    scene.cluster.close()
    assert last.outcome == "finished"
    assert scene.cluster.deaths == 2
    assert scene.cluster.transfers.landed > 0
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]
    assert [len(answer.tokens) for answer in answers] == [10] * 6
    # What was sent is keys and values of every layer for each token of a prompt, and nothing else.
    config = SPEC.load().config
    assert scene.cluster.transfers.bytes % config.kv_bytes_per_token == 0


def _asked(cluster: LiveCluster) -> list[Answer]:
    sampled = [Sampling(temperature=0.8 * (i % 2), top_k=20, seed=i) for i in range(6)]
    return [cluster.ask("a", [*range(2, 20), 40 + i % 3, i], 10, sampling=each) for i, each in enumerate(sampled)]


def _alone() -> dict[str, Any]:
    return {"kv_capacity_tokens": CAPACITY, "workers": 1, "pace": Cadence(60.0, 50)}
