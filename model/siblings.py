"""The words of kernels, said of every family of siblings of a tree at once.

A kernel whose vectors are about clients is run on the nodes of a tree: `up` names the node above each, and nodes with
one node above them are a *family*.  What is one answer for all clients (`any`, `none`, `argmin`, ...) is then an answer
for each family, held by all its members: a truth value becomes a mask, a point a vector of points.  So one run of a
kernel's text does in each family what it does among clients that are alone in the world.
"""

import numpy as np

from fairsched.model.algebra import NOBODY, Bools, Ints, NumpyAlgebra

_HIGHEST = np.int64(2**63 - 1)


class SiblingAlgebra(NumpyAlgebra):
    """The words on numpy arrays over nodes; `bump` and `put` are not among them.  Every word costs O(nodes)."""

    def __init__(self, up: Ints) -> None:
        super().__init__(owned=False)
        self._up = up

    def any(self, m: Bools) -> Bools:  # type: ignore[override]
        found = np.zeros(len(self._up), dtype=np.bool_)
        found[self._up[m]] = True
        held: Bools = found.take(self._up)
        return held

    def all(self, m: Bools) -> Bools:  # type: ignore[override]
        return ~self.any(~m)

    def none(self, m: Bools) -> Bools:  # type: ignore[override]
        return ~self.any(m)

    def argmin(self, v: Ints, m: Bools) -> Ints:  # type: ignore[override]
        """The member of smallest v among m in each family (the first of equals), NOBODY where m holds for none."""
        lowest = np.full(len(self._up), _HIGHEST)
        asked = np.flatnonzero(m)
        np.minimum.at(lowest, self._up[asked], v[asked])
        lowest_there = asked[v[asked] == lowest[self._up[asked]]]
        first = np.full(len(self._up), _HIGHEST)
        np.minimum.at(first, self._up[lowest_there], lowest_there)
        first[first == _HIGHEST] = NOBODY
        chosen: Ints = first[self._up]
        return chosen

    def argmax(self, v: Ints, m: Bools) -> Ints:  # type: ignore[override]
        return self.argmin(-v, m)

    def exists(self, p: Ints) -> Bools:  # type: ignore[override]
        found: Bools = p >= 0
        return found

    def pick(self, v: Ints, p: Ints, default: int) -> Ints:  # type: ignore[override]
        return np.where(p >= 0, v[p], default)
