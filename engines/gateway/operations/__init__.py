"""What is told of a call to those who run a gateway: its request id, log lines, traces. Read `calls` first.

Nothing here decides anything, and none of it is needed to serve: `traces` wants the extra of that name.
"""

from fairsched.engines.gateway.operations.calls import REQUEST_ID, CallRecord, begun, current, over, told_headers
from fairsched.engines.gateway.operations.logs import CALLS, FORMATS, log_to_stderr

__all__ = [
    "CALLS", "FORMATS", "REQUEST_ID", "CallRecord", "begun", "current", "log_to_stderr", "over", "told_headers"
]  # fmt: skip
