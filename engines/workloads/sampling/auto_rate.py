"""`rate=auto`: how many requests a second a cluster can serve of a workload, estimated, and a rate a little below it.

A request takes its share of a worker's time, with the coefficients of the worker's latency model:

    prefill_token * m + prefill_attention * m * p  +  (o - 1) * (request + context_token * (p + o / 2))
    + o * constant / B

for p prompt tokens of which m are not cached, and o output tokens.  A step's constant is shared by the B requests of
its batch, as many of the mean length as fit a worker's KV memory when they share nothing.  What is cached is what one
LRU cache as large as all workers' KV memory together would hold if requests came one after the other: no router finds
more but by luck, and one that ignores prefixes finds far less.  Saturation is the sum of the workers' rates, each one
over its mean time a request; `auto` is `NEAR` of it.

The estimate knows no queue, no chunk and no imbalance: it says where to look, not what is sustained.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import attrs
import msgspec

from fairsched.engines.workloads.fleet import WorkerSpec
from fairsched.model.machine import DEFAULT_PRESET, PRESETS
from fairsched.model.prefix_cache import PrefixTree
from fairsched.model.request import Job, Workload

NEAR = 0.9
"""The part of saturation that `rate=auto` asks for (ours)."""

_AUTO = "rate=auto: "
AutoRate = Annotated[float, msgspec.Meta(gt=0, le=1e6)] | Literal["auto"]


ONE_WORKER = (WorkerSpec(PRESETS[DEFAULT_PRESET]),)
"""One worker of the default latency model: what `auto` means where no cluster is given."""


@attrs.frozen
class Saturation:
    """The estimate: requests a second of all workers, `hit_ratio` of prompt tokens, `near_rps` what to ask for."""

    rps: float
    hit_ratio: float
    workers: int

    @property
    def near_rps(self) -> float:
        """Requests a second a little below saturation, to four digits."""
        return float(f"{NEAR * self.rps:.4g}")

    @property
    def note(self) -> str:
        """What a report must say about a rate found so."""
        return (
            f"{_AUTO}{self.near_rps:g} requests/s, {NEAR:.0%} of the {self.rps:,.4g} at which {_said(self.workers)} "
            f"would saturate with a shared LRU cache that hits {self.hit_ratio:.1%} of prompt tokens."
        )


def _said(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers:,} workers"


def rate_cautions(workload: Workload, workers: int) -> tuple[str, ...]:
    """Return what must be said where a rate of `auto` was found for another number of workers than run."""
    for note in workload.notes:
        if note.startswith(_AUTO) and f" {_said(workers)} would" not in note:
            return (f"That rate is not for the {_said(workers)} here: generate with workers={workers}.",)
    return ()


def saturation(workload: Workload, workers: Sequence[WorkerSpec] = ONE_WORKER) -> Saturation:
    """Return the estimate for a workload on these workers; O(requests x (log + sqrt) of what is cached)."""
    jobs = workload.jobs
    missed = missed_tokens(jobs, sum(worker.capacity for worker in workers))
    prompts = [job.request.prompt_tokens for job in jobs]
    outputs = [job.output_tokens for job in jobs]
    computed = sum(missed)
    products = sum(new * prompt for new, prompt in zip(missed, prompts, strict=True))
    decoded = sum(outputs) - len(jobs)
    contexts = sum((out - 1) * (prompt + out / 2) for prompt, out in zip(prompts, outputs, strict=True))
    rps = 0.0
    for worker in workers:
        model = worker.latency
        batch = max(worker.capacity * len(jobs) // (sum(prompts) + sum(outputs)), 1)
        piece = next(piece for piece in reversed(model.decode) if piece.batch_min <= batch)
        total = (
            model.prefill_token_ns * computed
            + model.prefill_attention_ps * products / 1000
            + piece.request_ns * decoded
            + piece.context_token_ns * contexts
            + max(piece.constant_ns, model.prefill_constant_ns) * sum(outputs) / batch
        )
        rps += len(jobs) * 1e9 / total
    return Saturation(rps, 1 - computed / sum(prompts), len(workers))


def missed_tokens(jobs: Sequence[Job], capacity_tokens: int) -> list[int]:
    """Prompt tokens of each job that an LRU prefix cache of so many tokens does not hold when jobs come in order."""
    tree = PrefixTree.empty()
    missed: list[int] = []
    for stamp, job in enumerate(jobs):
        prompt = job.request.prompt
        if prompt.blocks and prompt.blocks * prompt.block_tokens <= capacity_tokens:
            tree, inserted = tree.insert(prompt, prompt.blocks, job.request.id, stamp)
            hit = min(inserted.matched_blocks, prompt.reusable_blocks) * prompt.block_tokens
            if tree.cached_tokens > capacity_tokens:
                tree, _ = tree.evict(tree.cached_tokens - capacity_tokens)
        else:
            hit = 0
        missed.append(prompt.tokens - hit)
    return missed
