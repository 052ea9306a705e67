"""Proofs about orders, and about the pass that admits in their order: starvation, priority groups, preemption."""

from types import ModuleType
from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.verify.proofs.orders.scenarios import WORLDS, ScenarioStep, steps
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["WORLDS", "ScenarioStep", "modules", "steps"]


def modules() -> tuple[ModuleType, ...]:
    """Return the modules of proofs in this folder, in the order of the report."""
    from fairsched.verify.proofs.orders import (
        admission,
        ageing,
        batches,
        deadlines,
        larry,
        least_attained,
        predicted_batches,
        preemption,
        programs,
        shortest_prefill,
        virtual_finish,
        weighted_round_robin,
        weighted_round_robin_bound,
    )

    return (
        weighted_round_robin, weighted_round_robin_bound, larry, ageing, deadlines, shortest_prefill, least_attained,
        predicted_batches, batches, virtual_finish, programs, preemption, admission
    )  # fmt: skip
