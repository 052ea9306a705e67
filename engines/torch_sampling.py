"""From logits to tokens: the most likely one, or one drawn with noise that belongs to the request and the position.

A draw from softmax(logits / temperature) is the argmax of logits / temperature plus Gumbel noise (the "Gumbel-max
trick"; Maddison, Tarlow and Minka, "A* Sampling", NeurIPS'14).  The noise comes from a counter, so a request draws the
same tokens whatever else is in the batch, and again when it is recomputed.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fairsched.engines.torch_attention import on_device
from fairsched.engines.torch_random import Keys, bits, key_of, keys_of
from fairsched.engines.torch_seats import Ints

Floats = npt.NDArray[np.float32]


def sampling_key(seed: int, request_id: int) -> int:
    """What a request's noise depends on beside the position."""
    return key_of(seed, request_id)


def sample(logits: Tensor, temperature: Floats, top_k: Ints, keys: Keys, positions: Ints) -> Tensor:
    """One token [R] for each row of `logits` [R, vocab]; the other arguments have a number for each row.

    Row r takes the argmax at temperature 0, and otherwise draws from its `top_k` most likely tokens (0: from all) with
    the noise of (`keys`, `positions`).
    """
    if not temperature.any():
        return logits.argmax(dim=-1)
    device, vocab = logits.device, logits.shape[-1]
    drawn = temperature > 0
    scale = on_device(np.where(drawn, temperature, np.float32(1))[:, None], device)
    scores = logits / scale  # at least float32, since the scale is
    top_k = np.where(drawn & (top_k > 0), np.minimum(top_k, vocab), vocab)
    largest = int(top_k[top_k < vocab].max(initial=0))
    if largest:
        best = scores.topk(largest, dim=-1).values
        least = best.gather(1, on_device(np.minimum(top_k, largest)[:, None] - 1, device))
        cut = on_device((top_k < vocab)[:, None], device) & (scores < least)
        scores = scores.masked_fill(cut, -torch.inf)
    noise_keys = on_device(keys_of(keys, positions.astype(np.uint64)).view(np.int64)[:, None], device)
    noise = _gumbel(noise_keys, torch.arange(vocab, device=device), scores.dtype)
    return torch.where(on_device(drawn[:, None], device), scores + noise, scores).argmax(dim=-1)


def _gumbel(keys: Tensor, counters: Tensor, dtype: torch.dtype) -> Tensor:
    # -log(-log(1 - u)): it is small u that win a draw, and those are exact in float32.
    uniform = (bits(keys, counters).to(dtype) + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform))
