"""How long outputs were: the mean of those that were longer than so much, for prompts of about the same length.

Aladdin (section 4.4, Algorithm 2) predicts a request anew when it outlives its prediction, with the mean output of
requests of the same input that were longer than it is now.  Lengths are kept in powers of two, so a table of a few
hundred numbers holds them all.
"""

import msgspec
from immutables import Map

_BITS = 5


class OutputHistory(msgspec.Struct, frozen=True):
    """By (prompt's bits, output's bits): how many requests there were, and their output tokens in all."""

    seen: Map[int, tuple[int, int]] = Map()

    def with_output(self, prompt_tokens: int, output_tokens: int) -> "OutputHistory":
        """With one more request.  O(log n)."""
        key = _key(prompt_tokens, output_tokens)
        count, total = self.seen.get(key, (0, 0))
        return OutputHistory(self.seen.set(key, (count + 1, total + output_tokens)))

    def longer_than(self, prompt_tokens: int, done_tokens: int, most_tokens: int) -> int:
        """Foreseen output of a request that has `done_tokens` already, more than that and at most `most_tokens`.

        The mean of longer ones; without any, twice of what it has.  O(1).
        """
        count = total = 0
        for bits in range(done_tokens.bit_length(), 1 << _BITS):
            n, tokens = self.seen.get((prompt_tokens.bit_length() << _BITS) | bits, (0, 0))
            # Of its own power of two some were shorter; their mean tells whether most were.
            if n and tokens > n * done_tokens:
                count, total = count + n, total + tokens
        foreseen = -(-total // count) if count else 2 * done_tokens
        return max(min(foreseen, most_tokens), done_tokens + 1)


def _key(prompt_tokens: int, output_tokens: int) -> int:
    return (prompt_tokens.bit_length() << _BITS) | output_tokens.bit_length()
