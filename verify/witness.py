"""Every run that attains a bound of a shipped gate, of a swap of gates, or of D2LPM."""

from fairsched.verify import (
    witness_counter,
    witness_d2lpm,
    witness_deficit,
    witness_global,
    witness_hierarchical,
    witness_migrate,
)
from fairsched.verify.witness_run import NotAWitness, Witness, attained

__all__ = ["NotAWitness", "Witness", "attained", "witnesses"]


def witnesses() -> tuple[Witness, ...]:
    """One run a bound, in the order of the report."""
    modules = (witness_deficit, witness_hierarchical, witness_counter, witness_migrate, witness_global, witness_d2lpm)
    return tuple(witness for module in modules for witness in module.witnesses())
