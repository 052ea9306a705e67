"""A decode step of the torch worker against the memory's bandwidth, and the prefill of a prompt against the peak.

A step takes at least the time in which its bytes are read and its operations are done, whichever is longer.  Decoding
reads every weight once and the keys and values of all contexts; a prompt of T tokens costs two operations a weight and
token, and half of T x T scores, since attention is causal.
"""

import statistics
from typing import NamedTuple

import numpy as np

from benchmarks.gpu.hardware import Peaks, measured, published
from benchmarks.gpu.part import Notebook, Setting
from benchmarks.torch_worker import Ours
from fairsched.engines.torch import PAGE_TOKENS, Llama, TorchSpec

DECODE_TARGET, PREFILL_TARGET = 0.70, 0.60


class Work(NamedTuple):
    """What a step must at least read, and compute."""

    bytes: float
    flops: float

    def seconds(self, peak: Peaks) -> float:
        """Return how long that takes at best."""
        return max(self.bytes / peak.bandwidth, self.flops / peak.flops)


def decode_work(model: Llama, batch: int, context: float) -> Work:
    """A step of `batch` requests behind `context` tokens each."""
    config, size = model.config, model.embedding.element_size()
    weights = layer_weights(model) + model.head.numel()
    kv = batch * context * config.layers * 2 * config.kv_heads * config.head_dim
    scores = 4 * batch * context * config.layers * config.heads * config.head_dim
    return Work((weights + kv) * size, 2 * weights * batch + scores)


def prefill_work(model: Llama, tokens: int) -> Work:
    """A prompt in one chunk, of which only the last token becomes logits."""
    config = model.config
    weights = layer_weights(model)
    scores = 4 * config.layers * config.heads * config.head_dim * tokens * (tokens + 1) / 2
    head = model.head.numel()
    return Work((weights + head) * model.embedding.element_size(), 2 * (weights * tokens + head) + scores)


def layer_weights(model: Llama) -> int:
    """Numbers of the matrices of all layers."""
    return sum(tensor.numel() for layer in model.layers for tensor in layer if tensor.dim() == 2)


def decode_part(setting: Setting, notes: Notebook) -> None:
    """Decode steps of each batch size."""
    model = TorchSpec(setting.model, setting.device).load()
    ours = Ours(model, setting.context, setting.steps, PAGE_TOKENS[setting.device], max(setting.batches))
    here = measured(setting.device)
    bound = published(setting.device) or here
    rng = np.random.default_rng(0)
    ids = rng.integers(0, model.config.vocab_size, (max(setting.batches), setting.context))
    for batch in setting.batches:
        times = [ours.decode_ms(ids[:batch])[0] for _ in range(setting.rounds + 1)][1:]
        work = decode_work(model, batch, setting.context + (setting.steps + 1) / 2)
        title = f"decode step, batch {batch}"
        _roofline(
            notes,
            title,
            f"{setting.model}, contexts of {setting.context} tokens",
            times,
            work,
            bound,
            here,
            DECODE_TARGET,
        )


def prefill_part(setting: Setting, notes: Notebook) -> None:
    """One prompt in one chunk."""
    model = TorchSpec(setting.model, setting.device).load()
    ours = Ours(model, setting.prompt, 1, PAGE_TOKENS[setting.device], 1)
    here = measured(setting.device)
    bound = published(setting.device) or here
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, (1, setting.prompt))
    times = [ours.prefill_ms(ids) for _ in range(setting.rounds + 2)][2:]
    work = prefill_work(model, setting.prompt)
    _roofline(notes, f"prefill of {setting.prompt} tokens", setting.model, times, work, bound, here, PREFILL_TARGET)


def _roofline(
    notes: Notebook, title: str, what: str, times_ms: list[float], work: Work, bound: Peaks, here: Peaks, target: float
) -> None:
    took = statistics.median(times_ms)
    notes.add(title, took, "ms", f"{what}; {min(times_ms):.3f} to {max(times_ms):.3f} ms")
    share, other = (1e3 * work.seconds(peak) / took for peak in (bound, here))
    beside = "" if bound is here else f"; of what was measured here {100 * other:.1f} %"
    name, least = f"{title}, share of the roofline", f"at least {100 * target:.0f} %"
    notes.hold(name, share, "%", least, share >= target, bound.source + beside)
