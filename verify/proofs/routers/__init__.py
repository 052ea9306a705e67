"""Proofs about routers, most of them on symbolic integers. Read `load_based` first."""

from types import ModuleType

from fairsched.verify.proofs.routers import d2lpm, e2, llumnix, load_based, phases, sal, splitwise

MODULES: tuple[ModuleType, ...] = (
    load_based, sal, llumnix, d2lpm, splitwise, phases, e2
)  # fmt: skip
"""The modules of proofs, in the order of the report."""

__all__ = ["MODULES"]
