"""The words mean the same on numpy arrays, on owned numpy arrays and on exact integers."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.algebra import EXACT, NO_GROUP, NUMPY, NUMPY_OWNED, ExactVector

_ints = st.integers(-50, 50)


@st.composite
def _cases(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 5))
    row = st.lists(_ints, min_size=n, max_size=n)
    mask = st.lists(st.booleans(), min_size=n, max_size=n)
    return {
        "v": draw(row),
        "u": draw(row),
        "m": draw(mask),
        "k": draw(mask),
        "p": draw(st.integers(NO_GROUP, n - 1)),
        "x": draw(_ints),
        "t": draw(st.booleans()),
    }


WORDS: dict[str, Callable[[Any, Any], Any]] = {
    "where": lambda o, w: o.where(w.m, w.v, w.u),
    "where with a scalar": lambda o, w: o.where(w.m, w.v, w.x),
    "where of scalars": lambda o, w: o.where(w.t, w.x, 7),
    "any": lambda o, w: o.any(w.m),
    "all": lambda o, w: o.all(w.m),
    "none": lambda o, w: o.none(w.m),
    "argmax": lambda o, w: o.argmax(w.v, w.m),
    "argmin": lambda o, w: o.argmin(w.v, w.m),
    "exists": lambda o, w: o.exists(w.p),
    "pick": lambda o, w: o.pick(w.v, w.p, w.x),
    "bump": lambda o, w: o.bump(w.v, w.p, w.x),
    "put": lambda o, w: o.put(w.v, w.p, w.x),
    "put in a mask": lambda o, w: o.put(w.m, w.p, w.t),
    "maximum": lambda o, w: o.maximum(w.v, w.u),
    "maximum with a scalar": lambda o, w: o.maximum(w.x, w.v),
    "maximum of scalars": lambda o, w: o.maximum(w.x, 3),
    "minimum": lambda o, w: o.minimum(w.v, w.x),
    "minimum of scalars": lambda o, w: o.minimum(3, w.x),
    "+": lambda o, w: 2 + w.v + w.u,
    "-": lambda o, w: 2 - w.v - w.u,
    "negation": lambda o, w: -w.v,
    ">": lambda o, w: w.v > w.u,
    ">=": lambda o, w: w.v >= 0,
    "<": lambda o, w: w.v < w.x,
    "<=": lambda o, w: 0 <= w.v,  # noqa: SIM300
    "& and |": lambda o, w: (w.m & w.k) | (w.t & w.m),
    "* and // of closed forms": lambda o, w: -w.v // 3 * w.u,
}


class _Case:
    def __init__(self, made: dict[str, Any], vector: Any, mask: Any) -> None:
        self.v, self.u = vector(made["v"]), vector(made["u"])
        self.m, self.k = mask(made["m"]), mask(made["k"])
        self.p, self.x, self.t = made["p"], made["x"], made["t"]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, ExactVector) else value


def _numpy_case(made: dict[str, Any]) -> _Case:
    return _Case(made, lambda v: np.array(v, dtype=np.int64), lambda m: np.array(m, dtype=np.bool_))


@given(_cases())
def test_every_word_means_the_same_in_every_interpretation_that_runs(made: dict[str, Any]) -> None:
    """NUMPY, NUMPY_OWNED and EXACT agree on every word and operator."""
    for name, word in WORDS.items():
        exact = _plain(word(EXACT, _Case(made, ExactVector, ExactVector)))
        assert _plain(word(NUMPY, _numpy_case(made))) == exact, name
        assert _plain(word(NUMPY_OWNED, _numpy_case(made))) == exact, name


@given(_cases())
def test_only_the_owned_interpretation_writes_into_what_it_is_given(made: dict[str, Any]) -> None:
    """NUMPY leaves its vectors alone; NUMPY_OWNED updates in place."""
    pure = _numpy_case(made)
    NUMPY.bump(pure.v, pure.p, pure.x)
    NUMPY.put(pure.v, pure.p, pure.x)
    assert pure.v.tolist() == made["v"]
    owned = _numpy_case(made)
    assert NUMPY_OWNED.bump(owned.v, owned.p, owned.x) is owned.v
