"""Batching rules: how much a step does.  Named after the engines that made each rule known.

A rule opens a `Batch` for each step: it continues the prefills that are under way, then says of each further request
how much of it this step may compute.  Whether memory is promised to outputs when a request enters ("static") or taken
as they grow, with preemption by recompute, is the rule's `reserve`.  Of those that grow, "optimistic" lets in what fits
now, and the others what also fits by the predicted outputs (`policies.local.reservation`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

import attrs

from fairsched.model import worker
from fairsched.model.decision import WorkerView
from fairsched.model.theorem import CHARGES_AT_LEAST_ONE, Assumption, Scope, Theorem
from fairsched.policies.base import Limits
from fairsched.policies.validators import one_of, percent, positive, running

Reserve = Literal["static", "optimistic", "predicted", "predicted-printed", "first-finish", "profile"]
RESERVES_BY: tuple[Reserve, ...] = get_args(Reserve)

RESERVES = Assumption("Reserves", "All that an output may come to is reserved when its request is let in.")


KV_OUTPUTS = Theorem(
    "KV-outputs",
    "when a request is let in, its prompt, cached or not, and all outputs that its client's running requests may still "
    "produce fit into the capacity together",
    "this library; for any number of requests: KV-sum for one client's",
    (RESERVES,),
    bound="kv_capacity_tokens",
    rests_on=("KV-sum",),
)
KV_CHARGE = Theorem(
    "KV-charge",
    "what an admission is charged, what it may be charged later and all that its client may still be charged for "
    "running requests is at most U: MemReserve, of the shipped worker and the shipped prices",
    "this library; the shipped text of model/pricing.py on what KV-outputs says",
    (CHARGES_AT_LEAST_ONE,),
    bound="w_q M + (w_e - w_q) (L if w_e >= w_q else 1)",
    rests_on=("KV-outputs",),
)


P_FULL = Theorem(
    "P-full",
    "a prompt that takes the whole budget of a step does so for as many steps as its tokens hold the budget: each "
    "computes what the first does and leaves nothing to others",
    "this library; the shipped text of policies/batching.py: a worker asks its policy once for all of them",
)
P_NP_1 = Theorem(
    "P-NP-1",
    "no request is preempted, but by one that displaces it",
    "folklore of no-preempt; in drawn worlds of every batching rule",
    (RESERVES,),
    scope=Scope.TESTED,
)
P_FC_1 = Theorem(
    "P-FC-1",
    "the running request that was admitted first is not preempted for want of memory; under chunked prefill each step "
    "computes some of it; first come first served, it is the oldest of all who are there",
    "folklore of preempting the youngest; in drawn worlds",
    scope=Scope.TESTED,
)


NO_REQUESTS: frozenset[int] = frozenset()


class Batch:
    """A step being filled: `chunks` so far, whether running requests `decode`, and what is left of the budgets.

    `postponed` prefills are under way too, and go on when requests whose prefix is cached have entered (`resume`).
    Tokens that are left are `padded` if the step computes a piece of a prompt under a rule that pads.
    """

    __slots__ = ("chunks", "decode", "padded", "postponed", "seats", "tokens")

    def __init__(self, chunks: list[tuple[int, int]], tokens: int, seats: int) -> None:
        self.chunks = chunks
        self.tokens = tokens
        self.seats = seats
        self.decode = True
        self.padded = False
        self.postponed: Sequence[tuple[int, int]] = ()

    def resume(self) -> None:
        """Postponed prefills take what is left of the tokens.  O(those that do)."""
        if self.postponed:
            chunks, self.tokens = chunks_of(self.postponed, self.tokens)
            self.chunks += chunks
            self.postponed = ()


def chunks_of(prefilling: Sequence[tuple[int, int]], tokens: int) -> tuple[list[tuple[int, int]], int]:
    """Return chunks of (request, remaining tokens) in order, as far as so many tokens go, and what is left of those."""
    chunks = []
    for request_id, remaining in prefilling:
        if tokens <= 0:
            break
        chunk = min(remaining, tokens)
        chunks.append((request_id, chunk))
        tokens -= chunk
    return chunks, tokens


def full_steps(remaining_tokens: int, tokens: int) -> int:
    """Return for how many steps a prompt takes all of such a budget: each of them is like the first, and leaves nothing
    to others.  At least 1."""
    return max(remaining_tokens // tokens, 1) if tokens > 0 else 1


@attrs.frozen
class Batching(ABC):
    """A batching rule."""

    name: ClassVar[str]
    theorems: ClassVar[tuple[Theorem, ...]] = (
        *worker.theorems.MEMORY,
        *(KV_OUTPUTS, KV_CHARGE, P_NP_1, P_FC_1),
    )
    prefills_alone: ClassVar[bool] = False
    """Whether no request decodes in a step in which others enter."""
    serves_all: ClassVar[bool] = False
    """Whether every step decodes all that run, and computes prompts in the order of admission with the tokens that are
    left: what bounds in seconds rest on."""
    prefixes_last: ClassVar[bool] = False
    """Whether prefixes that others wait for go on after requests whose prefix is cached have entered."""

    max_batched_tokens: int = attrs.field(default=2048, validator=positive)
    """Budget of a step: tokens to prefill and requests to decode."""
    max_running: int = attrs.field(default=256, validator=running)
    """Most requests in the batch."""
    reserve: Reserve = attrs.field(default="static", validator=one_of(*RESERVES_BY))
    """Whether an admission reserves memory for its whole declared output, or outputs grow into free memory, and then
    which foresight an admission needs (`policies.local.reservation`)."""

    @property
    def grows(self) -> bool:
        """Whether outputs grow into free memory, so that it may run short."""
        return self.reserve != "static"

    @property
    def foresees(self) -> bool:
        """Whether an admission also has to fit by what is predicted of outputs."""
        return self.reserve not in ("static", "optimistic")

    @abstractmethod
    def open(self, view: WorkerView, prefixes: frozenset[int] = NO_REQUESTS) -> Batch:
        """Begin a step: continue what is under way.  O(requests that are prefilling).

        With `prefixes_last`, of the requests that are prefilling `prefixes` have none cached yet.
        """

    @abstractmethod
    def first_chunk(self, batch: Batch, extend_tokens: int) -> int:
        """Return how many of a request's tokens this step may compute if it enters; 0 if it may not enter now."""

    def add(self, batch: Batch, request_id: int, tokens: int) -> None:
        """Enter the request with a first chunk of `tokens`."""
        batch.chunks.append((request_id, tokens))
        batch.tokens -= tokens
        batch.seats -= 1

    def join(self, batch: Batch, request_id: int) -> None:
        """Enter a request whose KV is whole: its first step is a decode beside the others, whatever `add` does."""
        Batching.add(self, batch, request_id, 1)

    def seat(self, batch: Batch) -> None:
        """Enter a request that computes nothing in this step, since its KV is on the way."""
        batch.seats -= 1

    def withheld(self, kv_capacity_tokens: int) -> int:
        """Return the KV that is kept free, except of a request that runs alone."""
        return 0

    def limits(self, kv_capacity_tokens: int, output_tokens_max: int) -> Limits:
        reserved = self.reserve == "static"
        return Limits(kv_capacity_tokens, kv_capacity_tokens - 1, output_tokens_max, self.max_running, reserved)

    def refuses(self, prompt_tokens: int) -> str | None:
        """Return why a prompt of this length would never be computed, or None."""
        return None

    def vacate(self, batch: Batch) -> None:
        """Take a decoding request out of the batch for another one to enter."""
        batch.seats += 1


