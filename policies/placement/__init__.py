"""Placement: which worker holds which request under latency objectives (`aladdin`), and worker sizes (`sizing`)."""

from fairsched.policies.placement.aladdin import (
    FOREVER_NS,
    GAMMA_WHOLE,
    LINES_EXACT,
    P_ALD_1,
    P_ALD_2,
    P_ALD_3,
    P_ALD_4,
    P_ALD_5,
    P_ALD_6,
    P_ALD_7,
    P_ALD_8,
    PREDICTIONS_BOUND,
    Aladdin,
    AladdinGrouped,
    AladdinPrinted,
    AladdinSplit,
    Believed,
    Member,
    PlacementBatch,
    Row,
    Rules,
    Wanted,
    joined,
    pack,
)
from fairsched.policies.placement.sizing import UNIT, Demand, Size, SizeFigures, size_figures, workers_for

__all__ = [
    "FOREVER_NS", "GAMMA_WHOLE", "LINES_EXACT", "PREDICTIONS_BOUND", "P_ALD_1", "P_ALD_2", "P_ALD_3", "P_ALD_4",
    "P_ALD_5", "P_ALD_6", "P_ALD_7", "P_ALD_8", "UNIT", "Aladdin", "AladdinGrouped", "AladdinPrinted",
    "AladdinSplit", "Believed", "Demand", "Member", "PlacementBatch", "Row", "Rules", "Size", "SizeFigures",
    "Wanted", "joined", "pack", "size_figures", "workers_for"
]  # fmt: skip
