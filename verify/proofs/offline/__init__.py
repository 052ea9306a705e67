"""Proofs about prefix groups and batching thresholds."""

from types import ModuleType

from fairsched.verify.proofs.offline import prefix_groups, threshold

MODULES: tuple[ModuleType, ...] = (
    prefix_groups, threshold
)  # fmt: skip
"""The modules of proofs, in the order of the report."""

__all__ = ["MODULES"]
