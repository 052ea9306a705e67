"""A sorted sequence of distinct values that is itself a value.

It keeps an order inside a state, such as the next victim of an eviction or the head of a queue.  Its items sit in a
tuple of tuples, so a change copies one inner tuple and the outer one, both by C, and both about the square root of the
whole.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from math import isqrt
from operator import itemgetter, lt
from typing import Any, Generic, Protocol, TypeVar

import msgspec

CHUNK_MIN = 32
"""A chunk may always hold this many items: below it, copying a chunk costs no more than the call that copies it."""

_first_of = itemgetter(0)


class Comparable(Protocol):
    """Whatever `<` orders totally: integers, tuples of integers."""

    def __lt__(self, other: Any, /) -> bool: ...


T = TypeVar("T", bound=Comparable)


class SortedTuple(msgspec.Struct, Generic[T], frozen=True, eq=False, gc=False):
    """Distinct items in ascending order, immutable; make one by `SortedTuple()` or `SortedTuple.from_sorted`.

    `add` and `remove` take O(log n) comparisons and copy O(sqrt n) pointers; at either end they compare once.  Equal
    when the items are equal, whatever the history.
    """

    chunks: tuple[tuple[T, ...], ...] = ()
    size: int = 0

    @classmethod
    def from_sorted(cls, items: Iterable[T]) -> "SortedTuple[T]":
        """Return the sequence of `items`, which must ascend strictly: raises `ValueError` if they do not.  O(n)."""
        every = tuple(items)
        if not all(map(lt, every, islice(every, 1, None))):
            raise ValueError("the items of a sorted tuple ascend and are distinct")
        width = max(CHUNK_MIN, isqrt(len(every)))
        return cls(tuple(every[i : i + width] for i in range(0, len(every), width)), len(every))

    def add(self, item: T) -> "SortedTuple[T]":
        """Return the sequence with `item`; raises `ValueError` if it is there already."""
        chunks = self.chunks
        if not chunks:
            return SortedTuple(((item,),), 1)
        # The limit grows with the number of chunks, which keeps both near the square root of the size.
        last, limit = chunks[-1], CHUNK_MIN + len(chunks)
        if last[-1] < item:
            if len(last) < limit:
                return SortedTuple(chunks[:-1] + (last + (item,),), self.size + 1)
            return SortedTuple(chunks + ((item,),), self.size + 1)
        i = max(bisect_right(chunks, item, key=_first_of) - 1, 0) if len(chunks) > 1 else 0
        chunk = chunks[i]
        j = bisect_left(chunk, item)
        if j < len(chunk) and chunk[j] == item:
            raise ValueError(f"{item!r} is in the sorted tuple already")
        chunk = chunk[:j] + (item,) + chunk[j:]
        new = (chunk,) if len(chunk) <= limit else (chunk[: limit // 2], chunk[limit // 2 :])
        return SortedTuple(chunks[:i] + new + chunks[i + 1 :], self.size + 1)

    def remove(self, item: T) -> "SortedTuple[T]":
        """Return the sequence without `item`; raises `KeyError` naming it if it is not there."""
        chunks = self.chunks
        if not chunks:
            raise KeyError(item)
        first, last = chunks[0], chunks[-1]
        if first[0] == item:
            head = (first[1:],) if len(first) > 1 else ()
            return SortedTuple(head + chunks[1:], self.size - 1)
        if last[-1] == item:
            tail = (last[:-1],) if len(last) > 1 else ()
            return SortedTuple(chunks[:-1] + tail, self.size - 1)
        i = max(bisect_right(chunks, item, key=_first_of) - 1, 0) if len(chunks) > 1 else 0
        chunk = chunks[i]
        j = bisect_left(chunk, item)
        if j == len(chunk) or chunk[j] != item:
            raise KeyError(item)
        chunk = chunk[:j] + chunk[j + 1 :]
        every = (chunk,) if len(chunks) == 1 else _with_shrunk(list(chunks), i, chunk)
        return SortedTuple(every, self.size - 1)

    def exchange(self, old: T, new: T) -> "SortedTuple[T]":
        """Return the sequence with `new` in place of `old`: `remove` and `add`, and one copy where it stands first as
        well."""
        chunks = self.chunks
        if chunks and len(first := chunks[0]) > 1 and first[0] == old and new < first[1]:
            return SortedTuple(((new, *first[1:]), *chunks[1:]), self.size)
        return self.remove(old).add(new)

    def discard(self, item: T) -> "SortedTuple[T]":
        """Return the sequence without `item`, which need not be there."""
        return self.remove(item) if item in self else self

    def first(self) -> T:
        """Return the least item; raises `IndexError` if there is none."""
        return self.chunks[0][0]

    def last(self) -> T:
        """Return the greatest item; raises `IndexError` if there is none."""
        return self.chunks[-1][-1]

    def below(self, limit: T) -> T | None:
        """Return the greatest item that is less than `limit`, or None.  O(log n)."""
        i = bisect_left(self.chunks, limit, key=_first_of) - 1
        if i < 0:
            return None
        chunk = self.chunks[i]
        return chunk[bisect_left(chunk, limit) - 1]

    def __contains__(self, item: T) -> bool:
        i = bisect_right(self.chunks, item, key=_first_of) - 1
        if i < 0:
            return False
        chunk = self.chunks[i]
        j = bisect_left(chunk, item)
        return j < len(chunk) and chunk[j] == item

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.chunks)

    def __reversed__(self) -> Iterator[T]:
        return chain.from_iterable(map(reversed, reversed(self.chunks)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SortedTuple):
            return NotImplemented
        return self.size == other.size and (self.chunks == other.chunks or tuple(self) == tuple(other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"SortedTuple.from_sorted({list(self)!r})"

    def check(self) -> None:
        """Raise `AssertionError` unless every representation invariant holds.  O(n)."""
        # No chunk is empty, so the first item of a chunk always exists.
        assert all(self.chunks)
        # The size is the number of items.
        assert self.size == sum(map(len, self.chunks))
        # Items ascend strictly, within chunks and across them.
        items = tuple(self)
        assert all(map(lt, items, items[1:]))


def _with_shrunk(chunks: list[tuple[T, ...]], i: int, chunk: tuple[T, ...]) -> tuple[tuple[T, ...], ...]:
    """Return `chunks` with `chunk` at `i`, joined to a neighbour when both are small, dropped when empty."""
    small = (CHUNK_MIN + len(chunks)) // 2
    if i + 1 < len(chunks) and len(chunk) + len(chunks[i + 1]) <= small:
        chunks[i : i + 2] = (chunk + chunks[i + 1],)
    elif i and len(chunks[i - 1]) + len(chunk) <= small:
        chunks[i - 1 : i + 1] = (chunks[i - 1] + chunk,)
    else:
        chunks[i : i + 1] = (chunk,) if chunk else ()
    return tuple(chunks)
