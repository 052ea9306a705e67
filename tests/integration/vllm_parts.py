"""vLLM for tests: a tiny Llama with random weights, its scheduler alone, driven without a model, and beside ours."""

import itertools
import json
import queue
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from fairsched.engines.adapters.vllm import VllmSettings
from fairsched.engines.simulation import VllmOptions
from fairsched.engines.simulation.vllm import FairVllmScheduler, Step, VllmCall, VllmScheduler
from fairsched.integrations.vllm import FairScheduler
from fairsched.model import request as ours
from fairsched.model.events import Event
from fairsched.model.machine import LatencyModel

BLOCK = 32
"""vLLM's attention on CPU takes multiples of it."""

SIZE, LONGEST = 16, 1024
"""Tokens of a block, and of the longest request, where ours is compared with it."""

STOP = 1
"""The token with which an output ends."""

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}


def tiny_llama(folder: Path) -> Path:
    """The folder of such a model: no weights, no tokenizer."""
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


class Bare:
    """vLLM's scheduler without a model: every step computes what was scheduled, and samples token 7.

    `fair` is our table of the additional configuration; None gives vLLM's own scheduler.  `more` are settings of vLLM's
    `SchedulerConfig`.
    """

    def __init__(
        self,
        model: Path,
        fair: dict[str, object] | None,
        *,
        blocks: int = 16,
        seats: int = 4,
        budget: int = 128,
        caching: bool = False,
        rank: int = 0,
        size: int = BLOCK,
        longest: int = 256,
        async_scheduling: bool = True,
        **more: Any,
    ) -> None:
        init_none_hash(sha256)
        config = VllmConfig(
            model_config=ModelConfig(
                model=str(model), dtype="float32", max_model_len=longest, skip_tokenizer_init=True
            ),
            scheduler_config=SchedulerConfig(
                max_num_seqs=seats,
                max_num_batched_tokens=budget,
                max_model_len=longest,
                enable_chunked_prefill=True,
                async_scheduling=async_scheduling,
                is_encoder_decoder=False,
                **more,
            ),
            cache_config=CacheConfig(block_size=size, enable_prefix_caching=caching),
            parallel_config=ParallelConfig(),
            additional_config={} if fair is None else {"fairsched": fair},
        )
        config.parallel_config.data_parallel_index = rank
        config.cache_config.num_gpu_blocks = blocks + 1  # One is vLLM's null block.
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        own = AsyncScheduler if async_scheduling else Scheduler
        self.scheduler: Any = (FairScheduler if fair is not None else own)(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=blocks + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
            ),
            block_size=size,
            log_stats=False,
            structured_output_manager=StructuredOutputManager(config),
        )
        self.events: list[Event] = []
        self.finished: list[str] = []
        if fair is not None:
            self.scheduler.tracker.bus.listeners.append(self.events.extend)
        self._in_flight: list[tuple[Any, set[str]]] = []

    def add(self, name: str, prompt: list[int], most: int, client: str) -> None:
        """A request comes."""
        params = SamplingParams(max_tokens=most, ignore_eos=True, stop_token_ids=[STOP], extra_args={"client": client})
        params.update_from_generation_config({}, 1)
        hasher = get_request_block_hasher(self.scheduler.block_size, sha256)
        self.scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=prompt,
                sampling_params=params,
                pooling_params=None,
                block_hasher=hasher,
            )
        )

    def run(
        self, ahead: int = 1, before: Callable[[int], None] = lambda _: None, more: Callable[[], bool] = lambda: False
    ) -> int:
        """Serve until nothing is left, with so many steps in flight; `before` each step it is called with its number,
        from 0.  The number of steps."""
        steps = 0
        while more() or self.scheduler.has_unfinished_requests() or self._in_flight:
            assert steps < 10_000
            before(steps)
            steps += 1
            output = self.scheduler.schedule()
            busy = output.total_num_scheduled_tokens > 0
            if busy:
                requests = self.scheduler.requests
                samples = {name for name in output.num_scheduled_tokens if not requests[name].is_prefill_chunk}
                self._in_flight.append((output, samples))
            if self._in_flight and (len(self._in_flight) >= ahead or not busy):
                self._deliver()
        return steps

    def serve(self, seed: int, count: int, ahead: int = 1) -> None:
        """Serve so many requests that come at once and share no prefix."""
        for request in prompts(random.Random(seed), count, caching=False):
            self.add(*request)
        self.run(ahead)

    def _deliver(self) -> None:
        output, samples = self._in_flight.pop(0)
        self.deliver(output, dict.fromkeys(samples, 7))

    def deliver(self, output: Any, sampled: Mapping[str, int]) -> None:
        """Give a step's results back: the tokens that requests have sampled in it."""
        found = self.scheduler.update_from_output(output, results([*output.num_scheduled_tokens], sampled))
        for outputs in found.values():
            self.finished += [each.request_id for each in outputs.outputs if each.finish_reason is not None]


