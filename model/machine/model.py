"""How long a step takes: integer nanoseconds, affine in tokens, context and batch, so that a leap equals its steps.

A step that prefills chunks of n tokens, each behind a context of x tokens, takes

    prefill_constant_ns + prefill_token_ns * sum n + prefill_attention_ps * sum n (x + n) / 1000     (rounded down),

one that decodes b requests over x tokens of context in all

    constant_ns + context_token_ns * x + request_ns * b,

and a mixed step the sum of both with the larger constant once.  Decode coefficients may depend on the batch size: one
`DecodePiece` a range.  The form covers the published profiles of DistServe, Preble and Splitwise.

A worker of several `stages` holds a share of the layers in each (`pipelined`).  Steps that decode fill the stages with
micro-batches, so that all they pay for a token, a token of context or a request is divided by the stages.  A step that
only prefills passes through the stages one after the other, and the next such step may follow when it has left the
first (`LatencyModel.stage_ns`).

What Aladdin knows of a worker: memory, prefill and decode as three straight lines with integer coefficients.

Source: Aladdin, equations 1 to 4.  A request of t tokens (prompt and output so far) holds h t + j of KV; an iteration
that prefills n tokens in all takes k1 n + c1, whatever the number of requests; one that decodes b requests over x
tokens of context in all takes k2 x + c2 b + c3.  `engines.calibration.performance_fit` finds coefficients by least
squares, with what they miss; `Performance.of` takes them from a latency model so that they miss nothing on the safe
side.
"""

from bisect import bisect_right
from collections.abc import Iterable
from functools import partial
from math import isqrt
from typing import Annotated, Any

import attrs
from msgspec import Meta, Struct

from fairsched.model.machine.kernels import Kernels

NOT_VALIDATED = "not held against measurements"


@attrs.frozen
class DecodePiece:
    """Decode coefficients for batches of at least `batch_min` requests."""

    batch_min: int
    constant_ns: int
    context_token_ns: int
    request_ns: int


Positive = Annotated[int, Meta(ge=1)]


class Accelerators(Struct, frozen=True, forbid_unknown_fields=True):
    """The accelerators of a worker and the model on them: the kind (of `GPUS`), the model's parameters and bytes of
    weights, and bytes of KV a token, on all accelerators together.

    Every step reads `step_bytes` of the weights or more, and multiplies each token with `token_parameters`: all of them
    (None) but for embeddings, heads, and experts that need not be used.
    """

    gpu: str
    parameters: Positive
    weight_bytes: Positive
    kv_token_bytes: Positive
    step_bytes: Positive | None = None
    token_parameters: Positive | None = None

    @property
    def model_facts(self) -> tuple[int, int, int]:
        """The model, by its sizes: workers that agree in them can send KV to each other."""
        return self.parameters, self.weight_bytes, self.kv_token_bytes


