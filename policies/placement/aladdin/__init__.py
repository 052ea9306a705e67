"""Aladdin's placement: best fit of requests into workers under latency objectives. Read `policy` first."""

from fairsched.policies.placement.aladdin.limits import (
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
    P_ALD_9,
    PREDICTIONS_BOUND,
    Amount,
    profile_of,
    profile_slack,
)
from fairsched.policies.placement.aladdin.placement_batch import FOREVER_NS, PlacementBatch, Row, Rules, Wanted, pack
from fairsched.policies.placement.aladdin.placement_state import Believed, Member, joined
from fairsched.policies.placement.aladdin.policy import Aladdin, AladdinGrouped, AladdinPrinted, AladdinSplit

__all__ = [
    "FOREVER_NS", "GAMMA_WHOLE", "LINES_EXACT", "PREDICTIONS_BOUND", "P_ALD_1", "P_ALD_2", "P_ALD_3", "P_ALD_4",
    "P_ALD_5", "P_ALD_6", "P_ALD_7", "P_ALD_8", "P_ALD_9", "Aladdin", "AladdinGrouped", "AladdinPrinted",
    "AladdinSplit", "Amount", "Believed", "Member", "PlacementBatch", "Row", "Rules", "Wanted", "joined", "pack",
    "profile_of", "profile_slack"
]  # fmt: skip
