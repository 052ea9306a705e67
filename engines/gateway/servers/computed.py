"""What a server says that it computed, held against what calls there were charged: bounds are about computed tokens."""

import re

import attrs

SPAN_NS = 60 * 10**9
"""So long a time is compared at once."""
TOLERANCE = 8
"""A server may say an eighth more than was charged, and what is in flight at either end."""
_SAID = re.compile(
    rb"^(?:vllm|sglang):(?:prompt|generation)_tokens_total(?:\{[^\n]*\})? ([0-9]+(?:\.[0-9]+)?(?:e\+[0-9]+)?)\r?$",
    re.MULTILINE,
)


def computed_in(said: bytes) -> int | None:
    """Return the tokens of prompts, cached ones too, and of outputs that metrics of vLLM or SGLang count, of all
    replicas together; None where they say nothing."""
    found = _SAID.findall(said)
    return sum(int(float(value)) for value in found) if found else None


@attrs.define
class ComputedTokens:
    """A server's count against the account's, both from a start that does not matter.

    `computed` and `charged` are of the last whole span, `uncharged` what was beyond the tolerance in all of them.
    """

    computed: int = 0
    charged: int = 0
    uncharged: int = 0
    _begun: tuple[int, int, int, int] | None = None

    def tell(self, said: int | None, charged: int, in_flight: int, now_ns: int) -> int:
        """Take in what the server says while so many tokens are charged and in flight there; returns by how much a span
        that ends now is beyond the tolerance.  A server that begins to count anew is compared anew."""
        begun = self._begun
        if said is None or begun is None or said < begun[1]:
            self._begun = None if said is None else (now_ns, said, charged, in_flight)
            return 0
        if now_ns - begun[0] < SPAN_NS:
            return 0
        self.computed, self.charged = said - begun[1], charged - begun[2]
        beyond = max(self.computed - self.charged * (TOLERANCE + 1) // TOLERANCE - in_flight - begun[3], 0)
        self.uncharged += beyond
        self._begun = now_ns, said, charged, in_flight
        return beyond
