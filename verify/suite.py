"""Which claims there are about the shipped gates."""

from fairsched.verify import (
    bypass_proofs,
    change_proofs,
    counter_kernel_proofs,
    counter_proofs,
    counter_wait_proofs,
    counter_worker_proofs,
    deficit_cap_proofs,
    deficit_kernel_proofs,
    deficit_progress_proofs,
    deficit_proofs,
    deficit_rejoin_proofs,
    int64_proofs,
    memory_proofs,
    migrate_proofs,
    pricing_proofs,
    staggered_proofs,
    wait_proofs,
)
from fairsched.verify.pricing_proofs import ArithmeticClaim
from fairsched.verify.system import Claim


def gate_claims() -> tuple[Claim, ...]:
    """Every claim about a shipped gate, in the order of the report."""
    return (
        *deficit_proofs.claims(),
        *deficit_rejoin_proofs.claims(),
        *deficit_kernel_proofs.claims(),
        *deficit_progress_proofs.claims(),
        *deficit_cap_proofs.claims(),
        *counter_proofs.claims(),
        *counter_kernel_proofs.claims(),
        *counter_wait_proofs.claims(),
        *counter_worker_proofs.claims(),
        *wait_proofs.claims(),
        *change_proofs.claims(),
        *migrate_proofs.claims(),
        *int64_proofs.claims(),
        *bypass_proofs.claims(),
        *memory_proofs.claims(),
    )


def arithmetic_claims() -> tuple[ArithmeticClaim, ...]:
    """Every claim about integers only: prices, U, and the shipped accounting of memory on symbolic integers."""
    return (*pricing_proofs.claims(), *memory_proofs.arithmetic_claims(), *staggered_proofs.claims())
