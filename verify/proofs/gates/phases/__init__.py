"""Gates before prefill and decode workers: `bounds` proves S-gap, `scenarios` refutes gates of their own."""

from types import ModuleType

from fairsched.verify.proofs.gates.phases import bounds, scenarios

MODULES: tuple[ModuleType, ...] = (
    bounds, scenarios
)  # fmt: skip
"""The modules of proofs, in the order of the report."""

__all__ = ["MODULES"]