def results(names: list[str], sampled: Mapping[str, int]) -> ModelRunnerOutput:
    """What a model would return of a step of these requests: the tokens that some have sampled in it."""
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: i for i, name in enumerate(names)},
        sampled_token_ids=[[sampled[name]] if name in sampled else [] for name in names],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


def prompts(rng: random.Random, count: int, caching: bool) -> Iterable[tuple[str, list[int], int, str]]:
    """Requests (name, prompt, most output, client) that fill whole blocks; with `caching` they share prefixes."""
    stems = [[rng.randrange(5, 300) for _ in range(96)] for _ in range(3)]
    for i in range(count):
        whole = BLOCK * rng.randint(2 if caching else 1, 5)
        length = max(whole - rng.choice((8, 40, 90)), BLOCK + 1) if caching else rng.randint(1, whole - 1)
        stem = rng.choice(stems)[: rng.choice((32, 64, 96))] if caching else []
        prompt = (stem + [rng.randrange(5, 300) for _ in range(whole)])[:length]
        yield str(i), prompt, whole - length, rng.choice("aaabc")


WEIGHTS = {"a": 1, "b": 2, "c": 1}
"""Clients and their weights."""


def drawn(rng: random.Random, room: int) -> list[tuple[ours.Job, list[int]]]:
    """Requests with the tokens of their prompts, none of which is larger than the room: prompts continue each other,
    are equal, share a part of a block, or nothing."""
    fresh = iter(range(100, 1 << 30)).__next__
    stems: list[list[int]] = [[]]
    found: list[tuple[ours.Job, list[int]]] = []
    longest, keyed = min(room, LONGEST), rng.choice((1, 4, SIZE))
    again = rng.choice((0.0, 0.5))
    for i in range(rng.randint(8, 60)):
        stem = rng.choice(stems)
        more = rng.choice((0, 1, rng.randint(1, 15), SIZE, rng.randint(1, 8) * SIZE, rng.randint(1, 400)))
        tokens = (stem + [fresh() for _ in range(more)])[: longest - 1] or [fresh()]
        if found and rng.random() < again:
            tokens = found[-1][1]
        if rng.random() < 0.6:
            stems.append(tokens)
        most = rng.randint(1, min(longest - len(tokens), rng.choice((1, 4, 40, 300))))
        output = most if rng.random() < 0.6 else rng.randint(1, most)
        # A key says what the tokens of its block are.
        keys = [hash(tuple(tokens[at : at + keyed])) for at in range(0, len(tokens) - keyed + 1, keyed)]
        prompt = ours.Prompt.from_keys(keys, block_tokens=keyed, tokens=len(tokens))
        found.append((ours.Job(ours.Request(i, rng.randrange(3), 0, prompt, most), output), tokens))
    return found


