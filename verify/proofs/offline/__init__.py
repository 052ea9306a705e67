"""Proofs about prefix groups and batching thresholds."""

from types import ModuleType


def modules() -> tuple[ModuleType, ...]:
    """Return the modules of proofs in this folder, in the order of the report."""
    from fairsched.verify.proofs.offline import prefix_groups, threshold

    return (prefix_groups, threshold)
