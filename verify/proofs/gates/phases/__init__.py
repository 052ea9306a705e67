"""Gates before prefill and decode workers: `bounds` proves S-gap, `scenarios` refutes gates of their own."""

from types import ModuleType


def modules() -> tuple[ModuleType, ...]:
    """Return the modules of proofs in this folder, in the order of the report."""
    from fairsched.verify.proofs.gates.phases import bounds, scenarios

    return (bounds, scenarios)
