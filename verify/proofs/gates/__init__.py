"""Proofs about gates, with the runs that attain their bounds.  Read `deficit` first: it proves D-4.1."""

from types import ModuleType
from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.verify.proofs.gates.counter import counter_system
    from fairsched.verify.proofs.gates.deficit import ahead_at_most, apart_at_most, both, same_credit
    from fairsched.verify.proofs.gates.deficit_progress import latency_in_time
    from fairsched.verify.proofs.gates.deficit_witnesses import deficit_witness
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "ahead_at_most", "apart_at_most", "both", "counter_system", "deficit_witness", "latency_in_time",
    "modules", "same_credit"
]  # fmt: skip


def modules() -> tuple[ModuleType, ...]:
    """Return the modules of proofs in this folder, in the order of the report."""
    from fairsched.verify.proofs.gates import (
        changes,
        counter,
        counter_waits,
        deficit,
        deficit_progress,
        deficit_sharing,
        deficit_steps,
        deficit_witnesses,
        hierarchical,
        hierarchical_families,
        phases,
        refinements,
        shared,
        shared_workers,
    )

    return (
        deficit, deficit_steps, deficit_progress, deficit_witnesses, deficit_sharing, hierarchical,
        hierarchical_families, counter, counter_waits, changes, shared_workers, shared, *refinements.modules(),
        *phases.modules()
    )  # fmt: skip
