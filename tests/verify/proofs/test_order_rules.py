"""Priority groups: what is proved is about the shipped rule, and every wrong rule falls."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from fairsched.model.theorem import Assumption
from fairsched.policies.orders.abilities import (
    GROUPS_RISE,
    QUOTA_POSITIVE,
    TURN_RESPECTED,
    picks_max,
    turns_max,
)
from fairsched.policies.orders.abilities import weighted_round_robin as turns
from fairsched.verify.logic import Claim, SampledClaim, counterexample_document, replay_counterexample, violations
from fairsched.verify.logic.counterexample import ChangedKernel
from fairsched.verify.logic.patching import variant
from fairsched.verify.mutation.kernels import MutationTarget, outcomes
from fairsched.verify.mutation.mutants import Fate
from fairsched.verify.proofs.orders import weighted_round_robin as turns_proofs
from fairsched.verify.proofs.orders import weighted_round_robin_bound as turns_bound
from fairsched.verify.solvers import Broken, Proved, prove

pytestmark = pytest.mark.kept

PROOFS = {turns: turns_proofs}
KERNELS: dict[ModuleType, tuple[Callable[..., Any], ...]] = {
    turns: (turns.chosen, turns.count, turns.turn_after, turns.taken_after),
}
NUMBERS = [claim.theorem.id for claim in turns_bound.claims()]
"""Theorems about priority groups that are about numbers alone."""
EACH_RULE = pytest.mark.parametrize("rule", PROOFS, ids=lambda rule: rule.__name__.rpartition(".")[2])


def _claims(rule: ModuleType, kernel: ModuleType | None = None) -> dict[str, Claim]:
    return {claim.theorem.id: claim for claim in PROOFS[rule].claims(kernel or rule)}


@EACH_RULE
def test_every_theorem_has_a_claim_about_a_kernel(rule: ModuleType) -> None:
    """What an order with the rule lists is what is proved, of text in the algebra's words."""
    claims = _claims(rule)
    assert {theorem.id for theorem in rule.THEOREMS} == {*claims, *(NUMBERS if rule is turns else ())}
    assert violations(KERNELS[rule]) == []
    assert set(KERNELS[rule]) == {kernel for claim in claims.values() for kernel in claim.system.kernels()}


@pytest.mark.parametrize(
    ("rule", "theorem", "assumption"),
    [
        *((turns, "PG-turns", each) for each in (TURN_RESPECTED, GROUPS_RISE, QUOTA_POSITIVE)),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_every_assumption_is_needed(rule: ModuleType, theorem: str, assumption: Assumption) -> None:
    """Admissions past what is due or past the turn, a request that falls, no quota: two requests or groups show it."""
    verdict = prove(_claims(rule)[theorem], dropped=frozenset({assumption}))
    assert isinstance(verdict, Broken)
    assert verdict.world.clients <= 2
    assert replay_counterexample(counterexample_document(verdict.world, PROOFS[rule].__name__)).confirmed


BUGS = {
    "the lowest group goes first": (turns, "chosen", "o.argmax", "o.argmin"),
    "a new round although some are left": (turns, "chosen", "o.none(left)", "o.any(queued)"),
    "none when the round is over": (turns, "chosen", "(left | o.none(left))", "left"),
    "a turn of one more": (turns, "turn_after", "counted >= quota", "counted > quota"),
    "turns are not counted": (turns, "count", "taken + 1", "taken"),
    "the turn is not handed on": (turns, "turn_after", "quota - 1", "quota"),
    "the next turn begins late": (turns, "taken_after", "quota, 0, counted", "quota, 1, counted"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_refuted_with_a_world(bug: str) -> None:
    """Some theorem falls, in a world of at most three requests or groups that replays from its file."""
    rule, function, old, new = BUGS[bug]
    kernel = variant(rule, function, old, new)
    refuted = [verdict for verdict in map(prove, _claims(rule, kernel).values()) if isinstance(verdict, Broken)]
    assert refuted
    for verdict in refuted:
        assert 1 <= verdict.world.clients <= 3
        changed = ChangedKernel(rule.__name__, function, inspect.getsource(getattr(kernel, function)))
        saved = counterexample_document(verdict.world, PROOFS[rule].__name__, changed)
        assert replay_counterexample(saved).confirmed


@EACH_RULE
def test_no_mutant_survives(rule: ModuleType) -> None:
    """Every small change breaks a theorem; one to priority groups may be proved to change nothing that can happen."""
    fates = [outcome.fate for outcome in outcomes(MutationTarget(rule, (PROOFS[rule],)))]
    assert fates.count(Fate.KILLED) > (50 if rule is turns else 0)
    assert set(fates) <= {Fate.KILLED, *([Fate.EQUIVALENT] if rule is turns else [])}


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_the_bound_is_reached(groups: int) -> None:
    """In every group and from every place the shipped queue lets a request wait as long as PG-1 says, and no longer."""
    whole = turns.round_picks(groups)
    for quota in range(1, groups + 1):
        for position in range(1, 2 * quota + 2):
            waits = [turns_bound.picks(groups, quota, position, offset) for offset in range(whole)]
            assert max(waits) == picks_max(position, turns_max(position, quota), quota, whole)


@pytest.mark.parametrize(
    "claim", [turns_bound.cold_request(), turns_bound.regrouped_request()], ids=lambda c: c.theorem.id
)
def test_what_ships_is_free_of_it(claim: SampledClaim) -> None:
    """The two loads that break the printed groups, in the shipped ones."""
    assert isinstance(prove(claim), Proved)
