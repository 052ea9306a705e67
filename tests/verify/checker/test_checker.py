"""The checker of proofs accepts nothing that does not follow, and what it does not know it does not accept."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.verify.checker import check
from fairsched.verify.checker.rules import cases, opened, regrouped
from fairsched.verify.checker.terms import TermTable, expressions

pytestmark = pytest.mark.kept

QUESTION = """
(set-logic QF_LIA)
(declare-fun x () Int)
(define-fun ?1 () Int (+ x 0))
(assert (< ?1 0))
(assert (< 0 x))
(check-sat)
"""

PROOF = """
(declare-const x Int)
(define @t1 () (< x 0))
(assume @p1 (< (+ x 0) 0))
(assume @p2 (< 0 x))
(step @p3 (= (< (+ x 0) 0) @t1) :rule arith_poly_norm_rel :args ((= (< (+ x 0) 0) @t1)))
(step @p4 @t1 :rule eq_resolve :premises (@p1 @p3))
(assume-push @p5 @t1)
(step @p6 (< (+ 0 x) (+ x 0)) :rule arith_sum_ub :premises (@p2 @p5))
(step @p7 (= (< (+ 0 x) (+ x 0)) false) :rule evaluate :args (false))
(step @p8 false :rule eq_resolve :premises (@p6 @p7))
(step-pop @p9 :rule scope :premises (@p8))
(step @p10 (not @t1) :rule process_scope :premises (@p9) :args (false))
(step @p11 false :rule contra :premises (@p4 @p10))
"""


def test_a_proof_is_accepted() -> None:
    """Assumptions, definitions, a scope and a sum: each step follows, and the end is false."""
    assert check(QUESTION, PROOF) == (True, 11, "")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        # What is assumed is not asked.
        ("(assume @p2 (< 0 x))", "(assume @p2 (< 1 x))", "does not assert"),
        ("(assume @p2 (< 0 x))", "(assume @p2 false)", "does not assert"),
        # A premise is dropped, or another one taken.
        (":premises (@p2 @p5)", ":premises (@p2)", "@p6 does not follow"),
        (":premises (@p4 @p10)", ":premises (@p4)", "@p11 does not follow"),
        (":premises (@p1 @p3)", ":premises (@p2 @p3)", "@p4 does not follow"),
        (":premises (@p1 @p3)", ":premises (@p4 @p3)", "@p4 has not been shown"),
        # A constant or a conclusion is changed.
        ("(step @p6 (< (+ 0 x) (+ x 0))", "(step @p6 (< (+ 0 x) (+ x -1))", "@p6 does not follow"),
        ("(= (< (+ 0 x) (+ x 0)) false)", "(= (< (+ 0 x) (+ x 1)) false)", "@p7 does not follow"),
        ("(step @p4 @t1", "(step @p4 false", "@p4 does not follow"),
        # A scope is left open, or closed twice.
        ("(step-pop @p9 :rule scope :premises (@p8))", "", "@p9 has not been shown"),
        ("(step @p11 false :rule contra :premises (@p4 @p10))", "", "does not end in false"),
        ("(assume-push @p5 @t1)", "", "@p5 has not been shown"),
        (
            "(step @p10 (not @t1)",
            "(step-pop @p12 :rule scope :premises (@p8))\n(step @p10 (not @t1)",
            "closes no scope",
        ),
        # A rule that is not written down here; and a conclusion that is only trusted.
        ("(step @p4 @t1 :rule eq_resolve", "(step @p4 (< x -7) :rule trust", "@p4 does not follow by trust"),
        (":rule evaluate", ":rule surely", "surely, a rule that is not known"),
        # Names that mean something else.
        ("(define @t1 () (< x 0))", "(define x () (< x 0))", "x is defined twice"),
        ("(declare-const x Int)", "(declare-const x Real)", "not what it is in the question"),
        ("(declare-const x Int)", "(declare-const z Int)", "the question has no z"),
        ("(step @p4 @t1", "(step @p3 @t1", "@p3 is shown twice"),
        # Texts that are not terms.
        ("(step @p4 @t1", "(step @p4 (and @t1 x)", "and does not take Bool, Int"),
        ("(step @p4 @t1", "(step @p4 (sqrt x)", "nothing is known about sqrt"),
        ("(define @t1 () (< x 0))", "(define @t1 () (< x 0)", "open at the end"),
        ("(declare-const x Int)", "(declare-const x Int)(include nothing)", "another kind"),
    ],
)
def test_a_changed_proof_is_refused(old: str, new: str, why: str) -> None:
    """A step that does not follow any more, or is not known, is named."""
    assert old in PROOF
    found = check(QUESTION, PROOF.replace(old, new))
    assert not found.accepted
    assert why in found.why


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("(assert (< 0 x))", "", "does not assert"),
        ("(+ x 0)", "(+ x 1)", "does not assert"),
        ("(check-sat)", "", "asks nothing"),
        ("(check-sat)", "(check-sat)(assert false)", "goes on after"),
        ("(check-sat)", "(push 1)(check-sat)", "another kind"),
    ],
)
def test_a_proof_of_another_question_is_refused(old: str, new: str, why: str) -> None:
    """A proof counts for the text beside it only."""
    found = check(QUESTION.replace(old, new), PROOF)
    assert not found.accepted
    assert why in found.why


def test_what_holds_in_an_open_scope_is_no_end() -> None:
    """False under an assumption says nothing about the question."""
    proof = "(assume-push @p1 false)\n(step @p2 false :rule eq_resolve :premises (@p1))"
    assert not check(QUESTION, proof).accepted


# --- what follows, in all small worlds --------------------------------------------------------------------------------

NUMBERS = st.recursive(
    st.sampled_from(["x", "y", "0", "1", "2", "-1"]),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*"]), inner, inner).map(list),
        st.tuples(st.just("ite"), st.sampled_from(["p", "q"]), inner, inner).map(list),
        st.tuples(st.just("-"), inner).map(list),
    ),
    max_leaves=4,
)
ATOMS = st.one_of(
    st.sampled_from(["p", "q", "true", "false"]),
    st.tuples(st.sampled_from(["<", "<=", ">", ">=", "=", "distinct"]), NUMBERS, NUMBERS).map(list),
)
FORMULAS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["and", "or", "=>", "=", "xor"]), inner, inner).map(list),
        st.tuples(st.just("not"), inner).map(list),
        st.tuples(st.just("ite"), inner, inner, inner).map(list),
    ),
    max_leaves=5,
)
WORDS = {
    "<": ["<=", ">"],
    "<=": ["<"],
    ">": [">="],
    "and": ["or"],
    "=>": ["=", "or"],
    "0": ["1"],
    "1": ["0"],
    "x": ["y"],
}


@st.composite
def altered(draw: st.DrawFn, said: Any) -> Any:
    """The formula, or one that differs in a few words, or whose arguments are turned."""
    if isinstance(said, str):
        return draw(st.sampled_from([said] * 6 + WORDS.get(said, [])))
    op, *args = said
    made = [draw(altered(arg)) for arg in args]
    if len(made) == 2 and op in ("and", "or", "=", "xor", "+", "*", "<", "=>") and draw(st.integers(0, 3)) == 0:
        made.reverse()
    other = draw(st.sampled_from([op] * 8 + WORDS.get(op, [])))
    return [other, *made]


def value(said: Any, world: dict[str, Any]) -> Any:
    """What it is in a world, in Python's own arithmetic."""
    if isinstance(said, str):
        return world[said] if said in world else {"true": True, "false": False}[said] if said[0] in "tf" else int(said)
    op, *args = said
    v = [value(arg, world) for arg in args]
    if len(v) == 1:
        return not v[0] if op == "not" else -v[0]
    if op == "ite":
        return v[1] if v[0] else v[2]
    a, b = v
    meanings: dict[str, Callable[[], Any]] = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "<": lambda: a < b,
        "<=": lambda: a <= b,
        ">": lambda: a > b,
        ">=": lambda: a >= b,
        "=": lambda: a == b,
        "distinct": lambda: a != b,
        "and": lambda: a and b,
        "or": lambda: a or b,
        "=>": lambda: not a or b,
        "xor": lambda: a != b,
    }
    return meanings[op]()