@attrs.frozen
class Chunked(Batching):
    """Sarathi-Serve's rule: every step decodes, and prefill chunks fill what is left of the token budget.

    Source: "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve" (OSDI'24); vLLM's default since.
    """

    name: ClassVar[str] = "chunked"
    theorems: ClassVar[tuple[Theorem, ...]] = (*Batching.theorems, P_FULL)
    serves_all: ClassVar[bool] = True

    def open(self, view: WorkerView, prefixes: frozenset[int] = NO_REQUESTS) -> Batch:
        tokens, seats = self.max_batched_tokens - view.decoding, self.max_running - view.running
        return Batch(*chunks_of(view.prefilling, tokens), seats) if view.prefilling else Batch([], tokens, seats)

    def first_chunk(self, batch: Batch, extend_tokens: int) -> int:
        return min(extend_tokens, batch.tokens) if batch.seats > 0 and batch.tokens > 0 else 0


@attrs.frozen
class Padded(Chunked):
    """TetriInfer's chunker: chunked prefill in pieces of one size, the last one padded.

    Source: "Inference without Interference" (TetriInfer), section 3.3.  Prompts are concatenated in the order in which
    they come and cut; with an order that takes requests in batches (`orders.SortedBatches`) a batch ends its last
    piece.  What is padded is computed as if it were prompt.  512 tokens saturate OPT-13B on a V100.
    """

    name: ClassVar[str] = "padded"
    serves_all: ClassVar[bool] = False

    max_batched_tokens: int = attrs.field(default=512, validator=positive)

    def open(self, view: WorkerView, prefixes: frozenset[int] = NO_REQUESTS) -> Batch:
        batch = super().open(view)
        batch.padded = bool(batch.chunks)
        return batch

    def add(self, batch: Batch, request_id: int, tokens: int) -> None:
        super().add(batch, request_id, tokens)
        batch.padded = True


