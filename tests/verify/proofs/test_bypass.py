"""The bypass budget is proved about the shipped rule, and a rule that is wrong by one, or never counts, is refuted."""

import inspect
from typing import Any

import pytest

from fairsched.policies.orders.abilities import DUE_RESPECTED, bypass
from fairsched.policies.orders.abilities.bypass import THEOREMS
from fairsched.policies.registry import LOCAL_POLICIES, with_parameters
from fairsched.verify.logic import Claim, counterexample_document, replay_counterexample, violations
from fairsched.verify.logic.counterexample import ChangedKernel
from fairsched.verify.logic.patching import variant
from fairsched.verify.mutation.kernels import Target, outcomes
from fairsched.verify.mutation.mutants import Fate
from fairsched.verify.proofs.orders import bypass as bypass_proofs
from fairsched.verify.report import values as report
from fairsched.verify.report.scope import subject
from fairsched.verify.solvers import Proved, Refuted, prove

CLAIMS = {claim.theorem.id: claim for claim in bypass_proofs.claims()}


@pytest.mark.parametrize("name", CLAIMS)
def test_the_rule_keeps_its_theorems(name: str) -> None:
    """For any number of requests, arrivals, returns and scores."""
    assert isinstance(prove(CLAIMS[name]), Proved)


def test_every_theorem_has_a_claim_about_a_kernel() -> None:
    """What an order with a budget lists is what is proved, of text in the algebra's words."""
    assert {theorem.id for theorem in THEOREMS} == set(CLAIMS)
    kernels = (bypass.place, bypass.gone, bypass.due, bypass.head)
    assert violations(kernels) == []
    assert set(kernels) == {kernel for claim in CLAIMS.values() for kernel in claim.system.kernels()}


def test_without_respect_for_who_is_due_nothing_holds() -> None:
    """A fallback that admits past a due request breaks D-request, and the world replays."""
    verdict = prove(CLAIMS["D-request"], dropped=frozenset({DUE_RESPECTED}))
    assert isinstance(verdict, Refuted)
    assert verdict.world.clients == 2
    assert replay_counterexample(counterexample_document(verdict.world, bypass_proofs.__name__)).confirmed


@pytest.mark.parametrize("name", ["lpm", "dlpm", "shortest-prompt"])
def test_a_policy_has_the_theorems_if_it_has_a_budget(name: str) -> None:
    """`fairsched verify` decides them for that policy, and claims none of them for one without."""
    shipped = LOCAL_POLICIES[name]
    for given, expected in (({"bypass_budget": "4"}, set(CLAIMS)), ({}, set())):
        planned = report.plan([subject(name, with_parameters(shipped, given))])
        assert {each.theorem.id for each in planned.planned} & set(CLAIMS) == expected
        assert not planned.missing


BUGS = {
    "never counting": ("gone", "left + 1", "left"),
    "counting twice": ("gone", "left + 1", "left + 2"),
    "off by one, late": ("due", ">=", ">"),
    "off by one, early": ("due", "left - oldest", "left - oldest + 1"),
    "a place too far ahead": ("place", "left + waiting", "waiting"),
    "the best although the oldest is due": ("head", "is_due, oldest, best", "is_due, best, oldest"),
}


def _claims(kernel: Any) -> dict[str, Claim]:
    return {claim.theorem.id: claim for claim in bypass_proofs.claims(kernel)}


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_refuted_with_a_world(bug: str) -> None:
    """Some theorem falls, in a world of at most three requests that replays from its file."""
    function, old, new = BUGS[bug]
    kernel = variant(bypass, function, old, new)
    verdicts = [prove(claim) for claim in _claims(kernel).values()]
    refuted = [verdict for verdict in verdicts if isinstance(verdict, Refuted)]
    assert refuted
    for verdict in refuted:
        assert 1 <= verdict.world.clients <= 3
        changed = ChangedKernel(bypass.__name__, function, inspect.getsource(getattr(kernel, function)))
        assert replay_counterexample(counterexample_document(verdict.world, bypass_proofs.__name__, changed)).confirmed


def test_lateness_by_one_breaks_the_bound_itself() -> None:
    """With `>` for `>=` one request more is let in before r than D-request allows."""
    late = variant(bypass, "due", ">=", ">")
    verdict = prove(_claims(late)["D-request"])
    assert isinstance(verdict, Refuted)
    assert verdict.world.obligation == "let in"


def test_no_mutant_survives() -> None:
    """Every small change to the rule breaks a theorem."""
    found = list(outcomes(Target(bypass, (bypass_proofs,))))
    assert found
    assert {outcome.fate for outcome in found} == {Fate.KILLED}
