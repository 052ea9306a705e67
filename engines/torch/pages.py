"""KV memory in pages: a pool with reference counts, and the map of cached prefixes to the pages that hold them.

A page holds the keys and values of one block of a prompt, or of as many tokens that belong to one request alone.  The
map follows the worker's prefix cache event by event, so it holds what the worker counts as cached and nothing else: an
edge from a page (or from nothing) by a block's key to the next page.  Chains are compared key by key and never hashed
as a whole.

**The pool never runs out.**  The worker keeps cached + used <= capacity, in tokens.  Cached blocks are whole pages.
What a request holds beside its shared prefix begins at a page's first token, so at most one of its pages is partly
filled: with pages of P tokens and R running requests the pages in use are at most capacity / P + R (P - 1) / P, and
`pages_needed` grants R in full.  A prompt that two requests computed at once is held twice until the second one's
`Cached` event swaps its copies for the cached pages, and the worker counts it twice just as long.
"""

import numpy as np
import numpy.typing as npt

from fairsched.model.request import KEY_BYTES, Prompt

Pages = npt.NDArray[np.int32]

NOTHING = -1
"""Where every chain begins."""


def pages_needed(kv_capacity_tokens: int, page_tokens: int, running_max: int) -> int:
    """Pages with which a worker of this capacity never runs out, whatever its policy does."""
    return -(-kv_capacity_tokens // page_tokens) + running_max


class OutOfPagesError(RuntimeError):
    """More pages were wanted than are free: the events did not come from a worker of the pool's capacity."""


class PagePool:
    """Which pages are free, and how many hold on to each of the others."""

    def __init__(self, pages: int) -> None:
        self.references = np.zeros(pages, dtype=np.int32)
        # A stack: what was freed last is taken first, while it is still in a processor's cache.
        self.stack = np.arange(pages - 1, -1, -1, dtype=np.int32)
        self.free = pages

    def take(self, count: int) -> Pages:
        """Fresh pages, each held once.  Raises `OutOfPagesError`."""
        if count > self.free:
            raise OutOfPagesError(f"{count} pages are wanted and {self.free} of {len(self.stack)} are free")
        pages = self.stack[self.free - count : self.free].copy()
        self.free -= count
        self.references[pages] = 1
        return pages

    def hold(self, pages: Pages) -> None:
        """Hold pages (all different) once more."""
        self.references[pages] += 1

    def release(self, pages: Pages) -> None:
        """Let go of pages (all different) once; those that no sequence holds are free again."""
        self.references[pages] -= 1
        freed = pages[self.references[pages] == 0]
        self.stack[self.free : self.free + len(freed)] = freed
        self.free += len(freed)


class PrefixPages:
    """The pages of every cached block; each is held once by this map, beside the requests that use it."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.edges: dict[tuple[int, bytes], int] = {}

    def match(self, prompt: Prompt, blocks_max: int) -> Pages:
        """Pages of the longest cached prefix of at most so many blocks.  O(blocks)."""
        return np.array(self._path(prompt, blocks_max), dtype=np.int32)

    def _path(self, prompt: Prompt, blocks: int) -> list[int]:
        keys, edges, page, path = prompt.keys, self.edges, NOTHING, []
        for start in range(0, blocks * KEY_BYTES, KEY_BYTES):
            found = edges.get((page, keys[start : start + KEY_BYTES]))
            if found is None:
                break
            path.append(page := found)
        return path

    def cache(self, prompt: Prompt, own: Pages) -> Pages:
        """A request has computed the blocks of `own`, one page each: what it shall use instead.

        A block that is cached already is used from there and the request's copy is let go; any other is cached now.
        O(blocks).
        """
        keys, edges, page = prompt.keys, self.edges, NOTHING
        used, fresh = [], []
        for block, copy in enumerate(own.tolist()):
            found = edges.setdefault((page, keys[block * KEY_BYTES : (block + 1) * KEY_BYTES]), copy)
            if found == copy and self.pool.references[copy] == 1:
                fresh.append(copy)
            used.append(page := found)
        self.pool.hold(np.array(fresh, dtype=np.int32))
        shared = np.array(used, dtype=np.int32)
        swapped = shared != own
        self.pool.hold(shared[swapped])
        self.pool.release(own[swapped])
        return shared

    def evict(self, prompt: Prompt, keep_blocks: int, blocks: int) -> None:
        """Forget `blocks` blocks of the prompt behind its first `keep_blocks`; `KeyError` if they are not there."""
        path = [NOTHING, *self._path(prompt, keep_blocks + blocks)]
        if len(path) <= keep_blocks + blocks:
            raise KeyError(f"{keep_blocks + blocks} blocks of a prompt are evicted and {len(path) - 1} are cached")
        keys = prompt.keys
        for block in range(keep_blocks, keep_blocks + blocks):
            del self.edges[path[block], keys[block * KEY_BYTES : (block + 1) * KEY_BYTES]]
        self.pool.release(np.array(path[keep_blocks + 1 :], dtype=np.int32))

    def check(self) -> None:
        """Raise `AssertionError` unless the map is a forest of pages that it holds."""
        pages = list(self.edges.values())
        # No page holds two blocks, and the map holds each of its pages.
        assert len(set(pages)) == len(pages)
        assert all(self.pool.references[page] >= 1 for page in pages)
        # Every chain begins at nothing.
        assert {parent for parent, _ in self.edges} <= {NOTHING, *pages}
