"""Requests that move between two executors with their KV: their tokens stay those of a plain pass."""

from collections import Counter
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.serving import Sampling
from fairsched.engines.serving.executor import MovesKV
from fairsched.engines.torch import Llama
from fairsched.engines.torch.executor import TorchExecutor
from fairsched.engines.torch.model import SIZES
from fairsched.model.decision import StepPlan
from fairsched.model.events import Admitted, Arrived, Migrated
from fairsched.model.request import Prompt, Request
from fairsched.model.worker import NoRoomError, arrive, depart, generated, kv_tokens, receive, reserve, sent, stage
from tests.engines.torch.test_executor import check_answers
from tests.support.torch.scenarios import CAPACITY, MODEL, Drive, World, executor_for, worlds

EXACT = Llama.random(SIZES["tiny"], dtype=torch.float64)


class Pair:
    """A world's load on one worker, whose requests move to a second one and back."""

    def __init__(self, world: World) -> None:
        self.executors = [executor_for(world, EXACT) for _ in range(2)]
        self.drives = [Drive(world, executor) for executor in self.executors]
        # The second worker has no callers of its own; both write into one set of answers.
        self.drives[1].answers = self.drives[0].answers
        self.moved: Counter[str] = Counter()

    def move(self, request_id: int, source: int) -> None:
        """A running request goes to the other worker with all that is computed of it."""
        here, there = self.drives[source], self.drives[1 - source]
        waiting, call = here.worker.running[request_id].waiting, here.world.calls[request_id]
        done, tokens = generated(here.worker, request_id), kv_tokens(here.worker, request_id)
        left = waiting.request.max_output_tokens - done
        try:
            there.worker = reserve(there.worker, request_id, tokens + left)
        except NoRoomError:
            return
        kv = self.executors[source].export_kv(request_id)
        here.moved(stage(here.worker, request_id, here.now_ns))
        there.executor.submit(request_id, call.ids, call.sampling, here.answers[request_id])
        self.executors[1 - source].import_kv(request_id, kv)
        coming = (waiting.request, waiting.output_tokens, there.now_ns, done, tokens)
        there.moved(receive(there.worker, *coming))
        here.worker = sent(here.worker, request_id)
        self.moved["decoding" if done else "prefilling" if tokens else "with nothing"] += 1

    def make_room(self) -> None:
        """Where KV that came keeps the others from going on, some of it is dropped, as engines do."""
        for drive in self.drives:
            worker = drive.worker
            while landed := worker.transit.landed:
                if len(worker.in_flight) > 1 or (worker.in_flight and worker.growing <= worker.free):
                    break
                request_id = max(landed)
                waiting, call = worker.queue[request_id], drive.world.calls[request_id]
                drive.moved(depart(worker, request_id, drive.now_ns))
                drive.executor.submit(request_id, call.ids, call.sampling, drive.answers[request_id])
                came = (waiting.request, waiting.output_tokens, drive.now_ns, waiting.generated_tokens)
                drive.moved(arrive(drive.worker, *came))
                worker = drive.worker
                self.moved["dropped"] += 1

    def run(self, rng: Random) -> None:
        """Serve everything; before a step each running request moves with a chance of one in four."""
        for _ in self.drives[0].run():
            other = self.drives[1]
            other.callers(leave_only=True)
            other.step()
            self.make_room()
            for source, drive in enumerate(self.drives):
                for request_id in sorted(drive.worker.in_flight):
                    if rng.random() < 0.25:
                        self.move(request_id, source)
            self.make_room()
        while self.drives[1].worker.queue or self.drives[1].worker.in_flight:
            self.drives[1].callers(leave_only=True)
            self.drives[1].step()
            self.make_room()


def test_tokens_do_not_change_with_the_worker() -> None:
    """In float64 each answer is a plain pass's without exception, wherever and however often its request moved.

    Requests move in the middle of a prompt and of an answer, into workers that have their prefix cached and others
    that do not, under every policy.  What came is not computed again: where all of it is there, one token is.
    """
    seen: Counter[str] = Counter()

    @given(worlds(), st.integers(0, 1 << 32))
    @settings(max_examples=40)
    def check(world: World, seed: int) -> None:
        pair = Pair(world)
        pair.run(Random(seed))
        assert check_answers(world, pair.drives[0], EXACT, near=0.0) == 0
        seen.update(pair.moved)
        for drive in pair.drives:
            came: dict[int, Arrived] = {}
            for event in drive.seen:
                if isinstance(event, Arrived) and event.kv_tokens:
                    came[event.request.id] = event
                elif isinstance(event, Admitted) and event.request_id in came:
                    arrived = came.pop(event.request_id)
                    whole = arrived.kv_tokens == arrived.request.prompt.tokens + arrived.generated_tokens - 1
                    seen["one token is computed"] += whole and event.extend_tokens == 1
                    seen["the prefix was cached"] += event.cached_prefix_tokens > 0
        for executor in pair.executors:
            assert not executor.sequences
            assert executor.pool.free + len(executor.prefixes.edges) == len(executor.pool.stack)

    check()
    wanted = ("decoding", "prefilling", "one token is computed", "the prefix was cached")
    assert min(seen[what] for what in wanted) >= 3, seen


def _executor(model: Llama = MODEL) -> TorchExecutor:
    return TorchExecutor(model, CAPACITY, page_tokens=4)


def test_what_cannot_be_the_request_s_kv_is_refused() -> None:
    """KV of a waiting request, of more tokens than it has, or of a model with other numbers: one line with figures."""
    source, target = _executor(), _executor(EXACT)
    assert isinstance(source, MovesKV)
    source.submit(1, [3, 4, 5], Sampling())
    with pytest.raises(ValueError, match="request 1: it does not run, and has no KV here"):
        source.export_kv(1)
    source.follow([Arrived(0, 0, Request(1, 0, 0, Prompt(3), 9)), Admitted(0, 0, 1, 0, 3, 0, 9)])
    token = source.execute(StepPlan(chunks=((1, 3),)))[1]
    kv = source.export_kv(1)
    assert len(kv) == 3 * source.cache.token_bytes
    source.follow([Migrated(0, 0, 1, 0, True, 0, 1)])
    assert not source.sequences
    target.submit(1, [3, 4, 5], Sampling(), [token])
    with pytest.raises(ValueError, match=f"request 1: {len(kv)} bytes of KV came, and a token has"):
        target.import_kv(1, kv)
    other = _executor()
    other.submit(1, [3, 4], Sampling(), [token])
    with pytest.raises(ValueError, match="of which at most 2 can be used"):
        other.import_kv(1, kv)
