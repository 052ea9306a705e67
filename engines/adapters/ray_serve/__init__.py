"""A request router of Ray Serve whose policy is one for all handles. Read `router` first."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.adapters.ray_serve.api import configure, report_usage, request_router_config, status
    from fairsched.engines.adapters.ray_serve.extract import Pending, Wanted
    from fairsched.engines.adapters.ray_serve.router import FairRouter
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["FairRouter", "Pending", "Wanted", "configure", "report_usage", "request_router_config", "status"]
