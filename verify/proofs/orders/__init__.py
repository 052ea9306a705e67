"""Proofs about orders: starvation, priority groups, preemption."""

from types import ModuleType

from fairsched.verify.proofs.orders import (
    ageing,
    batches,
    larry,
    predicted_batches,
    preemption,
    virtual_finish,
    weighted_round_robin,
    weighted_round_robin_bound,
)
from fairsched.verify.proofs.orders.scenarios import WORLDS, Step, steps

MODULES: tuple[ModuleType, ...] = (
    weighted_round_robin, weighted_round_robin_bound, larry, ageing, predicted_batches, batches, virtual_finish,
    preemption
)  # fmt: skip
"""The modules of proofs, in the order of the report."""

__all__ = ["MODULES", "WORLDS", "Step", "steps"]
