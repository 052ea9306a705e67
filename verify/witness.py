"""Every run that attains a bound of a shipped gate, or of a swap of gates."""

from fairsched.verify import witness_counter, witness_deficit, witness_migrate
from fairsched.verify.witness_run import NotAWitness, Witness, attained

__all__ = ["NotAWitness", "Witness", "attained", "witnesses"]


def witnesses() -> tuple[Witness, ...]:
    """One run a bound, in the order of the report."""
    return (*witness_deficit.witnesses(), *witness_counter.witnesses(), *witness_migrate.witnesses())
