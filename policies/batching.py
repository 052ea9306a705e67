"""Batching rules: how much a step does.  Named after the engines that made each rule known.

A rule opens a `Batch` for each step: it continues the prefills that are under way, then says of each further request
how much of it this step may compute.  Whether memory is promised to outputs when a request enters ("static") or taken
as they grow, with preemption by recompute, is the rule's `reserve`.  Of those that grow, "optimistic" lets in what fits
now, and the others what also fits by the predicted outputs (`policies.local.reservation`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Protocol, get_args

import attrs

from fairsched.model import worker
from fairsched.model.decision import WorkerView
from fairsched.model.request import Request
from fairsched.model.theorem import CHARGES_AT_LEAST_ONE, RESERVES, Assumption, Scope, Theorem
from fairsched.policies.base import Limits
from fairsched.policies.orders import QueuedRequest
from fairsched.policies.validators import not_negative, one_of, percent, positive, running

Reserve = Literal["static", "optimistic", "predicted", "predicted-printed", "first-finish", "profile"]
RESERVES_BY: tuple[Reserve, ...] = get_args(Reserve)

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


class RunningRequest(Protocol):
    """A running request as a policy knows it."""

    @property
    def entry(self) -> QueuedRequest: ...

    @property
    def prefix_was_cached(self) -> bool: ...


Flights = Mapping[int, RunningRequest]
"""Running requests by id."""


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
    def open(self, view: WorkerView, flights: Flights) -> Batch:
        """Begin a step: continue what is under way.  O(requests that are prefilling)."""

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

    def open(self, view: WorkerView, flights: Flights) -> Batch:
        tokens, seats = self.prompt_tokens(view, flights), self.max_running - view.running
        return Batch(*chunks_of(view.prefilling, tokens), seats) if view.prefilling else Batch([], tokens, seats)

    def prompt_tokens(self, view: WorkerView, flights: Flights) -> int:
        """Return how many tokens of prompts a step may compute beside what decodes."""
        return self.max_batched_tokens - view.decoding

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

    def open(self, view: WorkerView, flights: Flights) -> Batch:
        batch = super().open(view, flights)
        batch.padded = bool(batch.chunks)
        return batch

    def add(self, batch: Batch, request_id: int, tokens: int) -> None:
        super().add(batch, request_id, tokens)
        batch.padded = True


STEPS_AS_ESTIMATED = Assumption("StepsAsEstimated", "No step takes longer than the batching rule estimates.")
DECODES_FIT = Assumption(
    "DecodesFit", "Requests that decode, and one token of a prompt, fit into the least time a token of those requests."
)
P_FB_1 = Theorem(
    "P-FB-1",
    "decodes and prompts of a step are estimated to take at most the least slack of requests that decode, or their "
    "least time a token where that is more",
    "FairBatching (arXiv 2510.14392), the budget of a step",
    (DECODES_FIT,),
    bound="max(least slack, least time a token)",
)
P_FB_2 = Theorem(
    "P-FB-2",
    "against its deadlines no token of a request is late by more than its first one, or at all if that was in time, "
    "while each step decodes all that run and the request is not preempted",
    "this library; by induction over steps, of which one is proved",
    (DECODES_FIT, STEPS_AS_ESTIMATED),
    bound="lateness of the first token",
    rests_on=("P-FB-1",),
)


@attrs.frozen
class FairBatching(Chunked):
    """FairBatching's rule: a step has as much time for prompts as the deadlines of its decodes leave.

    Source: "FairBatching: Fairness-Aware Batch Formation for LLM Inference" (arXiv 2510.14392).  Token j of a request
    (from 0 on) is due `ttft_ns` + j `tpot_ns` after the request came, by its own targets where it has some.  A step may
    last until the nearest deadline of the requests that decode, at least the least of their times a token, and is
    estimated to take `step_ns`, `token_ns` for each token of a prompt, `request_ns` for each request that decodes and
    `context_token_ns` for each token of its context.

    Differences: the paper leaves requests that are ahead of their deadlines out of a full step; here all decode, and
    prompts get one token of a step at least.  Prompts keep the policy's order, for the paper's least slack first, and
    `request_ns` is no `token_ns`, as in our machines.
    """

    name: ClassVar[str] = "fair-batching"
    theorems: ClassVar[tuple[Theorem, ...]] = (*Batching.theorems, P_FB_1, P_FB_2)
    serves_all: ClassVar[bool] = False

    max_batched_tokens: int = attrs.field(default=8192, validator=positive)
    ttft_ns: int = attrs.field(default=500_000_000, validator=positive)
    """Target for the first token of requests that name none, in nanoseconds."""
    tpot_ns: int = attrs.field(default=50_000_000, validator=positive)
    """Target for each further token of requests that name none, in nanoseconds."""
    step_ns: int = attrs.field(default=12_300_000, validator=not_negative)
    """What any step takes, in nanoseconds; defaults are of Llama-3.1-8B on an A100 (`fairsched calibrate` fits)."""
    token_ns: int = attrs.field(default=62_700, validator=positive)
    """What a token of a prompt takes beyond that, in nanoseconds."""
    request_ns: int = attrs.field(default=23_700, validator=not_negative)
    """What a request that decodes takes beyond that, in nanoseconds."""
    context_token_ns: int = attrs.field(default=100, validator=not_negative)
    """What a token of context of a request that decodes takes beyond that, in nanoseconds."""

    def prompt_tokens(self, view: WorkerView, flights: Flights) -> int:
        """Return how many tokens of prompts a step may compute beside what decodes.  O(requests that run)."""
        most = super().prompt_tokens(view, flights)
        if not view.decoding:
            return most
        now, slack_ns, tpot_ns, context_tokens = view.now_ns, None, None, 0
        for request_id, flight in view.in_flight.items():
            if flight.decodes:
                entry, decoded = flights[request_id].entry, flight.decoded_tokens(view.clock)
                ttft, tpot = self.targets(entry.request)
                left = due_ns(entry.request.arrival_ns, ttft, tpot, entry.generated_tokens + decoded) - now
                slack_ns = left if slack_ns is None else min(slack_ns, left)
                tpot_ns = tpot if tpot_ns is None else min(tpot_ns, tpot)
                context_tokens += flight.context_tokens + decoded
        assert slack_ns is not None
        assert tpot_ns is not None
        return min(most, tokens_within(slack_ns, tpot_ns, self.decode_ns(view.decoding, context_tokens), self.token_ns))

    def targets(self, request: Request) -> tuple[int, int]:
        """Return a request's targets for its first token and for each further one, in nanoseconds."""
        slo = request.slo
        if slo is None:
            return self.ttft_ns, self.tpot_ns
        return slo.ttft_ns or self.ttft_ns, slo.tpot_ns or self.tpot_ns

    def decode_ns(self, decoding: int, context_tokens: int) -> int:
        """Return how long a step without prompts is estimated to take, in nanoseconds."""
        return self.step_ns + self.request_ns * decoding + self.context_token_ns * context_tokens


