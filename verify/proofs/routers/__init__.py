"""Proofs about routers, most of them on symbolic integers. Read `load_based` first."""

from types import ModuleType


def modules() -> tuple[ModuleType, ...]:
    """Return the modules of proofs in this folder, in the order of the report."""
    from fairsched.verify.proofs.routers import (
        d2lpm,
        e2,
        llumnix,
        load_based,
        phases,
        sal,
        splitwise,
        valley_filling,
    )

    return (load_based, sal, llumnix, d2lpm, splitwise, phases, e2, valley_filling)
