"""How long a step takes: integer nanoseconds, affine in tokens, context and batch, so that a leap equals its steps.

A step that prefills chunks of n tokens, each behind a context of x tokens, takes

    prefill_constant_ns + prefill_token_ns * sum n + prefill_attention_ps * sum n (x + n) / 1000     (rounded down),

one that decodes b requests over x tokens of context in all

    constant_ns + context_token_ns * x + request_ns * b,

and a mixed step the sum of both with the larger constant once.  Decode coefficients may depend on the batch size: one
`DecodePiece` a range.  The form covers the published profiles of DistServe, Preble and Splitwise.
"""

from bisect import bisect_right
from collections.abc import Iterable
from math import isqrt

import attrs


@attrs.frozen
class DecodePiece:
    """Decode coefficients for batches of at least `batch_min` requests."""

    batch_min: int
    constant_ns: int
    context_token_ns: int
    request_ns: int


@attrs.frozen
class LatencyModel:
    """Step time of one worker.  All coefficients are non-negative integers; `source` says where they come from.

    `gpus` is how many GPUs the worker has; None where that is not known.
    """

    name: str
    source: str
    prefill_constant_ns: int
    prefill_token_ns: int
    prefill_attention_ps: int
    decode: tuple[DecodePiece, ...]
    kv_capacity_tokens: int
    gpus: int | None = None

    def _piece(self, batch: int) -> DecodePiece:
        pieces = self.decode
        return pieces[0] if len(pieces) == 1 else pieces[bisect_right(pieces, batch, key=lambda p: p.batch_min) - 1]

    def decode_ns(self, batch: int, context_tokens: int) -> int:
        """Duration of one step that decodes `batch` requests over `context_tokens` tokens of context in all."""
        piece = self._piece(batch)
        return piece.constant_ns + piece.context_token_ns * context_tokens + piece.request_ns * batch

    def decode_run_ns(self, batch: int, context_tokens: int, steps: int) -> int:
        """Duration of `steps` steps: the context grows by `batch` a step, so the sum has a closed form."""
        pieces = self.decode
        piece = pieces[0] if len(pieces) == 1 else self._piece(batch)
        context_token_ns = piece.context_token_ns
        first = piece.constant_ns + context_token_ns * context_tokens + piece.request_ns * batch
        if steps == 1:
            return first
        return steps * first + context_token_ns * batch * (steps * (steps - 1) // 2)

    def decode_steps_within(self, batch: int, context_tokens: int, span_ns: int) -> int:
        """Most steps whose run takes at most `span_ns`: the root of the closed form, exact."""
        pieces = self.decode
        piece = pieces[0] if len(pieces) == 1 else self._piece(batch)
        first = piece.constant_ns + piece.context_token_ns * context_tokens + piece.request_ns * batch
        growth = piece.context_token_ns * batch
        if not growth:
            return span_ns // first
        linear = 2 * first - growth
        return (isqrt(linear * linear + 8 * growth * span_ns) - linear) // (2 * growth)

    def step_ns(self, chunks: Iterable[tuple[int, int]], batch: int, context_tokens: int) -> int:
        """Duration of a step that prefills `chunks` (tokens, context before them) and decodes `batch` requests."""
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
        return constant + variable + piece.context_token_ns * context_tokens + piece.request_ns * batch
