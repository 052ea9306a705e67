"""A call's record: who asked what, how long it waited, where it went, what it came to, and its line in the log.

Whatever works on a call finds its record by `current`, so that a line in the log, the headers for a server and a span
have one request id.  The id is the caller's `x-request-id`, if that is a plain one, or a new one.
The log has lines for people, or JSON for programs, with a line for each call that ended.
"""

import logging
import re
import secrets
import time
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime

import attrs
import msgspec

REQUEST_ID = "x-request-id"
CALLS = logging.getLogger("fairsched.gateway.calls")
"""A line for each call; it is written in JSON only."""

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


# --- the log ----------------------------------------------------------------------------------------------------------


class JsonFormatter(logging.Formatter):
    """A line of JSON: time, level, logger and message, and of the call that it is about the request id.

    The line of a call that ended has all that is known of it.
    """

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        ended: CallRecord | None = getattr(record, "call", None)
        if ended is not None:
            document |= ended.fields()
        elif (call := current()) is not None:
            document["request_id"] = call.request_id
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        # What a caller sent may be no text.
        plain = {key: _text(value) if isinstance(value, str) else value for key, value in document.items()}
        return msgspec.json.encode(plain).decode()


def _text(value: str) -> str:
    return value.encode("utf-8", "replace").decode()


def log_to_stderr(form: str) -> None:
    """Have this process log to its standard error as `text` or `json`; other people's code only its warnings."""
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else plain)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("fairsched").setLevel(logging.INFO)
    CALLS.setLevel(logging.INFO if form == "json" else logging.WARNING)
