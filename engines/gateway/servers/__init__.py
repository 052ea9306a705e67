"""The servers behind a gateway. Read `upstream` first: one call to one of them, and what its answer says of it."""

from fairsched.engines.gateway.servers.upstream import (
    Answer,
    BrokenError,
    FailedError,
    UnsendableError,
    new_session,
    open_answer,
    sent_headers,
)
from fairsched.engines.gateway.servers.watch import Late, LateError, Watch, Watches

__all__ = [
    "Answer", "BrokenError", "FailedError", "Late", "LateError", "UnsendableError", "Watch", "Watches", "new_session",
    "open_answer", "sent_headers"
]  # fmt: skip
