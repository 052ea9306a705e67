"""A call's record: who asked what, how long it waited, where it went, and what it came to.

Whatever works on a call finds its record by `current`, so that a line in the log, the headers for a server and a span
have one request id.  The id is the caller's `x-request-id`, if that is a plain one, or a new one.
"""

import re
import secrets
import time
from collections.abc import Mapping
from contextvars import ContextVar

import attrs

REQUEST_ID = "x-request-id"
_PLAIN = re.compile(r"[!-~]{1,128}")


@attrs.define
class CallRecord:
    """A call; times in seconds, tokens as its server counts them (None: it did not say)."""

    request_id: str
    method: str = ""
    path: str = ""
    client: str = ""
    server: str = ""
    """The address of the last server that it was sent to."""
    tries: int = 0
    waited_seconds: float = 0.0
    """In the queue, all tries together."""
    prompt_tokens: int | None = None
    """Less those from the server's cache."""
    output_tokens: int | None = None
    status: int = 0
    """Of the answer; 0 if its caller got no whole one."""
    begun: float = attrs.field(factory=time.monotonic)
    headers: dict[str, str] = attrs.field(factory=dict)
    """What servers are told of it beside the caller's headers."""

    def placed(self, server: str, waited_seconds: float) -> None:
        """Count a try at a server, after a wait."""
        self.server = server
        self.tries += 1
        self.waited_seconds += waited_seconds

    def used(self, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Take in what the server says that it used."""
        self.prompt_tokens, self.output_tokens = prompt_tokens, output_tokens

    def fields(self) -> dict[str, object]:
        """Return it as plain JSON values by name."""
        return {
            "request_id": self.request_id,
            "method": self.method,
            "path": self.path,
            "client": self.client,
            "server": self.server,
            "status": self.status,
            "tries": self.tries,
            "wait_seconds": round(self.waited_seconds, 6),
            "seconds": round(time.monotonic() - self.begun, 6),
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
        }


_CURRENT: ContextVar[CallRecord | None] = ContextVar("call", default=None)


def begun(method: str, path: str, headers: Mapping[str, str]) -> CallRecord:
    """Return the record of a call that begins; it is the current one of this task from now on."""
    given = headers.get(REQUEST_ID, "")
    request_id = given if _PLAIN.fullmatch(given) else secrets.token_hex(16)
    record = CallRecord(request_id, method, path, headers={REQUEST_ID: request_id})
    _CURRENT.set(record)
    return record


def current() -> CallRecord | None:
    """Return the record of the call that this task works on, if it works on one."""
    return _CURRENT.get()


def over() -> None:
    """Have no current call in this task."""
    _CURRENT.set(None)


def told_headers() -> Mapping[str, str]:
    """Return what a server is told of the current call."""
    record = _CURRENT.get()
    return {} if record is None else record.headers
