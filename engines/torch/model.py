"""The Llama architecture as one function from tokens to logits; how it attends is handed in.

RMSNorm, rotary embedding, grouped-query attention and SwiGLU, as in "Llama 2" (arXiv:2307.09288) and "The Llama 3 Herd
of Models" (arXiv:2407.21783, section 3.2).  All tokens of a step, of whichever requests, are one flat row of
positions: only attention knows requests, so the model takes it as an argument and stays the same for a paged batch, a
captured graph and a plain causal pass.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

from fairsched.engines.torch.random_bits import fill_uniform, key_of

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries [T, heads, D], keys [T, kv_heads, D], values [T, kv_heads, D]) -> [T, heads, D]."""


@attrs.frozen
class RopeScaling:
    """Llama 3.1's stretch of the rotary frequencies beyond the context that the model was first trained with."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int


@attrs.frozen
class LlamaConfig:
    """Sizes of a model, and the tokens that end an answer.  Raises `ValueError` where they do not fit together."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_tokens_max: int
    rope_theta: float = 500_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tied_embeddings: bool = True
    stop_tokens: frozenset[int] = frozenset()

    def __attrs_post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not share {self.kv_heads} KV heads evenly")
        if self.head_dim % 2:
            raise ValueError(f"a rotary head has an even size, not {self.head_dim}")

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in all layers, at two bytes a number."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


_LLAMA_31 = RopeScaling(8.0, 1.0, 4.0, 8192)
_LLAMA_32 = RopeScaling(32.0, 1.0, 4.0, 8192)

SIZES: dict[str, LlamaConfig] = {
    "tiny": LlamaConfig(256, 64, 128, 2, 4, 2, 16, 4096),
    "small": LlamaConfig(4096, 256, 704, 4, 4, 2, 64, 8192),
    "medium": LlamaConfig(4096, 768, 2048, 6, 12, 4, 64, 8192),
    "1b": LlamaConfig(128_256, 2048, 8192, 16, 32, 8, 64, 131_072, rope_scaling=_LLAMA_32),
    "3b": LlamaConfig(128_256, 3072, 8192, 28, 24, 8, 128, 131_072, rope_scaling=_LLAMA_32),
    "8b": LlamaConfig(128_256, 4096, 14_336, 32, 32, 8, 128, 131_072, rope_scaling=_LLAMA_31, tied_embeddings=False),
}
"""Models by name: for tests, for a CPU that serves steps of a few milliseconds, and the shapes of Llama 3.2 and 3.1."""


class Layer(NamedTuple):
    """Weights of one layer; projections that read the same input are one matrix."""

    attention_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