class Both:
    """The two schedulers, driven as the core of vLLM's engine drives one, and compared after each call; with `fair`,
    our table of the additional configuration, both with the queue of a policy."""

    def __init__(self, model: Path, seed: int, fair: dict[str, Any] | None = None) -> None:
        self.rng = rng = random.Random(seed)
        blocks, budget = rng.choice((8, 24, 64, 200)), rng.choice((16, 64, 256, 2048))
        self.options = VllmOptions(
            blocks + 1,
            SIZE,
            max_num_batched_tokens=budget,
            max_num_seqs=min(rng.choice((1, 3, 8, 32)), budget),
            long_prefill_token_threshold=rng.choice((0, 0, 5, 40)),
            enable_prefix_caching=rng.random() < 0.8,
            async_scheduling=rng.random() < 0.7 or fair is not None,
            max_model_len=LONGEST,
            scheduler_reserve_full_isl=rng.random() < 0.5,
        )
        same = {name: getattr(self.options, name) for name in ("async_scheduling", "scheduler_reserve_full_isl")}
        self.theirs = Bare(
            model,
            None if fair is None else fair | {"clients": WEIGHTS},
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
        if fair is not None:
            clients = [ours.Client(i, *each) for i, each in enumerate(WEIGHTS.items())]
            clock = itertools.count().__next__
            self.ours = FairVllmScheduler(self.options, blocks + 1, VllmSettings(**fair), clients, clock)
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
                self.theirs.add(name, tokens, job.request.max_output_tokens, [*WEIGHTS][job.request.client])
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
        finished = [str(call.job.request.id) for call in self.ours.update(step) if call.is_finished()]
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
        for mine, their in ((self.ours.waiting, scheduler.waiting), (self.ours.running, scheduler.running)):
            assert [str(call.job.request.id) for call in mine] == [request.request_id for request in their]
        for name, call in self.calls.items():
            request = scheduler.requests[name]
            for field in ("num_tokens", "num_computed_tokens", "num_output_placeholders", "num_preemptions"):
                assert getattr(call, field) == getattr(request, field), (name, field)
            assert call.blocks == manager.get_block_ids(name)[0]
        assert list(self.ours.pool.free) == [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
        named = {block.block_id for block in pool.blocks if block.block_hash is not None}
        assert {block for block, name in enumerate(self.ours.pool.names) if name is not None} == named


class Core:
    """The core of vLLM's engine with a clock and no model: steps take what a latency model says, one after the other.

    `times` has for each request when it was scheduled first, and when each of its tokens came.
    """

    def __init__(self, model: Path, options: VllmOptions, blocks: int, latency: LatencyModel) -> None:
        names = ("async_scheduling", "scheduler_reserve_full_isl", "long_prefill_token_threshold")
        self._bare = Bare(
            model,
            None,
            blocks=blocks,
            seats=options.max_num_seqs,
            budget=options.max_num_batched_tokens,
            caching=options.enable_prefix_caching,
            size=SIZE,
            longest=LONGEST,
            **{name: getattr(options, name) for name in names},
        )
        self._latency, self.now_ns, self._free_ns = latency, 0, 0
        self._jobs: dict[str, ours.Job] = {}
        self.times: dict[str, list[int]] = {}
        self._token = itertools.count(1 << 30).__next__
        core: Any = object.__new__(EngineCore)
        core.scheduler, core.model_executor, core.vllm_config = (
            self._bare.scheduler,
            self,
            self._bare.scheduler.vllm_config,
        )
        core.batch_queue_size = 2 if options.async_scheduling else 1
        core.batch_queue = deque(maxlen=2) if options.async_scheduling else None
        core.aborts_queue = queue.Queue()
        core.is_mm_encoder_only = core.is_pooling_model = core.check_for_draft_tokens = core.log_stats = False
        core.async_scheduling, core._weight_version = options.async_scheduling, None
        self._core = core

    def run(self, workload: list[tuple[ours.Job, list[int]]]) -> None:
        """Serve requests that come at their times: those that have come are taken before each step, as in the busy loop
        of the core."""
        coming = sorted(workload, key=lambda each: (each[0].request.arrival_ns, each[0].request.id), reverse=True)
        core = self._core
        while coming or core.scheduler.has_requests() or core.batch_queue:
            if not (core.scheduler.has_requests() or core.batch_queue):
                self.now_ns = max(self.now_ns, coming[-1][0].request.arrival_ns)
            while coming and coming[-1][0].request.arrival_ns <= self.now_ns:
                job, tokens = coming.pop()
                self._jobs[str(job.request.id)] = job
                self._bare.add(str(job.request.id), tokens, job.request.max_output_tokens, "a")
            outputs, _ = (core.step if core.batch_queue is None else core.step_with_batch_queue)()
            for each in (outputs or {}).values():
                for output in each.outputs:
                    self.times[output.request_id] += [self.now_ns] * len(output.new_token_ids)

    def execute_model(self, output: Any, non_block: bool) -> Future[Any]:
        """Begin a step when the one before it is over."""
        assert non_block
        requests = self._bare.scheduler.requests
        counts = output.num_scheduled_tokens
        after = {name: requests[name].num_computed_tokens for name in counts}
        decodes = [after[name] for name, count in counts.items() if count == 1 < after[name]]
        chunks = [(count, after[name] - count) for name, count in counts.items() if not count == 1 < after[name]]
        for name in counts:
            self.times.setdefault(name, [self.now_ns])
        if counts:
            step_ns = self._latency.step_ns(chunks, len(decodes), sum(decodes))
            self._free_ns = max(self.now_ns, self._free_ns) + step_ns
        samples = [name for name in counts if not requests[name].is_prefill_chunk]
        self._begun = [*counts], samples, self._free_ns if counts else self.now_ns
        future: Future[Any] = Future()
        future.set_result(None if counts else self._done([], [], self.now_ns))
        return future

    def sample_tokens(self, _: object, non_block: bool = False) -> Any:
        """Return the results of the step that has begun, at once or as what waits for its end."""
        names, samples, end_ns = self._begun
        if not non_block:
            return self._done(names, samples, end_ns)
        future: Any = Future()
        future.result = lambda: self._done(names, samples, end_ns)
        return future

    def _done(self, names: list[str], samples: list[str], end_ns: int) -> ModelRunnerOutput:
        self.now_ns = max(self.now_ns, end_ns)
        requests, sampled = self._bare.scheduler.requests, {}
        for name in samples:
            if name in requests:
                job, request = self._jobs[name], requests[name]
                last = request.num_output_tokens + 1 == job.output_tokens < job.request.max_output_tokens
                sampled[name] = STOP if last else self._token()
        return results(names, sampled)
