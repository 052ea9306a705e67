"""Credit of one account that several gates spend, each what it has on lease. Read `gate` first."""

from fairsched.policies.gates.leased.gate import LeasedGate, leased, left_over, pooled, topped_up
from fairsched.policies.gates.leased.shared_account import (
    Credit,
    Holder,
    LeaseError,
    Renewal,
    Renewed,
    SharedAccount,
    Terms,
    left,
    renewed,
)

__all__ = [
    "Credit",
    "Holder",
    "LeaseError",
    "LeasedGate",
    "Renewal",
    "Renewed",
    "SharedAccount",
    "Terms",
    "leased",
    "left",
    "left_over",
    "pooled",
    "renewed",
    "topped_up",
]
