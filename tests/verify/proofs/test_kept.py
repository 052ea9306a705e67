"""KV that is kept for a program between its calls: what it may cost others is proved, and needs what it assumes."""

from typing import Any

import pytest

from fairsched.verify.proofs.memory import kept
from fairsched.verify.solvers import Proved, Refuted, prove

CLAIMS = {claim.theorem.id: claim for claim in kept.claims()}


@pytest.mark.parametrize("name", CLAIMS)
def test_it_holds_and_needs_what_it_assumes(name: str) -> None:
    """For all numbers, and in drawn worlds for the cache that ships."""
    claim: Any = CLAIMS[name]
    assert isinstance(prove(claim), Proved)
    assert claim.droppable <= set(claim.theorem.assumptions)
    for assumption in claim.droppable:
        assert isinstance(prove(claim, dropped=frozenset({assumption})), Refuted), assumption.name


def test_the_time_is_attained() -> None:
    """A prefix that is used T after the end of a kept call still goes first; one that is used later stays."""
    attained = CLAIMS["KV-outlives"].attained
    assert attained is not None
    reached, bound = attained()
    assert reached == bound > 0
