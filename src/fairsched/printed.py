"""Policies and routers as papers print them and as their code was released, to be compared with those that ship.

They have the faults of their sources: a printed rejoin rule that loses debt, a released threshold that differs.
"""

from fairsched.policies.catalog import (
    DistServeLocalReleased,
    DLPMPrinted,
    LARRYPrinted,
    PreblePrinted,
    TetriInferLocalPrinted,
)
from fairsched.policies.placement import AladdinPrinted
from fairsched.policies.routers import (
    D2LPMPrinted,
    DistServeReleased,
    E2Printed,
    SALPrinted,
    SplitwisePrinted,
    SplitwiseReleased,
    TetriInferPrinted,
)

__all__ = [
    "AladdinPrinted", "D2LPMPrinted", "DLPMPrinted", "DistServeLocalReleased", "DistServeReleased", "E2Printed",
    "LARRYPrinted", "PreblePrinted", "SALPrinted", "SplitwisePrinted", "SplitwiseReleased", "TetriInferLocalPrinted",
    "TetriInferPrinted"
]  # fmt: skip