@attrs.frozen
class IterationLevel(Batching):
    """Orca's rule: requests enter and leave between any two iterations, prompts are computed whole beside decodes.

    Source: "Orca: A Distributed Serving System for Transformer-Based Generative Models" (OSDI'22).  The batch is
    limited in requests only; `max_batched_tokens` plays no part.
    """

    name: ClassVar[str] = "iteration-level"

    def open(self, view: WorkerView, prefixes: frozenset[int] = NO_REQUESTS) -> Batch:
        return Batch(list(view.prefilling), 0, self.max_running - view.running)

    def first_chunk(self, batch: Batch, extend_tokens: int) -> int:
        return extend_tokens if batch.seats > 0 else 0


P_DS_4 = Theorem(
    "P-DS-4",
    "a step without other prompts computes a prompt of any length whole, so the first in line is never passed over",
    "DistServe (OSDI'24), section 4.3: a prompt above the budget goes alone",
)


@attrs.frozen
class EagerPrefill(Batching):
    """The first vLLM's rule: whenever a waiting request fits, a step prefills whole prompts and decodes nothing.

    Source: vLLM before chunked prefill ("Efficient Memory Management for Large Language Model Serving with
    PagedAttention", SOSP'23).  A prompt longer than the budget goes alone.
    """

    name: ClassVar[str] = "eager-prefill"
    theorems: ClassVar[tuple[Theorem, ...]] = (*Batching.theorems, P_DS_4)
    prefills_alone: ClassVar[bool] = True

    def open(self, view: WorkerView, prefixes: frozenset[int] = NO_REQUESTS) -> Batch:
        batch = Batch(list(view.prefilling), self.max_batched_tokens, self.max_running - view.running)
        batch.decode = not batch.chunks
        return batch

    def first_chunk(self, batch: Batch, extend_tokens: int) -> int:
        if batch.seats <= 0 or (batch.chunks and extend_tokens > batch.tokens):
            return 0
        return extend_tokens

    def add(self, batch: Batch, request_id: int, tokens: int) -> None:
        super().add(batch, request_id, tokens)
        batch.decode = False


@attrs.frozen
class WholePrompts(EagerPrefill):
    """Splitwise's rule: whole prompts up to the budget, beside all decodes.

    Source: the machines of "Splitwise: Efficient Generative LLM Inference Using Phase Splitting" (ISCA'24); throughput
    of prompts falls beyond 2,048 tokens a step.  A prompt longer than the budget goes alone, beside the decodes.
    """

    name: ClassVar[str] = "whole-prompts"

    def open(self, view: WorkerView, prefixes: frozenset[int] = NO_REQUESTS) -> Batch:
        return Batch(list(view.prefilling), self.max_batched_tokens - view.decoding, self.max_running - view.running)

    def add(self, batch: Batch, request_id: int, tokens: int) -> None:
        Batching.add(self, batch, request_id, tokens)


