"""Proofs about gates, with the runs that attain their bounds.  Read `deficit` first: it proves D-4.1."""

from types import ModuleType
from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.verify.proofs.gates.counter import counter_system
    from fairsched.verify.proofs.gates.deficit import ahead_at_most, apart_at_most, both, latency_in_time, same_credit
    from fairsched.verify.proofs.gates.deficit_runs import deficit_witness
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "ahead_at_most", "apart_at_most", "both", "counter_system", "deficit_witness", "latency_in_time",
    "modules", "same_credit"
]  # fmt: skip


def modules() -> tuple[ModuleType, ...]:
    """Return the modules of proofs in this folder, in the order of the report."""
    from fairsched.verify.proofs.gates import (
        bands,
        counter,
        deficit,
        deficit_runs,
        deficit_sharing,
        deficit_steps,
        hierarchical,
        in_batch,
        lease_runs,
        leases,
        phases,
        shared,
    )

    deficits = (deficit, deficit_steps, deficit_runs, deficit_sharing)
    return (*deficits, hierarchical, counter, shared, in_batch, bands, leases, lease_runs, phases)
