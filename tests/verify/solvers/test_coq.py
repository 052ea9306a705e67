"""Goals as lemmas for a proof assistant: what is true is accepted, and what is altered is not."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fairsched.verify.proofs import SUITE, claims_of
from fairsched.verify.solvers import refused
from fairsched.verify.solvers.coq import NotWrittenError, lemma
from fairsched.verify.solvers.cross_check import questions

needs_coq = pytest.mark.skipif(shutil.which("coqc") is None, reason="coqc is not installed")
MEASURED = json.loads((Path(__file__).parents[3] / "docs" / "measured.json").read_text())
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


def goals_of(theorem: str) -> dict[str, str]:
    """The texts of a theorem's goals."""
    return {each.obligation: each.script.text for each in questions(claims_of(SUITE)[theorem]) if each.about == "goal"}


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
def test_hints_are_not_believed(tmp_path: Path) -> None:
    """A theorem's goal is accepted; with its proof as it is, a stronger goal and a weaker hypothesis are not."""
    assert verdict(goals_of("D-range")["decode"], tmp_path) == ""
    statement, proof = (tmp_path / "goal.v").read_text().split("Proof.\nintros")
    for old, new in (("/\\ (0 <= x_", "/\\ (1 <= x_"), ("(d client_3) <=", "(d client_3) <= 1 +")):
        assert statement.count(old) == 1
        (tmp_path / "altered.v").write_text(f"{statement.replace(old, new)}Proof.\nintros{proof}")
        done = subprocess.run(["coqc", "-q", "altered.v"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert "Error" in done.stderr


@needs_coq
def test_a_seeded_bug_is_refused(tmp_path: Path) -> None:
    """A kernel that charges one unit more than is counted has no lemma, with hints or without."""
    text = goals_of("D-range")["decode"]
    charged = re.compile(r"Int \(- (\?\d+) (\?\d+)\)\)(?=\n\(define-fun \?\d+ \(\) Int \(- \?\d+ \2\))")
    bug, count = charged.subn(r"Int (- \1 \2 1))", text)
    assert count == 1
    assert "Error" in verdict(bug, tmp_path)


@needs_coq
@pytest.mark.nightly
@pytest.mark.parametrize(("theorem", "goals", "accepted"), [row[:3] for row in MEASURED["coq-goals"][1:]])
def test_the_core_is_accepted(theorem: str, goals: str, accepted: str, tmp_path: Path) -> None:
    """Of each theorem as many goals as the table of evidence says, about functions from any set of clients."""
    texts = goals_of(theorem)
    without = {name: said for name, text in texts.items() if (said := verdict(text, tmp_path))}
    assert (len(texts), len(texts) - len(without)) == (int(goals), int(accepted)), without