def terms() -> TermTable:
    """The names of these tests."""
    made = TermTable()
    for name, sort in (("x", "Int"), ("y", "Int"), ("p", "Bool"), ("q", "Bool")):
        made.declare(name, (), sort)
    return made


WORLDS = [
    {"x": x, "y": y, "p": p, "q": q} for x, y, p, q in product(range(-3, 4), range(-3, 4), (False, True), (False, True))
]


@given(st.data())
def test_what_follows_is_true_in_every_small_world(data: st.DataObject) -> None:
    """Whatever kind of reasoning is asked: a conclusion that it accepts holds wherever the premises do."""
    premise = data.draw(FORMULAS)
    other = data.draw(altered(premise))
    conclusion = data.draw(st.sampled_from([other, ["=", premise, other], ["or", ["not", premise], other]]))
    t = terms()
    given_, then = t.read(premise), t.read(conclusion)
    for how in (cases, opened(1), opened(3), regrouped):
        for premises, said in (((given_,), [premise]), ((), [])):
            if how(t, then, premises):
                for world in WORLDS:
                    assert value(conclusion, world) or not all(value(each, world) for each in said)


@given(FORMULAS)
def test_what_is_true_by_its_form_is_accepted(formula: Any) -> None:
    """A formula follows from itself, and equals itself with its negation pushed inwards twice."""
    t = terms()
    term = t.read(formula)
    assert cases(t, term, (term,))
    assert cases(t, t.read(["=", formula, ["not", ["not", formula]]]), ())


