"""The guard around a policy: a plan that is infeasible, late or missing is replaced. Read `guard` first."""

from fairsched.engines.serving.guard.admission import (
    BUDGET_MS,
    AdmissionCause,
    AdmissionChoice,
    AdmissionGuard,
    NoDecisionError,
    RouterGuard,
    Trial,
    empty_worker,
)
from fairsched.engines.serving.guard.certificate import NotCertifiedError, require_certificate
from fairsched.engines.serving.guard.guard import CAUSES, Guard, Rebuild, from_history

__all__ = [
    "BUDGET_MS", "CAUSES", "AdmissionCause", "AdmissionChoice", "AdmissionGuard", "Guard", "NoDecisionError",
    "NotCertifiedError", "Rebuild", "RouterGuard", "Trial", "empty_worker", "from_history", "require_certificate"
]  # fmt: skip
