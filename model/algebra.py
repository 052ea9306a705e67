"""The words in which the arithmetic of gates is written, and the interpretations that run.

A *kernel* is a function over vectors (one entry a client), masks (vectors of truth values), scalars and points (one
client, or none).  It uses the operators ``+ - > >= < <= & |`` and the words below, nothing else, so one text runs
on numpy arrays in production, on exact Python integers in replays, and on solver terms in proofs.

========================  ================================================================================
``where(m, a, b)``        a where m holds, b elsewhere; a mask chooses between vectors, a truth value between scalars
``any(m)``, ``all(m)``    whether m holds for at least one client, for every client
``none(m)``               whether m holds for no client (there is no ``~``: on Python's own truth values it is wrong)
``argmax(v, m)``          the point of largest v among m (the first of equals), or none
``argmin(v, m)``          the point of smallest v among m (the first of equals), or none
``exists(p)``             whether p is a client
``pick(v, p, default)``   v at p; default when p is none
``bump(v, p, x)``         v with x added at p; v when p is none
``put(v, p, x)``          v with x at p; v when p is none
``maximum``, ``minimum``  of two vectors or two scalars
``times(a, b)``           the product, of vectors or scalars; proofs about it are harder, and int64 ends sooner
========================  ================================================================================

`bump` and `put` consume their vector: a kernel always writes ``v = o.bump(v, p, x)`` and never reads the old v again,
which lets the owned interpretation write in place.
"""

import operator
from collections.abc import Callable, Iterable
from itertools import compress, repeat
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Vector = Any
"""A vector over clients: an int64 array, a tuple of ints, or a solver function."""
Mask = Any
"""A truth value a client."""
Scalar = Any
"""One integer or one truth value."""
Point = Any
"""One client, or none."""
Value = Any
"""A vector, a mask or a scalar."""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NO_GROUP = -1
"""How the running interpretations write the point that is no client."""
NO_SCORE = -(2**63)
"""The score of a client with nothing waiting: below every score that an order gives."""
SCORE_MAX = 2**63 - 1
"""No score is above it."""


class Algebra(Protocol):
    """An interpretation of the words."""

    def where(self, m: Mask, a: Value, b: Value) -> Value: ...
    def any(self, m: Mask) -> Scalar: ...
    def all(self, m: Mask) -> Scalar: ...
    def none(self, m: Mask) -> Scalar: ...
    def argmax(self, v: Vector, m: Mask) -> Point: ...
    def argmin(self, v: Vector, m: Mask) -> Point: ...
    def exists(self, p: Point) -> Scalar: ...
    def pick(self, v: Vector, p: Point, default: Scalar) -> Scalar: ...
    def bump(self, v: Vector, p: Point, x: Scalar) -> Vector: ...
    def put(self, v: Vector, p: Point, x: Scalar) -> Vector: ...
    def maximum(self, a: Value, b: Value) -> Value: ...
    def minimum(self, a: Value, b: Value) -> Value: ...
    def times(self, a: Value, b: Value) -> Value: ...


_LOWEST = np.int64(NO_SCORE)
_HIGHEST = np.int64(SCORE_MAX)


class NumpyAlgebra:
    """Vectors are int64 arrays, points are ints; every word costs O(clients) except `pick`, and `bump` and `put`
    when `owned`: then they write into the vector they are given, which the caller must own.
    """

    def __init__(self, *, owned: bool) -> None:
        self._owned = owned

    def where(self, m: Value, a: Value, b: Value) -> Value:
        if isinstance(m, np.ndarray):
            return np.where(m, a, b)
        return a if m else b

    def any(self, m: Bools) -> bool:
        # Looking for the first truth stops there, and costs a fifth of a reduction over a thousand clients.
        return len(m) > 0 and bool(m[m.argmax()])

    def all(self, m: Bools) -> bool:
        return len(m) == 0 or bool(m[m.argmin()])

    def none(self, m: Bools) -> bool:
        return len(m) == 0 or not m[m.argmax()]

    def argmax(self, v: Ints, m: Bools) -> int:
        if not len(v):
            return NO_GROUP
        # The best of all is the best of the mask if it is in it, and spares the copy.
        best = int(v.argmax())
        if m[best]:
            return best
        best = int(np.where(m, v, _LOWEST).argmax())
        return best if m[best] else NO_GROUP

    def argmin(self, v: Ints, m: Bools) -> int:
        if not len(v):
            return NO_GROUP
        best = int(v.argmin())
        if m[best]:
            return best
        best = int(np.where(m, v, _HIGHEST).argmin())
        return best if m[best] else NO_GROUP

    def exists(self, p: int) -> bool:
        return p >= 0

    def pick(self, v: Ints, p: int, default: int) -> int:
        return int(v[p]) if p >= 0 else default

    def bump(self, v: Ints, p: int, x: int) -> Ints:
        if p < 0:
            return v
        target = v if self._owned else v.copy()
        target[p] += x
        return target

    def put(self, v: Ints, p: int, x: int) -> Ints:
        if p < 0 or v[p] == x:
            return v
        target = v if self._owned else v.copy()
        target[p] = x
        return target

    def maximum(self, a: Value, b: Value) -> Value:
        return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)

    def minimum(self, a: Value, b: Value) -> Value:
        return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)

    def times(self, a: Value, b: Value) -> Value:
        return a * b


NUMPY = NumpyAlgebra(owned=False)
"""Pure: every word returns a new vector."""
NUMPY_OWNED = NumpyAlgebra(owned=True)
"""For vectors that the caller has just copied: point updates are O(1)."""


