"""What a gateway must know of a call before it is forwarded: who asks, and how many tokens it may come to.

A prompt's tokens are estimated from its text: the bytes of `messages` or `prompt`, `tools` and `functions` as compact
JSON in UTF-8, divided by `bytes_per_token` and rounded up; a list of token ids counts as it is.  No token of a
byte-level vocabulary is shorter than a byte, so the truth is at most `bytes_per_token` times the estimate (for text: an
image's tokens are not in the text).  A `Tokenizer` that is given counts instead.

The output is what the caller declares at most, or the default, which the server is told then; times `n`.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import msgspec

from fairsched.engines.gateway.config import GatewayConfig
from fairsched.model.request import TOKENS_MAX

Tokenizer = Callable[[str], int]
"""How many tokens a text has."""

_PROMPT_KEYS = ("messages", "prompt", "tools", "functions", "suffix")
_MOST_KEYS = ("max_completion_tokens", "max_tokens")
OTHERS = "others"
"""The client of all strangers that have no name of their own."""


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
    """The call in a body.  Raises `CallError` (400) for what is none."""
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CallError(400, f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise CallError(400, "the body is not a JSON object")
    if not document.get("messages") and not document.get("prompt"):
        raise CallError(400, "messages or prompt is missing")
    n = max(_whole(document, "n", 1), _whole(document, "best_of", 1))
    declared = [_whole(document, key, 1) for key in _MOST_KEYS if document.get(key) is not None]
    body = raw
    if not declared:
        declared = [config.default_output_tokens]
        body = msgspec.json.encode({**document, "max_tokens": declared[0]})
    prompts = _prompts(document.get("prompt"))
    tokens = _prompt_tokens(document, config.bytes_per_token, tokenizer)
    output = max(declared) * n * prompts
    for what, count in (("prompt", tokens), ("output", output)):
        if count > TOKENS_MAX:
            raise CallError(400, f"{count} {what} tokens are over {TOKENS_MAX}")
    return Call(body, tokens, output, document.get("stream") is True)


def _whole(document: dict[str, Any], key: str, default: int) -> int:
    value = document.get(key)
    if value is None:
        return default
    if type(value) is not int or not 1 <= value <= TOKENS_MAX:
        raise CallError(400, f"{key} is a whole number from 1, not {str(value)[:40]!r}")
    return value


def _prompts(prompt: object) -> int:
    """How many prompts a completion has: a list of texts, or of lists of token ids, is one each."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1


def _prompt_tokens(document: dict[str, Any], bytes_per_token: int, tokenizer: Tokenizer | None) -> int:
    counted = 0
    texts = []
    for key in _PROMPT_KEYS:
        value = document.get(key)
        if not value:
            continue
        if key == "prompt" and isinstance(value, list) and all(isinstance(each, int) for each in value):
            counted += len(value)
        elif key == "prompt" and isinstance(value, list) and all(isinstance(each, list) for each in value):
            counted += sum(len(each) for each in value)
        else:
            texts.append(value if isinstance(value, str) else msgspec.json.encode(value).decode())
    if tokenizer is not None:
        counted += sum(tokenizer(text) for text in texts)
    else:
        counted += -(-sum(len(text.encode()) for text in texts) // bytes_per_token)
    return max(counted, 1)


class Names:
    """Who a caller is, by the configuration: a name for each call, and the weight of each name."""

    def __init__(self, config: GatewayConfig) -> None:
        self._strangers: set[str] = set()
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Names and weights are those of this configuration from now on."""
        self._config = config
        self._owners = {key: name for name, client in config.clients.items() for key in client.keys}

    def weight(self, name: str) -> int:
        """The weight of a name: 1 for a stranger."""
        client = self._config.clients.get(name)
        return 1 if client is None else client.weight

    def of(self, headers: Mapping[str, str]) -> str:
        """The client of a call with these headers (names in lower case).  Raises `CallError` (401) for nobody."""
        if self._config.identify == "header":
            mark = headers.get(self._config.header.lower(), "").strip()
            if mark in self._config.clients:
                return mark
        else:
            mark = headers.get("authorization", "").removeprefix("Bearer ").strip()
            if mark in self._owners:
                return self._owners[mark]
        return self._stranger(mark)

    def _stranger(self, mark: str) -> str:
        how = self._config.strangers
        if how == "reject":
            raise CallError(401, "this gateway does not know you")
        if how == "together" or not mark:
            return OTHERS
        # A key must not be seen in a report, and no stranger may take the name of a configured client.
        name = f"~{hashlib.sha256(mark.encode()).hexdigest()[:16]}"
        if name not in self._strangers and len(self._strangers) + len(self._config.clients) >= (
            self._config.limits.clients
        ):
            return OTHERS
        self._strangers.add(name)
        return name