def due_ns(arrival_ns: int, ttft_ns: int, tpot_ns: int, token: int) -> int:
    """Return when a token of a request is due, counted from 0."""
    return arrival_ns + ttft_ns + tpot_ns * token


def tokens_within(slack_ns: int, tpot_ns: int, decode_ns: int, token_ns: int) -> int:
    """Return how many tokens of prompts fit beside decodes into the larger of two times; at least one."""
    return max((max(slack_ns, tpot_ns) - decode_ns) // token_ns, 1)


@attrs.frozen
class IterationLevel(Batching):
    """Orca's rule: requests enter and leave between any two iterations, prompts are computed whole beside decodes.

    Source: "Orca: A Distributed Serving System for Transformer-Based Generative Models" (OSDI'22).  The batch is
    limited in requests only; `max_batched_tokens` plays no part.
    """

    name: ClassVar[str] = "iteration-level"

    def open(self, view: WorkerView, flights: Flights) -> Batch:
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

    def open(self, view: WorkerView, flights: Flights) -> Batch:
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

    def open(self, view: WorkerView, flights: Flights) -> Batch:
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

    def open(self, view: WorkerView, flights: Flights) -> Batch:
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

    def open(self, view: WorkerView, flights: Flights) -> Batch:
        prefixes = {request_id for request_id, _ in view.prefilling if not flights[request_id].prefix_was_cached}
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
        *(Chunked, Padded, FairBatching, IterationLevel, EagerPrefill, CappedPrefill, WholePrompts, RequestLevel),
        MemoryCentric,
    )
}
"""Batching rules by name."""
