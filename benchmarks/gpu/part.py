"""One part of the check, in a process of its own: python -m benchmarks.gpu.part NAME DEVICE MODEL FOLDER.

Rows are written as soon as they are known, so that what was measured stays when the part is stopped.
"""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOM_FOR_8B = 40e9


class NotRunError(Exception):
    """This machine lacks what the part needs."""


@dataclass(frozen=True)
class Setting:
    """How large everything is."""

    device: str
    folder: Path
    model: str
    rounds: int = 5
    steps: int = 32
    context: int = 1024
    batches: tuple[int, ...] = (1, 8, 32)
    prompt: int = 4096
    kv_capacity: int = 65_536
    batch_max: int = 32
    chunk_max: int = 512
    repeats: int = 3
    runs: int = 2
    workload: str = "sharegpt:requests=80"
    clock: str = "wall"
    peer_model: str = ""
    requests: int = 64
    request_prompt: int = 256
    request_output: int = 128

    @property
    def cuda(self) -> bool:
        """Whether the targets hold: they are about GPUs."""
        return self.device == "cuda"


SMALL = {
    "rounds": 1,
    "steps": 2,
    "context": 24,
    "batches": (1, 2),
    "prompt": 32,
    "kv_capacity": 512,
    "batch_max": 2,
    "chunk_max": 32,
    "repeats": 1,
    "runs": 1,
    "workload": "multi-turn:sessions=12,turns=1,system_tokens=16,question_tokens=16,"
    "output_tokens=8,max_output_tokens=16",
    "clock": "thread",
    "peer_model": "small",
    "requests": 3,
    "request_prompt": 16,
    "request_output": 4,
}


class Notebook:
    """The rows of a part, in a file that is whole at any time."""

    def __init__(self, path: Path, cuda: bool) -> None:
        self.path, self.cuda = path, cuda
        self.rows: list[dict[str, Any]] = []
        self.write("running")

    def add(self, figure: str, value: float | str | None, unit: str = "", note: str = "") -> None:
        """Note a figure."""
        row = {"figure": figure, "value": value, "unit": unit, "target": "", "met": None, "note": note}
        self.rows.append(row)
        self.write("running")

    def hold(self, figure: str, value: float, unit: str, target: str, met: bool, note: str = "") -> None:
        """Note a figure that has a target; only a GPU misses it."""
        self.add(figure, value, unit, note)
        self.rows[-1] |= {"target": target, "met": met if self.cuda else None}
        self.write("running")

    def write(self, status: str, note: str = "") -> None:
        """Write everything."""
        half = self.path.with_suffix(".half")
        half.write_text(json.dumps({"status": status, "note": note, "rows": self.rows}))
        half.replace(self.path)


def setting_of(device: str, model: str, folder: Path) -> Setting:
    """Return the sizes for a device.  Raises `NotRunError` where there is none."""
    if device == "cpu":
        return Setting(device, folder, model or "tiny", **SMALL)  # type: ignore[arg-type]
    import torch

    if not torch.cuda.is_available():
        raise NotRunError("no CUDA device")
    room = torch.cuda.get_device_properties(0).total_memory
    return Setting(device, folder, model or ("8b" if room >= ROOM_FOR_8B else "1b"))


MODULES = {
    "hardware": "hardware",
    "tests": "commands",
    "decode": "worker",
    "prefill": "worker",
    "calibrate": "commands",
    "validate": "commands",
    "throughput": "peers",
    "transformers": "peers",
    "vllm": "peers",
}


def part_of(name: str) -> Callable[[Setting, Notebook], None]:
    """Return the function of a part; its module may need what another part does without."""
    function: Callable[[Setting, Notebook], None] = getattr(
        importlib.import_module(f"benchmarks.gpu.{MODULES[name]}"), f"{name}_part"
    )
    return function


def run(name: str, device: str, model: str, folder: Path) -> int:
    """Run a part; returns the exit status."""
    notes = Notebook(folder / f"{name}.json", device == "cuda")
    try:
        if name == "hardware":
            importlib.import_module("benchmarks.gpu.hardware").software(notes)
        part_of(name)(setting_of(device, model, folder), notes)
    except NotRunError as error:
        notes.write("not run", str(error))
        return 0
    except BaseException as error:
        traceback.print_exc()
        notes.write("failed", f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}")
        return 1
    notes.write("ran")
    return 0


if __name__ == "__main__":
    # By its name, so that an exception that another module raises is the one that is caught here.
    code = importlib.import_module("benchmarks.gpu.part").run(*sys.argv[1:4], Path(sys.argv[4]))
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that a peer left running would keep the process.
    os._exit(code)
