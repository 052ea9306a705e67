"""Who paid for what is cached, and how a newcomer takes over an equal share of it: the books of `sharing=equal-split`.

A piece is a stretch of a cached prefix that the same clients paid for.  The client that computes it pays for it all;
one that uses it later for the first time takes over an equal part from those who paid before.  So at every time

    what was paid for a piece = the price of its tokens,

exactly, in integers: a newcomer is charged what others are given back, and a piece that is cut (a prompt leaves it
midway, its tail is evicted) divides what was paid in the proportion of its tokens, which divides without a rest.  What
is evicted was paid for: who computes it again pays again.

Not in the DLPM paper, which leaves prefixes of several clients open.  Pieces lie at the nodes of the policy's own copy
of the cache.  A use costs O(pieces on the path x clients who share them), anything else O(pieces of one node).
"""

from collections.abc import Callable

import msgspec
from immutables import Map

from fairsched.model.prefix_cache import NO_NODE, Eviction, Insertion, PrefixCache, PrefixTree


class Piece(msgspec.Struct, frozen=True):
    """Blocks up to `end` of a node's path, from where the piece before it ends: `paid[k]` cost units by `clients[k]`,
    in the order in which they first used it.  None, where none is known to have paid."""

    end: int
    clients: tuple[int, ...] = ()
    paid: tuple[int, ...] = ()


Ledger = Map[int, tuple[Piece, ...]]
"""The pieces of each node, in order; no known client paid for a node that is not there."""

NO_LEDGER: Ledger = Map()

TakeOver = Callable[[int, int, int], int]
"""`take_over(client, giver, units)` moves up to so many cost units from the giver to the client, and says how many."""


def asked(paid: tuple[int, ...]) -> tuple[int, ...]:
    """What a newcomer asks of each who paid, in all `sum(paid) // (len(paid) + 1)`.

    A client that has paid an equal share (the first ones a unit more where it does not divide) is left with an equal
    share; who has paid less is asked for less, or nothing.

    >>> asked((4, 3)), asked((10, 0))
    ((1, 1), (3, 0))
    """
    whole, shares = sum(paid), len(paid) + 1
    left = whole // shares
    amounts = []
    for place, own in enumerate(paid):
        kept = (whole - place + shares - 1) // shares
        amount = min(max(own - kept, 0), left)
        amounts.append(amount)
        left = left - amount
    return tuple(amounts)


def computed(
    ledger: Ledger, tree: PrefixTree, insertion: Insertion, client: int | None, units_per_block: int
) -> Ledger:
    """The books after an insertion into the cache: nodes are cut as it cut them, and `client` paid for what is new.

    `tree` is the one after the insertion; None stands for a client that is not known.
    """
    ledger = cut(ledger, tree, insertion)
    if not insertion.new_blocks:
        return ledger
    end = insertion.matched_blocks + insertion.new_blocks
    new = Piece(end) if client is None else Piece(end, (client,), (insertion.new_blocks * units_per_block,))
    if insertion.leaf is not None:
        return ledger.set(insertion.leaf, (new,))
    # The node was lengthened: what it had may have been paid for by no client that is known.
    pieces = ledger.get(insertion.node, ())
    return ledger.set(insertion.node, _appended(pieces or (Piece(insertion.matched_blocks),), new))


def cut(ledger: Ledger, tree: PrefixTree, insertion: Insertion) -> Ledger:
    """The books after a node was cut in two, if it was."""
    if insertion.split is None:
        return ledger
    upper, lower = insertion.split
    pieces = ledger.get(lower)
    if pieces is None:
        return ledger
    above, below = _divided(pieces, tree.nodes[upper].start, insertion.matched_blocks)
    return ledger.set(upper, above).set(lower, below)


