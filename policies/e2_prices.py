"""What work costs E2, in integer nanoseconds: the prefill of so many tokens, and the decoding of outputs.

Preble prices work by regressions over profiles of one request at a time.  Here the workers' own latency model serves,
which is such a regression.  A decode step is shared by the batch, so an output token is charged the step's share of one
of `decode_batch` requests.  The paper's figure is a request decoding alone, which is `decode_batch` = 1 and makes a
worker of short prompts look busier than it is, since its constant is paid once a step and not once a request.
"""

import attrs

from fairsched.model.latency import LatencyModel


@attrs.frozen
class Prices:
    """Coefficients: a prefill of n tokens after x takes constant + token n + attention n (x + n) / 1000 (rounded down),
    an output token of each of b = `decode_batch` requests `step_ns` + b `context_ns` times its context, divided by b.
    """

    prefill_constant_ns: int
    prefill_token_ns: int
    prefill_attention_ps: int
    decode_batch: int
    step_ns: int
    context_ns: int

    @classmethod
    def of(cls, latency: LatencyModel, decode_batch: int) -> "Prices":
        """The prices of a worker with this latency model."""
        step_ns = latency.decode_ns(decode_batch, 0)
        context_ns = latency.decode_ns(decode_batch, 1) - step_ns
        prefill = latency.prefill_constant_ns, latency.prefill_token_ns, latency.prefill_attention_ps
        return cls(*prefill, decode_batch, step_ns, context_ns)

    def prefill_ns(self, tokens: int, context_tokens: int) -> int:
        """A prefill of `tokens` tokens after `context_tokens`; nothing to compute costs nothing.  O(1)."""
        if not tokens:
            return 0
        attention = self.prefill_attention_ps * tokens * (context_tokens + tokens) // 1000
        return self.prefill_constant_ns + self.prefill_token_ns * tokens + attention

    def decode_ns(self, requests: int, prompt_tokens: int, output_tokens: int, outputs: int) -> int:
        """Decoding `requests` requests with `prompt_tokens` of prompts in all, whose outputs are as long as the mean of
        `outputs` outputs with `output_tokens` in all.  Rounded down.  O(1)."""
        batch = self.decode_batch
        token_ns = requests * self.step_ns + batch * self.context_ns * prompt_tokens
        return token_ns * output_tokens // (batch * outputs)
