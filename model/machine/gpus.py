"""Accelerators: memory, bandwidth, what they compute, cost and draw, and the link between them; and how far a model's
times are from what they allow: the share of the peak in use (MFU), and the floors below which no step can be.

A step draws a share of the rated power that grows with its MFU, up to all of it: a prompt draws nearly that, a batch
that decodes does not (`step_nj`).  Cost is relative to an A100, as papers compare fleets of several kinds.
"""

import attrs
import numpy as np

from fairsched.model.algebra import Ints
from fairsched.model.machine.kernels import TimeTable
from fairsched.model.machine.model import LatencyModel


@attrs.frozen
class Link:
    """What connects the GPUs of a worker: an all-reduce takes `latency_ns`, and its message's bytes at `bytes_per_s`
    times 2 (N - 1) / N among N GPUs, as a ring moves them."""

    name: str
    latency_ns: int
    bytes_per_s: int
    source: str

    def message(self, gpus: int) -> TimeTable:
        """Return the time of an all-reduce by the bytes of its message."""
        size = 1 << 30
        return TimeTable(
            (0, size), (self.latency_ns, self.latency_ns + _ns(size * 2 * (gpus - 1), gpus * self.bytes_per_s))
        )


def _ns(amount: int, per_s: int) -> int:
    """Return the time for so much at so much a second, rounded up."""
    return -(-amount * 10**9 // per_s)


LINKS = {
    link.name: link
    for link in (
        Link("nvlink-3", 10_000, 300 * 10**9, "NVIDIA: 600 GB/s of an A100 in both directions; latency chosen here"),
        Link("nvlink-4", 10_000, 450 * 10**9, "NVIDIA: 900 GB/s of an H100 in both directions; latency chosen here"),
        Link("nvlink-5", 10_000, 900 * 10**9, "NVIDIA: 1,800 GB/s of a B200 in both directions; latency chosen here"),
        Link("nvlink-bridge", 10_000, 56 * 10**9, "NVIDIA: 112.5 GB/s of an A6000's bridge in both directions"),
        Link(
            "pcie",
            37_000,
            16 * 10**9,
            "all-reduces of vLLM 0.19.0 on two RTX PRO 6000, from the steps that LLMServingSim's repository publishes "
            "(bench/examples, Qwen3-32B), beyond its kernel tables",
        ),
        Link("nvlink-2", 10_000, 150 * 10**9, "NVIDIA: 300 GB/s of a V100 in both directions; latency chosen here"),
        Link(
            "pcie-4",
            74_000,
            23_700 * 10**6,
            "least squares of all-reduces above 1 MB of four A100 in NVLink pairs, whose ring crosses PCIe, that Vidur "
            "publishes (data/profiling/network/a100_pairwise_nvlink)",
        ),
    )
}
"""Links by name."""


@attrs.frozen
class Gpu:
    """A kind of accelerator: bytes of memory, dense 16-bit FLOPs a second at peak, rated power, and cost of an A100's.

    `bandwidth` is bytes of memory a second; with weights in 8 bits it computes `fp8_speed` times as much a second.
    `cost` and `dollars_per_hour` are None where no source has them; `source` says where the figures are from.
    """

    name: str
    memory_bytes: int
    bandwidth: int
    peak_flops: int
    watts: int
    cost: float | None
    dollars_per_hour: float | None
    link: str
    fp8_speed: int
    source: str


_TABLE_V = "cost and power by Splitwise's Table V; dollars of its Table I for eight, "
_SHEET = "NVIDIA's data sheet"


def _gpu(name: str, memory: int, bandwidth: int, tera: float, watts: int, link: str, source: str, *costs: float) -> Gpu:
    """Return a kind: GB of memory, GB/s, TFLOP/s, watts."""
    cost, dollars = costs or (None, None)
    fp8 = 2 if name.startswith(("h", "b", "l40s", "rtx")) else 1
    peak = round(tera * 10**12)
    return Gpu(name, memory * 10**9, bandwidth * 10**9, peak, watts, cost, dollars, link, fp8, source)


_H100_COST = "2.16 times those of an A100; the cost is that of a prompt machine, and a token machine has 2.5 there"
GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100", 80, 2_039, 312, 400, "nvlink-3", f"{_SHEET}; {_TABLE_V}17.6 an hour", 1.0, 2.20),
        _gpu("a100-pcie", 80, 1_935, 312, 300, "pcie-4", f"{_SHEET}: 300 W"),
        _gpu("a100-40gb", 40, 1_555, 312, 400, "nvlink-3", _SHEET),
        _gpu("h100", 80, 3_350, 989, 700, "nvlink-4", f"{_SHEET} (SXM); {_TABLE_V}{_H100_COST}", 2.35, 4.752),
        _gpu(
            "h100-capped",
            *(80, 3_350, 989, 492),
            "nvlink-4",
            "an H100 capped to 70 % of the machine's power, by Splitwise's Table V; its cost is the uncapped one's",
            *(2.35, 4.752),
        ),
        _gpu("h200", 141, 4_800, 989, 700, "nvlink-4", f"{_SHEET} (SXM)"),
        _gpu("b200", 180, 7_700, 2_250, 1_000, "nvlink-5", f"{_SHEET} of HGX B200, a GPU of eight"),
        _gpu("v100", 32, 900, 125, 300, "nvlink-2", f"{_SHEET} (SXM2): 300 W"),
        _gpu("l40s", 48, 864, 362, 350, "pcie", f"{_SHEET}: 350 W"),
        _gpu("rtx-4090", 24, 1_008, 165.2, 450, "pcie", "NVIDIA's Ada white paper, FP32 accumulate: 450 W"),
        _gpu("rtx-pro-6000", 96, 1_792, 503.8, 600, "pcie", "NVIDIA's RTX Blackwell PRO white paper: 600 W"),
        _gpu("a10g", 24, 600, 125, 300, "pcie", f"{_SHEET}: 300 W; FLOPs as in its preset's source"),
        _gpu("a6000", 48, 768, 155, 300, "nvlink-bridge", f"{_SHEET}: 300 W"),
    )
}
"""Kinds of accelerators by name, as `Accelerators.gpu` names them."""


