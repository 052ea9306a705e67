"""An answer, read while its bytes pass by: how many tokens it brings, and what the server says that it used.

An event with an answer in it is a token at least, with or without text: a server that waits for a stop sequence sends
empty ones.  Only an event that names the role, or why the answer ended, is none.  Several tokens in one event count as
one until the usage at the end says the truth.

A caller that did not ask for usage does not see it: the event that has usage and no choice is left out, and nothing
else is touched.  `"usage":null`, which some servers add to every event of a stream that is asked for usage, passes.
"""

import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs
import msgspec

from fairsched.engines.gateway.openai.endpoints import Form
from fairsched.engines.gateway.openai.errors import error_event
from fairsched.model.request import TOKENS_MAX

LINE_BYTES_MAX = 1 << 20
"""A longer line is not read: it counts as a token and passes."""
_USAGE = b'"usage":'
WHOLE_BYTES_MAX = 1 << 16
"""Of an answer that is no stream so many of the last bytes are kept at least, to find what it says of usage."""

_TEXT_KEYS = tuple(
    f'"{key}":{space}"'.encode() for key in ("content", "text", "reasoning_content", "reasoning") for space in ("", " ")
)


class _Choice(msgspec.Struct, gc=False):
    delta: Any = None
    text: Any = None
    finish_reason: Any = None

    def has_token(self) -> bool:
        delta = self.delta if isinstance(self.delta, dict) else {}
        if self.text or any(value for key, value in delta.items() if key != "role"):
            return True
        return not delta.get("role") and self.finish_reason is None


_NOTHING = _Choice(delta={})


class _Said(msgspec.Struct, gc=False):
    usage: Any = None


class _Event(msgspec.Struct, gc=False):
    """An event of any of the three forms; a field that is not here is not decoded."""

    type: Any = None
    choices: list[_Choice] | None = None
    usage: Any = None
    response: _Said | None = None
    message: _Said | None = None


