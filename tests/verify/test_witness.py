"""Bounds are attained by runs of real admissions, and a run that cheats is none."""

import attrs
import pytest

from fairsched.verify.witness import NotAWitness, Witness, attained, deficit_witness, witnesses


@pytest.mark.parametrize("witness", witnesses(), ids=lambda witness: witness.theorem.id)
def test_the_bound_is_attained_exactly(witness: Witness) -> None:
    """The run's gap is the proved constant, in the numpy and in the exact interpretation of the kernel."""
    assert attained(witness) == witness.bound_cost


def test_a_run_that_charges_more_than_it_reserved_is_no_witness() -> None:
    """Every hypothesis of every event is checked."""
    honest = deficit_witness()
    greedy = attrs.evolve(honest, steps=(*honest.steps, ("decode", {"d": (1, 0)})))
    with pytest.raises(NotAWitness, match="not permitted"):
        attained(greedy)
