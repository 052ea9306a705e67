"""Placement: which worker holds which request under latency objectives (`aladdin`), and worker sizes (`sizing`)."""

from fairsched.policies.placement.aladdin import Aladdin, AladdinGrouped, AladdinPrinted, AladdinSplit
from fairsched.policies.placement.sizing import UNIT, Demand, Size, SizeFigures, size_figures, workers_for

__all__ = [
    "UNIT", "Aladdin", "AladdinGrouped", "AladdinPrinted", "AladdinSplit", "Demand", "Size", "SizeFigures",
    "size_figures", "workers_for"
]  # fmt: skip
