"""How many tokens an answer of an OpenAI-compatible server came to, read while its bytes pass by unchanged.

A stream's events are counted: one with choices is a token at least.  Where the server says `usage`, that is the truth.
"""

from contextlib import suppress

import attrs
import msgspec

from fairsched.model.request import TOKENS_MAX

LINE_BYTES_MAX = 1 << 20
"""Of a line that is longer nothing is read; it still counts as an event."""


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
