"""The attempt at D-request: the bound holds for a rule with a budget, and falls without one."""

import pytest

from fairsched.model.algebra import Algebra, Mask, Point, Scalar, Vector
from fairsched.verify import bypass_proofs, prover
from fairsched.verify.guard import violations
from fairsched.verify.prover import Proved, Refuted


def test_a_request_waits_for_its_budget_and_for_older_ones() -> None:
    """For any number of requests, arrivals and scores."""
    assert isinstance(prover.prove(bypass_proofs.claim()), Proved)
    assert violations([bypass_proofs.choose]) == []


def _by_score(o: Algebra, waits: Mask, score: Vector, age: Vector, bypassed: Vector, budget: Scalar) -> Point:
    return o.argmax(score, waits)


def _any_due(o: Algebra, waits: Mask, score: Vector, age: Vector, bypassed: Vector, budget: Scalar) -> Point:
    due = waits & (bypassed >= budget)
    return o.argmin(-score, due | (waits & o.none(due)))


@pytest.mark.parametrize("rule", [_by_score, _any_due])
def test_without_the_budget_or_its_order_it_waits_longer(rule: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Best score always, or any of those whose budget is used up instead of the oldest."""
    monkeypatch.setattr(bypass_proofs, "choose", rule)
    assert isinstance(prover.prove(bypass_proofs.claim()), Refuted)
