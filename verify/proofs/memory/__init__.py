"""Proofs about a worker's memory, host memory and prices."""

from typing import TYPE_CHECKING

from fairsched.model.lazy import lazy_exports

if TYPE_CHECKING:
    from fairsched.verify.proofs.memory.adapters import SLOT_THEOREMS
    from fairsched.verify.proofs.memory.pricing import PRICING_THEOREMS, staggered_as_printed, with_contracts
    from fairsched.verify.proofs.memory.quota import QUOTA_THEOREMS
    from fairsched.verify.proofs.memory.transit import books_claim
    from fairsched.verify.proofs.memory.window import WINDOW_THEOREMS
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "PRICING_THEOREMS", "QUOTA_THEOREMS", "SLOT_THEOREMS", "WINDOW_THEOREMS", "books_claim", "staggered_as_printed",
    "with_contracts"
]  # fmt: skip
