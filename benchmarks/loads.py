"""Prompts of benchmarks of prefix caches and routers: what all share, one of several parts, a tail of their own.

*toolbench*: 1,838 tokens, a system prompt of all (200), one of T tools (1,358) and a tail (280).  *videoqa*: 9,774
tokens, one of V videos (8,601) and a tail (1,173).  Keys are token-exact and hashed already.
"""

import numpy as np

from fairsched.model.request import Prompt


class Load:
    """Prompts of a seeded stream; parts are drawn by Zipf's law, or are equally likely."""

    def __init__(
        self, shared: int, parts: int, part_tokens: int, tail_tokens: int, zipf: bool = True, seed: int = 1
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.prompt_tokens, self.tail_tokens = shared + part_tokens + tail_tokens, tail_tokens
        self.shared = self.keys(shared)
        self.parts = [self.keys(part_tokens) for _ in range(parts)]
        weights = 1.0 / np.arange(1, parts + 1) if zipf else np.ones(parts)
        self.cumulative = np.cumsum(weights / weights.sum())

    def keys(self, count: int) -> bytes:
        """Random keys of `count` one-token blocks."""
        return self.random.integers(0, 1 << 17, count).tobytes()

    def prompt(self) -> Prompt:
        """The next prompt of the stream."""
        pick = int(np.searchsorted(self.cumulative, self.random.random()))
        return Prompt.from_keys(self.shared + self.parts[min(pick, len(self.parts) - 1)] + self.keys(self.tail_tokens))

    def prompts(self, count: int) -> list[Prompt]:
        """The next prompts of the stream."""
        return [self.prompt() for _ in range(count)]


def toolbench(tools: int, zipf: bool = True) -> Load:
    """Prompts of so many tools."""
    return Load(200, tools, 1_358, 280, zipf)


LOADS = {
    "toolbench, 150 tools": (200, 150, 1_358, 280),
    "toolbench, 1,500 tools": (200, 1_500, 1_358, 280),
    "toolbench, 4,000 tools": (200, 4_000, 1_358, 280),
    "videoqa, 1,000 videos": (0, 1_000, 8_601, 1_173),
}
"""Arguments of a load by its name."""