def _each_by(operate: Callable[[Value, Value], Value]) -> Callable[["ExactVector", Value], "ExactVector"]:
    """Return the operator of vectors that applies `operate` client by client."""

    def method(self: "ExactVector", other: Value) -> "ExactVector":
        return self._each(other, operate)

    return method


class ExactVector(tuple[int, ...]):
    """A vector or a mask as a tuple of Python ints or truth values, with the operators of kernels."""

    __slots__ = ()

    def _each(self, other: Value, operate: Callable[[Value, Value], Value]) -> "ExactVector":
        if not isinstance(other, ExactVector):
            return ExactVector(map(operate, self, repeat(other)))
        if len(self) != len(other):
            raise ValueError(f"one vector is of {len(self)} clients, the other of {len(other)}")
        return ExactVector(map(operate, self, other))

    __add__ = __radd__ = _each_by(operator.add)
    __sub__ = _each_by(operator.sub)
    __rsub__ = _each_by(lambda own, left: left - own)
    __gt__ = _each_by(operator.gt)  # type: ignore[assignment]
    __ge__ = _each_by(operator.ge)  # type: ignore[assignment]
    __lt__ = _each_by(operator.lt)  # type: ignore[assignment]
    __le__ = _each_by(operator.le)  # type: ignore[assignment]
    __and__ = __rand__ = _each_by(operator.and_)
    __or__ = __ror__ = _each_by(operator.or_)
    # Closed forms beside a kernel may multiply and divide; kernels do not.
    __mul__ = __rmul__ = _each_by(operator.mul)
    __floordiv__ = _each_by(operator.floordiv)

    def __neg__(self) -> "ExactVector":
        return ExactVector([-own for own in self])


class ExactAlgebra:
    """Vectors are `ExactVector`s of unbounded ints, points are ints: slow, and exact whatever the numbers."""

    def where(self, m: Value, a: Value, b: Value) -> Value:
        if not isinstance(m, ExactVector):
            return a if m else b
        chosen = zip(m, self._spread(a, m), self._spread(b, m), strict=True)
        return ExactVector([x if held else y for held, x, y in chosen])

    def any(self, m: ExactVector) -> bool:
        return True in m

    def all(self, m: ExactVector) -> bool:
        return False not in m

    def none(self, m: ExactVector) -> bool:
        return True not in m

    def argmax(self, v: ExactVector, m: ExactVector) -> int:
        return max(compress(range(len(m)), m), key=v.__getitem__, default=NO_GROUP)

    def argmin(self, v: ExactVector, m: ExactVector) -> int:
        return min(compress(range(len(m)), m), key=v.__getitem__, default=NO_GROUP)

    def exists(self, p: int) -> bool:
        return p >= 0

    def pick(self, v: ExactVector, p: int, default: int) -> int:
        return v[p] if p >= 0 else default

    def bump(self, v: ExactVector, p: int, x: int) -> ExactVector:
        return ExactVector((*v[:p], v[p] + x, *v[p + 1 :])) if p >= 0 else v

    def put(self, v: ExactVector, p: int, x: int) -> ExactVector:
        return ExactVector((*v[:p], x, *v[p + 1 :])) if p >= 0 else v

    def maximum(self, a: Value, b: Value) -> Value:
        return self._extreme(max, a, b)

    def minimum(self, a: Value, b: Value) -> Value:
        return self._extreme(min, a, b)

    def times(self, a: Value, b: Value) -> Value:
        return a * b

    def _extreme(self, best: Callable[[int, int], int], a: Value, b: Value) -> Value:
        if isinstance(a, ExactVector):
            return a._each(b, best)
        return b._each(a, best) if isinstance(b, ExactVector) else best(a, b)

    def _spread(self, value: Value, like: ExactVector) -> Iterable[Value]:
        return value if isinstance(value, ExactVector) else repeat(value, len(like))


EXACT = ExactAlgebra()
"""The reference: what the words mean, in Python's own integers."""


# --- families of siblings in a tree -----------------------------------------------------------------------------------


class SiblingAlgebra(NumpyAlgebra):
    """The words of a kernel, said of every family of siblings of a tree at once.

    A kernel whose vectors are about clients runs on the nodes of a tree: `up` names the node above each, and nodes with
    one node above them are a *family*.  An answer for all clients (`any`, `none`, `argmin`, ...) becomes an answer for
    each family, held by all its members: a truth value becomes a mask, a point a vector of points.  One run of a
    kernel's text does in each family what it does among clients that have no siblings elsewhere.

    Vectors are numpy arrays over nodes; `bump` and `put` are not among the words.  Every word costs O(nodes).
    """

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
        """Return the member of smallest v among m in each family (the first of equals), NO_GROUP where m holds for
        none."""
        lowest = np.full(len(self._up), _HIGHEST)
        asked = np.flatnonzero(m)
        above, values = self._up[asked], v[asked]
        np.minimum.at(lowest, above, values)
        there = values == lowest[above]
        first = np.full(len(self._up), _HIGHEST)
        np.minimum.at(first, above[there], asked[there])
        first[first == _HIGHEST] = NO_GROUP
        chosen: Ints = first[self._up]
        return chosen

    def argmax(self, v: Ints, m: Bools) -> Ints:  # type: ignore[override]
        return self.argmin(-v, m)

    def exists(self, p: Ints) -> Bools:  # type: ignore[override]
        found: Bools = p >= 0
        return found

    def pick(self, v: Ints, p: Ints, default: int) -> Ints:  # type: ignore[override]
        return np.where(p >= 0, v[p], default)
