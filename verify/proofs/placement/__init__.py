"""Proofs and refutations about Aladdin's placement."""

from types import ModuleType

from fairsched.verify.proofs.placement import aladdin, aladdin_fit

MODULES: tuple[ModuleType, ...] = (
    aladdin_fit, aladdin
)  # fmt: skip
"""The modules of proofs, in the order of the report."""

__all__ = ["MODULES"]
