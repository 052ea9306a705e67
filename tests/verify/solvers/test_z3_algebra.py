"""The solver's words mean what the running words mean, ties over numbered clients and sums too, and refuse the rest."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.model.algebra import EXACT, NO_GROUP, NUMPY, ExactVector
from fairsched.verify import logic
from fairsched.verify.logic import CLIENT, Point, Value, Z3Algebra, total
from fairsched.verify.logic.symbolic import exact_division
from fairsched.verify.logic.system import INTERPRETATIONS
from fairsched.verify.logic.term_algebra import ClosedFormValue, point, scalar
from fairsched.verify.mutation.equivalence import FirstOfEquals

pytestmark = pytest.mark.kept

N = 3
_row = st.lists(st.integers(-4, 4), min_size=N, max_size=N)
_mask = st.lists(st.booleans(), min_size=N, max_size=N)
_point = st.integers(NO_GROUP, N - 1)

WORDS: list[Callable[[Any, Any], Any]] = [
    lambda o, w: o.where(w.m, w.v, w.u),
    lambda o, w: o.where(w.m, w.v, w.x),
    lambda o, w: o.bump(w.v, w.p, w.x),
    lambda o, w: o.put(w.v, w.p, w.x),
    lambda o, w: o.put(w.m, w.p, w.x > 0),
    lambda o, w: o.maximum(w.v, w.u),
    lambda o, w: o.minimum(w.v, w.x),
    lambda o, w: 2 + w.v - w.u,
    lambda o, w: 2 - w.v,
    lambda o, w: -w.v,
    lambda o, w: (w.v > w.u) | ((w.v <= w.x) & w.m),
    lambda o, w: (w.v < w.u) & (w.v >= 0),
    lambda o, w: o.any(w.m),
    lambda o, w: o.all(w.m),
    lambda o, w: o.none(w.m),
    lambda o, w: o.exists(w.p),
    lambda o, w: o.pick(w.v, w.p, w.x),
    lambda o, w: o.where(w.x > 0, w.x, 5),
    lambda o, w: o.pick(w.v, o.argmax(w.v, w.m), 9),
    lambda o, w: o.pick(w.v, o.argmin(w.v, w.m), 9),
    lambda o, w: -w.v // 3 * w.u,
]


def _symbolic(o: logic.Z3Algebra, w: SimpleNamespace) -> tuple[SimpleNamespace, list[Any], list[Any]]:
    """The case `w` as solver terms over exactly N clients, with the facts that say so."""
    clients = [o.fresh_client("c") for _ in range(N)]
    universe: list[Any] = [z3.Distinct(*clients)]
    functions = {name: z3.Function(name, logic.CLIENT, sort) for name, sort in _SORTS.items()}
    for name, function in functions.items():
        universe += [function(client) == entry for client, entry in zip(clients, getattr(w, name), strict=True)]
    made = {name: ClosedFormValue(functions[name], boolean=False, vector=True) for name in ("v", "u")}
    mask = logic.Value(functions["m"], boolean=True, vector=True)
    point = logic.Point(z3.BoolVal(w.p != NO_GROUP), clients[max(w.p, 0)])
    return SimpleNamespace(**made, m=mask, p=point, x=scalar(z3.IntVal(w.x))), clients, universe


_SORTS = {"v": z3.IntSort(), "u": z3.IntSort(), "m": z3.BoolSort()}


CASES = st.builds(
    SimpleNamespace,
    v=_row.map(ExactVector),
    u=_row.map(ExactVector),
    m=_mask.map(ExactVector),
    p=_point,
    x=st.integers(-4, 4),
)


@settings(max_examples=25, deadline=None)
@given(CASES)
def test_every_word_means_on_terms_what_it_means_on_integers(case: SimpleNamespace) -> None:
    """With all clients named and all values fixed, the solver's word can have the exact word's value and no other."""
    for number, word in enumerate(WORDS):
        expected = word(EXACT, case)
        o = logic.Z3Algebra()
        world, clients, universe = _symbolic(o, case)
        value = word(o, world)
        terms = [value.at(client) for client in clients] if value.vector else [value.at(None)]
        wanted = list(expected) if value.vector else [expected]
        agrees = z3.And([term == want for term, want in zip(terms, wanted, strict=True)])
        for client in o.clients:
            universe.append(z3.Or([client == named for named in clients]))
        for goal, answer in ((agrees, z3.sat), (z3.Not(agrees), z3.unsat)):
            solver = z3.Solver()
            solver.add(*o.instances(), *universe, goal)
            assert solver.check() == answer, number


def _number(term: Any) -> Any:
    found = z3.simplify(term)
    return z3.is_true(found) if z3.is_bool(found) else found.as_long()


@settings(max_examples=50, deadline=None)
@given(CASES)
def test_every_word_over_numbered_clients_computes_what_the_exact_word_computes(exact: SimpleNamespace) -> None:
    """On constants every word simplifies to the exact word's value, and a choice to the first of equals."""
    o = logic.FixedAlgebra(N)
    fixed = SimpleNamespace(
        v=ClosedFormValue([z3.IntVal(entry) for entry in exact.v].__getitem__, boolean=False, vector=True),
        u=ClosedFormValue([z3.IntVal(entry) for entry in exact.u].__getitem__, boolean=False, vector=True),
        m=logic.Value([z3.BoolVal(entry) for entry in exact.m].__getitem__, boolean=True, vector=True),
        p=point(z3.IntVal(exact.p)),
        x=scalar(z3.IntVal(exact.x)),
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
    with pytest.raises(logic.KernelError):
        logic.FixedAlgebra(2).fresh_client("another")


def test_two_choices_of_the_first_of_equals_agree() -> None:
    """Where texts are compared, two calls that see the same choose the same, also among equals."""
    o = FirstOfEquals()
    values = logic.Value(z3.Function("v", logic.CLIENT, z3.IntSort()), boolean=False, vector=True)
    mask = logic.Value(z3.Function("m", logic.CLIENT, z3.BoolSort()), boolean=True, vector=True)
    one, two = o.argmax(values, mask), o.argmax(values, mask)
    solver = z3.Solver()
    solver.add(*o.instances(), one.found, z3.Or(z3.Not(two.found), one.who != two.who))
    assert solver.check() == z3.unsat


def test_the_lemma_about_exact_division_is_proved() -> None:
    """What `Paths.exact` adds follows from what division is."""
    solver = z3.Solver()
    solver.add(z3.Not(exact_division()))
    assert solver.check() == z3.unsat


def test_any_of_the_equals_may_be_chosen() -> None:
    """Two clients tie: each can be the choice, so no theorem rests on how ties are broken."""
    o = logic.Z3Algebra()
    first, second = o.fresh_client("c"), o.fresh_client("c")
    every_client = logic.Value(lambda c: z3.BoolVal(True), boolean=True, vector=True)
    chosen = o.argmax(logic.Value(lambda c: z3.IntVal(0), boolean=False, vector=True), every_client)
    for who in (first, second):
        solver = z3.Solver()
        solver.add(*o.instances(), first != second, chosen.who == who)
        assert solver.check() == z3.sat


@pytest.mark.parametrize(
    "misuse",
    [
        bool,
        hash,
        iter,
        len,
        int,
        float,
        lambda v: v == 0,
        lambda v: v != 0,
        lambda v: 0 in v,
        lambda v: v[0],
        lambda v: v / 2,
        lambda v: v // 2,
        lambda v: v % 2,
        lambda v: v * 2,
        lambda v: 2 * v,
        lambda v: ~v,
        lambda v: v + 0.5,
        lambda v: v + True,
        lambda v: v & v,
        lambda v: logic.Z3Algebra().where(v, 1, 2),
        lambda v: logic.Z3Algebra().any(v),
        lambda v: logic.Z3Algebra().where(scalar(z3.Bool("b")), v, v),
        lambda v: logic.Z3Algebra().pick(v, 0, 0),  # type: ignore[arg-type]
    ],
)
def test_what_has_no_meaning_on_terms_is_refused(misuse: Callable[[logic.Value], Any]) -> None:
    """Python answers some of these without an exception on raw solver terms; the wrappers answer none."""
    vector = logic.Value(z3.Function("v", logic.CLIENT, z3.IntSort()), boolean=False, vector=True)
    with pytest.raises(logic.KernelError):
        misuse(vector)


def test_a_formula_over_all_clients_must_not_choose_one() -> None:
    """A sealed algebra names no new client, which is what keeps every obligation quantifier-free."""
    o = logic.Z3Algebra()
    mask = logic.Value(z3.Function("m", logic.CLIENT, z3.BoolSort()), boolean=True, vector=True)
    o.sealed = True
    with pytest.raises(logic.KernelError, match="must not choose"):
        o.any(mask)


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
