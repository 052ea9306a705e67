"""What a proof knows of a sum over all clients is true of every finite sum, and enough to follow point updates."""

from collections.abc import Callable
from typing import Any

import pytest
import z3
from hypothesis import given
from hypothesis import strategies as st

from fairsched.model.algebra import EXACT, NUMPY, ExactVector
from fairsched.verify.logic import CLIENT, INTERPRETATIONS, Point, Value, Z3Algebra, scalar, total

VECTORS = st.integers(1, 3).flatmap(
    lambda n: st.lists(st.lists(st.integers(-3, 3), min_size=n, max_size=n), min_size=1, max_size=3)
)


def _vector(name: str) -> Value:
    return Value(z3.Function(name, CLIENT, z3.IntSort()), boolean=False, vector=True)


@given(rows=VECTORS)
def test_the_true_sums_fulfil_what_is_assumed_of_totals(rows: list[list[int]]) -> None:
    """Any vectors over one to three clients, with their sums, are a model: nothing is too strong."""
    o = Z3Algebra()
    who = [o.fresh_client(f"who{i}") for i in range(len(rows[0]))]
    vectors = [_vector(f"v{k}") for k in range(len(rows))]
    sums = [o.total(vector).at(None) for vector in vectors]
    solver = z3.Solver()
    solver.add(*o.instances(), *o.summed(who), z3.Distinct(*who))
    for vector, row, value in zip(vectors, rows, sums, strict=True):
        solver.add(value == sum(row), *(vector.at(client) == entry for client, entry in zip(who, row, strict=True)))
    assert solver.check() == z3.sat


Build = Callable[[Z3Algebra, Value, Any, Any], Value]
Says = Callable[[Any, Any, Any], Any]


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda o, v, p, x: o.bump(v, p, x), lambda new, old, x: new == old + x),
        (lambda o, v, p, x: o.bump(v, p, o.maximum(x, 0)), lambda new, old, x: new >= old),
        (lambda o, v, p, x: o.minimum(v, 0), lambda new, old, x: new <= old),
        (lambda o, v, p, x: o.minimum(v, 0), lambda new, old, x: new <= 0),
    ],
)
def test_what_is_known_is_enough(build: Build, says: Says) -> None:
    """A point update changes the sum by as much; order passes to sums; for any number of clients."""
    o = Z3Algebra()
    v, p, x = _vector("v"), Point(z3.BoolVal(True), o.fresh_client("p")), scalar(z3.Int("x"))
    old, new = o.total(v).at(None), o.total(build(o, v, p, x)).at(None)
    solver = z3.Solver()
    solver.add(*o.instances(), z3.Not(says(new, old, x.at(None))))
    assert solver.check() == z3.unsat


def test_totals_add() -> None:
    """The total of a sum of vectors is the sum of their totals."""
    o = Z3Algebra()
    v, w = _vector("v"), _vector("w")
    parts, whole = [o.total(v).at(None), o.total(w).at(None)], o.total(v + w).at(None)
    solver = z3.Solver()
    solver.add(*o.instances(), whole != parts[0] + parts[1])
    assert solver.check() == z3.unsat


@given(entries=st.lists(st.integers(-9, 9), max_size=5))
def test_running_interpretations_sum(entries: list[int]) -> None:
    """Exactly what Python's `sum` says."""
    assert total(EXACT, ExactVector(entries)) == sum(entries)
    numpy = next(run for run in INTERPRETATIONS if run.o is NUMPY)
    assert total(NUMPY, numpy.vector(tuple(entries))) == sum(entries)
