"""What a step of the torch worker costs, beside `generate` of transformers with the same weights in the same run.

    python benchmarks/torch_worker.py [--size small] [--device cpu] [--threads 1] [--context 512] [--rounds 5]

Prints milliseconds of a decode step at batch 1, 8 and 32 and of the prefill of one prompt, the ratio to transformers
(above 1: theirs takes longer), and what of a decode step is not the model's forward pass (on a CPU).  Each figure is a
median over rounds in which both take turns.  Prompts are equally long, so that transformers pads nothing.  Without
transformers only ours is measured.  More threads than cores that are free make everything many times slower.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from fairsched.engines.serving import Sampling
from fairsched.engines.torch import PAGE_TOKENS, Llama
from fairsched.engines.torch.checkpoint import save_checkpoint
from fairsched.engines.torch.executor import TorchExecutor
from fairsched.engines.torch.model import SIZES
from fairsched.model.decision import StepPlan
from fairsched.model.events import Admitted, Arrived, Finished
from fairsched.model.request import Prompt, Request

BATCHES = (1, 8, 32)


class Ours:
    """The executor, told by hand what a worker would tell it."""

    def __init__(self, model: Llama, context: int, steps: int, page_tokens: int, batch_max: int = max(BATCHES)) -> None:
        self.model, self.context, self.steps = model, context, steps
        capacity = batch_max * (context + steps + 1)
        self.executor = TorchExecutor(model, capacity, page_tokens=page_tokens, running_max=batch_max)

    def prefill_ms(self, ids: np.ndarray[Any, Any]) -> float:
        """One prompt, and the first token."""
        self._enter(0, ids[0])
        elapsed = timed(lambda: self.executor.execute(StepPlan(chunks=((0, self.context),))))
        self._leave(1)
        return elapsed

    def decode_ms(self, ids: np.ndarray[Any, Any]) -> tuple[float, float]:
        """A decode step of all prompts together, and what of it is not the forward pass."""
        for i, row in enumerate(ids):
            self._enter(i, row)
            self.executor.execute(StepPlan(chunks=((i, self.context),), decode=False))
        inside = 0.0

        def measured(*arguments: Any) -> torch.Tensor:
            nonlocal inside
            start = time.perf_counter()
            logits = Llama.forward(self.model, *arguments)
            inside += time.perf_counter() - start
            return logits

        with patch.object(self.model, "forward", measured):
            elapsed = timed(lambda: [self.executor.execute(StepPlan()) for _ in range(self.steps)])
        self._leave(len(ids))
        return elapsed / self.steps, (elapsed - 1e3 * inside) / self.steps

    def _enter(self, i: int, ids: np.ndarray[Any, Any]) -> None:
        self.executor.submit(i, ids.tolist(), Sampling())
        request = Request(i, 0, 0, Prompt(self.context), self.steps + 1)
        self.executor.follow([Arrived(0, 0, request), Admitted(0, 0, i, 0, self.context, 0, self.steps + 1)])

    def _leave(self, count: int) -> None:
        self.executor.follow([Finished(0, 0, i, 0, self.steps) for i in range(count)])


class Theirs:
    """`generate` of transformers, greedy, with a fixed number of new tokens."""

    def __init__(self, model: Llama, context: int, steps: int, transformers: Any) -> None:
        self.context, self.steps = context, steps
        with tempfile.TemporaryDirectory() as folder:
            save_checkpoint(model, Path(folder))
            theirs = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=model.dtype)
        self.model = theirs.to(model.device)

    def _generate_ms(self, ids: np.ndarray[Any, Any], tokens: int) -> float:
        prompt = torch.from_numpy(ids).to(self.model.device)
        mask = torch.ones_like(prompt)
        options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "attention_mask": mask}
        return timed(lambda: self.model.generate(prompt, min_new_tokens=tokens, max_new_tokens=tokens, **options))

    def prefill_ms(self, ids: np.ndarray[Any, Any]) -> float:
        """One prompt, and the first token."""
        return self._generate_ms(ids[:1], 1)

    def decode_ms(self, ids: np.ndarray[Any, Any]) -> float:
        """A decode step: what further tokens take beyond the first."""
        return (self._generate_ms(ids, 1 + self.steps) - self._generate_ms(ids, 1)) / self.steps


def timed(work: Callable[[], Any]) -> float:
    """Milliseconds, until the device is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def line(what: str, ours: list[float], theirs: list[float], more: str = "") -> None:
    """One figure, its ratio, and the spread of ours."""
    mine = statistics.median(ours)
    other = f", transformers {statistics.median(theirs):8.2f} ms, ratio {statistics.median(theirs) / mine:5.2f}"
    print(f"{what:22} {mine:8.2f} ms ({min(ours):.2f} to {max(ours):.2f}){other if theirs else ''}{more}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--page-tokens", type=int, default=0, help="default: 16, and 256 on CUDA")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    cuda = given.device.startswith("cuda")
    dtype = torch.bfloat16 if cuda else torch.float32
    model = Llama.random(SIZES[given.size], device=given.device, dtype=dtype)
    ours = Ours(model, given.context, given.steps, given.page_tokens or PAGE_TOKENS[model.device.type])
    theirs: Theirs | None = None
    try:
        import transformers

        theirs = Theirs(model, given.context, given.steps, transformers)
    except ImportError:
        print("transformers is not installed: no comparison")
    rng = np.random.default_rng(0)
    ids = rng.integers(0, model.config.vocab_size, (max(BATCHES), given.context))
    where = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    print(f"{given.size} in {dtype}, context {given.context}, {where}")
    prefill: tuple[list[float], list[float]] = ([], [])
    for _ in range(given.rounds + 1):
        prefill[0].append(ours.prefill_ms(ids))
        if theirs:
            prefill[1].append(theirs.prefill_ms(ids))
    line("prefill", prefill[0][1:], prefill[1][1:])
    for batch in BATCHES:
        rounds: tuple[list[float], list[float], list[float]] = ([], [], [])
        for _ in range(given.rounds + 1):
            step, beside = ours.decode_ms(ids[:batch])
            rounds[0].append(step)
            rounds[2].append(beside)
            if theirs:
                rounds[1].append(theirs.decode_ms(ids[:batch]))
        beside = statistics.median(rounds[2][1:])
        line(f"decode, batch {batch}", rounds[0][1:], rounds[1][1:], f", beside the forward pass {beside:.3f} ms")


if __name__ == "__main__":
    main()
