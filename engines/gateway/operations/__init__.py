"""For those who run a gateway: what is told of a call (request id, log lines, traces). Read `calls` first.

Nothing here decides anything, and none of it is needed to serve: `traces` wants the extra of that name.
"""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.gateway.operations.calls import (
        CALLS,
        REQUEST_ID,
        CallRecord,
        begun,
        current,
        log_to_stderr,
        over,
        told_headers,
    )
    from fairsched.engines.gateway.operations.traces import Tracing
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "CALLS", "REQUEST_ID", "CallRecord", "Tracing", "begun", "current", "log_to_stderr",
    "over", "told_headers"
]  # fmt: skip
