"""Splitwise's cluster scheduler: pools of prompt, token and mixed machines.  Read `pools` first; `policy` chooses pairs
of machines.
"""

from fairsched.policies.routers.splitwise.policy import (
    EQUAL_LAYERS,
    P_SW_3,
    Splitwise,
    SplitwisePrinted,
    SplitwiseReleased,
    visible_ns,
)
from fairsched.policies.routers.splitwise.pools import P_SW_1, Machine, Pair, Pools, pool_of

__all__ = [
    "EQUAL_LAYERS", "P_SW_1", "P_SW_3", "Machine", "Pair", "Pools", "Splitwise", "SplitwisePrinted",
    "SplitwiseReleased", "pool_of", "visible_ns"
]  # fmt: skip