@attrs.frozen
class LatencyModel:
    """Step time of one worker.  All coefficients are non-negative integers; `source` says where they come from.

    With `kernels` a step takes what they take, and the coefficients are a summary of them (`of_kernels`).
    `validated` says how the model was held against measurements.

    `gpus` is how many GPUs the worker has, `deployment` which, and what they compute; None where that is not known.  Of
    a worker with several `stages` the prefill coefficients are those of a step through all of them; those of decode
    pieces are shared among micro-batches already (`pipelined`).
    """

    name: str
    source: str
    prefill_constant_ns: int
    prefill_token_ns: int
    prefill_attention_ps: int
    decode: tuple[DecodePiece, ...]
    kv_capacity_tokens: int
    gpus: int | None = None
    stages: int = 1
    deployment: Accelerators | None = None
    kernels: Kernels | None = None
    validated: str = NOT_VALIDATED

    @classmethod
    def of_kernels(
        cls, name: str, source: str, kernels: Kernels, kv_capacity_tokens: int, **known: Any
    ) -> "LatencyModel":
        """Return the model whose steps take what these kernels take.

        Its coefficients are a summary for policies that weigh by them: a prompt's are exact at 1, 1,024 and 8,192
        tokens where they can be (none is negative), a batch's secants over contexts of 256 and 2,048 tokens.
        """

        def prompt(tokens: int) -> int:
            return kernels.step_ns(((tokens, 0),), 0, 0)

        def batch(size: int) -> DecodePiece:
            low, high = (kernels.step_ns((), size, size * each) for each in (256, 2_048))
            context_ns = max(high - low, 0) // (size * 1_792)
            after = kernels.step_ns((), 2 * size, 512 * size)
            request_ns = max(after - low - 256 * size * context_ns, 0) // size
            constant_ns = low - size * (256 * context_ns + request_ns)
            if constant_ns < 1:
                constant_ns, request_ns = 1, max(low - 256 * size * context_ns, 0) // size
            return DecodePiece(size, constant_ns, context_ns, request_ns)

        constant = prompt(1)
        short, long = ((prompt(tokens) - constant) / tokens for tokens in (1_024, 8_192))
        attention = max(int((long - short) * 1000 / 7_168), 0)
        token = max(int(long - attention * 8_192 / 1000), 0)
        pieces = tuple(batch(1 << i) for i in range(9))
        coefficients = max(constant, 1), token, attention, pieces, kv_capacity_tokens
        return cls(name, source, *coefficients, kernels=kernels, **known)

    @property
    def described(self) -> str:
        """The machine and its model in a few words, and how they were held against measurements."""
        kind = "" if self.deployment is None else f" ({self.gpus or 1} x {self.deployment.gpu})"
        return f"{self.name}{kind}, {self.validated}"

    @property
    def skewed(self) -> bool:
        """Whether time depends on the longest and the shortest context of requests that decode."""
        return self.kernels is not None and self.kernels.attention.skew is not None

    def _piece(self, batch: int) -> DecodePiece:
        pieces = self.decode
        return pieces[0] if len(pieces) == 1 else pieces[bisect_right(pieces, batch, key=lambda p: p.batch_min) - 1]

    def decode_ns(self, batch: int, context_tokens: int, longest: int = 0, shortest: int = 0) -> int:
        """Return the duration of one step that decodes `batch` requests over `context_tokens` tokens of context in all.

        `longest` and `shortest` are the contexts of two of them; 0 for requests of equal context.
        """
        if self.kernels is not None:
            return self.kernels.step_ns((), batch, context_tokens, longest, shortest)
        piece = self._piece(batch)
        return piece.constant_ns + piece.context_token_ns * context_tokens + piece.request_ns * batch

    def decode_run_ns(self, batch: int, context_tokens: int, steps: int, longest: int = 0, shortest: int = 0) -> int:
        """Return the duration of `steps` steps: each context grows by 1 a step, so the sum has a closed form."""
        if self.kernels is not None:
            return self.kernels.decode_run_ns(batch, context_tokens, steps, longest, shortest)
        pieces = self.decode
        piece = pieces[0] if len(pieces) == 1 else self._piece(batch)
        context_token_ns = piece.context_token_ns
        first = piece.constant_ns + context_token_ns * context_tokens + piece.request_ns * batch
        if steps == 1:
            return first
        return steps * first + context_token_ns * batch * (steps * (steps - 1) // 2)

    def decode_steps_within(
        self, batch: int, context_tokens: int, span_ns: int, longest: int = 0, shortest: int = 0
    ) -> int:
        """Return most steps whose run takes at most `span_ns`: the root of the closed form, exact."""
        if self.kernels is not None:
            run = partial(self.kernels.decode_run_ns, batch, context_tokens, longest=longest, shortest=shortest)
            above = 1
            while run(above) <= span_ns:
                above *= 2
            return bisect_right(range(above), span_ns, key=run) - 1
        pieces = self.decode
        piece = pieces[0] if len(pieces) == 1 else self._piece(batch)
        first = piece.constant_ns + piece.context_token_ns * context_tokens + piece.request_ns * batch
        growth = piece.context_token_ns * batch
        if not growth:
            return span_ns // first
        linear = 2 * first - growth
        return (isqrt(linear * linear + 8 * growth * span_ns) - linear) // (2 * growth)

    def step_ns(
        self,
        chunks: Iterable[tuple[int, int]],
        batch: int,
        context_tokens: int,
        longest: int = 0,
        shortest: int = 0,
    ) -> int:
        """Return the duration of a step that prefills `chunks` (tokens, context before them) and decodes `batch`
        requests over `context_tokens` tokens of context in all; `longest` and `shortest` as of `decode_ns`."""
        if self.kernels is not None:
            return self.kernels.step_ns(chunks, batch, context_tokens, longest, shortest)
        tokens = 0
        products = 0
        for count, before in chunks:
            tokens += count
            products += count * (before + count)
        if not tokens:
            return self.decode_ns(batch, context_tokens)
        variable = self.prefill_token_ns * tokens + self.prefill_attention_ps * products // 1000
        if not batch:
            return self.prefill_constant_ns + variable
        piece = self._piece(batch)
        constant = max(self.prefill_constant_ns, piece.constant_ns)
        if self.stages > 1:
            variable = -(-variable // self.stages)
        return constant + variable + piece.context_token_ns * context_tokens + piece.request_ns * batch

    def stage_ns(self, chunks: Iterable[tuple[int, int]]) -> int:
        """Return when the next step that only prefills may follow one that only prefills `chunks`: the time of a stage,
        an equal share of the step's own time."""
        return -(-self.step_ns(chunks, 0, 0) // self.stages)


HOP_NS = 100_000
"""Activations to the next stage: 4,096 tokens of 5,120 values in 16 bits take 84 us at 500 GB/s; chosen here."""


def pipelined(latency: LatencyModel, stages: int, *, hop_ns: int = HOP_NS) -> LatencyModel:
    """Return the model of a worker that has `stages` times the GPUs, each group with an equal share of the layers.

    A step passes through every stage and takes `hop_ns` more for each.  A batch of b decodes as min(b, stages)
    micro-batches at a time: its requests and their context cost as much less, rounded up, while constants stay, since
    each micro-batch pays its share of them in every stage.  Where the batch is smaller than the number of stages the
    rest of them are idle (bubbles).  All groups hold the weights once, so that KV has their memory and that of the
    weights of each group beyond the first; of a model whose deployment is not known, only the former.

    >>> one = LatencyModel("x", "made up", 100, 10, 0, (DecodePiece(1, 50, 4, 6),), 1_000)
    >>> two = pipelined(one, 2, hop_ns=1)
    >>> two.step_ns([(20, 0)], 0, 0), two.stage_ns([(20, 0)]), two.decode_ns(2, 100), two.kv_capacity_tokens
    (302, 151, 258, 2000)
    """
    if stages < 1 or hop_ns < 0:
        raise ValueError(f"a pipeline has 1 stage or more and hops of 0 ns or more, not {stages} and {hop_ns}")
    if latency.stages > 1:
        raise ValueError(f"{latency.name} has {latency.stages} stages already")
    if stages == 1:
        return latency
    if latency.kernels is not None:
        raise ValueError(f"{latency.name} is made of kernels, of which no stages are made: only of coefficients")
    hops = stages * hop_ns

    def shared(piece: DecodePiece, batch_min: int, parts: int) -> DecodePiece:
        context, request = -(-piece.context_token_ns // parts), -(-piece.request_ns // parts)
        return DecodePiece(batch_min, piece.constant_ns + hops, context, request)

    first, *others = latency.decode
    few = [shared(first, batch, batch) for batch in range(1, stages)]
    # A piece begins where a micro-batch, and not the batch, has as many requests.
    full = [shared(piece, stages * (piece.batch_min - 1) + 1, stages) for piece in others]
    deployment = latency.deployment
    weights = 0 if deployment is None else deployment.weight_bytes // deployment.kv_token_bytes
    return attrs.evolve(
        latency,
        name=f"{latency.name}-pp{stages}",
        source=f"{latency.source}; {stages} stages by `pipelined`, {hop_ns:,} ns a hop",
        prefill_constant_ns=latency.prefill_constant_ns + hops,
        decode=(*few, shared(first, stages, stages), *full),
        kv_capacity_tokens=stages * latency.kv_capacity_tokens + (stages - 1) * weights,
        gpus=None if latency.gpus is None else stages * latency.gpus,
        stages=stages,
    )


# --- lines ------------------------------------------------------------------------------------------------------------


PROMPT_TOKENS = 2048
"""Up to this prompt `Performance.of` covers attention, unless told otherwise."""


@attrs.frozen
class Performance:
    """Integer coefficients: nanoseconds, and KV in the unit in which a worker's capacity is given (tokens by default).

    Paper's names: k1 `prefill_token_ns`, c1 `prefill_constant_ns`, k2 `context_token_ns`, c2 `request_ns`, c3
    `decode_constant_ns`, h `kv_token`, j `kv_constant`.
    """

    prefill_token_ns: int
    prefill_constant_ns: int
    context_token_ns: int
    request_ns: int
    decode_constant_ns: int
    kv_token: int = 1
    kv_constant: int = 0

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            if value < 0:
                raise ValueError(f"{name} is not negative, but it is {value}")

    @classmethod
    def of(cls, latency: LatencyModel, prompt_tokens: int = PROMPT_TOKENS, batch: int | None = None) -> "Performance":
        """Return lines that no iteration of the model is above, for prompts of at most so many tokens, computed whole,
        and for at most `batch` requests that decode (None: any number).

        Attention grows with the square of a prompt; the line is its chord.  Of several pieces of decode each
        coefficient is the largest, that of context of all pieces, whatever the batch.  Raises `ValueError` for a table
        of attention, of which no lines are known.
        """
        if latency.kernels is not None:
            return cls(*latency.kernels.lines(prompt_tokens))
        reached = [piece for piece in latency.decode if batch is None or piece.batch_min <= batch]
        return cls(
            prefill_token_ns=latency.prefill_token_ns - (-latency.prefill_attention_ps * prompt_tokens // 1000),
            prefill_constant_ns=latency.prefill_constant_ns,
            context_token_ns=max(piece.context_token_ns for piece in latency.decode),
            request_ns=max(piece.request_ns for piece in reached),
            decode_constant_ns=max(piece.constant_ns for piece in reached),
        )

    def kv(self, tokens: int) -> int:
        """Memory of a request of so many tokens, prompt and output (equation 1)."""
        return self.kv_token * tokens + self.kv_constant

    def prefill_ns(self, tokens: int) -> int:
        """Return an iteration that prefills prompts of so many tokens in all (equation 2)."""
        return self.prefill_token_ns * tokens + self.prefill_constant_ns

    def decode_ns(self, batch: int, context_tokens: int) -> int:
        """Return an iteration that decodes so many requests over so many tokens of context in all (equation 3)."""
        return self.context_token_ns * context_tokens + self.request_ns * batch + self.decode_constant_ns

    def batch_max(self, tpot_ns: int) -> int:
        """Return most requests that decode within the target, however short their context; 0 if none does."""
        left = tpot_ns - self.decode_constant_ns
        return max(left // max(self.request_ns, 1), 0)

    def context_max(self, batch: int, tpot_ns: int) -> int:
        """Return most tokens of context over which so many requests decode within the target (equation 4); 0 if
        none."""
        left = tpot_ns - self.decode_constant_ns - self.request_ns * batch
        return max(left // max(self.context_token_ns, 1), 0)
