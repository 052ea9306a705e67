"""The batteries that every policy and every router passes. Read `local` first."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.verify.conformance.local import check_local_policy
    from fairsched.verify.conformance.play import WorkerPlay, admitted, differing_plans
    from fairsched.verify.conformance.router import check_cluster_policy, check_router
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["WorkerPlay", "admitted", "check_cluster_policy", "check_local_policy", "check_router", "differing_plans"]
