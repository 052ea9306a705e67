"""Machines by formula: a step's time from a model's sizes, what a GPU's data sheet allows, and the share of it in use.

A step reads the weights (of experts, those that its tokens choose) and multiplies them; what takes longer counts, and
where both take alike, somewhat more: the fourth root of the sum of fourth powers.  Attention computes pairs of tokens
in prompts, and reads the KV of decodes.  Each layer adds a constant and two all-reduces, each sequence a constant.
"""

import re
from functools import lru_cache
from math import isqrt

import attrs

from fairsched.model.machine.gpus import GPUS, LINKS, Gpu, check
from fairsched.model.machine.kernels import AllReduce, AttentionFormula, Kernels, TimeTable
from fairsched.model.machine.model import Accelerators, LatencyModel
from fairsched.model.machine.models import BITS_16, MODELS, ModelSizes


@attrs.frozen
class EfficiencyShares:
    """What of a data sheet is in use, in thousandths, and constants in nanoseconds: of a step, a layer and a sequence.

    KV is read at `kv`, or at `kv_grouped` where several heads share it.  Where kernels take
    wide blocks of rows, experts take `wide` thousandths longer.  An all-reduce takes `reduce_ns` times log2 of the
    GPUs, and moves `link` thousandths of the link's bandwidth.
    """

    weights: int
    kv: int
    kv_grouped: int
    compute: int
    attention: int
    wide: int
    link: int
    step_ns: int
    layer_ns: int
    sequence_ns: int
    reduce_ns: int
    source: str


FITTED = EfficiencyShares(
    weights=920,
    kv=948,
    kv_grouped=637,
    compute=700,
    attention=500,
    wide=780,
    link=333,
    step_ns=500_000,
    layer_ns=42_017,
    sequence_ns=8_000,
    reduce_ns=3_000,
    source="shares of bandwidth and peak, and constants, fitted to three of the eleven loads of vLLM 0.15.1 on H100 "
    "that inference-sim/training publishes (Llama-2-7B TP1 codegen, Llama-2-70B TP4 and Mixtral-8x7B TP2 reasoning)",
)
"""The shares of all machines by formula: of the H100, and taken to be those of others."""

