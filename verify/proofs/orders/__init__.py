"""Proofs about orders: starvation, priority groups, preemption."""

from typing import TYPE_CHECKING

from fairsched.model.lazy import lazy_exports

if TYPE_CHECKING:
    from fairsched.verify.proofs.orders.scenarios import WORLDS, Step, steps
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["WORLDS", "Step", "steps"]
