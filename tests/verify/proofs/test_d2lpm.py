"""D2LPM's theorems fall with bugs in the shipped text, and their bounds cannot be smaller."""

import attrs
import pytest

from fairsched.policies.routers.d2lpm import credit as d2lpm_credit
from fairsched.verify.logic import Clause
from fairsched.verify.logic.patching import variant
from fairsched.verify.proofs.routers import d2lpm as d2lpm_proofs
from fairsched.verify.solvers import Broken, prove
from fairsched.verify.solvers.cross_check import disagreement, questions

CLAIMS = {claim.theorem.id: claim for claim in d2lpm_proofs.claims()}


BUGS = [
    ("D2-gate", "in_credit", "d > 0", "d >= 0"),
    ("D2-gate", "in_credit", "here & ", ""),
    ("D2-gate", "choose", "argmin", "argmax"),
    ("D2-gate", "choose", "near | far", "credit"),
    ("D2-gate", "choose", "near | far", "near"),
    ("D2-round", "refill", "d + quantum", "d"),
    ("D2-round", "refill", "here & due", "here & o.none(d > 0)"),
    ("D2-round", "refill_due", "in_credit(o, d, here)", "here"),
    ("D2-refill", "refill_rounds", "-d // quantum + 1", "-d // quantum"),
    ("D2-refill", "refill", "d + quantum", "quantum"),
    ("D2-range", "refill", " & due", ""),
    ("D2-range", "refill", "d + quantum", "d + quantum + quantum"),
    ("D2-range", "refill_due", " & o.none(in_credit(o, d, here))", ""),
    ("D2-range", "refund", "minimum", "maximum"),
    ("D2-spread", "charge", "-x", "1 - x"),
    ("D2-spread", "refund", " + x", ""),
    ("D2-spread", "refill", "d + quantum", "quantum"),
]


@pytest.mark.parametrize(("theorem", "function", "old", "new"), BUGS)
def test_a_seeded_bug_breaks_it(theorem: str, function: str, old: str, new: str) -> None:
    """One change to the text, and a world of at most three workers breaks the theorem in both interpretations."""
    claims = {
        claim.theorem.id: claim for claim in d2lpm_proofs.kernel_claims(variant(d2lpm_credit, function, old, new))
    }
    verdict = prove(claims[theorem])
    assert isinstance(verdict, Broken), verdict
    assert verdict.world.clients <= 3


def test_a_worker_s_bound_cannot_be_left_out_of_the_sum() -> None:
    """With one unit less than the sum of the workers' bounds D2-5.1 is false: each may be reached at once."""
    claim = CLAIMS["D2-5.1"]
    tighter = Clause("ahead <= B - 1", lambda o, w: o.where(w.summed, w.ahead <= w.B - 1, True))
    invariants = (claim.invariants[0], tighter)
    assert isinstance(prove(attrs.evolve(claim, invariants=invariants, conclusions=(tighter,))), Broken)


@pytest.mark.parametrize("theorem", ["D2-gate", "D2-range", "D2-spread"])
def test_the_second_solver_agrees(theorem: str) -> None:
    """On the exported formulas."""
    assert [why for asked in questions(CLAIMS[theorem]) if (why := disagreement(asked))] == []
