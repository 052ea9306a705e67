"""vLLM for tests: a tiny Llama with random weights, and its scheduler alone, driven without a model."""

import json
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from fairsched.integrations.vllm import FairScheduler
from fairsched.model.events import Event

BLOCK = 32
"""vLLM's attention on CPU takes multiples of it."""

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
        names = list(output.num_scheduled_tokens)
        results = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[sampled[name]] if name in sampled else [] for name in names],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        for outputs in self.scheduler.update_from_output(output, results).values():
            self.finished += [each.request_id for each in outputs.outputs if each.finish_reason is not None]


def prompts(rng: random.Random, count: int, caching: bool) -> Iterable[tuple[str, list[int], int, str]]:
    """Requests (name, prompt, most output, client) that fill whole blocks; with `caching` they share prefixes."""
    stems = [[rng.randrange(5, 300) for _ in range(96)] for _ in range(3)]
    for i in range(count):
        whole = BLOCK * rng.randint(2 if caching else 1, 5)
        length = max(whole - rng.choice((8, 40, 90)), BLOCK + 1) if caching else rng.randint(1, whole - 1)
        stem = rng.choice(stems)[: rng.choice((32, 64, 96))] if caching else []
        prompt = (stem + [rng.randrange(5, 300) for _ in range(whole)])[:length]
        yield str(i), prompt, whole - length, rng.choice("aaabc")
