"""vLLM's KV memory as a promise: a request that is let in is sure of blocks for all of its output.

vLLM gives out blocks as outputs grow, and takes the youngest request out when none is left.  Here a request fits if
the free blocks, less those that the running ones may still come to need, hold all that it may need itself.  What of its
prompt is cached counts once: a cached block in use costs nothing, and one that is not in use is no longer free.
"""

from collections.abc import Iterable
from typing import Any

from fairsched.engines.adapters.vllm.protocol import VllmRequest


class KvMemory:
    """The blocks of one engine.

    `manager` is vLLM's `KVCacheManager` with one group of full attention; a request may look `lookahead_tokens` ahead
    of its output (speculation).  With `reserves=False` every request fits, and vLLM itself decides.
    """

    def __init__(self, manager: Any, block_tokens: int, lookahead_tokens: int = 0, reserves: bool = True) -> None:
        self.reserves = reserves
        self.block_tokens = block_tokens
        self._manager = manager
        self._pool = manager.block_pool
        self._lookahead = lookahead_tokens
        self._blocks: int = self._pool.get_num_free_blocks()

    @property
    def capacity_tokens(self) -> int:
        """The tokens that the engine holds in all: M of the theorems."""
        return self._blocks * self.block_tokens

    @property
    def free_tokens(self) -> int:
        """The tokens that are free now; cached blocks that are not in use are."""
        return int(self._pool.get_num_free_blocks()) * self.block_tokens

    def blocks_of(self, tokens: int) -> int:
        """Return blocks that a request may come to need for so many tokens."""
        return -(-(tokens + self._lookahead) // self.block_tokens)

    def cached_tokens(self, request: VllmRequest) -> int:
        """Return how much of the request vLLM would take from its cache now.  O(blocks of the prompt)."""
        return int(self._manager.get_computed_blocks(request)[1])

    def promised_blocks(self, running: Iterable[tuple[str, int]]) -> int:
        """Return what the running requests, with what each may come to hold in tokens, may still need.  O(running)."""
        held = self._manager.get_blocks
        return sum(max(self.blocks_of(tokens) - len(held(name).blocks[0]), 0) for name, tokens in running)

    def fits(self, request: VllmRequest, most_tokens: int, running: Iterable[tuple[str, int]]) -> bool:
        """Return whether the request, which may come to hold `most_tokens`, can be let in beside what runs."""
        if not self.reserves:
            return True
        free = self._pool.get_num_free_blocks() - self.promised_blocks(running)
        need = self.blocks_of(most_tokens)
        if need <= free:
            return True
        cached = self._manager.get_computed_blocks(request)[0].blocks
        unused = sum(not block.ref_cnt for block in cached[0]) if cached else 0
        return bool(need - (len(cached[0]) if cached else 0) + unused <= free)