def gpu_of(latency: LatencyModel) -> Gpu:
    """Return the kind of accelerator of a worker; raises `ValueError` for a model that does not say it."""
    deployment = latency.deployment
    if deployment is None or deployment.gpu not in GPUS:
        known = "says no kind of GPU" if deployment is None else f"has GPUs of kind {deployment.gpu!r}"
        raise ValueError(f"latency model {latency.name} {known}: known are {', '.join(GPUS)}")
    return GPUS[deployment.gpu]


def step_flops(latency: LatencyModel, tokens: int) -> int:
    """Return the floating-point operations that so many tokens take: one multiplication and one addition for each
    parameter that a token is multiplied with; attention over the context is not counted.  Raises `ValueError` for a
    model that says no parameters.

    Source of the rule: Kaplan et al., "Scaling Laws for Neural Language Models" (2020), section 2.1.
    """
    if latency.deployment is None:
        raise ValueError(f"latency model {latency.name} does not say how many parameters it computes")
    return 2 * (latency.deployment.token_parameters or latency.deployment.parameters) * tokens


def _peak_flops(latency: LatencyModel) -> int:
    """Return the FLOPs a second of all GPUs of a worker, with weights in 8 bits where it has them."""
    gpu, deployment = gpu_of(latency), latency.deployment
    assert deployment is not None
    speed = gpu.fp8_speed if deployment.weight_bytes < 2 * deployment.parameters else 1
    return gpu.peak_flops * speed * (latency.gpus or 1)


def mfu(latency: LatencyModel, tokens: int, busy_ns: int) -> float:
    """Return the share of the peak that a worker used which computed so many tokens in a time (model FLOPs
    utilization, MFU); 0 for no time.

    >>> from fairsched.model.machine import PRESETS
    >>> model = PRESETS["opt-13b-a100"]
    >>> round(mfu(model, 512, model.step_ns([(512, 0)], 0, 0)), 2)
    0.59
    """
    if busy_ns < 1:
        return 0.0
    return step_flops(latency, tokens) * 1e9 / (_peak_flops(latency) * busy_ns)


