"""The search for a fleet: kinds and numbers of workers, together or split by phase, and what runs on them, by goodput
for each GPU, dollar or joule.  Read `space` first, then `run`; `placement` has DistServe's algorithms, `replanning`
follows a trace and says when the fleet should change.
"""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.capacity.search.pages import replan_sheet, search_sheet
    from fairsched.engines.capacity.search.placement import decode_only, high_affinity, low_affinity
    from fairsched.engines.capacity.search.replanning import DriftDetector, replan
    from fairsched.engines.capacity.search.run import Query, search_fleets
    from fairsched.engines.capacity.search.space import FleetPlan, FleetPool, Objective, Space, fleet_of, likely_rate
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "DriftDetector", "FleetPlan", "FleetPool", "Objective", "Query", "Space", "decode_only", "fleet_of",
    "high_affinity", "likely_rate", "low_affinity", "replan", "replan_sheet", "search_fleets", "search_sheet"
]  # fmt: skip
