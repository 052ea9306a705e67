"""Two real vLLM engines on CPU, one for prompts and one for outputs, steered by a router of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairsched.model.decision import ClusterView, Dispatch, WorkerLoad
from fairsched.model.request import Prompt, Request
from fairsched.policies.routers import JoinShortestQueue

pytest.importorskip("vllm", reason="vLLM is not installed")

pytestmark = pytest.mark.integration

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
PROMPT, BLOCK, OUTPUT = 100, 32, 12
"""Tokens of a prompt, of a block of vLLM's cache, and of an output."""

ENGINE = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig

model, role, store, most, ids = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5])
connector = {} if role == "alone" else {"kv_transfer_config": KVTransferConfig(
    kv_connector="ExampleConnector", kv_role=role, kv_connector_extra_config={"shared_storage_path": store})}
llm = LLM(model, skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_model_len=256, max_num_seqs=2,
          num_gpu_blocks_override=40, block_size=32, enable_prefix_caching=False, **connector)
prompts = [{"prompt_token_ids": [(7 * i + k * k) % 300 + 5 for k in range(100)]} for i in ids]
sampling = SamplingParams(max_tokens=most, ignore_eos=True, detokenize=False, temperature=0)
answers = {i: [list(out.outputs[0].token_ids), out.num_cached_tokens or 0]
           for i, out in zip(ids, llm.generate(prompts, sampling, use_tqdm=False))}
print(json.dumps(answers))
"""


def checkpoint(folder: Path) -> Path:
    """A tiny Llama with weights large enough for a token to depend on all before it."""
    import torch

    from tests.integration.vllm_parts import LLAMA

    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(7)
    options = {key: value for key, value in LLAMA.items() if key not in ("architectures", "model_type", "torch_dtype")}
    config = transformers.LlamaConfig(**options, initializer_range=0.3)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def served(model: Path, role: str, store: Path, most: int, ids: list[int]) -> dict[int, Any]:
    """The tokens of these requests by an engine of its own, and for how many tokens it found KV."""
    command = [sys.executable, "-c", ENGINE, str(model), role, str(store), str(most), json.dumps(ids)]
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {int(i): found for i, found in json.loads(done.stdout.strip().splitlines()[-1]).items()}


def routed(requests: int) -> dict[int, Dispatch]:
    """Which of two prefill engines (0 and 1) our router sends each request to."""
    router, state, sent = JoinShortestQueue(), JoinShortestQueue().init(), {}
    waiting = [0, 0]
    for i in range(requests):
        loads = tuple(WorkerLoad(w, waiting[w], 0, PROMPT * waiting[w], 1280, 1280, "prefill") for w in (0, 1))
        sent[i], state = router.route(state, Request(i, 0, i, Prompt(PROMPT), OUTPUT), ClusterView(i, loads))
        waiting[sent[i].worker] += 1
    return sent


def test_prompts_of_two_engines_go_on_in_a_third(tmp_path: Path) -> None:
    """Our router names the prefill engine of each request, which is asked for one token; the decode engine loads the
    KV of all whole blocks that a prompt fills before its last token, computes the rest, and answers as one engine does
    that computes everything.  With other KV in the store the answers differ, so it is the KV that was read."""
    model, store = checkpoint(tmp_path / "model"), tmp_path / "store"
    store.mkdir()
    sent = routed(4)
    groups = [[i for i, dispatch in sent.items() if dispatch.worker == worker] for worker in (0, 1)]
    assert sorted(map(len, groups)) == [2, 2]
    alone = served(model, "alone", store, OUTPUT, [*sent])
    first: dict[int, Any] = {}
    for group in groups:
        first |= served(model, "kv_producer", store, 1, group)
    assert {i: tokens for i, (tokens, _) in first.items()} == {i: alone[i][0][:1] for i in sent}
    split = served(model, "kv_consumer", store, OUTPUT, [*sent])
    whole = (PROMPT - 1) // BLOCK * BLOCK
    assert {i: found for i, (_, found) in split.items()} == dict.fromkeys(sent, whole)
    assert {i: tokens for i, (tokens, _) in split.items()} == {i: alone[i][0] for i in sent}
    _spoil(store)
    assert served(model, "kv_consumer", store, OUTPUT, [*sent]) != split


def _spoil(store: Path) -> None:
    """Replace what is in the store by zeros."""
    import safetensors.torch

    for path in store.rglob("*.safetensors"):
        kept = safetensors.torch.load_file(path)
        safetensors.torch.save_file({name: 0 * tensor for name, tensor in kept.items()}, path)


def test_our_scheduler_refuses_an_engine_that_transfers_kv(tmp_path: Path) -> None:
    """A policy inside vLLM's scheduler would count KV that comes as computed here: one line at the start."""
    code = ENGINE.replace("**connector)", 'scheduler_cls="fairsched.integrations.vllm.FairScheduler", **connector)')
    command = [sys.executable, "-c", code, str(checkpoint(tmp_path)), "kv_both", str(tmp_path), "1", "[0]"]
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode != 0
    assert "transfer" in done.stderr
