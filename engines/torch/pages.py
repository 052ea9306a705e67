"""KV memory in pages: a pool with reference counts, the map of cached prefixes, and the seats of running requests.

A page holds the keys and values of one block of a prompt, or of as many tokens that belong to one request alone.  The
map follows the worker's prefix cache event by event, so it holds what the worker counts as cached and nothing else: an
edge from a page (or from nothing) by a block's key to the next page.  Chains are compared key by key and never hashed
as a whole.

**The pool never runs out.**  The worker keeps cached + used <= capacity, in tokens.  Cached blocks are whole pages.
What a request holds beside its shared prefix begins at a page's first token, so at most one of its pages is partly
filled: with pages of P tokens and R running requests the pages in use are at most capacity / P + R (P - 1) / P, and
`pages_needed` grants R in full.  A prompt that two requests computed at once is held twice until the second one's
`Cached` event swaps its copies for the cached pages, and the worker counts it twice just as long.

A seat is a row of arrays, so that what a step needs of each running request is one numpy expression over all.  Of the
request in it the row knows its pages, how many of its tokens are computed, the token that it feeds next and how it
samples.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fairsched.model.request import KEY_BYTES, Prompt

Pages = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]

NOTHING = -1
"""Where every chain begins."""


def pages_needed(kv_capacity_tokens: int, page_tokens: int, running_max: int) -> int:
    """Return pages with which a worker of this capacity never runs out, whatever its policy does."""
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
        """Return pages of the longest cached prefix of at most so many blocks.  O(blocks)."""
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
        """Cache the blocks of `own` that a request has computed, one page each: what it shall use instead.

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


class FlatBatch(NamedTuple):
    """One step as flat arrays: first a token of each decoding request, then the chunks, each in one piece.

    For T tokens `ids`, `positions` and `slots` (page x page_tokens + offset: where keys and values go).  For the S
    requests, `decoding` of which come first and feed one token: `counts` tokens each, `contexts` tokens with those
    before, and `table` [S, pages], their pages, of which the first ceil(contexts / page_tokens) count.
    """

    ids: Ints
    positions: Ints
    slots: Ints
    decoding: int
    counts: Ints
    contexts: Ints
    table: Pages


class Seats:
    """Rows for at most `running_max` requests; `table` widens as contexts grow."""

    def __init__(self, running_max: int, page_tokens: int, pool: PagePool) -> None:
        self.page_tokens = page_tokens
        self.pool = pool
        self.empty = list(range(running_max - 1, -1, -1))
        self.table = np.zeros((running_max, 16), dtype=np.int32)
        self.pages = np.zeros(running_max, dtype=np.int64)
        self.computed = np.zeros(running_max, dtype=np.int64)
        self.next_id = np.zeros(running_max, dtype=np.int64)
        self.temperature = np.zeros(running_max, dtype=np.float32)
        self.top_k = np.zeros(running_max, dtype=np.int64)
        self.key = np.zeros(running_max, dtype=np.uint64)

    def sit(self, shared: Pages) -> int:
        """Seat a request whose first tokens are in these pages, which it now holds.  O(pages)."""
        if not self.empty:
            raise RuntimeError(f"more than {len(self.pages)} requests run at once; the executor was made for no more")
        seat = self.empty.pop()
        self._widen(len(shared))
        self.pool.hold(shared)
        self.table[seat, : len(shared)] = shared
        self.pages[seat] = len(shared)
        self.computed[seat] = len(shared) * self.page_tokens
        return seat

    def bring(self, seat: int, tokens: int) -> Ints:
        """Bring in the request's next tokens, which were computed elsewhere: the slots for their keys and values.
        O(tokens)."""
        self._cover(seat, tokens)
        self.computed[seat] += tokens
        return self.slots(seat)[-tokens:]

    def slots(self, seat: int) -> Ints:
        """Return slots of all tokens of the request that are computed, in order.  O(tokens)."""
        page, offset = np.divmod(np.arange(int(self.computed[seat])), self.page_tokens)
        slots: Ints = self.table[seat, page].astype(np.int64) * self.page_tokens + offset
        return slots

    def leave(self, seat: int) -> None:
        """Let go of the request's pages and seat."""
        self.pool.release(self.table[seat, : self.pages[seat]])
        self.empty.append(seat)

    def replace(self, seat: int, pages: Pages) -> None:
        """Replace the request's first pages; it holds them already."""
        self.table[seat, : len(pages)] = pages

    def batch(self, decode: Ints, chunks: list[tuple[int, Ints]]) -> FlatBatch:
        """Return the step in which the seats of `decode` feed their next token and each of `chunks` (seat, tokens) its
        own.

        Takes the pages that it fills; a step that was not committed takes none again.
        """
        self._cover_decode(decode)
        for seat, ids in chunks:
            self._cover(seat, len(ids))
        seats = np.concatenate((decode, np.array([seat for seat, _ in chunks], dtype=np.int64)))
        counts = np.ones(len(seats), dtype=np.int64)
        counts[len(decode) :] = [len(ids) for _, ids in chunks]
        first = self.computed[seats]
        contexts = first + counts
        ids = np.concatenate((self.next_id[decode], *[ids for _, ids in chunks]))
        # Of each token its request (a row of `seats`) and its position there.
        row = np.repeat(np.arange(len(seats)), counts) if chunks else np.arange(len(seats))
        positions = first[row] + (np.arange(len(ids)) - (np.cumsum(counts) - counts)[row])
        page, offset = np.divmod(positions, self.page_tokens)
        slots = self.table[seats[row], page].astype(np.int64) * self.page_tokens + offset
        width = int(-(-contexts.max(initial=1) // self.page_tokens))
        return FlatBatch(ids, positions, slots, len(decode), counts, contexts, self.table[seats, :width])

    def commit(self, decode: Ints, chunks: list[tuple[int, Ints]]) -> None:
        """Commit the step of these arguments, which was computed."""
        self.computed[decode] += 1
        for seat, ids in chunks:
            self.computed[seat] += len(ids)

    def _cover_decode(self, seats: Ints) -> None:
        """Cover one more token each: at most one more page each."""
        short = seats[self.computed[seats] >= self.pages[seats] * self.page_tokens]
        if len(short):
            self._widen(int(self.pages[short].max()) + 1)
            self.table[short, self.pages[short]] = self.pool.take(len(short))
            self.pages[short] += 1

    def _cover(self, seat: int, tokens: int) -> None:
        held = int(self.pages[seat])
        wanted = int(-(-(self.computed[seat] + tokens) // self.page_tokens))
        if wanted > held:
            self._widen(wanted)
            self.table[seat, held:wanted] = self.pool.take(wanted - held)
            self.pages[seat] = wanted

    def _widen(self, columns: int) -> None:
        have = self.table.shape[1]
        if columns > have:
            self.table = np.pad(self.table, ((0, 0), (0, max(columns, 2 * have) - have)))