PARTS = (
    ("input_layernorm",),
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("post_attention_layernorm",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
"""The tensors of a checkpoint that each field of `Layer` is made of, one above the other."""


def tensor_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Return every tensor of a checkpoint by the name and the shape that Hugging Face gives it."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for i in range(config.layers):
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (heads, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, heads),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


class Llama:
    """A model's weights on one device, and its forward pass."""

    def __init__(self, config: LlamaConfig, read: Callable[[str], Tensor]) -> None:
        """`read` gives the tensor of each name of `tensor_shapes`, on the model's device and in its type."""
        self.config = config
        self.embedding = read("model.embed_tokens.weight")
        self.layers = [_layer(read, f"model.layers.{i}.") for i in range(config.layers)]
        self.norm = read("model.norm.weight")
        self.head = self.embedding if config.tied_embeddings else read("lm_head.weight")
        self.frequencies = rotary_frequencies(config).to(self.device)

    @classmethod
    def random(
        cls,
        config: LlamaConfig,
        seed: int = 0,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> "Llama":
        """Return weights by seed, the same on every machine before they are rounded to `dtype`.

        Uniform with variance 1 / inputs (embeddings: 1 / hidden where they are tied, else 1), norms 1: activations and
        logits keep about unit size, so that what a request says matters to what comes out.
        """
        shapes = tensor_shapes(config)

        def read(name: str) -> Tensor:
            shape = shapes[name]
            if len(shape) == 1:
                return torch.ones(shape, device=device, dtype=dtype)
            untied = name == "model.embed_tokens.weight" and not config.tied_embeddings
            limit = math.sqrt(3.0 if untied else 3.0 / shape[1])
            return fill_uniform(torch.empty(shape, device=device, dtype=dtype), key_of(seed, *name.encode()), limit)

        return cls(config, read)

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor of a checkpoint by name, cut out of the joined matrices; contiguous."""
        shapes = tensor_shapes(self.config)
        yield "model.embed_tokens.weight", self.embedding
        for i, layer in enumerate(self.layers):
            for joined, parts in zip(layer, PARTS, strict=True):
                names = [f"model.layers.{i}.{part}.weight" for part in parts]
                yield from zip(names, joined.split([shapes[name][0] for name in names]), strict=True)
        yield "model.norm.weight", self.norm
        if not self.config.tied_embeddings:
            yield "lm_head.weight", self.head

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend, rows: Tensor | None = None) -> Tensor:
        """Return logits [R, vocab] of the tokens at `rows` [R] (None: of all T) of the flat batch `ids`, `positions`
        [T]."""
        config = self.config
        x = F.embedding(ids, self.embedding)
        cos, sin = self._rotation(positions)
        for i, layer in enumerate(self.layers):
            qkv = F.linear(self._normed(x, layer.attention_norm), layer.qkv)
            heads = qkv.view(-1, config.heads + 2 * config.kv_heads, config.head_dim)
            turned = _rotated(heads[:, : config.heads + config.kv_heads], cos, sin)
            values = heads[:, config.heads + config.kv_heads :]
            seen = attend(i, turned[:, : config.heads], turned[:, config.heads :], values)
            x = x + F.linear(seen.reshape(-1, config.heads * config.head_dim), layer.out)
            gate, up = F.linear(self._normed(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        if rows is not None:
            x = x[rows]
        return F.linear(self._normed(x, self.norm), self.head)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (self.config.hidden_size,), weight, self.config.norm_eps)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = (positions[:, None].to(torch.float32) * self.frequencies)[:, None, :]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def _layer(read: Callable[[str], Tensor], at: str) -> Layer:
    made = ([read(f"{at}{part}.weight") for part in parts] for parts in PARTS)
    return Layer(*(each[0] if len(each) == 1 else torch.cat(each) for each in made))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + D/2) of a head by its angle: the order of Hugging Face's checkpoints."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rotary_frequencies(config: LlamaConfig) -> Tensor:
    """Return radians a position for each of the head_dim / 2 pairs, float32.

    "llama3" scaling: wavelengths beyond the original context are stretched by `factor`, short ones are left, and
    between the two bounds the stretch is interpolated.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    turns = scaling.original_context_tokens * frequencies / (2 * math.pi)
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = smooth.clamp(0.0, 1.0)
    return frequencies * (smooth + (1.0 - smooth) / scaling.factor)


# --- a model that babbles ---------------------------------------------------------------------------------------------

BABBLE_TOKENS = 128
"""Tokens of an output, about."""
BABBLE_END = 256
"""The token that ends an output; those before it are bytes."""
BABBLE_CONFIG = LlamaConfig(
    vocab_size=BABBLE_END + 1,
    hidden_size=128,
    intermediate_size=352,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=32,
    context_tokens_max=4096,
    tied_embeddings=False,
    stop_tokens=frozenset({BABBLE_END}),
)

_COMMON = " etaoinshrdlucmfwypvbgk.,jqxz\n"
"""Bytes of an output, the most common one first."""
_RARE = -30.0
"""Logit of every other byte."""
_CHANNEL, _LEVEL = 0, 4.0


def babbling(seed: int = 0, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Llama:
    """Return a small model that is made on the spot, the same for a seed on every machine; what it says means nothing.

    It serves requests on a laptop without a download.  One channel of the residual stream is the same for every token,
    and the output head reads from it how common each byte is, so that an output looks like letters and words, and ends
    after about `BABBLE_TOKENS` tokens at temperature 1.
    """
    model = Llama.random(BABBLE_CONFIG, seed, device=device, dtype=dtype)
    model.embedding[:, _CHANNEL] = _LEVEL
    for layer in model.layers:
        layer.out[_CHANNEL] = 0.0
        layer.down[_CHANNEL] = 0.0
    # Beside it, embeddings and the outputs of attention and MLPs have about unit variance each.
    level = _LEVEL / math.sqrt(1 + BABBLE_CONFIG.layers)
    logits = torch.full((BABBLE_CONFIG.vocab_size,), _RARE)
    shares = torch.tensor([1 / (2 + rank) for rank in range(len(_COMMON))])
    logits[list(_COMMON.encode())] = torch.log(shares / shares.sum())
    logits[BABBLE_END] = -math.log(BABBLE_TOKENS)
    # What was said before matters more than which bytes are common.
    model.head *= 2.0
    model.head[:, _CHANNEL] = (logits / level).to(model.head)
    return model
