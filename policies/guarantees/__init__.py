"""What a configuration promises, the monitor that holds a gate to it, and budgets that no call exceeds (`quota`). Read
`guarantee` first.
"""

from fairsched.policies.guarantees import quota
from fairsched.policies.guarantees.gate_monitor import GateMonitor
from fairsched.policies.guarantees.guarantee import GateGuarantee, bound_terms, wait_bound_cost
from fairsched.policies.guarantees.quota import (
    NOTHING,
    WINDOWS,
    Answer,
    Budget,
    End,
    Ledger,
    Operation,
    Quota,
    Refused,
    Reserve,
    Reserved,
    Spent,
    advanced,
    changed,
)
from fairsched.policies.guarantees.reservations import Reservations
from fairsched.policies.guarantees.seconds import (
    SECONDS_THEOREMS,
    T_LIMITED,
    LimitedWait,
    Pace,
    WorstWait,
    window_curve,
)
from fairsched.policies.guarantees.window import (
    SECOND_NS,
    WindowTerms,
    charged_at_once,
    grown_outputs,
    held_tokens,
    hold_units,
    room_needed,
    window_limits,
)

__all__ = [
    "NOTHING", "SECONDS_THEOREMS", "SECOND_NS", "T_LIMITED", "WINDOWS", "Answer", "Budget", "End", "GateGuarantee",
    "GateMonitor", "Ledger", "LimitedWait", "Operation", "Pace", "Quota", "Refused", "Reservations", "Reserve",
    "Reserved", "Spent", "WindowTerms", "WorstWait", "advanced", "bound_terms", "changed", "charged_at_once",
    "grown_outputs", "held_tokens", "hold_units", "quota", "room_needed", "wait_bound_cost", "window_curve",
    "window_limits"
]  # fmt: skip