_POINTS = sorted({round(2 ** (i / 4)) for i in range(65)})
"""Tokens of a step between which a table by formula is linear: it is off by less than 1 % there."""
GRAPH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Tokens for which vLLM captures CUDA graphs by default.  Source: vLLM 0.19, `cudagraph_capture_sizes`."""


def _ns(amount: int, per_s: int, thousandths: int) -> int:
    """Return the time for so much at a share of so much a second."""
    return amount * 10**12 // (per_s * thousandths)


_WIDE_ROWS = 28
"""Rows of an expert, in the mean, from which kernels take blocks of 64 rows.  Source: vLLM's tuned sizes for Mixtral
8x7B on H100 (`fused_moe/configs`, E=8, N=7168), which are nearest to 128 tokens from 112 on."""


def _read(model: ModelSizes, tokens: int, wide: int) -> int:
    """Return the parameters of all layers that a step of so many tokens reads, with experts as slow as they are read.

    A step reads as many experts as its tokens choose if each is as likely as any other.
    """
    if not model.experts:
        return model.layer_parameters
    chosen = model.mlp_parameters * model.experts
    if tokens <= 64 * model.experts:
        left, all_of = (model.experts - model.experts_used) ** tokens, model.experts**tokens
        chosen = chosen * (all_of - left) // all_of
    if tokens * model.experts_used >= _WIDE_ROWS * model.experts:
        chosen = chosen * (1000 + wide) // 1000
    return model.layers * (model.attention_parameters + chosen)


def by_formula(
    model: ModelSizes, gpu: Gpu, gpus: int = 1, *, fp8: bool = False, shares: EfficiencyShares = FITTED, name: str = ""
) -> LatencyModel:
    """Return the model of `gpus` GPUs that hold a model together (tensor parallelism), with weights in 8 or 16 bits.

    KV is in 16 bits; it has 90 % of memory less the weights.  Raises `ValueError` where heads or experts do not divide
    by the GPUs, or the weights leave no room.
    """
    model.divided(gpus)
    size, speed = (1, gpu.fp8_speed) if fp8 else (BITS_16, 1)
    peak, head = gpu.peak_flops * speed, model.head_parameters * BITS_16
    # More GPUs than KV heads each hold a copy.
    kv_bytes = model.kv_token_bytes * max(gpus // model.kv_heads, 1)
    weights = model.layer_parameters * size + 2 * head
    name = name or preset_name(model, gpu, gpus, fp8)
    capacity = (gpu.memory_bytes * gpus * 9 // 10 - weights) // kv_bytes
    if capacity < 2:
        raise ValueError(f"{name}: {weights / 1e9:,.1f} GB of weights leave no room in {gpus} x {gpu.name}")

    def dense(tokens: int) -> int:
        read_ns = _ns(_read(model, tokens, shares.wide) * size + head, gpu.bandwidth * gpus, shares.weights)
        computed_ns = _ns(2 * model.token_parameters * tokens, peak * gpus, shares.compute)
        return shares.step_ns + model.layers * shares.layer_ns + isqrt(isqrt(read_ns**4 + computed_ns**4))

    half_pair = 2 * model.layers * model.heads * model.head_size
    attention = AttentionFormula(
        _ns(half_pair * 1000, gpu.peak_flops * gpus, shares.attention),
        _ns(kv_bytes * 1000, gpu.bandwidth * gpus, shares.kv if model.kv_heads == model.heads else shares.kv_grouped),
    )
    reduce = None
    if gpus > 1:
        link = LINKS[gpu.link]
        if link.name.startswith("pcie"):
            message = link.message(gpus)
        else:
            used = attrs.evolve(link, bytes_per_s=link.bytes_per_s * shares.link // 1000)
            message = attrs.evolve(used, latency_ns=shares.reduce_ns * (gpus - 1).bit_length()).message(gpus)
        reduce = AllReduce(2 * model.layers, model.hidden * BITS_16, message)
    table = TimeTable(tuple(_POINTS), tuple(dense(tokens) for tokens in _POINTS))
    kernels = Kernels(
        table, attention, TimeTable((0, 1), (0, shares.sequence_ns)), None, reduce, graph_sizes=GRAPH_SIZES
    )
    read = model.layers * (model.attention_parameters + max(model.experts_used, 1) * model.mlp_parameters)
    deployment = Accelerators(gpu.name, model.parameters, weights, kv_bytes, read * size + head, model.token_parameters)
    source = f"{model.repository}'s config.json; {gpu.source}; {shares.source}"
    validated = "by formula, fitted to three published H100 loads"
    if not gpu.name.startswith("h100"):
        validated += "; nothing of this GPU was held against measurements"
    found = LatencyModel.of_kernels(
        name, source, kernels, capacity, gpus=gpus, deployment=deployment, validated=validated
    )
    return check(found)


def preset_name(model: ModelSizes, gpu: Gpu, gpus: int, fp8: bool) -> str:
    """Return the name of a machine by formula, as `llama-3-70b-fp8-h100-tp2`."""
    return f"{model.name}{'-fp8' * fp8}-{gpu.name}{f'-tp{gpus}' if gpus > 1 else ''}"


_NAME = re.compile(
    rf"(?P<model>{'|'.join(map(re.escape, MODELS))})(?P<fp8>-fp8)?-(?P<gpu>{'|'.join(GPUS)})(-tp(?P<gpus>[1-8]))?"
)


@lru_cache(maxsize=64)
def named(name: str) -> LatencyModel | None:
    """Return the machine by formula of a name; None if the name is of none."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return by_formula(MODELS[found["model"]], GPUS[found["gpu"]], int(found["gpus"] or 1), fp8=bool(found["fp8"]))
