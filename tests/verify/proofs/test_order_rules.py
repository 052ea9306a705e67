"""Priority groups: every wrong rule falls, the bound is reached, and what ships is free of what breaks the printed
ones."""

import pytest

from fairsched.policies.orders.abilities import picks_max, turns_max
from fairsched.policies.orders.abilities import weighted_round_robin as turns
from fairsched.verify.mutation.kernels import MutationTarget, outcomes
from fairsched.verify.mutation.mutants import Fate
from fairsched.verify.proofs.orders import weighted_round_robin, weighted_round_robin_bound
from fairsched.verify.solvers import Proved, prove

pytestmark = pytest.mark.kept


def test_no_mutant_survives() -> None:
    """Every small change breaks a theorem, or is proved to change nothing that can happen."""
    fates = [outcome.fate for outcome in outcomes(MutationTarget(turns, (weighted_round_robin,)))]
    assert fates.count(Fate.KILLED) > 50
    assert set(fates) <= {Fate.KILLED, Fate.EQUIVALENT}


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_the_bound_is_reached(groups: int) -> None:
    """In every group and from every place the shipped queue lets a request wait as long as PG-1 says, and no longer."""
    whole = turns.round_picks(groups)
    for quota in range(1, groups + 1):
        for position in range(1, 2 * quota + 2):
            waits = [weighted_round_robin_bound.picks(groups, quota, position, offset) for offset in range(whole)]
            assert max(waits) == picks_max(position, turns_max(position, quota), quota, whole)


def test_what_ships_is_free_of_it() -> None:
    """The load that breaks groups that follow the cache down breaks no bound of the shipped ones."""
    claim = weighted_round_robin_bound.regrouped_request()
    assert isinstance(prove(claim), Proved)
