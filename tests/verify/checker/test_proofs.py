"""Proofs that a solver writes of shipped theorems: accepted as they are, refused once they are changed."""

import random
from collections.abc import Iterator
from fractions import Fraction

import pytest

from fairsched.verify.checker.proof import Proof
from fairsched.verify.checker.rules import Reasoning, reasoning
from fairsched.verify.checker.terms import Term, TermTable, expressions
from fairsched.verify.proofs import SUITE, claims_of
from fairsched.verify.solvers import checked_proof, z3_answer
from fairsched.verify.solvers.cross_check import cpc_proof, questions

pytestmark = pytest.mark.kept

SHORT = (("D-printed", "come back"), ("D-refill", "hints"))
"""Goals whose short proofs have most of the rules between them."""

LONG = (
    *(("D-may-hold", "ask"), ("D-cap", "leave the queue"), ("D-cap-holds", "refill"), ("D-under-cap", "ask")),
    *(("D-cap", "decode"), ("D-share-U", "the dearest prompt, path 1"), ("D-in-flight", "correct")),
    *(("D-in-flight", "admit"), ("D-refill", "one round")),
)
"""Goals whose proofs have the others."""


def goals(theorem: str) -> Iterator[tuple[str, str]]:
    """The obligations of a theorem, and the text of each."""
    for question in questions(claims_of(SUITE)[theorem]):
        if question.about == "goal":
            yield question.obligation, question.script.text


def unproved(theorem: str) -> dict[str, str]:
    """The goals of a theorem without an accepted proof, and why."""
    found = {obligation: checked_proof(text) for obligation, text in goals(theorem)}
    return {obligation: why for obligation, (proof, why) in found.items() if not proof}


def test_a_core_theorem_is_a_checked_proof() -> None:
    """No solver need be believed about a goal of it."""
    assert unproved("D-range") == {}


@pytest.mark.usefixtures("by_night")
@pytest.mark.parametrize("theorem", ["D-4.1", "V-4.4"])
def test_the_bounds_of_both_gates_are_checked_proofs(theorem: str) -> None:
    """So are these."""
    assert unproved(theorem) == {}


Step = tuple[str, Term, tuple[Term, ...]]
"""A rule, a conclusion and premises."""


class Listening(Proof):
    """Keeps what each step was: its rule, its conclusion and its premises."""

    def __init__(self, question: str) -> None:
        super().__init__(question)
        self.heard: list[Step] = []

    def follows(self, rule: str, how: Reasoning, conclusion: Term, premises: tuple[Term, ...]) -> bool:
        """Listen, and check."""
        self.heard.append((rule, conclusion, premises))
        return super().follows(rule, how, conclusion, premises)


def _numeral_changed(t: TermTable, term: Term, chance: random.Random) -> Term:
    """The formula with one of its numbers in place of the next."""
    inside, waiting = {term}, [term]
    while waiting:
        new = set(t.args[waiting.pop()]) - inside
        inside |= new
        waiting += new
    numbers = sorted(each for each in inside if isinstance(t.op[each], Fraction))
    if not numbers:
        return term
    chosen = chance.choice(numbers)
    return t.replaced(term, {chosen: t.number(t.op[chosen] + 1, t.sort[chosen])})


def _text(t: TermTable, terms: list[Term], question: str) -> str:
    """That all of these are true, as a question."""
    lines = [line for line in question.splitlines() if line.startswith(("(set-logic", "(declare"))]
    names: dict[Term, str] = {}

    def name(term: Term) -> str:
        if term not in names:
            args = [name(arg) for arg in t.args[term]]
            op = t.op[term]
            if isinstance(op, Fraction):
                names[term] = f"(/ {op.numerator} {op.denominator})" if t.sort[term] == "Real" else str(op.numerator)
                names[term] = f"(- {-op.numerator})" if op < 0 and t.sort[term] == "Int" else names[term]
            elif not args:
                names[term] = op
            else:
                names[term] = f"@{term}"
                lines.append(f"(define-fun @{term} () {t.sort[term]} ({op} {' '.join(args)}))")
        return names[term]

    asserted = [f"(assert {name(term)})" for term in terms]
    return "\n".join([*lines, *asserted, "(check-sat)"])


def _changed(t: TermTable, step: Step, others: list[Step], chance: random.Random) -> tuple[Term, tuple[Term, ...]]:
    """The conclusion and the premises of a step; a premise is dropped, a number differs, or it concludes another."""
    _, conclusion, premises = step
    match chance.randrange(3):
        case 0 if premises:
            dropped = chance.randrange(len(premises))
            return conclusion, premises[:dropped] + premises[dropped + 1 :]
        case 1:
            return _numeral_changed(t, conclusion, chance), premises
    return chance.choice(others)[1], premises


def _differ(theorem: str, obligation: str, each: int) -> tuple[int, int]:
    """Change so many steps of each rule of a proof; a solver finds valid what is accepted of them.

    Returns how many were changed, and how many of them refused.
    """
    question = dict(goals(theorem))[obligation]
    listening = Listening(question)
    for command in expressions(cpc_proof(question)):
        listening.follow(command)
    t, chance = listening.terms, random.Random(1)
    tried = refused = 0
    for rule in sorted({rule for rule, _, _ in listening.heard}):
        of_rule = [step for step in listening.heard if step[0] == rule]
        for step in chance.choices(of_rule, k=each):
            changed, premises = _changed(t, step, of_rule, chance)
            if (rule, changed, premises) == step:
                continue
            tried += 1
            how = reasoning(rule)
            assert how is not None
            if not how(t, changed, premises):
                refused += 1
            else:
                negated = t.make("not", (changed,))
                assert z3_answer(_text(t, [*premises, negated], question)) == "unsat", (rule, changed, premises)
    return tried, refused


@pytest.mark.parametrize("goal", SHORT)
def test_a_changed_step_is_refused_or_follows(goal: tuple[str, str]) -> None:
    """Rule by rule: of steps that were changed most are refused, and whatever is accepted does follow."""
    tried, refused = _differ(*goal, each=6)
    assert refused > tried / 2


@pytest.mark.usefixtures("by_night")
@pytest.mark.parametrize("goal", [*SHORT, *LONG])
def test_so_it_is_for_every_rule_that_was_seen(goal: tuple[str, str]) -> None:
    """With more steps of each, in proofs that have all rules between them."""
    tried, refused = _differ(*goal, each=60)
    assert refused > tried / 2
