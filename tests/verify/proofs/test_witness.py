"""Bounds are attained by runs of real admissions, and a run that cheats is none."""

import attrs
import pytest

from fairsched.verify.logic import NotAWitness, Witness, attained
from fairsched.verify.proofs import gate_claims, witnesses
from fairsched.verify.proofs.gates import deficit_witness


@pytest.mark.parametrize("witness", witnesses(), ids=lambda witness: witness.theorem.id)
def test_the_bound_is_attained_exactly(witness: Witness) -> None:
    """What the run reaches is the proved constant, in the numpy and in the exact interpretation of the kernel."""
    assert attained(witness) == witness.bound_cost


def test_a_run_that_charges_more_than_it_reserved_is_no_witness() -> None:
    """Every hypothesis of every event is checked."""
    honest = deficit_witness()
    greedy = attrs.evolve(honest, steps=(*honest.steps, ("decode", {"d": (1, 0)})))
    with pytest.raises(NotAWitness, match="not permitted"):
        attained(greedy)


def test_every_bound_of_a_client_has_a_witness() -> None:
    """Whatever has a constant in cost units is attained; counts of admissions rest on those."""
    bounded = {claim.theorem.id for claim in gate_claims() if claim.theorem.bound_cost is not None}
    assert bounded - {"D-starvation"} <= {witness.theorem.id for witness in witnesses()}


def test_a_run_that_begins_its_interval_elsewhere_is_no_witness() -> None:
    """The claim's start is checked where the interval begins."""
    honest = deficit_witness()
    with pytest.raises(NotAWitness, match="starts without"):
        attained(attrs.evolve(honest, snapshots={}))
