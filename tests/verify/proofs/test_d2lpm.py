"""D2LPM's theorems are proved of the shipped text, fall with bugs in it and without what they assume, and are tight."""

import attrs
import pytest

from fairsched.model.theorem import BACKLOGGED_EVERYWHERE, BOTH_SERVE, EQUAL_WORKERS, Assumption
from fairsched.policies.routers.d2lpm import credit as d2lpm_credit
from fairsched.verify.logic import Clause, Witness, attained
from fairsched.verify.logic.patching import variant
from fairsched.verify.proofs.routers import d2lpm as d2lpm_proofs
from fairsched.verify.proofs.routers.d2lpm import witnesses
from fairsched.verify.solvers import Proved, Refuted, prove
from fairsched.verify.solvers.cross_check import disagreement, questions

CLAIMS = {claim.theorem.id: claim for claim in d2lpm_proofs.claims()}


@pytest.mark.parametrize("theorem", CLAIMS)
def test_it_is_proved(theorem: str) -> None:
    """For any number of workers, and none of it vacuous."""
    verdict = prove(CLAIMS[theorem])
    assert isinstance(verdict, Proved), verdict


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
    assert isinstance(verdict, Refuted), verdict
    assert verdict.world.clients <= 3


@pytest.mark.parametrize(
    ("theorem", "assumption"),
    [
        ("D2-spread", BOTH_SERVE),
        ("D2-spread", EQUAL_WORKERS),
        ("D2-5.2", BACKLOGGED_EVERYWHERE),
    ],
)
def test_what_it_assumes_is_needed(theorem: str, assumption: Assumption) -> None:
    """Without the assumption a world breaks it: D2-5.1 has nothing to say of who is backlogged at some workers only."""
    assert isinstance(prove(CLAIMS[theorem], dropped=frozenset({assumption})), Refuted)


def test_a_worker_s_bound_cannot_be_left_out_of_the_sum() -> None:
    """With one unit less than the sum of the workers' bounds D2-5.1 is false: each may be reached at once."""
    claim = CLAIMS["D2-5.1"]
    tighter = Clause("W_g - W_f <= sum of B - 1", lambda o, w: getattr(w, "W_g - W_f") <= w.bound - 1)
    assert isinstance(prove(attrs.evolve(claim, conclusions=(tighter,))), Refuted)


@pytest.mark.parametrize("witness", list(witnesses()), ids=lambda witness: witness.theorem.id)
def test_its_bound_is_attained(witness: Witness) -> None:
    """The constant could not be smaller: a client's spread over two workers, and the sums over two workers."""
    assert attained(witness) == witness.bound_cost


@pytest.mark.parametrize("theorem", ["D2-gate", "D2-range", "D2-spread"])
def test_the_second_solver_agrees(theorem: str) -> None:
    """On the exported formulas."""
    assert [why for asked in questions(CLAIMS[theorem]) if (why := disagreement(asked))] == []