def evicted(ledger: Ledger, tree: PrefixTree, evictions: tuple[Eviction, ...]) -> Ledger:
    """The books without what left the cache; `tree` is the one after that."""
    for eviction in evictions:
        pieces = ledger.get(eviction.node)
        if pieces is None:
            continue
        if eviction.removed:
            ledger = ledger.delete(eviction.node)
        else:
            kept, _ = _divided(pieces, tree.nodes[eviction.node].start, eviction.keep_blocks)
            ledger = ledger.set(eviction.node, kept)
    return ledger


def entered(
    ledger: Ledger, cache: PrefixCache, insertion: Insertion | None, request_id: int, client: int, take_over: TakeOver
) -> Ledger:
    """The books after a request of the client was admitted, whose cached prefix is pinned in `cache`: the client takes
    over its share of every piece on the path to it that is new to it."""
    if insertion is not None:
        ledger = cut(ledger, cache.tree, insertion)
    node = cache.pins.get(request_id, NO_NODE)
    while node != NO_NODE:
        pieces = ledger.get(node, ())
        shared = tuple([_shared(piece, client, take_over) for piece in pieces])
        if shared != pieces:
            ledger = ledger.set(node, shared)
        node = cache.tree.nodes[node].parent
    return ledger


def check_ledger(ledger: Ledger, tree: PrefixTree, units_per_token: int) -> None:
    """Raise `AssertionError` unless every representation invariant holds.  O(pieces)."""
    for i, pieces in ledger.items():
        # Pieces are of nodes that are there, and cover each from its start to its end.
        node = tree.nodes[i]
        start = node.start
        assert pieces[-1].end == node.end
        for piece in pieces:
            assert start < piece.end
            # Each client is in a piece once, and none paid less than nothing.
            assert len(piece.clients) == len(set(piece.clients)) == len(piece.paid)
            assert min(piece.paid, default=0) >= 0
            # What was paid for a piece is the price of its tokens.
            assert not piece.clients or sum(piece.paid) == (piece.end - start) * tree.block_tokens * units_per_token
            start = piece.end


def _shared(piece: Piece, client: int, take_over: TakeOver) -> Piece:
    if not piece.clients or client in piece.clients:
        return piece
    wanted = zip(piece.clients, asked(piece.paid), strict=True)
    given = tuple([take_over(client, giver, units) if units else 0 for giver, units in wanted])
    left = tuple([own - gave for own, gave in zip(piece.paid, given, strict=True)])
    return Piece(piece.end, (*piece.clients, client), (*left, sum(given)))


def _appended(pieces: tuple[Piece, ...], new: Piece) -> tuple[Piece, ...]:
    """One piece more, joined with the last if the same clients paid for both."""
    last = pieces[-1]
    if last.clients != new.clients:
        return (*pieces, new)
    paid = tuple([a + b for a, b in zip(last.paid, new.paid, strict=True)])
    return (*pieces[:-1], Piece(new.end, new.clients, paid))


def _divided(pieces: tuple[Piece, ...], start: int, at: int) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """The pieces before block `at` and after it, of a node that begins at `start`."""
    above: list[Piece] = []
    for place, piece in enumerate(pieces):
        if piece.end <= at:
            above.append(piece)
            start = piece.end
            continue
        if start == at:
            return tuple(above), pieces[place:]
        first = proportion(piece.paid, at - start, piece.end - start)
        rest = tuple([whole - part for whole, part in zip(piece.paid, first, strict=True)])
        above.append(Piece(at, piece.clients, first))
        return tuple(above), (Piece(piece.end, piece.clients, rest), *pieces[place + 1 :])
    return tuple(above), ()


def proportion(paid: tuple[int, ...], part: int, whole: int) -> tuple[int, ...]:
    """`part / whole` of each number, rounded so that their sum is that part of the sum, rounded down.

    >>> proportion((2, 1), 1, 3)
    (0, 1)
    """
    parts, before = [], 0
    for amount in paid:
        after = before + amount
        parts.append(after * part // whole - before * part // whole)
        before = after
    return tuple(parts)
