"""Goals as lemmas for a proof assistant: what is true is accepted, and what is altered is not."""

import shutil
from pathlib import Path

import pytest

from fairsched.verify.proofs import SUITE, claims_of
from fairsched.verify.solvers import refused
from fairsched.verify.solvers.coq import NotWrittenError, lemma
from fairsched.verify.solvers.cross_check import questions

needs_coq = pytest.mark.skipif(shutil.which("coqc") is None, reason="coqc is not installed")
QUESTION = """
(declare-sort client 0)
(declare-fun q (client) Int)
(declare-fun |in queue| (client) Bool)
(declare-fun f () client)
(declare-fun g () client)
(define-fun ?1 () Int (ite (= f g) (q g) 7))
(assert (and (|in queue| f) (= f g) (>= (q f) 3)))
(assert (not (and (>= ?1 3) (|in queue| g))))
(check-sat)
"""


def goals_of(theorem: str) -> list[str]:
    """The texts of a theorem's goals, but for an admission's: it names five clients, and `lia` does not end."""
    asked = questions(claims_of(SUITE)[theorem])
    return [each.script.text for each in asked if each.about == "goal" and each.obligation != "admit"]


def verdict(text: str, folder: Path) -> str:
    """What Coq says against a question."""
    (folder / "goal.smt2").write_text(text)
    return refused(folder / "goal.smt2", folder / "goal.v")


def test_a_lemma_is_about_any_type_of_clients() -> None:
    """Vectors are functions of clients, of whom nothing is known but whether two are the same."""
    text = lemma(QUESTION, "goal")
    assert "forall (client : Type) (same : client -> client -> Z)" in text
    assert "(q : client -> Z)" in text
    assert text.count("->") > text.count("Axiom") == text.count("Admitted") == 0


def test_what_a_lemma_cannot_say_is_refused() -> None:
    """A word without a meaning here is an error, not a lemma about less."""
    with pytest.raises(NotWrittenError, match="div"):
        lemma("(declare-fun a () Int)(assert (>= (div a 2) 1))", "goal")


@needs_coq
def test_true_goals_are_accepted_and_altered_ones_are_not(tmp_path: Path) -> None:
    """One that is true of some clients only, of fewer hypotheses, or with another number is no lemma."""
    assert verdict(QUESTION, tmp_path) == ""
    for old, new in (("(>= (q f) 3)", "(>= (q f) 2)"), ("(= f g) (>=", "(>="), ("(|in queue| f)", "true")):
        assert old in QUESTION
        assert verdict(QUESTION.replace(old, new), tmp_path)


@needs_coq
@pytest.mark.nightly
@pytest.mark.parametrize("theorem", ["D-range", "D-4.1"])
def test_the_core_is_accepted(theorem: str, tmp_path: Path) -> None:
    """Each goal of the theorem, by every other event, for functions from any set of clients to integers."""
    assert [said for text in goals_of(theorem) if (said := verdict(text, tmp_path))] == []
