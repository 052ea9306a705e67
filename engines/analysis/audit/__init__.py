"""Findings about an access log or a run: which clients waited, starved and gained. Read `logs` and `findings`
first.
"""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.analysis.audit.findings import Audit, without_service
    from fairsched.engines.analysis.audit.logs import audit_log, audit_models, is_log, logged_workload, pools
    from fairsched.engines.analysis.audit.page import courses as audit_courses
    from fairsched.engines.analysis.audit.page import write_audit, write_audit_frames
    from fairsched.engines.analysis.audit.text import LEGEND, print_audit
    from fairsched.engines.analysis.audit.text import scope as audit_scope
    from fairsched.engines.analysis.audit.thresholds import (
        FIGURES,
        Threshold,
        audit_document,
        exit_status,
        judged,
        junit,
        read_thresholds,
    )
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "FIGURES", "LEGEND", "Audit", "Threshold", "audit_courses", "audit_document", "audit_log", "audit_models",
    "audit_scope", "exit_status", "is_log", "judged", "junit", "logged_workload", "pools", "print_audit",
    "read_thresholds", "without_service", "write_audit", "write_audit_frames"
]  # fmt: skip