IDLE, BUSY, COMPUTE = 155, 595, 1_969
"""What a GPU draws, in thousandths of its rated power: with a model loaded and nothing to do, in a step that computes
next to nothing, and beyond that for a step at the peak; all of it at most.  Taken to be alike on all kinds.

Source of the last two: least squares through the eight batches of Qwen3-14B (chat) on one H100 that the ML.ENERGY
leaderboard 3.0 publishes, whose prompts are not counted; of the first: 62 W of an A100 of 400 W
(chuyishang/inference-energy, results_paste.md).
"""


def rated_watts(latency: LatencyModel) -> int:
    """Return the rated power of a worker's GPUs; raises `ValueError` for a model that does not say them."""
    return gpu_of(latency).watts * (latency.gpus or 1)


def idle_nj(latency: LatencyModel, ns: int) -> int:
    """Return what a worker draws that has nothing to do for so long, in nanojoules."""
    return rated_watts(latency) * IDLE * ns // 1_000


def step_nj(latency: LatencyModel, tokens: Ints, ns: Ints) -> Ints:
    """Return what steps draw that compute so many tokens in so long, in nanojoules: watts times nanoseconds.

    >>> from fairsched.model.machine import preset
    >>> model = preset("llama-3.1-8b-h100")
    >>> step_nj(model, np.array([1, 64, 4_096]), np.array([10**9] * 3)) // 10**9  # the watts of steps of a second
    array([416, 417, 496])
    """
    token_ps = step_flops(latency, 1) * 10**12 // _peak_flops(latency)
    shares = BUSY * ns + COMPUTE * (tokens * token_ps // 1_000)
    drawn: Ints = np.minimum(shares, 1_000 * ns) // 1_000 * rated_watts(latency)
    return drawn


FLOOR_PERCENT = 97
"""A step may take this share of what the data sheet allows at least, since clocks go above those of data sheets."""


def floor_ns(latency: LatencyModel, tokens: int, context_tokens: int) -> int:
    """Return the least time of a step that computes so many tokens, of which decodes attend to so much context: that of
    reading weights and KV from memory, or of computing at the peak.  Raises `ValueError` for an unknown machine."""
    gpu, deployment = gpu_of(latency), latency.deployment
    assert deployment is not None
    read = (deployment.step_bytes or deployment.weight_bytes) + deployment.kv_token_bytes * context_tokens
    memory_ns = read * 10**9 // (gpu.bandwidth * (latency.gpus or 1))
    compute_ns = step_flops(latency, tokens) * 10**9 // _peak_flops(latency)
    return max(memory_ns, compute_ns) * FLOOR_PERCENT // 100


def check(latency: LatencyModel) -> LatencyModel:
    """Return the model, if no step of it is faster than its GPUs are.

    Prompts of up to 32,768 tokens and batches of up to 256 requests over what memory holds are held against the floors.
    Raises `ValueError` with the first step below.
    """
    for tokens in (1 << i for i in range(16)):
        _above(latency, f"a prompt of {tokens:,} tokens", latency.step_ns(((tokens, 0),), 0, 0), tokens, 0)
    for batch in (1 << i for i in range(9)):
        for context in (batch, 1_024 * batch, latency.kv_capacity_tokens):
            if batch <= context <= latency.kv_capacity_tokens:
                what = f"a batch of {batch} over {context:,} tokens of context"
                _above(latency, what, latency.decode_ns(batch, context), batch, context)
    return latency


def _above(latency: LatencyModel, what: str, ns: int, tokens: int, context_tokens: int) -> None:
    least = floor_ns(latency, tokens, context_tokens)
    if ns < least:
        gpu = gpu_of(latency).name
        raise ValueError(
            f"{latency.name}: {what} takes {ns / 1e6:,.3f} ms, and {latency.gpus or 1} x {gpu} at its data sheet's "
            f"bandwidth and peak {least / 1e6:,.3f} ms"
        )
