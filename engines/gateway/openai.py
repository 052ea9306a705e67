"""The part of OpenAI's protocol that the gateway reads and writes: a call's client and size, and its answer's size.

Before a call is forwarded a prompt's tokens are estimated from its text: the bytes of `messages` or `prompt`, `tools`
and `functions` as compact JSON in UTF-8, divided by `bytes_per_token` and rounded up; a list of token ids counts as it
is.  No token of a byte-level vocabulary is shorter than a byte, so the truth is at most `bytes_per_token` times the
estimate (for text: an image's tokens are not in the text).  A `Tokenizer` that is given counts instead.  The output is
what the caller declares at most, times `n`, for each of its prompts; a call that names no most is given the default,
which the server is told then.

An answer is read while its bytes pass by unchanged.  A stream's events are counted: one with choices is a token at
least.  Where the server says `usage`, that is the truth.
"""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress

import attrs
import msgspec

from fairsched.engines.gateway.config import GatewayConfig
from fairsched.engines.serving import OTHERS
from fairsched.model.request import TOKENS_MAX

UNKNOWN_PREFIX = "~"
"""How the name of an unknown client begins."""
LINE_BYTES_MAX = 1 << 20
"""Of a line that is longer nothing is read; it still counts as an event."""
Tokenizer = Callable[[str], int]
"""How many tokens a text has."""

_PROMPT_KEYS = ("messages", "prompt", "tools", "functions", "suffix")
_MOST_KEYS = ("max_completion_tokens", "max_tokens")


class CallError(Exception):
    """A call that is refused: an HTTP status, and a sentence for the caller."""

    def __init__(self, status: int, message: str, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_seconds = retry_after_seconds


@attrs.frozen
class Call:
    """A call as it is forwarded: its body, how many tokens it may come to, and whether the caller said so."""

    body: bytes
    prompt_tokens: int
    max_output_tokens: int
    declared: bool


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
    return Call(body, size.prompt_tokens, size.max_output_tokens, size.declared)


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


@attrs.frozen
class Size:
    """Tokens of a call; `declared` is False where the caller named no most, and the default stands."""

    prompt_tokens: int
    max_output_tokens: int
    declared: bool


def sized(
    document: Mapping[str, object],
    bytes_per_token: int,
    default_output_tokens: int,
    tokenizer: Tokenizer | None = None,
) -> Size:
    """Return the size of a call.  O(bytes).  Raises `ValueError`, with a sentence for the caller, for what is none."""
    if not document.get("messages") and not document.get("prompt"):
        raise ValueError("messages or prompt is missing")
    n = max(_whole(document, "n", 1), _whole(document, "best_of", 1))
    declared = [_whole(document, key, 1) for key in _MOST_KEYS if document.get(key) is not None]
    tokens = _prompt_tokens(document, bytes_per_token, tokenizer)
    output = max(declared or [default_output_tokens]) * n * _prompts(document.get("prompt"))
    for what, count in (("prompt", tokens), ("output", output)):
        if count > TOKENS_MAX:
            raise ValueError(f"{count} {what} tokens are over {TOKENS_MAX}")
    return Size(tokens, output, bool(declared))


def _whole(document: Mapping[str, object], key: str, default: int) -> int:
    value = document.get(key)
    if value is None:
        return default
    if type(value) is not int or not 1 <= value <= TOKENS_MAX:
        raise ValueError(f"{key} is a whole number from 1, not {str(value)[:40]!r}")
    return value


def _prompts(prompt: object) -> int:
    """Return how many prompts a completion has: a list of texts, or of lists of token ids, is one each."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1


def _prompt_tokens(document: Mapping[str, object], bytes_per_token: int, tokenizer: Tokenizer | None) -> int:
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


@attrs.define
class Usage:
    """What a server says of an answer: prompt tokens less those from its cache, and output tokens; None: not said."""

    computed_tokens: int | None = None
    output_tokens: int | None = None

    def read(self, document: object) -> None:
        """Take over what a JSON document says in `usage`."""
        usage = document.get("usage") if isinstance(document, dict) else None
        if not isinstance(usage, dict):
            return
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else 0
        if (tokens := _count(prompt)) is not None:
            self.computed_tokens = max(tokens - (_count(cached) or 0), 0)
        if (tokens := _count(output)) is not None:
            self.output_tokens = tokens


def _count(value: object) -> int | None:
    """Return the value if it is a number of tokens."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= TOKENS_MAX else None


def usage_of(body: bytes, max_output_tokens: int, bytes_per_token: int) -> Usage:
    """Return what a whole answer says; where it does not say its output tokens, they are estimated from its bytes."""
    usage = Usage(None, min(-(-len(body) // bytes_per_token), max_output_tokens))
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        usage.read(msgspec.json.decode(body))
    return usage


class StreamReader:
    """A reader of a stream of server-sent events, while it is passed on."""

    def __init__(self) -> None:
        self.usage = Usage()
        self._rest = b""

    def read(self, chunk: bytes) -> int:
        """Return how many tokens these bytes bring at least."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            self._rest = self._rest[:6]  # Enough to know an event by.
        return sum(self._line(line) for line in lines)

    def _line(self, line: bytes) -> bool:
        """Return whether the line is an event with a token."""
        if not line.startswith(b"data:"):
            return False
        data = line[5:].strip()
        if data == b"[DONE]":
            return False
        try:
            document = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return True
        self.usage.read(document)
        choices = document.get("choices") if isinstance(document, dict) else None
        return isinstance(choices, list) and any(map(_has_text, choices))


def _has_text(choice: object) -> bool:
    """Whether a choice brings output: a chat's first event names the role only, and the last only why it ended."""
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(value for key, value in delta.items() if key != "role")
    return bool(choice.get("text"))
