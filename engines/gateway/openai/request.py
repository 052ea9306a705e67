"""What a gateway must know of a call before it is forwarded: its client, and how many tokens it may come to.

Tokens are estimated as `engines.gateway.openai.size` says; a call that names no most for its output is given the
default, which the server is told then.
"""

import hashlib
from collections.abc import Mapping

import attrs
import msgspec

from fairsched.engines.gateway.config import GatewayConfig
from fairsched.engines.gateway.openai.size import Tokenizer, sized
from fairsched.engines.serving import OTHERS

UNKNOWN_PREFIX = "~"
"""How the name of an unknown client begins."""


class CallError(Exception):
    """A call that is refused: an HTTP status, and a sentence for the caller."""

    def __init__(self, status: int, message: str, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_seconds = retry_after_seconds


@attrs.frozen
class Call:
    """A call as it is forwarded: its body, and how many tokens it may come to."""

    body: bytes
    prompt_tokens: int
    max_output_tokens: int
    streams: bool


def read_call(raw: bytes, config: GatewayConfig, tokenizer: Tokenizer | None = None) -> Call:
    """Return the call in a body.  Raises `CallError` (400) for what is none."""
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CallError(400, f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise CallError(400, "the body is not a JSON object")
    try:
        size = sized(document, config.bytes_per_token, config.default_output_tokens, tokenizer)
    except ValueError as error:
        raise CallError(400, str(error)) from None
    body = raw
    if not size.declared:
        body = msgspec.json.encode({**document, "max_tokens": config.default_output_tokens})
    return Call(body, size.prompt_tokens, size.max_output_tokens, document.get("stream") is True)


class CallerNames:
    """The names of callers, by the configuration."""

    def __init__(self, config: GatewayConfig) -> None:
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Take names and keys from this configuration from now on."""
        self._config = config
        self._owners = {key: name for name, client in config.clients.items() for key in client.keys}

    def of(self, headers: Mapping[str, str]) -> str:
        """Return the client of a call with these headers (names in lower case).

        Raises `CallError` (401) for an unknown one where these are rejected.
        """
        if self._config.identify == "header":
            mark = headers.get(self._config.header.lower(), "").strip()
            if mark in self._config.clients:
                return mark
        else:
            mark = headers.get("authorization", "").removeprefix("Bearer ").strip()
            if mark in self._owners:
                return self._owners[mark]
        how = self._config.unknown_clients
        if how == "reject":
            raise CallError(401, "this gateway does not know you")
        if how == "together" or not mark:
            return OTHERS
        # A key must not be seen in a report, and no unknown client may take the name of a configured one.
        return f"{UNKNOWN_PREFIX}{hashlib.sha256(mark.encode()).hexdigest()[:16]}"
