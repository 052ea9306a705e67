"""The wait in a priority group is proved about the shipped rule, reached, and broken by every wrong rule."""

import inspect
from collections.abc import Mapping
from typing import Any

import pytest

from fairsched.policies.orders.abilities import GROUPS_RISE, QUOTA_POSITIVE, TURN_RESPECTED, picks_max, turns_max
from fairsched.policies.orders.abilities import weighted_round_robin as turns
from fairsched.policies.orders.abilities.weighted_round_robin import THEOREMS
from fairsched.verify.logic import Claim, SampledClaim, counterexample_document, replay_counterexample, violations
from fairsched.verify.logic.counterexample import ChangedKernel
from fairsched.verify.logic.patching import variant
from fairsched.verify.mutation.kernels import Target, outcomes
from fairsched.verify.mutation.mutants import Fate
from fairsched.verify.proofs.orders import weighted_round_robin as turns_proofs
from fairsched.verify.proofs.orders import weighted_round_robin_bound as turns_bound
from fairsched.verify.solvers import Proved, Refuted, prove

CLAIMS = {claim.theorem.id: claim for claim in turns_proofs.claims()}
NUMBERS = {claim.theorem.id: claim for claim in turns_bound.claims()}


@pytest.mark.parametrize("name", CLAIMS)
def test_the_rule_keeps_its_theorems(name: str) -> None:
    """For any number of groups, any distinct quotas, and whatever comes, rises and gives up."""
    assert isinstance(prove(CLAIMS[name]), Proved)


@pytest.mark.parametrize("name", NUMBERS)
def test_the_bound_follows(name: str) -> None:
    """For any place, group and number of groups."""
    assert isinstance(prove(NUMBERS[name]), Proved)


def test_every_theorem_has_a_claim_about_what_ships() -> None:
    """What the order lists is what is proved, of text in the algebra's words."""
    assert {theorem.id for theorem in THEOREMS} == {*CLAIMS, *NUMBERS}
    kernels = (turns.chosen, turns.count, turns.turn_after, turns.taken_after)
    assert violations(kernels) == []
    assert set(kernels) == {kernel for claim in CLAIMS.values() for kernel in claim.system.kernels()}


@pytest.mark.parametrize("assumption", [TURN_RESPECTED, GROUPS_RISE, QUOTA_POSITIVE], ids=lambda each: each.name)
def test_every_assumption_is_needed(assumption: Any) -> None:
    """Admissions past the turn, a request that falls, a group without a quota: each breaks PG-turns in two groups."""
    verdict = prove(CLAIMS["PG-turns"], dropped=frozenset({assumption}))
    assert isinstance(verdict, Refuted)
    assert verdict.world.clients <= 2
    assert replay_counterexample(counterexample_document(verdict.world, turns_proofs.__name__)).confirmed


BUGS = {
    "the lowest group goes first": ("chosen", "o.argmax", "o.argmin"),
    "a new round although some are left": ("chosen", "o.none(left)", "o.any(queued)"),
    "none when the round is over": ("chosen", "(left | o.none(left))", "left"),
    "a turn of one more": ("turn_after", "counted >= quota", "counted > quota"),
    "turns are not counted": ("count", "taken + 1", "taken"),
    "the turn is not handed on": ("turn_after", "quota - 1", "quota"),
    "the next turn begins late": ("taken_after", "quota, 0, counted", "quota, 1, counted"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_refuted_with_a_world(bug: str) -> None:
    """Some theorem falls, in a world of at most three groups that replays from its file."""
    function, old, new = BUGS[bug]
    kernel = variant(turns, function, old, new)
    claims: Mapping[str, Claim] = {claim.theorem.id: claim for claim in turns_proofs.claims(kernel)}
    refuted = [verdict for verdict in map(prove, claims.values()) if isinstance(verdict, Refuted)]
    assert refuted
    for verdict in refuted:
        assert 1 <= verdict.world.clients <= 3
        changed = ChangedKernel(turns.__name__, function, inspect.getsource(getattr(kernel, function)))
        assert replay_counterexample(counterexample_document(verdict.world, turns_proofs.__name__, changed)).confirmed


def test_no_mutant_survives() -> None:
    """Every small change to the rule breaks a theorem, or is proved to change nothing that can happen."""
    fates = [outcome.fate for outcome in outcomes(Target(turns, (turns_proofs,)))]
    assert fates.count(Fate.KILLED) > 50
    assert set(fates) <= {Fate.KILLED, Fate.EQUIVALENT}


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
