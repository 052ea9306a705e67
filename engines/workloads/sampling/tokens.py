"""Contents of generated prompts: streams of tokens that occur nowhere else, and the block keys of their concatenation.

A block's key is a hash of its tokens, so two prompts share a prefix exactly as far as their contents agree, whatever
the block size and wherever the parts of a prompt begin.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fairsched.model.request import KEY_BYTES, Prompt

Tokens = npt.NDArray[np.uint64]

BLOCK_TOKENS = 16
"""Tokens a block in generated prompts: vLLM's default block size."""

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)


class TokenSource:
    """Fresh tokens by counter: pure in its `seed` words, and no token comes twice from one source.

    Two sources with different words begin at random places among 2^64, so their tokens differ too, but for a chance
    of about one in 10^9 for a thousand sources of a million tokens each.
    """

    def __init__(self, *seed: int) -> None:
        self._next = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])

    def fresh(self, count: int) -> Tokens:
        """Return the next `count` tokens, never given out before."""
        counters = np.arange(count, dtype=np.uint64) + np.uint64(self._next)
        self._next = (self._next + count) % 2**64
        return _mixed(counters)


def prompt_of(*parts: Tokens) -> Prompt:
    """Return the prompt whose content is the parts one after another, in blocks of `BLOCK_TOKENS`; O(tokens)."""
    return EMPTY_TEXT.then(*parts).prompt()


class Text(NamedTuple):
    """A content whose whole blocks are hashed already, in `keys`, and the tokens behind them, in `rest`.

    Many prompts that begin with one text hash that text once; O(tokens that are new) each.
    """

    keys: bytes
    rest: Tokens

    @property
    def tokens(self) -> int:
        return len(self.keys) // KEY_BYTES * BLOCK_TOKENS + len(self.rest)

    def then(self, *parts: Tokens) -> "Text":
        """Return this content and the parts after it."""
        content = np.concatenate((self.rest, *parts))
        blocks = len(content) // BLOCK_TOKENS
        whole = content[: blocks * BLOCK_TOKENS].reshape(blocks, BLOCK_TOKENS)
        keys = _mixed(whole @ _POWERS) >> np.uint64(1)
        return Text(self.keys + keys.astype("<i8", copy=False).tobytes(), content[blocks * BLOCK_TOKENS :])

    def prompt(self) -> Prompt:
        return Prompt.from_keys(self.keys, block_tokens=BLOCK_TOKENS, tokens=self.tokens)


EMPTY_TEXT = Text(b"", np.empty(0, dtype=np.uint64))


def _mixed(values: Tokens) -> Tokens:
    """Return a bijection of 64 bits that scatters neighbours (the finaliser of SplitMix64, Steele et al., OOPSLA
    2014)."""
    values = values * _STEP
    values = (values ^ (values >> np.uint64(30))) * _MULTIPLY_1
    values = (values ^ (values >> np.uint64(27))) * _MULTIPLY_2
    return values ^ (values >> np.uint64(31))


# Odd factors, one a place in the block, so that the same tokens in another order give another key.
_POWERS = _mixed(np.arange(1, BLOCK_TOKENS + 1, dtype=np.uint64)) | np.uint64(1)
