"""The plain way to an answer: one request, its whole sequence in one pass, nothing kept, nothing shared, no batch."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fairsched.engines.executor import Sampling
from fairsched.engines.torch_model import Llama

# Tests run beside each other: a second thread waits at every barrier for a core that another test has.
torch.set_num_threads(1)

MASK = (1 << 64) - 1
LOW = np.uint64(0xFFFFFFFF)


def plain_logits(model: Llama, ids: Sequence[int]) -> Tensor:
    """Logits [tokens, vocab] after each token of one sequence, by full causal attention."""

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        group = model.config.group
        k, v = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in (keys, values))
        return F.scaled_dot_product_attention(queries.transpose(0, 1), k, v, is_causal=True).transpose(0, 1)

    with torch.inference_mode():
        return model.forward(torch.tensor(ids), torch.arange(len(ids)), attend)


def plain_answer(
    model: Llama, prompt_ids: Sequence[int], got: Sequence[int], sampling: Sampling, request_id: int
) -> list[int]:
    """What a plain pass chooses after the prompt and after each token of `got` but the last.

    Equal to `got` exactly if generating token by token from the prompt alone yields `got`.
    """
    ids = [*prompt_ids, *got]
    logits = plain_logits(model, ids).to(torch.float32).numpy()
    return [choose(logits[p - 1], sampling, request_id, p) for p in range(len(prompt_ids), len(ids))]


def choose(logits: npt.NDArray[np.float32], sampling: Sampling, request_id: int, position: int) -> int:
    """One token from one row of logits, in plain arithmetic: the definition of `Sampling`."""
    if not sampling.temperature:
        return int(logits.argmax())
    scores = logits / np.float32(sampling.temperature)
    if sampling.top_k:
        scores[scores < np.sort(scores)[-min(sampling.top_k, len(scores))]] = -np.inf
    key = 0
    for part in (sampling.seed, request_id, position):
        key = _splitmix64(key ^ (part & MASK))
    tokens = np.arange(len(scores), dtype=np.uint64)
    uniform = _mix(_mix((tokens + np.uint64(key & 0xFFFFFFFF)) & LOW) ^ np.uint64(key >> 32)).astype(np.float64)
    return int((scores - np.log(-np.log1p(-(uniform + 0.5) * 2.0**-32))).argmax())


def _splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = ((x ^ (x >> np.uint64(16))) * np.uint64(0x21F0AAAD)) & LOW
    x = ((x ^ (x >> np.uint64(15))) * np.uint64(0xD35A2D97)) & LOW
    return x ^ (x >> np.uint64(15))
