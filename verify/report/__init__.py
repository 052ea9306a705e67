"""What `fairsched verify` reports: verdicts, refutations, deployment numbers. Read `values` first."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.verify.report.certificate import (
        ask_coq,
        check_certificate,
        check_free,
        write_certificate,
        write_proofs,
    )
    from fairsched.verify.report.deployment import Deployment, load
    from fairsched.verify.report.scope import below, fallen
    from fairsched.verify.report.text import TEXT_WIDTH, as_text
    from fairsched.verify.report.values import Report, ungated, unstated
    from fairsched.verify.report.verification import outcome_of, scope_of, verify
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "TEXT_WIDTH", "Deployment", "Report", "as_text", "ask_coq", "below", "check_certificate", "check_free", "fallen",
    "load", "outcome_of", "scope_of", "ungated", "unstated", "verify", "write_certificate", "write_proofs"
]  # fmt: skip
