"""What a caller sees of a refusal: OpenAI's errors, Anthropic's at its endpoint, error events of a stream."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from fairsched.engines.gateway.openai.endpoints import Form

Document = dict[str, object]

_OPENAI: dict[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "unknown_url"),
    405: ("invalid_request_error", "method_not_supported"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    503: ("server_error", "server_overloaded"),
}
"""Type and code by status."""
_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
INSUFFICIENT = "insufficient_quota"
"""Type and code of a call that no quota of its caller will ever have room for."""


class CallError(Exception):
    """A call that is refused: an HTTP status, and a sentence for the caller.

    `code` is OpenAI's name of the reason where the status does not say it, `headers` what else the caller is told.
    """

    def __init__(
        self,
        status: int,
        message: str,
        retry_after_seconds: int | None = None,
        *,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.code = code
        self.headers = dict(headers or {})


def error_document(status: int, message: str, form: Form = "choices", code: str | None = None) -> Document:
    """Return the body of a refusal, as clients of the endpoint's protocol read it; `code`: OpenAI's, if the status does
    not say it."""
    # What it quotes of a call may be no text.
    message = message.encode("utf-8", "replace").decode()
    if form == "messages":
        default = "api_error" if status >= 500 else "invalid_request_error"
        return {"type": "error", "error": {"type": _ANTHROPIC.get(status, default), "message": message}}
    kind, usual = _OPENAI.get(status, ("server_error" if status >= 500 else "invalid_request_error", None))
    kind = INSUFFICIENT if code == INSUFFICIENT else kind
    return {"error": {"message": message, "type": kind, "param": None, "code": code or usual}}


def said_error(body: bytes) -> str:
    """Return what an error of a server says, shortened; empty for what is none."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = msgspec.json.decode(body, type=dict[str, Any])
        found = said.get("error", said)
        return str(found.get("message", ""))[:1000] if isinstance(found, dict) else ""
    return ""


def error_event(message: str, form: Form, status: int = 502) -> bytes:
    """Return the last event of a stream that broke off, or came to nothing."""
    if form not in ("responses", "messages"):
        return b"data: " + msgspec.json.encode(error_document(status, message)) + b"\n\n"
    document: Document = error_document(status, message, form)
    if form == "responses":
        document = {"type": "error", "code": "server_error", "message": message, "param": None, "sequence_number": 0}
    return b"event: error\ndata: " + msgspec.json.encode(document) + b"\n\n"
