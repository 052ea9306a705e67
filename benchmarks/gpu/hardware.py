"""What the machine is: its software, and how fast its memory and its matrix products are, published and measured."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.gpu.part import Notebook, Setting

PACKAGES = ("torch", "triton", "numpy", "msgspec", "immutables", "transformers", "vllm")


class Peaks(NamedTuple):
    """Bytes and floating-point operations a second, and where they come from."""

    bandwidth: float
    flops: float
    source: str


_SHEET = "NVIDIA's data sheet, bf16 without sparsity"
PUBLISHED = {
    "NVIDIA H200": Peaks(4.8e12, 989e12, _SHEET),
    "NVIDIA H100 80GB HBM3": Peaks(3.35e12, 989e12, _SHEET),
    "NVIDIA H100 PCIe": Peaks(2.0e12, 756e12, _SHEET),
    "NVIDIA H100 NVL": Peaks(3.9e12, 835e12, _SHEET),
    "NVIDIA A100-SXM4-80GB": Peaks(2.039e12, 312e12, _SHEET),
    "NVIDIA A100-SXM4-40GB": Peaks(1.555e12, 312e12, _SHEET),
    "NVIDIA A100 80GB PCIe": Peaks(1.935e12, 312e12, _SHEET),
    "NVIDIA A100-PCIE-40GB": Peaks(1.555e12, 312e12, _SHEET),
    "NVIDIA L40S": Peaks(0.864e12, 362e12, _SHEET),
    "NVIDIA L4": Peaks(0.3e12, 121e12, _SHEET),
}
"""By the name that torch gives the device; of others what is measured counts."""


def measured(device: str, rounds: int = 10) -> Peaks:
    """Return the best of several copies (bytes read and written) and matrix products."""
    import torch

    cuda = device == "cuda"
    numbers = min(1 << 30, torch.cuda.mem_get_info()[0] // 8) if cuda else 1 << 22
    source = torch.ones(numbers, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    copy_s = best(lambda: target.copy_(source), cuda, rounds)
    side = 8192 if cuda else 256
    dtype = torch.bfloat16 if cuda else torch.float32
    a, b = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
    product_s = best(lambda: torch.mm(a, b), cuda, rounds)
    return Peaks(2 * source.nbytes / copy_s, 2 * side**3 / product_s, "measured here")


def best(work: Callable[[], Any], cuda: bool, rounds: int) -> float:
    """Return the seconds of the fastest of several rounds, without the first."""
    import torch

    seconds = []
    for _ in range(rounds + 1):
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def published(device: str) -> Peaks | None:
    """Return the published peaks of this device, if they are known."""
    import torch

    return PUBLISHED.get(torch.cuda.get_device_name()) if device == "cuda" else None


def software(notes: Notebook) -> None:
    """Note versions; what is missing has none."""
    notes.add("Python", platform.python_version(), note=platform.platform())
    notes.add("CPU cores", len(os.sched_getaffinity(0)))
    for name in PACKAGES:
        try:
            notes.add(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            notes.add(name, "not installed")


def hardware_part(setting: Setting, notes: Notebook) -> None:
    """Note the device, what is published of it and what is measured."""
    import torch

    if setting.cuda:
        facts = torch.cuda.get_device_properties(0)
        notes.add(
            "device", facts.name, note=f"compute capability {facts.major}.{facts.minor}, CUDA {torch.version.cuda}"
        )
        notes.add("device memory", facts.total_memory / 1e9, "GB")
        from fairsched.engines.torch import PAGE_TOKENS
        from fairsched.engines.torch.cuda import reads_pages

        in_place = reads_pages(torch.device("cuda"), torch.bfloat16, PAGE_TOKENS["cuda"])
        notes.add("attention", "reads pages in place, with graphs" if in_place else "gathers copies, without graphs")
        sheet = published(setting.device)
        if sheet is not None:
            notes.add("published bandwidth", sheet.bandwidth / 1e9, "GB/s", sheet.source)
            notes.add("published peak", sheet.flops / 1e12, "TFLOP/s", sheet.source)
    found = measured(setting.device)
    notes.add("copy, read and written", found.bandwidth / 1e9, "GB/s", found.source)
    notes.add("matrix product", found.flops / 1e12, "TFLOP/s", found.source)
