"""Bounded search tells a bug, with a run from the start, from an invariant that is merely too weak."""

from typing import Any

import attrs
import pytest

from fairsched.policies.gates import counter, deficit
from fairsched.verify.logic import Claim, Document, replay_counterexample
from fairsched.verify.logic.patching import variant
from fairsched.verify.proofs.gates import counter as counter_proofs
from fairsched.verify.proofs.gates import deficit as deficit_proofs
from fairsched.verify.solvers import Broken, prove
from fairsched.verify.solvers.bounded_model_checking import NotReached, reach

pytestmark = pytest.mark.kept


def _claim(proofs: Any, kernel: Any, theorem: str) -> Claim:
    found: Claim = next(claim for claim in proofs.claims(kernel) if claim.theorem.id == theorem)
    return found


@pytest.mark.parametrize(
    ("module", "proofs", "bug", "theorem", "events"),
    [
        (deficit, deficit_proofs, ("in_credit", "q > 0", "q >= 0"), "D-range", 2),
        (counter, counter_proofs, ("level", "o.pick(c, last, 0)", "0"), "V-4.3", 4),
        (counter, counter_proofs, ("choose", "argmin", "argmax"), "V-4.4", 2),
    ],
)
def test_a_bug_has_a_run_from_the_start(
    module: Any, proofs: Any, bug: tuple[str, str, str], theorem: str, events: int
) -> None:
    """A shortest one, of at most 3 clients, that both running interpretations confirm event by event."""
    claim = _claim(proofs, variant(module, *bug), theorem)
    verdict = prove(claim)
    assert isinstance(verdict, Broken)
    found = reach(claim, proofs.__name__, verdict.world.broken)
    assert isinstance(found, Document)
    assert found.from_start
    assert found.clients <= 3
    assert len(found.events) <= events
    replayed = replay_counterexample(found, claim)
    assert set(replayed.broken) & set(verdict.world.broken)
    assert len(replayed.states) == len(found.events) + 1


def test_what_is_true_is_not_reached_and_the_scope_is_said() -> None:
    """The shipped gate: no state outside the range in 3 events of 2 clients."""
    claim = _claim(deficit_proofs, deficit, "D-range")
    found = reach(claim, deficit_proofs.__name__, clients=2, events=3)
    assert isinstance(found, NotReached)
    assert str(found) == "not reachable in at most 3 events with at most 2 clients"


def test_an_invariant_that_is_too_weak_is_told_from_a_bug() -> None:
    """D-range without the reserve in its invariant is not inductive, and yet no run breaks it."""
    claim = _claim(deficit_proofs, deficit, "D-range")
    weak = attrs.evolve(claim, invariants=claim.invariants[1:] + claim.conclusions)
    verdict = prove(weak)
    assert isinstance(verdict, Broken)
    found = reach(weak, deficit_proofs.__name__, verdict.world.broken, clients=2, events=3)
    assert isinstance(found, NotReached)
    assert not found.undecided


def test_an_exhausted_budget_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """With next to no budget nothing is claimed to be unreachable."""
    monkeypatch.setattr("fairsched.verify.solvers.prover.RLIMIT", 1)
    found = reach(_claim(counter_proofs, counter, "V-4.4"), counter_proofs.__name__, clients=2, events=2)
    assert isinstance(found, NotReached)
    assert found.undecided
    assert "not decided beyond" in str(found)
