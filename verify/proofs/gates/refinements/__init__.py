"""Gates to which more happens: one looks at every step (`in_batch`), or several spend credit of one account (`leases`,
`lease_holders`, `lease_messages`).
"""

from types import ModuleType


def modules() -> tuple[ModuleType, ...]:
    """Return the modules of proofs in this folder, in the order of the report."""
    from fairsched.verify.proofs.gates.refinements import (
        admission,
        bands,
        in_batch,
        lease_holders,
        lease_messages,
        lease_scenarios,
        lease_witnesses,
        leases,
    )

    return (
        in_batch, admission, bands, lease_holders, leases, lease_messages, lease_witnesses,
        lease_scenarios
    )  # fmt: skip
