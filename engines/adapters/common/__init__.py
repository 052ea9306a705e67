"""What all adapters share: the tracker of requests, settings, status, log and report. Read `tracker` first."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.adapters.common.settings import Chosen, InsideSettings, choose, probe, read_file
    from fairsched.engines.adapters.common.status import Outputs, TrackerStatus
    from fairsched.engines.adapters.common.tracker import Memory, RequestTracker, TrackedRequest
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "Chosen", "InsideSettings", "Memory", "Outputs", "RequestTracker", "TrackedRequest", "TrackerStatus", "choose",
    "probe", "read_file"
]  # fmt: skip
