"""The running requests as rows of arrays: what a step needs of each is one numpy expression over all.

A seat is a row.  Of the request in it the row knows its pages, how many of its tokens are computed, the token that it
feeds next and how it samples.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fairsched.engines.torch.pages import PagePool, Pages

Ints = npt.NDArray[np.int64]


class Batch(NamedTuple):
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

    def leave(self, seat: int) -> None:
        """The request lets go of its pages and of its seat."""
        self.pool.release(self.table[seat, : self.pages[seat]])
        self.empty.append(seat)

    def replace(self, seat: int, pages: Pages) -> None:
        """The request's first pages are these now; it holds them already."""
        self.table[seat, : len(pages)] = pages

    def batch(self, decode: Ints, chunks: list[tuple[int, Ints]]) -> Batch:
        """The step in which the seats of `decode` feed their next token and each of `chunks` (seat, tokens) its own.

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
        return Batch(ids, positions, slots, len(decode), counts, contexts, self.table[seats, :width])

    def commit(self, decode: Ints, chunks: list[tuple[int, Ints]]) -> None:
        """The step of these arguments was computed."""
        self.computed[decode] += 1
        for seat, ids in chunks:
            self.computed[seat] += len(ids)

    def _cover_decode(self, seats: Ints) -> None:
        """One more token each: at most one more page each."""
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