def test_comparisons_over_integers_have_one_form() -> None:
    """Over integers 2x > 1 is x >= 1; over real numbers it is not."""
    for sort, follows in (("Int", True), ("Real", False)):
        t = TermTable()
        t.declare("x", (), sort)
        (said,) = expressions("(= (> (* 2 x) 1) (>= x 1))")
        assert cases(t, t.read(said), ()) is follows


@pytest.mark.parametrize(
    ("said", "follows"),
    [
        ("(= (and P (and Q R) true) (and R Q P))", True),
        ("(= (or P (or Q false R) P) (or R Q P))", True),
        ("(= (and P (and Q P)) (and P R))", False),
        ("(= (and P Q) (and P Q false))", False),
        ("(= (or P (and Q R)) (or P Q R))", False),
        ("(= (and P (or Q R)) (and P Q R))", False),
        ("(= (and P true) (or P true))", False),
    ],
)
def test_parts_are_taken_together_in_any_order(said: str, follows: bool) -> None:
    """Brackets, order, what stands twice and what changes nothing do not matter; a part that is lost does, and so does
    another connective.  Formulas have terms by cases, more of them than are gone through one by one."""
    t = terms()
    t.declare("f", ("Int",), "Int")
    for number, name in enumerate("PQR"):
        parts = (f"(< (ite (< x {each}) (f {each}) (f x)) y)" for each in range(5 * number, 5 * number + 5))
        (formula,) = expressions(f"(and {' '.join(parts)})")
        t.define(name, t.read(formula))
    (formula,) = expressions(said)
    assert regrouped(t, t.read(formula), ()) is follows


@pytest.mark.parametrize(
    ("said", "follows"),
    [
        ("(= (to_int 7/5) 1)", True),
        ("(= (to_int (- 7/5)) (- 2))", True),
        ("(= (to_int 1/5) 0)", True),
        ("(= (> x (to_int 1/5)) (>= x 1))", True),
        ("(= (to_int x) (to_int x))", True),
        ("(= (to_int 7/5) 2)", False),
        ("(= (to_int (- 7/5)) (- 1))", False),
        ("(= (to_int (/ x 5)) 0)", False),
        ("(= (to_int (+ (/ x 5) 1)) (to_int (/ x 5)))", False),
        ("(>= (to_int (/ x 5)) (/ x 5))", False),
    ],
)
def test_numbers_are_rounded_down(said: str, follows: bool) -> None:
    """A number is rounded towards minus infinity, and nothing is known about what a term is rounded to."""
    t = terms()
    (formula,) = expressions(said)
    assert cases(t, t.read(formula), ()) is follows
