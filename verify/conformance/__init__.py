"""The conformance battery that every policy passes. Read `local` first."""

from typing import TYPE_CHECKING

from fairsched.model.lazy import lazy_exports

if TYPE_CHECKING:
    from fairsched.verify.conformance.local import check_local_policy
    from fairsched.verify.conformance.play import WorkerPlay, admitted
    from fairsched.verify.conformance.strategies import events
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["WorkerPlay", "admitted", "check_local_policy", "events"]
