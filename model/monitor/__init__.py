"""The runtime monitor: it follows a run and holds it to what its policy guarantees. Read `guarantee` first, then
`monitor`.
"""

from fairsched.model.monitor.guarantee import Finding, FirstTokenBound, MonitorReport, Promise, WaitBound, excused
from fairsched.model.monitor.monitor import ClusterMonitor, GateCheck, Monitor, together

__all__ = [
    "ClusterMonitor", "Finding", "FirstTokenBound", "GateCheck", "Monitor", "MonitorReport", "Promise", "WaitBound",
    "excused", "together"
]  # fmt: skip
