"""The plain way to an answer: one request, its whole sequence in one pass, nothing kept, nothing shared, no batch."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fairsched.engines.serving import Sampling
from fairsched.engines.torch import Llama

# Tests run beside each other: a second thread waits at every barrier for a core that another test has.
torch.set_num_threads(1)

MASK = (1 << 64) - 1
LOW = np.uint64(0xFFFFFFFF)


def plain_logits(model: Llama, ids: Sequence[int]) -> Tensor:
    """Logits [tokens, vocab] after each token of one sequence, by full causal attention."""

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        group = model.config.heads // model.config.kv_heads
        k, v = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in (keys, values))
        return F.scaled_dot_product_attention(queries.transpose(0, 1), k, v, is_causal=True).transpose(0, 1)

    with torch.inference_mode():
        tokens = torch.tensor(ids, device=model.device)
        return model.forward(tokens, torch.arange(len(ids), device=model.device), attend)


def ties_of(
    model: Llama, prompt_ids: Sequence[int], got: Sequence[int], sampling: Sampling, request_id: int, near: float = 0.0
) -> int:
    """Check that `got` is what a plain pass chooses, token by token; how often it was a tie.

    Each token of `got` must be the plain pass's choice after the prompt and the tokens of `got` before it, so that
    generating from the prompt alone yields `got`.  Where it is another one, that is a tie if its score is within `near`
    of the best, and an `AssertionError` if it is not.
    """
    ids, ties = [*prompt_ids, *got], 0
    logits = plain_logits(model, ids).cpu().numpy()
    for position in range(len(prompt_ids), len(ids)):
        token = ids[position]
        scores = scores_of(logits[position - 1], sampling, request_id, position)
        best = int(scores.argmax())
        if token != best:
            ties += 1
            scores = scores_of(logits[position - 1], sampling, request_id, position, near)
            assert scores[token] >= scores.max() - near, (
                f"request {request_id} at {position}: {token} (score {scores[token]}), not {best} ({scores[best]})"
            )
    return ties


def scores_of(
    logits: npt.NDArray[np.floating], sampling: Sampling, request_id: int, position: int, near: float = 0.0
) -> npt.NDArray[np.float64]:
    """The scores of all tokens, of which the largest is chosen, in plain arithmetic: the definition of `Sampling`.

    Of those that `top_k` cuts off, what is within `near` of the last one that stays is kept.
    """
    if not sampling.temperature:
        return logits.astype(np.float64)
    scores = logits.astype(np.float64) / np.float32(sampling.temperature)
    if sampling.top_k:
        scores[scores < np.sort(scores)[-min(sampling.top_k, len(scores))] - near] = -np.inf
    key = 0
    for part in (sampling.seed, request_id, position):
        key = _splitmix64(key ^ (part & MASK))
    tokens = np.arange(len(scores), dtype=np.uint64)
    uniform = _mix(_mix((tokens + np.uint64(key & 0xFFFFFFFF)) & LOW) ^ np.uint64(key >> 32)).astype(np.float64)
    noisy: npt.NDArray[np.float64] = scores - np.log(-np.log1p(-(uniform + 0.5) * 2.0**-32))
    return noisy


def _splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = ((x ^ (x >> np.uint64(16))) * np.uint64(0x21F0AAAD)) & LOW
    x = ((x ^ (x >> np.uint64(15))) * np.uint64(0xD35A2D97)) & LOW
    return x ^ (x >> np.uint64(15))
