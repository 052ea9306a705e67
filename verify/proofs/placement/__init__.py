"""Proofs and refutations about Aladdin's placement."""

from types import ModuleType


def modules() -> tuple[ModuleType, ...]:
    """Return the modules of proofs in this folder, in the order of the report."""
    from fairsched.verify.proofs.placement import aladdin, aladdin_fit

    return (aladdin_fit, aladdin)
