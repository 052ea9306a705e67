"""Words for a fixed number of clients mean what the running words mean, ties included."""

from types import SimpleNamespace
from typing import Any

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.model.algebra import EXACT, NO_GROUP, ExactVector
from fairsched.verify.logic import CLIENT, FixedAlgebra, KernelError, Value, entries, point, scalar
from fairsched.verify.logic.symbolic import exact_division
from fairsched.verify.mutation.equivalence import FirstOfEquals
from tests.verify.solvers.test_z3_algebra import WORDS

N = 3
_row = st.lists(st.integers(-4, 4), min_size=N, max_size=N)
_mask = st.lists(st.booleans(), min_size=N, max_size=N)
_point = st.integers(NO_GROUP, N - 1)


def _number(term: Any) -> Any:
    found = z3.simplify(term)
    return z3.is_true(found) if z3.is_bool(found) else found.as_long()


@settings(max_examples=50, deadline=None)
@given(_row, _row, _mask, _point, st.integers(-4, 4))
def test_every_word_computes_what_the_exact_word_computes(
    v: list[int], u: list[int], m: list[bool], p: int, x: int
) -> None:
    """On constants every word simplifies to the exact word's value, and a choice to the first of equals."""
    exact = SimpleNamespace(v=ExactVector(v), u=ExactVector(u), m=ExactVector(m), p=p, x=x)
    o = FixedAlgebra(N)
    fixed = SimpleNamespace(
        v=entries([z3.IntVal(entry) for entry in v], boolean=False, closed_form=True),
        u=entries([z3.IntVal(entry) for entry in u], boolean=False, closed_form=True),
        m=entries([z3.BoolVal(entry) for entry in m], boolean=True),
        p=point(z3.IntVal(p)),
        x=scalar(z3.IntVal(x)),
    )
    for number, word in enumerate(WORDS):
        value, expected = word(o, fixed), word(EXACT, exact)
        if value.vector:
            assert [_number(value.at(client)) for client in range(N)] == list(expected), number
        else:
            assert _number(value.at(None)) == expected, number
    for choose in ("argmax", "argmin"):
        chosen = getattr(o, choose)(fixed.v, fixed.m)
        assert _number(chosen.who) == getattr(EXACT, choose)(exact.v, exact.m)


def test_no_client_is_named() -> None:
    """There are no others than those that are numbered."""
    with pytest.raises(KernelError):
        FixedAlgebra(2).fresh_client("another")


def test_two_choices_of_the_first_of_equals_agree() -> None:
    """Where texts are compared, two calls that see the same choose the same, also among equals."""
    o = FirstOfEquals()
    values = Value(z3.Function("v", CLIENT, z3.IntSort()), boolean=False, vector=True)
    mask = Value(z3.Function("m", CLIENT, z3.BoolSort()), boolean=True, vector=True)
    one, two = o.argmax(values, mask), o.argmax(values, mask)
    solver = z3.Solver()
    solver.add(*o.instances(), one.found, z3.Or(z3.Not(two.found), one.who != two.who))
    assert solver.check() == z3.unsat


def test_the_lemma_about_exact_division_is_proved() -> None:
    """What `Paths.exact` adds follows from what division is."""
    solver = z3.Solver()
    solver.add(z3.Not(exact_division()))
    assert solver.check() == z3.unsat
