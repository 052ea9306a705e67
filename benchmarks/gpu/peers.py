"""Output tokens a second of one load, all of it there at once: ours, continuous batching of transformers, vLLM.

Weights are random in each, of one shape, and every request produces its full output, so each computes the same.  Each
serves a load of other prompts first, which is not counted.
"""

import importlib.util
import inspect
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.__main__ import RATE
from benchmarks.gpu.part import Notebook, NotRunError, Setting

Prompts = list[list[int]]


def prompts_of(setting: Setting, vocab_size: int, seed: int) -> Prompts:
    """Return the prompts of a load."""
    rng = np.random.default_rng(seed)
    prompts: Prompts = rng.integers(3, vocab_size, (setting.requests, setting.request_prompt)).tolist()
    return prompts


def _note(setting: Setting, notes: Notebook, tokens: int, seconds: float, more: str) -> None:
    wanted = setting.requests * setting.request_output
    if tokens != wanted:
        raise RuntimeError(f"{tokens} tokens came out, not {wanted}")
    load = f"{setting.requests} prompts of {setting.request_prompt} tokens, {setting.request_output} out"
    notes.add(RATE, tokens / seconds, "tokens/s", f"{setting.peer_model or setting.model}; {load}; {more}")


def _shape(setting: Setting) -> Path:
    """Return a folder with the model's description, as a checkpoint has it."""
    from fairsched.engines.torch import SIZES
    from fairsched.engines.torch.checkpoint import save_config
    from fairsched.engines.torch.executor import DTYPES

    folder = setting.folder / f"shape-{os.getpid()}"
    folder.mkdir()
    save_config(SIZES[setting.peer_model or setting.model], DTYPES[setting.device], folder)
    return folder


def _needed(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise NotRunError(f"{name} is not installed")


def throughput_part(setting: Setting, notes: Notebook) -> None:
    """The serving engine here, with its guard and DLPM."""
    from fairsched.engines.serving import BlockKeys, Engine
    from fairsched.engines.torch import PAGE_TOKENS, TorchSpec
    from fairsched.policies.registry import local_policy, with_parameters

    page = PAGE_TOKENS[setting.device]
    name = setting.peer_model or setting.model
    spec = TorchSpec(name, setting.device, page_tokens=page, batch_max=setting.requests)
    capacity = setting.requests * (setting.request_prompt + setting.request_output + page)
    limits = {"max_running": str(setting.requests), "max_batched_tokens": str(4 * setting.chunk_max)}
    model = spec.load()
    engine = Engine(
        with_parameters(local_policy("dlpm"), limits), spec.executor(model, capacity), kv_capacity_tokens=capacity,
        block_keys=BlockKeys(page),
    )  # fmt: skip
    seconds = 0.0
    for seed in (1, 0):
        prompts = prompts_of(setting, model.config.vocab_size, seed)
        start = time.perf_counter()
        answers = [engine.ask(f"client {i % 4}", ids, setting.request_output) for i, ids in enumerate(prompts)]
        while engine.step():
            pass
        seconds = time.perf_counter() - start
    _note(setting, notes, sum(len(answer.tokens) for answer in answers), seconds, "dlpm")
    share = engine.times.scheduler_share
    notes.hold("scheduler's share of a step, dlpm, all at once", share, "%", "under 2 %", share < 0.02)


def transformers_part(setting: Setting, notes: Notebook) -> None:
    """`generate_batch` of Hugging Face's transformers."""
    _needed("transformers")
    import torch
    import transformers

    description = transformers.AutoConfig.from_pretrained(_shape(setting))
    dtype = torch.bfloat16 if setting.cuda else torch.float32
    torch.set_default_dtype(dtype)
    with torch.device(setting.device):
        model: Any = transformers.AutoModelForCausalLM.from_config(description, attn_implementation="sdpa")
    model = model.eval()
    if not hasattr(model, "generate_batch"):
        raise NotRunError(f"transformers {transformers.__version__} has no continuous batching")
    model.set_attn_implementation("sdpa_paged" if "sdpa_paged" in _paged() else "paged|sdpa")
    options = transformers.GenerationConfig(
        max_new_tokens=setting.request_output, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    # One manager for both loads, where it can be kept: making it is not serving.
    keeps = "persistent_manager" in inspect.signature(model.generate_batch).parameters
    more: dict[str, Any] = {"persistent_manager": True} if keeps else {}
    seconds, tokens = 0.0, 0
    for seed in (1, 0):
        prompts = prompts_of(setting, description.vocab_size, seed)
        start = time.perf_counter()
        answers = model.generate_batch(prompts, generation_config=options, **more)
        seconds = time.perf_counter() - start
        tokens = sum(len(answer.generated_tokens) for answer in answers.values())
    _note(setting, notes, tokens, seconds, f"transformers {transformers.__version__}")


def _paged() -> tuple[str, ...]:
    """Return the names of attention that this version has."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return tuple(ALL_ATTENTION_FUNCTIONS.keys())


def vllm_part(setting: Setting, notes: Notebook) -> None:
    """vLLM, in this process."""
    _needed("vllm")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    import vllm

    room = {"gpu_memory_utilization": 0.85} if setting.cuda else {"enforce_eager": True}
    engine = vllm.LLM(
        str(_shape(setting)), load_format="dummy", skip_tokenizer_init=True, enable_prefix_caching=False,
        dtype="bfloat16" if setting.cuda else "float32", max_num_seqs=max(setting.requests, 2),
        max_model_len=setting.request_prompt + setting.request_output + 64, **room,
    )  # fmt: skip
    options = vllm.SamplingParams(max_tokens=setting.request_output, temperature=0.0, ignore_eos=True, detokenize=False)
    seconds, tokens = 0.0, 0
    for seed in (1, 0):
        prompts = [{"prompt_token_ids": ids} for ids in prompts_of(setting, 4096, seed)]
        start = time.perf_counter()
        answers = engine.generate(prompts, options, use_tqdm=False)
        seconds = time.perf_counter() - start
        tokens = sum(len(answer.outputs[0].token_ids) for answer in answers)
    _note(setting, notes, tokens, seconds, f"vLLM {vllm.__version__}")
