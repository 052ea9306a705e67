"""Vectors that write down only whoever is not at a common value, and the algebra's words for points on them.

With 10,000 clients and 1,000 workers a table of all pairs would have ten million entries; those that were ever used
are few.
"""

from collections.abc import Iterable

import msgspec
from immutables import Map

from fairsched.model.algebra import NumpyAlgebra


class Sparse(msgspec.Struct, frozen=True, gc=False):
    """A vector whose entry is `entries[p]`, or `default` where there is none; no entry equals the default."""

    entries: Map[int, int]
    default: int

    def __getitem__(self, p: int) -> int:
        return self.entries.get(p, self.default)

    def with_entries(self, values: Iterable[tuple[int, int]]) -> "Sparse":
        """The vector with these entries.  O(entries)."""
        draft = self.entries.mutate()
        for p, value in values:
            if value != self.default:
                draft[p] = value
            elif p in draft:
                del draft[p]
        return Sparse(draft.finish(), self.default)


class SparseAlgebra(NumpyAlgebra):
    """The words for points, each O(log entries), on sparse vectors; points are ints, and those for scalars as ever."""

    def __init__(self) -> None:
        super().__init__(owned=False)

    def pick(self, v: Sparse, p: int, default: int) -> int:  # type: ignore[override]
        return v[p] if p >= 0 else default

    def bump(self, v: Sparse, p: int, x: int) -> Sparse:  # type: ignore[override]
        return self.put(v, p, v[p] + x)

    def put(self, v: Sparse, p: int, x: int) -> Sparse:  # type: ignore[override]
        if p < 0:
            return v
        if x != v.default:
            return Sparse(v.entries.set(p, x), v.default)
        return Sparse(v.entries.delete(p), v.default) if p in v.entries else v


SPARSE = SparseAlgebra()
