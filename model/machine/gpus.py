"""Accelerators: memory, what they cost and draw, how much they can compute; and the share of that in use (MFU).

Cost and power are relative to an A100, as papers compare fleets of several kinds.
"""

import attrs

from fairsched.model.machine.model import LatencyModel

A100_WATTS = 400
"""The rated power of an A100, to which `Gpu.power` is relative."""


@attrs.frozen
class Gpu:
    """A kind of accelerator: bytes of memory, dense 16-bit FLOPs a second at peak, and cost and power of an A100.

    `cost` and `dollars_per_hour` are None where no source has them; `source` says where the figures are from.
    """

    name: str
    memory_bytes: int
    peak_flops: int
    power: float
    cost: float | None
    dollars_per_hour: float | None
    source: str

    @property
    def watts(self) -> float:
        """Rated power."""
        return A100_WATTS * self.power


_TABLE_V = "cost and power by Splitwise's Table V; "
_DGX = "dollars of its Table I for eight, "
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100", 80 * 10**9, 312 * 10**12, 1.0, 1.0, 2.20, _TABLE_V + _DGX + "17.6 an hour"),
        Gpu("a100-40gb", 40 * 10**9, 312 * 10**12, 1.0, None, None, "NVIDIA's data sheet: as an A100, 40 GB"),
        Gpu(
            "h100",
            80 * 10**9,
            989 * 10**12,
            1.75,
            2.35,
            4.752,
            _TABLE_V + "the cost is that of a prompt machine, and the same box as a token machine has 2.5 there; "
            f"{_DGX}2.16 times those of an A100",
        ),
        Gpu(
            "h100-capped",
            80 * 10**9,
            989 * 10**12,
            1.23,
            2.35,
            4.752,
            "an H100 capped to 70 % of the machine's power, by Splitwise's Table V; its cost is the uncapped one's",
        ),
        Gpu("a10g", 24 * 10**9, 125 * 10**12, 0.75, None, None, "data sheet: 300 W; FLOPs as in its preset's source"),
        Gpu("a6000", 48 * 10**9, 155 * 10**12, 0.75, None, None, "NVIDIA's data sheet: 300 W"),
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
    parameter; attention over the context is not counted.  Raises `ValueError` for a model that says no parameters.

    Source of the rule: Kaplan et al., "Scaling Laws for Neural Language Models" (2020), section 2.1.
    """
    if latency.deployment is None:
        raise ValueError(f"latency model {latency.name} does not say how many parameters it computes")
    return 2 * latency.deployment.parameters * tokens


def mfu(latency: LatencyModel, tokens: int, busy_ns: int) -> float:
    """Return the share of the peak that a worker used which computed so many tokens in a time (model FLOPs
    utilization, MFU); 0 for no time.  With weights in 8 bits the peak is twice as high.

    >>> from fairsched.model.machine import PRESETS
    >>> model = PRESETS["opt-13b-a100"]
    >>> round(mfu(model, 512, model.step_ns([(512, 0)], 0, 0)), 2)
    0.59
    """
    if busy_ns < 1:
        return 0.0
    flops, deployment = step_flops(latency, tokens), latency.deployment
    assert deployment is not None
    per_s = gpu_of(latency).peak_flops * 2 * deployment.parameters // deployment.weight_bytes
    return flops * 1e9 / (per_s * (latency.gpus or 1) * busy_ns)
