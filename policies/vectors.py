"""Vectors over clients: how gates make them longer and fill them."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from fairsched.model.algebra import NUMPY, Algebra, Ints, Vector

Entry = TypeVar("Entry", bound=np.generic)
State = TypeVar("State", bound=msgspec.Struct)

_FEW = 8
_MANY = 4096


def grown(vector: npt.NDArray[Entry], size: int, fill: int | bool) -> npt.NDArray[Entry]:
    """Return the vector with at least `size` entries, new ones equal to `fill`; the vector itself if it is long
    enough."""
    missing = size - len(vector)
    if missing <= 0:
        return vector
    return np.concatenate([vector, np.full(missing, fill, dtype=vector.dtype)])


def with_room(state: State, size: int, **fills: Any) -> State:
    """Return the state with at least `size` entries in each vector that is named, new ones equal to what is given."""
    vectors = {name: grown(getattr(state, name), size, fill) for name, fill in fills.items()}
    return msgspec.structs.replace(state, **vectors)


def least(vector: Ints) -> int:
    """Return the least of some numbers: at a fifth of what numpy's own reduction costs for a hundred."""
    return int(vector[vector.argmin()])


def column(numbers: Sequence[int], factor: int = 1) -> Ints:
    """Return the numbers, each times the factor, as a vector that is not written to.

    A worker's clients, and how many requests of each decode, are the same tuples in one decision after the other.
    """
    if type(numbers) is tuple:
        return _column(numbers, factor)
    vector = np.asarray(numbers, dtype=np.int64)
    return vector if factor == 1 else vector * factor


@lru_cache(maxsize=64)
def _column(numbers: tuple[int, ...], factor: int) -> Ints:
    vector = np.array(numbers, dtype=np.int64)
    if factor != 1:
        vector *= factor
    vector.flags.writeable = False
    return vector


def dense(size: int, clients: Sequence[int], amounts: Sequence[int], factor: int) -> Ints:
    """Return a vector of `size` entries with amounts[k] * factor at clients[k] and 0 elsewhere."""
    vector = np.zeros(size, dtype=np.int64)
    if len(clients) < _FEW:
        for client, amount in zip(clients, amounts, strict=True):
            vector[client] = amount * factor
    else:
        vector[column(clients)] = column(amounts, factor)
    return vector


def each(
    kernel: Callable[[Algebra, Vector, Vector], Vector],
    vector: Ints,
    clients: Sequence[int],
    amounts: Sequence[int],
    factor: int,
) -> Ints:
    """Return what a kernel makes of a vector and of amounts[k] * factor at clients[k], 0 elsewhere.

    The kernel looks at each client by itself, and 0 changes nothing.  So of a long vector it sees only the clients that
    are named: one pass over all clients, the copy, instead of three.
    """
    after: Ints
    if len(vector) < _MANY:
        after = kernel(NUMPY, vector, dense(len(vector), clients, amounts, factor))
    else:
        after, named = vector.copy(), column(clients)
        after[named] = kernel(NUMPY, vector[named], column(amounts, factor))
    return after
