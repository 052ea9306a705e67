"""vLLM's KV memory: a promise of blocks for all of a request's output, and what is cached, as a policy is told.

vLLM gives out blocks as outputs grow, and takes the youngest request out when none is left.  Here a request fits if
the free blocks, less those that the running ones may still come to need, hold all that it may need itself.  What of its
prompt is cached counts once: a cached block in use costs nothing, and one that is not in use is no longer free.

vLLM names blocks by chained hashes, which become keys of our prompts.  It does not say what it evicts, so the truth is
looked up where it matters: for a request that is about to be let in, and for the two prompts that were looked at
longest ago whenever another one is computed.  What of such a prompt is still there is looked at again, until nothing
is: so what is believed stays about as large as the cache.  Outputs, which vLLM caches too, are not told: a request that
continues a chat finds more than the policy expected, and is charged for what is really computed.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from fairsched.engines.adapters.vllm.protocol import VllmRequest
from fairsched.model.events import Cached, Event, Evicted
from fairsched.model.request import KEY_BYTES, Prompt


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

    def would_fit(self, most_tokens: int, running: Iterable[tuple[str, int]], leaving: Iterable[str]) -> bool:
        """Return whether so much would fit beside what runs, were others taken out that run now."""
        freed = sum(len(self._manager.get_blocks(name).blocks[0]) for name in leaving)
        free = self._pool.get_num_free_blocks() + freed - self.promised_blocks(running)
        return bool(self.blocks_of(most_tokens) <= free)


class Prefixes:
    """Prompts by their blocks, and what the policy believes of the cache.

    `follows` is whether the policy looks at prompts at all; if not, they have no keys and nothing costs anything.
    """

    def __init__(self, memory: KvMemory, follows: bool) -> None:
        self.follows = follows
        self._memory = memory
        # By the key of its last block: the first so many blocks of a prompt.
        self._told: OrderedDict[bytes, tuple[int, Prompt, int, VllmRequest]] = OrderedDict()

    def prompt(self, request: VllmRequest) -> Prompt:
        tokens, size = request.num_prompt_tokens, self._memory.block_tokens
        if not self.follows:
            return Prompt(tokens)
        blocks = min(tokens // size, len(request.block_hashes))
        return Prompt(tokens, size, b"".join(name[:KEY_BYTES] for name in request.block_hashes[:blocks]))

    def computed(self, owner: int, prompt: Prompt, request: VllmRequest, now_ns: int) -> list[Event]:
        """Return the events of a prompt that is computed, and so in the cache, and what that says of older ones."""
        if not prompt.keys:
            return []
        events: list[Event] = [Cached(now_ns, 0, owner, prompt, prompt.blocks)]
        self._told.pop(_last(prompt, prompt.blocks), None)
        for _ in range(min(2, len(self._told))):
            _, (oldest, old, blocks, whose) = self._told.popitem(last=False)
            keep = min(self._memory.cached_tokens(whose) // old.block_tokens, blocks)
            if keep < blocks:
                events.append(Evicted(now_ns, 0, oldest, old, keep, blocks - keep))
            if keep:
                self._told.setdefault(_last(old, keep), (oldest, old, keep, whose))
        self._told[_last(prompt, prompt.blocks)] = (owner, prompt, prompt.blocks, request)
        return events

    def corrected(self, request: VllmRequest, owner: int, prompt: Prompt, believed: int, now_ns: int) -> Evicted | None:
        """Return what the policy must be told if it believes more tokens of the prompt to be cached than are."""
        if not believed:
            return None
        true = self._memory.cached_tokens(request)
        if true >= believed:
            return None
        keep = true // prompt.block_tokens
        return Evicted(now_ns, 0, owner, prompt, keep, believed // prompt.block_tokens - keep)


def _last(prompt: Prompt, blocks: int) -> bytes:
    """Return the key of the last of so many blocks, which names them all."""
    return prompt.keys[(blocks - 1) * KEY_BYTES : blocks * KEY_BYTES]
