"""D2LPM: a deficit for each client and worker in front of DLPM workers. Read `router` first."""

from fairsched.policies.routers.d2lpm.credit import (
    D2_51,
    D2_52,
    D2_A4,
    D2_GATE,
    D2_RANGE,
    D2_REFILL,
    D2_ROUND,
    D2_SPREAD,
    SparseCredit,
)
from fairsched.policies.routers.d2lpm.router import D2LPM, D2LPMPrinted

__all__ = [
    "D2LPM", "D2_51", "D2_52", "D2_A4", "D2_GATE", "D2_RANGE", "D2_REFILL", "D2_ROUND", "D2_SPREAD", "D2LPMPrinted",
    "SparseCredit"
]  # fmt: skip
