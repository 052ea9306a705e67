"""Our model of vLLM's scheduler, step by step beside vLLM's own: the same batches, blocks and preemptions."""

import os
import random
import warnings
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pytest

from fairsched.engines.simulation import VllmOptions, VllmScheduler
from fairsched.engines.simulation.vllm import Step, VllmCall
from fairsched.model.request import Job, Prompt, Request

os.environ |= {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
pytest.importorskip("vllm", reason="vLLM is not installed")

with warnings.catch_warnings(action="ignore"):
    from vllm.v1.request import RequestStatus

    from tests.integration.vllm_parts import STOP, Bare, tiny_llama

pytestmark = pytest.mark.integration

SIZE = 16
LONGEST = 1024


def drawn(rng: random.Random, room: int) -> list[tuple[Job, list[int]]]:
    """Requests with the tokens of their prompts, none of which is larger than the room: prompts continue each other,
    are equal, share a part of a block, or nothing."""
    fresh = iter(range(100, 1 << 30)).__next__
    stems: list[list[int]] = [[]]
    found = []
    longest, keyed = min(room, LONGEST), rng.choice((1, 4, SIZE))
    for i in range(rng.randint(8, 60)):
        stem = rng.choice(stems)
        more = rng.choice((0, 1, rng.randint(1, 15), SIZE, rng.randint(1, 8) * SIZE, rng.randint(1, 400)))
        tokens = (stem + [fresh() for _ in range(more)])[: longest - 1] or [fresh()]
        if rng.random() < 0.6:
            stems.append(tokens)
        most = rng.randint(1, min(longest - len(tokens), rng.choice((1, 4, 40, 300))))
        output = most if rng.random() < 0.6 else rng.randint(1, most)
        # A key says what the tokens of its block are.
        keys = [hash(tuple(tokens[at : at + keyed])) for at in range(0, len(tokens) - keyed + 1, keyed)]
        prompt = Prompt.from_keys(keys, block_tokens=keyed, tokens=len(tokens))
        found.append((Job(Request(i, 0, 0, prompt, most), output), tokens))
    return found


class Both:
    """The two schedulers, driven as the core of vLLM's engine drives one, and compared after each call."""

    def __init__(self, model: Path, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        blocks, budget = rng.choice((8, 24, 64, 200)), rng.choice((16, 64, 256, 2048))
        self.options = VllmOptions(
            blocks + 1,
            SIZE,
            max_num_batched_tokens=budget,
            max_num_seqs=min(rng.choice((1, 3, 8, 32)), budget),
            long_prefill_token_threshold=rng.choice((0, 0, 5, 40)),
            enable_prefix_caching=rng.random() < 0.8,
            async_scheduling=rng.random() < 0.7,
            scheduler_reserve_full_isl=rng.random() < 0.5,
        )
        same = {name: getattr(self.options, name) for name in ("async_scheduling", "scheduler_reserve_full_isl")}
        self.theirs = Bare(
            model,
            None,
            blocks=blocks,
            seats=self.options.max_num_seqs,
            budget=self.options.max_num_batched_tokens,
            caching=self.options.enable_prefix_caching,
            size=SIZE,
            longest=LONGEST,
            long_prefill_token_threshold=self.options.long_prefill_token_threshold,
            **same,
        )
        self.ours = VllmScheduler(self.options, blocks + 1)
        self.coming = drawn(rng, blocks * SIZE)
        self.calls: dict[str, VllmCall] = {}
        self.in_flight: deque[tuple[Any, Step]] = deque()
        self.seen: Counter[str] = Counter()
        self._token = iter(range(1 << 30, 1 << 40)).__next__

    def run(self) -> Counter[str]:
        """Serve everything; returns how often what happened."""
        depth, pace = 2 if self.options.async_scheduling else 1, self.rng.choice((0.05, 0.3, 0.9))
        while self.coming or self.in_flight or self.theirs.scheduler.has_unfinished_requests():
            while self.coming and self.rng.random() < pace:
                job, tokens = self.coming.pop()
                name = str(job.request.id)
                self.theirs.add(name, tokens, job.request.max_output_tokens, "a")
                self.calls[name] = self.ours.add(job)
            if self.calls and self.rng.random() < 0.01:
                self.abort(self.rng.choice(list(self.calls)))
            output, step = self.theirs.scheduler.schedule(), self.ours.schedule()
            self.compare_steps(output, step)
            self.compare_states()
            if step:
                self.in_flight.append((output, step))
                if len(self.in_flight) < depth:
                    continue
            if self.in_flight:
                self.deliver()
                self.compare_states()
        assert not self.calls
        assert not self.ours.running
        assert not self.ours.waiting
        return self.seen

    def abort(self, name: str) -> None:
        self.seen["aborted"] += 1
        self.theirs.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.ours.abort(self.calls.pop(name))

    def deliver(self) -> None:
        """Give both the same results: an output that ends early ends with a token that says so."""
        output, step = self.in_flight.popleft()
        sampled = {}
        for call, _, samples in step:
            if samples:
                last = call.num_output_tokens + 1 == call.output_tokens < call.max_tokens
                sampled[str(call.job.request.id)] = STOP if last else self._token()
        self.theirs.finished.clear()
        self.theirs.deliver(output, sampled)
        finished = [str(call.job.request.id) for call in self.ours.update(step) if call.is_finished]
        assert finished == self.theirs.finished
        self.seen["finished"] += len(finished)
        for name in finished:
            del self.calls[name]

    def compare_steps(self, output: Any, step: Step) -> None:
        """The same requests in the same order with the same tokens; the same enter, with as much from the cache, and
        leave."""
        scheduled = {str(call.job.request.id): count for call, count, _ in step}
        assert list(scheduled.items()) == list(output.num_scheduled_tokens.items())
        chunks = {str(call.job.request.id) for call, _, samples in step if not samples}
        assert chunks == {name for name in scheduled if self.theirs.scheduler.requests[name].is_prefill_chunk}
        entered = {str(call.job.request.id): call.num_cached_tokens for call in self.ours.admitted}
        resumed = output.scheduled_cached_reqs
        before = dict(zip(resumed.req_ids, resumed.num_computed_tokens, strict=True))
        theirs = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        theirs |= {name: before[name] for name in resumed.resumed_req_ids}
        assert entered == theirs
        taken_out = {str(call.job.request.id) for call in self.ours.preempted}
        assert taken_out == (output.preempted_req_ids or set())
        self.seen["steps"] += 1
        self.seen["tokens"] += sum(scheduled.values())
        self.seen["cached"] += sum(entered.values())
        self.seen["preempted"] += len(taken_out)

    def compare_states(self) -> None:
        """The same queue and batch in the same order, the same blocks by number, free ones in the same order."""
        scheduler = self.theirs.scheduler
        manager, pool = scheduler.kv_cache_manager, scheduler.kv_cache_manager.block_pool
        for ours, theirs in ((self.ours.waiting, scheduler.waiting), (self.ours.running, scheduler.running)):
            assert [str(call.job.request.id) for call in ours] == [request.request_id for request in theirs]
        for name, call in self.calls.items():
            request = scheduler.requests[name]
            for field in ("num_tokens", "num_computed_tokens", "num_output_placeholders", "num_preemptions"):
                assert getattr(call, field) == getattr(request, field), (name, field)
            assert call.blocks == manager.get_block_ids(name)[0]
        assert list(self.ours.pool.free) == [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
        named = {block.block_id for block in pool.blocks if block.block_hash is not None}
        assert {block for block, name in enumerate(self.ours.pool.names) if name is not None} == named


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama."""
    return tiny_llama(tmp_path_factory.mktemp("llama"))


def test_each_step_is_vllm_s(model: Path) -> None:
    """Over drawn loads and settings, with shared prefixes, early ends, aborts and too little memory, every step is as
    in vLLM's own scheduler, and its asynchronous one: the same tokens of the same requests in the same order, with the
    same blocks, tokens from the cache, preemptions and order of eviction."""
    seen: Counter[str] = Counter()
    for seed in range(60):
        seen += Both(model, seed).run()
    assert all(seen[what] > 50 for what in ("preempted", "aborted", "cached", "finished"))
