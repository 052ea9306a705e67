"""Ray Serve with a policy of this library, one for all handles of a deployment.

    @serve.deployment(request_router_config=request_router_config(window_tokens=100_000, weights={"gold": 4}))

`FairRouter` is the request router; `status`, `configure` and `report_usage` talk to the actor that decides for it.
"""

from fairsched.engines.adapters.ray_serve import (
    FairRouter,
    Pending,
    Wanted,
    configure,
    report_usage,
    request_router_config,
    status,
)

__all__ = ["FairRouter", "Pending", "Wanted", "configure", "report_usage", "request_router_config", "status"]
