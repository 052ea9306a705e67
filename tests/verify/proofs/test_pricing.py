"""U is enough and attained, for every capacity, length and rate."""

import pytest

from fairsched.verify.proofs.memory import pricing as pricing_proofs
from fairsched.verify.solvers import Proved, Refuted, prove

CLAIMS = {claim.theorem.id: claim for claim in pricing_proofs.claims()}


@pytest.mark.parametrize("name", CLAIMS)
def test_the_claim_holds_and_needs_its_assumptions(name: str) -> None:
    """Proved as stated; without any one assumption there are integers that break it."""
    claim = CLAIMS[name]
    assert isinstance(prove(claim), Proved)
    for assumption in claim.theorem.assumptions:
        assert isinstance(prove(claim, dropped=frozenset({assumption})), Refuted), assumption
