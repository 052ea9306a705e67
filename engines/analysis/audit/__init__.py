"""Findings about an access log or a run: which clients waited, starved and gained. Read `access_log` and `findings`
first.
"""

from typing import TYPE_CHECKING

from fairsched.model.lazy import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.analysis.audit.columns import FIELDS, Columns, read_map
    from fairsched.engines.analysis.audit.findings import Audit
    from fairsched.engines.analysis.audit.logs import audit_log, logged_workload
    from fairsched.engines.analysis.audit.page import write_audit
    from fairsched.engines.analysis.audit.starvation import without_service
    from fairsched.engines.analysis.audit.text import print_audit
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "FIELDS", "Audit", "Columns", "audit_log", "logged_workload", "print_audit", "read_map", "without_service",
    "write_audit"
]  # fmt: skip
