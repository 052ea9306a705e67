"""SMT-LIB text says what the formula says, or errs on the side that cannot prove too much."""

from typing import Any

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.verify.logic import CLIENT, Answer, script
from fairsched.verify.logic.smtlib import symbol
from fairsched.verify.solvers import cvc5_answer, z3_answer

pytestmark = pytest.mark.kept

X, Y, Z = z3.Ints("x y z")
_ATOMS = (X, Y, z3.IntVal(0), z3.IntVal(1), z3.IntVal(-2))


def _terms(depth: int) -> st.SearchStrategy[Any]:
    """Integer terms over x and y."""
    if depth == 0:
        return st.sampled_from(_ATOMS)
    smaller = _terms(depth - 1)
    return st.one_of(
        smaller,
        st.builds(lambda a, b: a + b, smaller, smaller),
        st.builds(lambda a, b: a - b, smaller, smaller),
        st.builds(lambda a: -a, smaller),
        st.builds(lambda a, b, c: z3.If(a > b, b, c), smaller, smaller, smaller),
    )


@settings(max_examples=60, deadline=None)
@given(_terms(3), _terms(3), st.integers(-3, 3), st.integers(-3, 3))
def test_a_linear_formula_means_in_both_solvers_what_it_means(left: Any, right: Any, x: int, y: int) -> None:
    """With its unknowns fixed, every comparison has the truth value that Z3's own term has."""
    formula = z3.simplify(z3.substitute(left <= right, (X, z3.IntVal(x)), (Y, z3.IntVal(y))))
    expected: Answer = "sat" if z3.is_true(formula) else "unsat"
    text = script([left <= right, x == X, y == Y], expected).text
    assert (z3_answer(text), cvc5_answer(text)) == (expected, expected)


@pytest.mark.parametrize(
    ("terms", "logic"),
    [
        ([X > 1], "QF_LIA"),
        ([X * Y > 1], "QF_NIA"),
        ([X * 2 > Y], "QF_LIA"),
        ([z3.Function("q", CLIENT, z3.IntSort())(z3.Const("c", CLIENT)) > 1], "QF_UFLIA"),
    ],
)
def test_the_logic_is_the_smallest_that_has_the_formula(terms: list[Any], logic: str) -> None:
    """Linear arithmetic stays linear, and functions are declared only where there are some."""
    made = script(terms, "sat")
    assert made.logic == logic
    assert f"(set-logic {logic})" in made.text
    assert cvc5_answer(made.text) == "sat"


@pytest.mark.parametrize("a", range(-6, 7))
@pytest.mark.parametrize("b", [1, 2, 5])
def test_a_quotient_is_pythons_for_positive_divisors(a: int, b: int) -> None:
    """Neither solver finds another value, whether quotients are defined or, beside products, known by laws only."""
    known = [a == X, b == Y]
    wrong = script([*known, a // b != X / Y], "unsat").text
    assert (z3_answer(wrong), cvc5_answer(wrong)) == ("unsat", "unsat")
    zero = script([*known, X >= 0, X < Y, X / Y * Z != 0], "unsat", opaque=True).text
    assert (z3_answer(zero), cvc5_answer(zero)) == ("unsat", "unsat")


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("goal", [X / Y * Z == 7, X * Y == 8, X / Y == -1])
def test_what_can_be_true_is_never_unsatisfiable_text(goal: Any, opaque: bool) -> None:
    """Where text says less than the formula, it says less: a satisfiable formula cannot pass for refuted."""
    text = script([goal, Y >= 1], "unsat", opaque=opaque).text
    assert z3_answer(text) == "sat"


def test_a_shared_term_is_written_once() -> None:
    """The text of a term that doubles n times grows with n, not with 2^n."""
    term = X
    for _ in range(60):
        term = z3.If(term > Y, term + 1, term - 1)
    assert len(script([term > 0], "sat").text) < 20_000


def test_names_are_quoted_where_they_must_be() -> None:
    """A name with a space, or one that SMT-LIB keeps for itself, is written between bars."""
    assert symbol("client!3") == "client!3"
    assert symbol("p exists") == "|p exists|"
    assert symbol("div") == "|div|"
    assert symbol("?1") == "|?1|"
    assert cvc5_answer(script([z3.Bool("p exists"), z3.Bool("?1")], "sat").text) == "sat"


def test_what_has_no_place_is_refused() -> None:
    """Reals and quantifiers are errors, not text that some solver would read in its own way."""
    for term in (z3.Real("r") > 1, z3.ForAll([X], X > Y)):
        with pytest.raises((ValueError, z3.Z3Exception)):
            script([term], "sat")