_SAID = re.compile(rb'"usage":\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_BESIDE = re.compile(rb",\s*" + _SAID.pattern)
_EVENT = msgspec.json.Decoder(_Event)
_ANSWER = msgspec.json.Decoder(_Said)


@attrs.define
class Usage:
    """What a server says of an answer: prompt tokens less those from its cache, and output tokens; None: not said."""

    computed_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0
    """Of the prompt, from its cache."""

    def read(self, usage: object, *, ended: bool = True) -> None:
        """Take over a `usage` of OpenAI's or Anthropic's kind; `ended`: outputs are counted to their end in it."""
        if not isinstance(usage, dict):
            return
        prompt, output, cached = usage.get("prompt_tokens"), usage.get("completion_tokens"), 0
        details, read = usage.get("prompt_tokens_details"), 0
        if prompt is None and output is None:
            prompt, output = usage.get("input_tokens"), usage.get("output_tokens")
            details = usage.get("input_tokens_details")
            # Anthropic's input tokens are those that were not in a cache; writing them into one computes them, too.
            cached -= _count(usage.get("cache_creation_input_tokens")) or 0
            read = _count(usage.get("cache_read_input_tokens")) or 0
        if isinstance(details, dict):
            cached += _count(details.get("cached_tokens")) or 0
        if (tokens := _count(prompt)) is not None:
            self.computed_tokens = max(tokens - cached, 0)
            self.cached_tokens = read + min(max(cached, 0), tokens)
        if ended and (tokens := _count(output)) is not None:
            self.output_tokens = tokens


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= TOKENS_MAX else None


def usage_of(body: bytes, max_output_tokens: int, bytes_per_token: int) -> Usage:
    """Return what a whole answer says; where it does not say its output tokens, they are estimated from its bytes."""
    usage = Usage(None, min(-(-len(body) // bytes_per_token), max_output_tokens))
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        usage.read(_ANSWER.decode(body).usage)
    return usage


def unpacked(coding: str) -> Callable[[bytes], bytes] | None:
    """Return what gives the bytes in those of an answer that is packed so, as they come; it raises `ValueError` for
    bytes that cannot be read.  None: they are as they came.

    Some servers pack an answer though they are asked not to.
    """
    coding = coding.strip().lower()
    inside = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def take(chunk: bytes) -> bytes:
        with suppress(zlib.error):
            if coding in ("gzip", "x-gzip", "deflate"):
                plain = inside.decompress(chunk)
                if not inside.unused_data:
                    return plain
        raise ValueError(f"an answer is packed as {coding[:40]}")

    return None if coding in ("", "identity") else take


class UnreadableReader:
    """What stands for an answer in a coding that cannot be read: it came to all that it may be."""

    def __init__(self, max_output_tokens: int) -> None:
        self.usage = Usage(None, max_output_tokens)

    def pass_on(self, chunk: bytes) -> tuple[int, bytes]:
        return 0, chunk

    def rest(self) -> bytes:
        """Return what is still held: nothing."""
        return b""


class WholeReader:
    """A reader of an answer that is no stream, while it is passed on; what is kept of a long one is bounded."""

    def __init__(self, max_output_tokens: int, bytes_per_token: int) -> None:
        self._most = max_output_tokens
        self._bytes_per_token = bytes_per_token
        self._bytes = 0
        self._kept = bytearray()
        self._said = Usage()

    def pass_on(self, chunk: bytes) -> tuple[int, bytes]:
        """Take the next bytes; the caller sees them as they are, and what they bring is known in the end."""
        self._bytes += len(chunk)
        self._kept += chunk
        if len(self._kept) > 2 * WHOLE_BYTES_MAX:
            # What begins in the bytes that go is whole in those that stay.
            gone = len(self._kept) - WHOLE_BYTES_MAX - len(_USAGE)
            self._find(gone)
            del self._kept[:gone]
        return 0, chunk

    def rest(self) -> bytes:
        """Return what is still held: nothing."""
        return b""

    def _find(self, end: int) -> None:
        """Read what begins before `end`: of several the largest, since a server may repeat what a caller wrote."""
        for found in _SAID.finditer(self._kept):
            if found.start() >= end:
                break
            usage = Usage()
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                usage.read(msgspec.json.decode(found[1]))
            self._said = max(usage, self._said, key=lambda each: (each.computed_tokens or 0) + each.cached_tokens)

    @property
    def usage(self) -> Usage:
        """What the answer says; where it does not say its output tokens, they are estimated from its bytes."""
        if self._bytes == len(self._kept):
            return usage_of(bytes(self._kept), self._most, self._bytes_per_token)
        # Within a text these quotes would have backslashes.
        self._find(len(self._kept))
        guess = min(-(-self._bytes // self._bytes_per_token), self._most)
        said = self._said
        return said if said.output_tokens is not None else attrs.evolve(said, output_tokens=guess)


class StreamReader:
    """A reader of a stream of server-sent events, while it is passed on.

    `hides_usage`: the caller did not ask for usage, so that `pass_on` leaves it out; `strips_usage`: nor for that which
    stands in events beside choices.  Most events differ from the one
    before in one text only; such an event is recognized by its bytes, and not decoded.
    """

    def __init__(self, form: Form = "choices", *, hides_usage: bool = False, strips_usage: bool = False) -> None:
        self.usage = Usage()
        self._strips = strips_usage
        self._beside = False
        """The line that was read says usage beside choices."""
        self._form = form
        self._hides = hides_usage and form == "choices"
        self._rest = b""
        self._seen = b""
        """What the caller saw last."""
        self._within_long = False
        """The line that comes is longer than may be read, and was counted."""
        self._hidden = False
        """The line before was left out, and the empty one behind it is, too."""
        self._head, self._tail, self._end = b"", b"", b""
        """What stands before and behind the text of an event with a token, and behind that of a chunk of one event."""

    def read(self, chunk: bytes) -> int:
        """Return how many tokens these bytes bring at least."""
        return self.pass_on(chunk)[0]

    def pass_on(self, chunk: bytes) -> tuple[int, bytes]:
        """Return how many tokens these bytes bring at least, and the bytes that the caller is to see now.

        What may become an event that is left out is held until its line is whole.
        """
        if not (self._rest or self._within_long or self._hidden) and self._like_the_last(chunk, self._end):
            self._seen = chunk
            self.usage.output_tokens = None
            return 1, chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if self._hides or self._strips:
            tokens, chunk = self._filtered(lines)
        else:
            tokens = sum([self._tokens(line)[0] for line in lines]) + self._cut_short()[0]
        self._seen = chunk or self._seen
        return tokens, chunk

    def rest(self) -> bytes:
        """Return what is still held of a stream that is over."""
        held, self._rest = self._rest if (self._hides or self._strips) and not self._within_long else b"", b""
        return held

    def break_off(self, message: str) -> bytes:
        """Return the end of a stream that broke off: an event of its own, also where the last one is not whole."""
        whole = not self._seen or self._seen.endswith((b"\n\n", b"\n\r\n"))
        return (b"" if whole else b"\n\n") + error_event(message, self._form)

    def _filtered(self, lines: list[bytes]) -> tuple[int, bytes]:
        tokens = 0
        seen: list[bytes] = []
        for line in lines:
            count, hidden = self._tokens(line)
            hidden = hidden and self._hides
            tokens += count
            if self._strips and self._beside:
                line = _BESIDE.sub(b"", line, count=1)
            if not hidden and not (self._hidden and line in (b"", b"\r")):
                seen += (line, b"\n")
            self._hidden = hidden
        count, released = self._cut_short()
        return tokens + count, b"".join(seen) + released

    def _cut_short(self) -> tuple[int, bytes]:
        """Read no more of a line that is too long: what it counts as, and its bytes so far."""
        if not self._within_long and len(self._rest) <= LINE_BYTES_MAX:
            return 0, b""
        released, self._rest = self._rest, b""
        count = not self._within_long and released.startswith(b"data:")
        self._within_long = True
        return count, released

    def _tokens(self, line: bytes) -> tuple[int, bool]:
        """Return how many tokens a line brings, and whether the caller does not see it."""
        self._beside = False
        if self._within_long:
            self._within_long = False
            return 0, False
        if not line.startswith(b"data:"):
            return 0, False
        if len(line) > LINE_BYTES_MAX or self._like_the_last(line, self._tail):
            self.usage.output_tokens = None
            return 1, False
        data = line[5:].strip()
        if data == b"[DONE]":
            return 0, False
        try:
            event = _EVENT.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return 1, False
        if self._form == "choices":
            return self._choices(event, line)
        for said in (event.response, event.message):
            if said is not None:
                # A message says at its start what it read, and at its end what it wrote.
                self.usage.read(said.usage, ended=said is event.response)
        self.usage.read(event.usage)
        kind = event.type
        return isinstance(kind, str) and kind.endswith((".delta", "_block_delta")), False

    def _choices(self, event: _Event, line: bytes) -> tuple[int, bool]:
        choices = event.choices or ()
        if event.usage is not None:
            # Beside choices it is how far one of them is, and the whole only where it ends.  One that says nothing is
            # none: LiteLLM puts it there.
            choices = [each for each in choices if each != _NOTHING]
            self._beside = bool(choices)
            self.usage.read(event.usage, ended=all(each.finish_reason is not None for each in choices))
            return any(each.has_token() for each in choices), not choices
        if not any(each.has_token() for each in choices):
            return 0, False
        # What was said at the end of one answer is not the whole: another goes on.
        self.usage.output_tokens = None
        self._learn(line)
        return 1, False

    def _learn(self, line: bytes) -> None:
        """Remember what stands around the text of an event with a token."""
        for key in _TEXT_KEYS:
            start = line.find(key) + len(key)
            end = line.find(b'"', start) if start >= len(key) else -1
            if end >= 0:
                break
        else:
            return
        self._head, self._tail = line[:start], line[end:]
        self._end = self._tail + (b"\n\r\n" if line.endswith(b"\r") else b"\n\n")

    def _like_the_last(self, data: bytes, tail: bytes) -> bool:
        """Return whether a line, or a chunk of one event, differs from an event with a token in one text only."""
        if not tail or not data.startswith(self._head) or not data.endswith(tail):
            return False
        start, end = len(self._head), len(data) - len(tail)
        # An empty text may make another event of it.
        return start < end and data.find(b'"', start, end) < 0 and data.find(b"\n", start, end) < 0
