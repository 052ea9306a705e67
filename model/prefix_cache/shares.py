"""Shares of a prefix cache: what of it is charged to which client, and whose blocks go first.

A client has a *floor* of tokens that is its own, and may use what is idle beyond it.  What it holds is the KV promised
to its running requests and the blocks that are charged to it, by this rule:

- A block that a running request pins is charged once: to the client that pinned it first, until nothing pins it.
- An idle block is charged in full to each client that used it, its holders: a client that shares a prefix is charged as
  if it were alone, so that what others do takes nothing from it.

A block goes only while each of its holders holds more than its floor (`Evictor`), and memory that a floor still has to
give (`reserve`) is not promised to requests of other clients.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec
from immutables import Map

NO_CLIENT = -1
NO_FLOORS: Map[int, int] = Map()
UNHELD = 1 << 62
"""A block that no client holds is so far over its share."""


class Shares(msgspec.Struct, frozen=True, gc=False):
    """Blocks of a cache that are charged to each client: what is `idle`, and what is `pinned` by running requests."""

    idle: Map[int, int] = NO_FLOORS
    pinned: Map[int, int] = NO_FLOORS


def charged(charges: Map[int, int], clients: Iterable[int], blocks: int) -> Map[int, int]:
    """Return the charges with `blocks` more (or fewer) for each of the clients."""
    for client in clients:
        count = charges.get(client, 0) + blocks
        charges = charges.set(client, count) if count else charges.delete(client)
    return charges


def checked_floors(floors: Mapping[int, int], capacity_tokens: int) -> Map[int, int]:
    """Return the positive floors of clients; raises `ValueError` where one is negative, or their sum passes the
    capacity."""
    for client, tokens in floors.items():
        if tokens < 0:
            raise ValueError(f"client {client}: a cache floor is not negative ({tokens} tokens)")
    if (total := sum(floors.values())) > capacity_tokens:
        raise ValueError(f"the cache floors of clients come to {total} tokens, and a worker holds {capacity_tokens}")
    return Map((client, tokens) for client, tokens in floors.items() if tokens)


def reserve(floor: int, promised: int, pinned: int) -> int:
    """Return tokens of a client's floor that are left for it alone, beside what running requests have of it."""
    return max(floor - promised - pinned, 0)


def blocks_over(excess: int, block_tokens: int) -> int:
    """Return how many blocks go until a client that is over its floor by `excess` tokens (at least one) is not."""
    return -(-excess // block_tokens)


def beyond(reserves: Mapping[int, int], taken: Mapping[int, int]) -> int:
    """Return how much of what clients take is not in their reserves."""
    return sum(max(tokens - reserves.get(client, 0), 0) for client, tokens in taken.items())


# --- who goes first ---------------------------------------------------------------------------------------------------


class CachedBlock(msgspec.Struct, frozen=True):
    """Cached KV that may go: of `tokens` tokens, charged to `clients`, used at `last_use` (any clock).

    `cost` is what computing it again takes, in the units of that clock; only `by_cost` asks for it.
    """

    item: Any
    clients: tuple[int, ...]
    last_use: int
    tokens: int
    cost: int = 0


EvictionOrder = Callable[[CachedBlock, int], tuple[int, ...]]
"""The key of a block, the least first, from the block and by how many tokens its holders are over their floors.

It must not decrease while that falls."""


def by_last_use(block: CachedBlock, _excess: int) -> tuple[int, ...]:
    """Rank the least recently used block first, of whatever client is over its floor."""
    return (block.last_use,)


def by_share(block: CachedBlock, excess: int) -> tuple[int, ...]:
    """Rank blocks of the client most over its floor first, the least recently used first."""
    return -excess, block.last_use


def by_cost(block: CachedBlock, _excess: int) -> tuple[int, ...]:
    """Rank a block as if it was used later by what computing it again takes."""
    return (block.last_use + block.cost,)


class Evictor:
    """One eviction under way: which of the blocks offered goes next, while its holders are over their floors.

    `held` says how many tokens each client holds.  O(blocks) to offer them, and O(log blocks) for each that goes.
    """

    def __init__(self, held: Mapping[int, int], floors: Mapping[int, int], order: EvictionOrder = by_share) -> None:
        self.held = dict(held)
        self._floors = floors
        self._order = order
        self._heap: list[tuple[tuple[int, ...], int, CachedBlock]] = []
        self._offered = 0

    def excess(self, clients: Iterable[int]) -> int:
        """Return by how many tokens each of the clients is over its floor, at least."""
        held, floors = self.held, self._floors
        return min([held.get(client, 0) - floors.get(client, 0) for client in clients], default=UNHELD)

    def offer(self, blocks: Sequence[CachedBlock]) -> None:
        """Let blocks be chosen, but those of a holder at its floor: nothing that is evicted changes that."""
        order, first = self._order, self._offered
        self._offered += len(blocks)
        rows = [
            (order(block, excess), i, block)
            for i, block in enumerate(blocks, first)
            if (excess := self.excess(block.clients)) > 0
        ]
        if self._heap:
            for row in rows:
                heappush(self._heap, row)
        else:
            heapify(rows)
            self._heap = rows

    def next(self) -> tuple[CachedBlock, int] | None:
        """Return the block that goes next, and by how many tokens its holders are over their floors; None if none may
        go."""
        while self._heap:
            key, _, block = heappop(self._heap)
            excess = self.excess(block.clients)
            if excess > 0 and self._order(block, excess) == key:
                return block, excess
            if excess > 0:
                self._offered += 1
                heappush(self._heap, (self._order(block, excess), self._offered, block))
        return None

    def took(self, block: CachedBlock, tokens: int) -> None:
        """Count so many tokens of a block as gone."""
        for client in block.clients:
            self.held[client] -= tokens


def eviction_order(
    blocks: Iterable[CachedBlock],
    floors: Mapping[int, int],
    tokens: int,
    running: Mapping[int, int] = NO_FLOORS,
    order: EvictionOrder = by_share,
) -> list[Any]:
    """Return the items of the blocks that go to free `tokens` tokens, the first first: fewer where floors forbid more.

    This is the order of eviction of a worker for a store that keeps blocks beside it.  `running` are tokens that
    clients hold elsewhere and that count against their floors; nothing is changed.  O(blocks log blocks).
    """
    every, held = list(blocks), dict(running)
    for block in every:
        for client in block.clients:
            held[client] = held.get(client, 0) + block.tokens
    evictor, gone = Evictor(held, floors, order), list[Any]()
    evictor.offer(every)
    while tokens > 0 and (found := evictor.next()):
        block, _ = found
        evictor.took(block, block.tokens)
        gone.append(block.item)
        tokens -= block.tokens
    return gone
