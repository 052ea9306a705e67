"""What a configuration promises, and the monitor that holds a gate to it. Read `guarantee` first."""

from fairsched.policies.guarantees.gate_monitor import GateMonitor
from fairsched.policies.guarantees.guarantee import GateGuarantee, bound_terms, wait_bound_cost
from fairsched.policies.guarantees.reservations import Reservations
from fairsched.policies.guarantees.seconds import SECONDS_THEOREMS, T_WAIT, Pace, WorstWait
from fairsched.policies.guarantees.window import (
    SECOND_NS,
    WindowTerms,
    charged_at_once,
    grown_outputs,
    held_tokens,
    hold_units,
    reserved_outputs,
    room_needed,
    window_limits,
)

__all__ = [
    "SECONDS_THEOREMS", "SECOND_NS", "T_WAIT", "GateGuarantee", "GateMonitor", "Pace", "Reservations", "WindowTerms",
    "WorstWait", "bound_terms", "charged_at_once", "grown_outputs", "held_tokens", "hold_units", "reserved_outputs",
    "room_needed", "wait_bound_cost", "window_limits"
]  # fmt: skip
