"""What a configuration promises, and the monitor that holds a gate to it. Read `guarantee` first."""

from fairsched.policies.guarantees.gate_monitor import GateMonitor
from fairsched.policies.guarantees.guarantee import GateGuarantee, bound_terms, wait_bound_cost
from fairsched.policies.guarantees.window import charged_at_once, held_tokens

__all__ = ["GateGuarantee", "GateMonitor", "bound_terms", "charged_at_once", "held_tokens", "wait_bound_cost"]
