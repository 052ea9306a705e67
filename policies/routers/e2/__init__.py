"""E2 of Preble: exploitation of cached prefixes against exploration of idle workers. Read `router` first."""

from fairsched.policies.routers.e2.choice import (
    COST_AT_MOST,
    EQUAL_MISS,
    F_E2_1,
    F_E2_2,
    F_E2_3,
    F_E2_4,
    F_E2_5,
    NOTHING_EXPIRES,
    P_E2_1,
    P_E2_2,
    P_E2_3,
    P_E2_4,
    P_E2_5,
    P_E2_6,
    P_E2_7,
    STARTS_WITHIN,
    THRESHOLD_AT_LEAST_ONE,
    cheapest,
    exploits,
    is_heavy,
    lightest,
    rebalanced,
    split,
)
from fairsched.policies.routers.e2.history import History, PlacedPrompt
from fairsched.policies.routers.e2.router import E2, Choice, E2Printed, E2State

__all__ = [
    "COST_AT_MOST", "E2", "EQUAL_MISS", "F_E2_1", "F_E2_2", "F_E2_3", "F_E2_4", "F_E2_5", "NOTHING_EXPIRES", "P_E2_1",
    "P_E2_2", "P_E2_3", "P_E2_4", "P_E2_5", "P_E2_6", "P_E2_7", "STARTS_WITHIN", "THRESHOLD_AT_LEAST_ONE", "Choice",
    "E2Printed", "E2State", "History", "PlacedPrompt", "cheapest", "exploits", "is_heavy", "lightest", "rebalanced",
    "split"
]  # fmt: skip
