"""Proofs about a worker's memory, host memory and prices."""

from types import ModuleType
from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.verify.proofs.memory.adapters import SLOT_THEOREMS
    from fairsched.verify.proofs.memory.pricing import PRICING_THEOREMS, staggered_as_printed, with_contracts
    from fairsched.verify.proofs.memory.quota import QUOTA_THEOREMS
    from fairsched.verify.proofs.memory.transit import books_claim
    from fairsched.verify.proofs.memory.window import WINDOW_THEOREMS
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "PRICING_THEOREMS", "QUOTA_THEOREMS", "SLOT_THEOREMS", "WINDOW_THEOREMS", "books_claim", "modules",
    "staggered_as_printed", "with_contracts"
]  # fmt: skip


def modules() -> tuple[ModuleType, ...]:
    """Return the modules of proofs in this folder, in the order of the report."""
    from fairsched.verify.proofs.memory import (
        adapters,
        books,
        int64,
        kept,
        memory,
        moves,
        prefill_batches,
        pricing,
        quota,
        reservation,
        seconds,
        swap,
        transit,
        window,
    )

    return (
        int64, books, memory, prefill_batches, pricing, swap, transit, moves, reservation, kept, window, quota,
        seconds, adapters
    )  # fmt: skip
