"""Findings about an access log or a run: which clients waited, starved and gained. Read `logs` and `findings`
first.
"""

from typing import TYPE_CHECKING

from fairsched.model.lazy import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.analysis.audit.findings import Audit
    from fairsched.engines.analysis.audit.frames import write_audit_frames
    from fairsched.engines.analysis.audit.logs import audit_log, audit_of, logged_workload
    from fairsched.engines.analysis.audit.page import plots as audit_plots
    from fairsched.engines.analysis.audit.page import write_audit
    from fairsched.engines.analysis.audit.starvation import without_service
    from fairsched.engines.analysis.audit.text import LEGEND, print_audit
    from fairsched.engines.analysis.audit.text import scope as audit_scope
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "LEGEND", "Audit", "audit_log", "audit_of", "audit_plots", "audit_scope", "logged_workload", "print_audit",
    "without_service", "write_audit", "write_audit_frames"
]  # fmt: skip
