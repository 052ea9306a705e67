"""The log of a gateway: lines for people, or JSON for programs, with a line for each call that ended."""

import logging
from datetime import UTC, datetime

import msgspec

from fairsched.engines.gateway.operations.calls import CallRecord, current

CALLS = logging.getLogger("fairsched.gateway.calls")
"""A line for each call; it is written in JSON only."""
FORMATS = ("text", "json")


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
    """Have this process log to its standard error, in one of `FORMATS`; other people's code only its warnings."""
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else plain)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("fairsched").setLevel(logging.INFO)
    CALLS.setLevel(logging.INFO if form == "json" else logging.WARNING)
