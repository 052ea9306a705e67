"""What Aladdin knows of a worker: memory, prefill and decode as three straight lines with integer coefficients.

Source: Aladdin, equations 1 to 4.  A request of t tokens (prompt and output so far) holds h t + j of KV; an iteration
that prefills n tokens in all takes k1 n + c1, whatever the number of requests; one that decodes b requests over x
tokens of context in all takes k2 x + c2 b + c3.  `engines.calibration.performance_fit` finds coefficients by least
squares, with what they miss; `Performance.of` takes them from a latency model so that they miss nothing on the safe
side.
"""

import attrs

from fairsched.model.latency.model import LatencyModel

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
        coefficient is the largest, that of context of all pieces, whatever the batch.
        """
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
