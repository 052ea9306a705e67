"""Vectors over clients: how gates make them longer and fill them."""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from fairsched.model.algebra import Ints

Entry = TypeVar("Entry", bound=np.generic)
State = TypeVar("State", bound=msgspec.Struct)

_FEW = 8


def grown(vector: npt.NDArray[Entry], size: int, fill: int | bool) -> npt.NDArray[Entry]:
    """The vector with at least `size` entries, new ones equal to `fill`; the vector itself if it is long enough."""
    missing = size - len(vector)
    if missing <= 0:
        return vector
    return np.concatenate([vector, np.full(missing, fill, dtype=vector.dtype)])


def with_room(state: State, size: int, **fills: Any) -> State:
    """The state with at least `size` entries in each vector that is named, new ones equal to what is given."""
    vectors = {name: grown(getattr(state, name), size, fill) for name, fill in fills.items()}
    return msgspec.structs.replace(state, **vectors)


def dense(size: int, clients: Sequence[int], amounts: Sequence[int], factor: int) -> Ints:
    """A vector of `size` entries with amounts[k] * factor at clients[k] and 0 elsewhere."""
    vector = np.zeros(size, dtype=np.int64)
    if len(clients) < _FEW:
        for client, amount in zip(clients, amounts, strict=True):
            vector[client] = amount * factor
    else:
        vector[np.array(clients)] = np.array(amounts, dtype=np.int64) * factor
    return vector
