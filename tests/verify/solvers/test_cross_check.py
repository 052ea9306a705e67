"""Two solvers that share no code agree about every obligation of every theorem."""

from collections.abc import Callable
from itertools import tee

import pytest

from fairsched.model.theorem import Scope
from fairsched.verify.logic import Claim, SampledClaim
from fairsched.verify.proofs import SUITE, claims_of
from fairsched.verify.solvers import Proved, Question, Task, cross_check, cvc5_answer, decide, prove, z3_answer
from fairsched.verify.solvers.cross_check import disagreement, questions
from fairsched.verify.solvers.prover import to_show

pytestmark = pytest.mark.kept

EVERY = [name for name, claim in claims_of(SUITE).items() if not isinstance(claim, SampledClaim)]
SLOW = ("D-weighted", "H-weighted", "D-pause-weighted", "D-cap", "V-4.9", "V-4.11", "V-4.11-time", "J-busy")
"""Theorems that cvc5 is asked about by night: it takes long over products, over sums of which every part changes, or
over events that V-4.3 has as well."""


@pytest.mark.parametrize("theorem", EVERY)
def test_both_solvers_prove_the_theorem(theorem: str) -> None:
    """For all integers and any number of clients: start, every event and conclusion, or every path, have hypotheses
    that can be true, and goals that follow.

    By day Z3 alone has a model of the hypotheses, and both solvers prove the goals."""
    claim = claims_of(SUITE)[theorem]
    # Building the formulas takes as long as deciding them.
    for_z3, for_cvc5 = tee(to_show(claim))
    verdict = prove(claim, built=for_z3)
    assert isinstance(verdict, Proved), verdict
    if isinstance(claim, Claim):
        assert verdict.obligations >= len([event for event in claim.system.events if not event.excluded_by]) + 2
        assert claim.theorem.scope is Scope.ALL_N
    if theorem not in SLOW:
        asked = list(questions(claim, built=for_cvc5))
        assert {question.about for question in asked} == {"goal", "hypotheses"}
        _check_answers([question for question in asked if question.about == "goal"], cvc5_answer)


@pytest.mark.nightly
@pytest.mark.usefixtures("by_night")
@pytest.mark.parametrize("theorem", EVERY)
def test_both_solvers_answer_the_same_text(theorem: str) -> None:
    """What was tried in worlds is asked of no solver; of the rest, Z3 reads what cvc5 reads."""
    asked = list(questions(claims_of(SUITE)[theorem]))
    assert {question.about for question in asked} == {"goal", "hypotheses"}
    _check_answers(asked, cvc5_answer, z3_answer)


def _check_answers(asked: list[Question], *solvers: Callable[[str], str]) -> None:
    for question in asked:
        for answer in solvers:
            assert answer(question.script.text) == question.script.expected, (question.obligation, question.about)


@pytest.mark.parametrize(
    ("theorem", "obligation"), [("D-refill", "one round"), ("D2-refill", "one round at all workers")]
)
def test_a_round_of_refills_needs_no_option(
    theorem: str, obligation: str, monkeypatch: pytest.MonkeyPatch, full_budget: bool
) -> None:
    """Masks that are the same share a witness, so that cvc5 decides it as any person calls it, whatever its seed."""
    monkeypatch.setattr(cross_check, "CVC5_OPTIONS", {})
    (text,) = (
        each.script.text
        for each in questions(claims_of(SUITE)[theorem])
        if (each.obligation, each.about) == (obligation, "goal")
    )
    assert {cvc5_answer(text, seed=seed) for seed in range(10 if full_budget else 1)} == {"unsat"}


def test_the_text_is_the_same_each_time() -> None:
    """Nothing in a question depends on what was asked before, so its hash says what it is."""
    for theorem in ("D-refill", "V-4.3", "U-reserved"):
        texts = [[question.script.text for question in questions(claims_of(SUITE)[theorem])] for _ in range(2)]
        assert texts[0] == texts[1]


def test_a_disagreement_is_no_proof() -> None:
    """A question that cvc5 answers otherwise, or not at all within its budget, is named."""
    question = next(q for q in questions(claims_of(SUITE)["V-4.3"]) if q.about == "goal" and q.obligation == "admit")
    assert disagreement(question) is None
    assert "unknown" in (disagreement(question, rlimit=1) or "")


def test_a_decision_counts_the_clients_that_its_obligations_name() -> None:
    """The cutoff is that of the widest obligation, and arithmetic about no client has none."""
    decision = decide(Task(SUITE, "D-4.1"))
    assert (decision.verdict, decision.solvers) == ("proved", ("z3", "cvc5"))
    asked = list(questions(claims_of(SUITE)["D-4.1"]))
    assert decision.cutoff == max(question.clients for question in asked)
    assert len(decision.files) == len(asked)
    assert decide(Task(SUITE, "price")).cutoff is None