@attrs.frozen
class CappedPrefill(EagerPrefill):
    """The rule of DistServe's released code: as `eager-prefill`, but no prompt is longer than the budget.

    Source: LLMServe/DistServe, read in a snapshot of April 2025, whose context stage adds a request to a batch only if
    the budget holds all of it.  A longer prompt is then never computed, and stops the line for ever (F-DS-4); here it
    is refused when it comes.  The paper lets it go alone, which is `eager-prefill`.
    """

    name: ClassVar[str] = "capped-prefill"

    def refuses(self, prompt_tokens: int) -> str | None:
        if prompt_tokens <= self.max_batched_tokens:
            return None
        budget = self.max_batched_tokens
        return f"a prompt of {prompt_tokens} tokens is longer than a batch may be (max_batched_tokens = {budget})"


@attrs.frozen
class RequestLevel(IterationLevel):
    """FasterTransformer's rule: a batch is formed when the worker is empty and runs until its last request ends.

    Source: the baseline of the Orca paper.  A request that ends early is answered at once, and its place stays empty.
    """

    name: ClassVar[str] = "request-level"

    def vacate(self, batch: Batch) -> None:
        """Let no request enter before the batch is over."""

    def open(self, view: WorkerView, prefixes: frozenset[int] = NO_REQUESTS) -> Batch:
        return Batch(list(view.prefilling), 0, 0 if view.running else self.max_running)


P_BL_4 = Theorem(
    "P-BL-4",
    "the KV in use is at most the threshold in every step in which more than one request runs",
    "this library; BatchLLM's threshold, with the growth of outputs counted; in drawn worlds",
    bound="kv_threshold_percent of kv_capacity_tokens, rounded up",
    scope=Scope.TESTED,
)


@attrs.frozen
class MemoryCentric(Chunked):
    """BatchLLM's rule: chunked prefill of as many requests as KV holds up to a threshold; they are not counted.

    Source: BatchLLM, section on token batching.  Each step takes the decodes, then chunks of prompts whose prefix is
    cached, those under way first, then chunks of prefixes, again those under way first; which of them is next is for
    the order (`policies.offline.batchllm`).  A prefix is computed as part of the first prompt of its group.  The paper
    gives no threshold: here 90 % of the capacity.  What outputs come to is reserved or, when they grow, taken out
    first; a request that needs more than the threshold runs alone.
    """

    name: ClassVar[str] = "memory-centric"
    serves_all: ClassVar[bool] = False
    theorems: ClassVar[tuple[Theorem, ...]] = (*Batching.theorems, P_BL_4)

    max_running: int = attrs.field(default=1_000_000, validator=running)
    kv_threshold_percent: int = attrs.field(default=90, validator=percent)
    """How much of the KV capacity may be in use while more than one request runs."""
    prefixes_last: ClassVar[bool] = True

    def open(self, view: WorkerView, prefixes: frozenset[int] = NO_REQUESTS) -> Batch:
        if not prefixes:
            return super().open(view)
        chunks, tokens = chunks_of(
            [pair for pair in view.prefilling if pair[0] not in prefixes], self.max_batched_tokens - view.decoding
        )
        batch = Batch(chunks, tokens, self.max_running - view.running)
        batch.postponed = [pair for pair in view.prefilling if pair[0] in prefixes]
        return batch

    def withheld(self, kv_capacity_tokens: int) -> int:
        return kv_capacity_tokens * (100 - self.kv_threshold_percent) // 100


BATCHINGS: dict[str, type[Batching]] = {
    rule.name: rule
    for rule in (
        *(Chunked, Padded, IterationLevel, EagerPrefill, CappedPrefill, WholePrompts, RequestLevel),
        MemoryCentric,
    )
}
"""Batching rules by name."""
