"""One deficit of a client for all workers of a cluster. Read `gate` first."""

from fairsched.policies.gates.shared.gate import (
    D2_GIFT,
    D2_GLOBAL,
    D2_LAG,
    D2_MEMORY,
    D2_PLACES,
    D2_STALE,
    D2_STEAL,
    D2_TOGETHER,
    D2_UNSENT,
    GlobalDeficitGate,
    GlobalState,
    waits,
)

__all__ = [
    "D2_GIFT", "D2_GLOBAL", "D2_LAG", "D2_MEMORY", "D2_PLACES", "D2_STALE", "D2_STEAL", "D2_TOGETHER", "D2_UNSENT",
    "GlobalDeficitGate", "GlobalState", "waits"
]  # fmt: skip
