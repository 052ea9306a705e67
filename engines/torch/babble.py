"""A small model that is made on the spot: its weights are random, so what it says means nothing.

It is there to serve requests on a laptop without a download.  One channel of the residual stream is the same for every
token, and the output head reads from it how common each byte is, so that an output looks like letters and words, and
ends after about `OUTPUT_TOKENS` tokens at temperature 1.
"""

import math

import torch

from fairsched.engines.torch.model import Llama, LlamaConfig

OUTPUT_TOKENS = 128
BYTES = 256
END = BYTES
"""The token that ends an output; those before it are bytes."""
CONFIG = LlamaConfig(
    vocab_size=BYTES + 1,
    hidden_size=128,
    intermediate_size=352,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=32,
    context_tokens_max=4096,
    tied_embeddings=False,
    stop_tokens=frozenset({END}),
)

_COMMON = " etaoinshrdlucmfwypvbgk.,jqxz\n"
"""Bytes of an output, the most common one first."""
_RARE = -30.0
"""Logit of every other byte."""
_CHANNEL, _LEVEL = 0, 4.0


def babbling(seed: int = 0, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Llama:
    """Return the model of that seed, the same on every machine."""
    model = Llama.random(CONFIG, seed, device=device, dtype=dtype)
    model.embedding[:, _CHANNEL] = _LEVEL
    for layer in model.layers:
        layer.out[_CHANNEL] = 0.0
        layer.down[_CHANNEL] = 0.0
    # Beside it, embeddings and the outputs of attention and MLPs have about unit variance each.
    level = _LEVEL / math.sqrt(1 + CONFIG.layers)
    logits = torch.full((CONFIG.vocab_size,), _RARE)
    shares = torch.tensor([1 / (2 + rank) for rank in range(len(_COMMON))])
    logits[list(_COMMON.encode())] = torch.log(shares / shares.sum())
    logits[END] = -math.log(OUTPUT_TOKENS)
    # What was said before matters more than which bytes are common.
    model.head *= 2.0
    model.head[:, _CHANNEL] = (logits / level).to(model.head)
    return model
