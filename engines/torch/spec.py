"""Which torch worker is meant: a model by size or checkpoint, on a device, with so many threads, pages and seats."""

from pathlib import Path

import attrs
import torch

from fairsched.engines.torch.checkpoint import load_checkpoint
from fairsched.engines.torch.executor import TorchExecutor
from fairsched.engines.torch.model import SIZES, Llama

DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
"""Numbers that a device computes with."""

_CPU_KV_TOKENS = 16_384
_CUDA_KV_SHARE = 0.8


@attrs.frozen
class TorchSpec:
    """A worker.  `model` is a name of `torch_model.SIZES` or a folder with a checkpoint; weights by name are random."""

    model: str = "small"
    device: str = "cpu"
    threads: int = 1
    page_tokens: int = 16
    batch_max: int = 32
    seed: int = 0

    def load(self) -> Llama:
        """Return the model on its device.  Raises `ValueError` where there is none."""
        if self.device not in DTYPES:
            raise ValueError(f"device is cpu or cuda, not {self.device!r}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device cuda: torch sees no CUDA device on this machine")
        dtype = DTYPES[self.device]
        if self.model in SIZES:
            return Llama.random(SIZES[self.model], self.seed, device=self.device, dtype=dtype)
        if not Path(self.model).is_dir():
            raise ValueError(f"model {self.model!r} is neither a folder nor one of {', '.join(SIZES)}")
        return load_checkpoint(Path(self.model), device=self.device, dtype=dtype)

    def kv_capacity_tokens(self, model: Llama) -> int:
        """KV tokens that fit: a fixed number on a CPU, four fifths of the memory that is free on a GPU."""
        if self.device == "cpu":
            return _CPU_KV_TOKENS
        free, _ = torch.cuda.mem_get_info()
        return int(free * _CUDA_KV_SHARE) // model.config.kv_bytes_per_token

    def executor(self, model: Llama, kv_capacity_tokens: int) -> TorchExecutor:
        """Return the worker's executor.  Sets the number of threads of the whole process."""
        torch.set_num_threads(self.threads)
        return TorchExecutor(model, kv_capacity_tokens, page_tokens=self.page_tokens, running_max=self.batch_max)

    @property
    def facts(self) -> dict[str, str | int]:
        """What a preset says of the worker; a checkpoint by its folder's own name."""
        return {
            "model": self.model if self.model in SIZES else Path(self.model).resolve().name,
            "device": self.device,
            "dtype": str(DTYPES[self.device]).removeprefix("torch."),
            "torch": torch.__version__.partition("+")[0],
            "threads": self.threads,
            "page_tokens": self.page_tokens,
            "batch_max": self.batch_max,
        }
