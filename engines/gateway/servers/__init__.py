"""The servers behind a gateway: calls to them, which are there, which take calls. Read `upstream` first, then `health`.

`upstream` is one call to one of them, `watch` its time, `health` which take calls, `models` what they serve, `fleet`
all of it for an account.
"""

from fairsched.engines.gateway.servers.fleet import Fleet
from fairsched.engines.gateway.servers.health import Failure
from fairsched.engines.gateway.servers.models import Models
from fairsched.engines.gateway.servers.target import Upstream
from fairsched.engines.gateway.servers.upstream import (
    BrokenError,
    ServerAnswer,
    ServerFailedError,
    UnsendableError,
    new_session,
    open_answer,
    sent_headers,
)
from fairsched.engines.gateway.servers.watch import ServerLateError, Watch, Watches

__all__ = [
    "BrokenError", "Failure", "Fleet", "Models", "ServerAnswer", "ServerFailedError", "ServerLateError",
    "UnsendableError", "Upstream", "Watch", "Watches", "new_session", "open_answer", "sent_headers"
]  # fmt: skip
