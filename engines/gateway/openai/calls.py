"""A call as it comes: its size, and the body that a server gets.

A body is read by the fields of its endpoint: the first one that is wrong ends it, and what is no field of the endpoint
is passed over, and is the server's to judge.  What could be read in two ways is refused: a number or a flag that comes
twice, text that is no UTF-8.

Before a call is forwarded a prompt's tokens are estimated from its text: the bytes of the endpoint's input fields as
compact JSON in UTF-8, divided by `bytes_per_token` and rounded up; a list of token ids counts as it is.  No token of a
byte-level vocabulary is shorter than a byte, so for text the truth is at most `bytes_per_token` times the estimate.
An image, a sound or a film is `media_tokens`, however many bytes its data URL has; what the server says of it stands in
the end.  Outputs are what the caller declares at most, times `n`, for
each of its prompts.

Bytes that need no change go on as they came.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import attrs
import msgspec

from fairsched.engines.gateway.config import GatewayConfig, QuotasConfig
from fairsched.engines.gateway.openai.endpoints import CHAT, COMPLETIONS, Endpoint
from fairsched.engines.gateway.openai.errors import CallError
from fairsched.engines.gateway.openai.streams import StreamReader, WholeReader
from fairsched.model.request import TOKENS_MAX

MEDIA_TOKENS = 1024
"""What an image, a sound or a film is taken for where nothing else is said."""
MEDIA_TOKENS_MAX = 1 << 14
"""What it may be at most, where nothing else is said."""
PARTS_MAX = 1 << 14
"""Messages and parts that are searched for media; where there are more, all count by their bytes."""
COMPACT_BYTES_MAX = 1 << 16
"""Of a longer field spaces count, too."""
OPTIONS_BYTES_MAX = 4096
"""Longest `stream_options`."""

_MEDIA = {
    "image_url": "image_url",
    "input_image": "image_url",
    "image": "source",
    "input_audio": "input_audio",
    "audio_url": "audio_url",
    "video_url": "video_url",
}
"""Content parts that are no text, by type: the field that holds the data."""
_TEXTS = frozenset(
    {"text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal", "message", "reasoning"}
    | {"thinking", "redacted_thinking", "function", "function_call", "function_call_output", "custom"}
    | {"custom_tool_call", "custom_tool_call_output", "tool_use", "tool_result"}
)
"""Types of what counts by its bytes.  A part of any other may stand for more than it has, as the id of a file does: it
is taken for a medium beside its bytes."""
_PROMPT = attrs.evolve(COMPLETIONS, most_default=None)
"""What a call with a prompt is taken for whose endpoint is not known: another protocol has another default."""
_DEEP = re.compile(rb"\[\s*\[\s*\[")
_EMPTY = frozenset({b"", b"null", b'""', b"[]", b"{}", b"false", b"0"})


class _Part(msgspec.Struct, gc=False):
    """A message or a part of one: what it is of, and what it holds."""

    type: Any = None
    content: msgspec.Raw = msgspec.Raw()
    output: msgspec.Raw = msgspec.Raw()
    image_url: msgspec.Raw = msgspec.Raw()
    source: msgspec.Raw = msgspec.Raw()
    input_audio: msgspec.Raw = msgspec.Raw()
    audio_url: msgspec.Raw = msgspec.Raw()
    video_url: msgspec.Raw = msgspec.Raw()


_PARTS = msgspec.json.Decoder(list[_Part | str])


@attrs.frozen
class CallSize:
    """Tokens of a call, outputs for all its `answers` together; `declared` is False where its caller named no most, nor
    does the protocol, and the default stands.  `prompt_tokens_max`: a token a byte, and the most of media."""

    prompt_tokens: int
    max_output_tokens: int
    declared: bool
    answers: int = 1
    prompt_tokens_max: int = 0


@attrs.frozen
class ForwardedCall:
    """A call as it is forwarded: its body, how many tokens it may come to, and whether the caller said so.

    `streams`: it asks for a stream.  `hides_usage`: the gateway asks for a stream's usage, and the caller did not.
    `stream_options`: those of a stream whose usage a server may be asked to say with each event, which the caller did
    not.  `quota_tokens`: what of quotas its prompt reserves; 0 where there are none.  `model`: which it wants.
    """

    endpoint: Endpoint
    body: bytes
    prompt_tokens: int
    max_output_tokens: int
    declared: bool
    answers: int = 1
    streams: bool = False
    hides_usage: bool = False
    quota_tokens: int = 0
    model: str = ""
    prompt_tokens_max: int = 0
    stream_options: dict[str, Any] | None = None

    def body_with_most(self, max_output_tokens: int) -> bytes:
        """Return the body that tells the server how many tokens all answers may have, if its caller did not."""
        if self.declared or not self.endpoint.generates:
            return self.body
        return with_fields(self.body, {self.endpoint.most[0]: max(max_output_tokens // self.answers, 1)})

    def reader(self, *, streams: bool, bytes_per_token: int, strips_usage: bool = False) -> StreamReader | WholeReader:
        """Return a reader of the call's answer, which may be a stream, or an error that is none."""
        if streams:
            return StreamReader(self.endpoint.form, hides_usage=self.hides_usage, strips_usage=strips_usage)
        return WholeReader(self.max_output_tokens if self.endpoint.generates else 0, bytes_per_token)


def read_call(raw: bytes, config: GatewayConfig, endpoint: Endpoint | None = None) -> ForwardedCall:
    """Return the call in a body.  Raises `CallError` (400) for what is none.

    Without an endpoint a call with a prompt is like a completion, and any other a chat.
    """
    told: dict[str, object] = {}
    hides, quota_tokens, options = False, 0, None
    try:
        fields, endpoint = _fields(raw, endpoint)
        counter = _Counter(config.bytes_per_token, config.media_tokens, config.media_tokens_max)
        size = _size(fields, endpoint, counter, config.default_output_tokens)
        if config.quota is not None:
            quota_tokens = _quota_tokens(fields, config, config.quota, endpoint, size)
        if fields.stream and endpoint.asks_usage:
            asked = _options(bytes(fields.stream_options))
            hides = asked.get("include_usage") is not True
            if hides:
                told["stream_options"] = {**asked, "include_usage": True}
            if asked.get("continuous_usage_stats") is not True:
                options = {**asked, "include_usage": True, "continuous_usage_stats": True}
    except ValueError as error:
        raise CallError(400, str(error)) from None
    if endpoint.most_default is not None and all(getattr(fields, name) is None for name in endpoint.most):
        # Some servers have another default, or none.
        told[endpoint.most[0]] = endpoint.most_default
    return ForwardedCall(
        endpoint,
        with_fields(raw, told) if told else raw,
        size.prompt_tokens,
        size.max_output_tokens,
        size.declared,
        size.answers,
        streams=bool(fields.stream),
        hides_usage=hides,
        quota_tokens=quota_tokens,
        model=fields.model or "",
        prompt_tokens_max=size.prompt_tokens_max,
        stream_options=options,
    )


# --- fields ---------------------------------------------------------------------------------------------------------


class _Once:
    """A number or a flag.  The hook that makes one is called for every field, a second one of a name, too."""


@cache
def _types(endpoint: Endpoint) -> tuple[type[Any], type[Any]]:
    """Return the fields of a body at an endpoint, and those of them that may not come twice."""
    raw = dict.fromkeys((*endpoint.inputs, *endpoint.needs, *endpoint.refused, "stream_options"), msgspec.Raw)
    once: dict[str, Any] = dict.fromkeys(endpoint.answers, int | None)
    once |= dict.fromkeys(endpoint.most, int | float | str | None) | {"stream": bool | None}
    fields: list[Any] = [(name, kind, msgspec.Raw()) for name, kind in raw.items()]
    fields += [(name, kind, None) for name, kind in (once | {"model": str | None}).items()]
    return msgspec.defstruct("Fields", fields), msgspec.defstruct("Seen", [(name, _Once, None) for name in once])


def _fields(raw: bytes, endpoint: Endpoint | None) -> tuple[Any, Endpoint]:
    """Return the fields of a call at an endpoint, or at the likely one.  O(bytes), and an object for each field that
    the endpoint knows.  Raises `ValueError`."""
    count = 0

    def counted(_: type, __: object) -> _Once:
        nonlocal count
        count += 1
        return _Once()

    try:
        raw.decode()
        if endpoint is None:
            prompt = msgspec.json.decode(raw, type=_types(_PROMPT)[0]).prompt
            endpoint = _PROMPT if _is_there(prompt) else CHAT
        known, once = _types(endpoint)
        fields = msgspec.json.decode(raw, type=known)
        seen = msgspec.json.decode(raw, type=once, dec_hook=counted)
    except msgspec.ValidationError as error:
        raise ValueError(f"the body is no call: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None
    if count > sum(getattr(seen, name) is not None for name in seen.__struct_fields__):
        raise ValueError("a field of the body comes twice")
    return fields, endpoint


def _is_there(value: msgspec.Raw) -> bool:
    return len(value) > 5 or bytes(value) not in _EMPTY


def _options(raw: bytes) -> dict[str, Any]:
    """Return `stream_options`."""
    if len(raw) > OPTIONS_BYTES_MAX:
        raise ValueError(f"stream_options are longer than {OPTIONS_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(raw or b"null", type=dict[str, Any] | None) or {}
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"stream_options: {error}") from None


def _most(fields: Any, name: str) -> int | None:
    """Return how many tokens a caller declares, as servers read it: 5, 5.0 or "5"; None where it names none, or -1."""
    value = getattr(fields, name)
    try:
        number = None if value is None else int(value)
        if number is not None and (number != float(value) or not -1 <= number <= TOKENS_MAX):
            raise ValueError
    except (ValueError, OverflowError):
        raise ValueError(f"{name} is a whole number from 0 to {TOKENS_MAX}, not {shown(value)}") from None
    return None if number == -1 else number


@cache
def _raws(names: tuple[str, ...]) -> type[Any]:
    """Return these fields of a body."""
    return msgspec.defstruct("Raws", [(name, msgspec.Raw, msgspec.Raw()) for name in names])


def with_fields(body: bytes, fields: Mapping[str, object]) -> bytes:
    """Return a JSON object that is not empty with these fields; all other bytes are as they were."""
    there = _raws(tuple(fields))
    try:
        if any(bytes(value) for value in msgspec.structs.astuple(msgspec.json.decode(body, type=there))):
            known = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            return msgspec.json.encode({**known, **fields})
    except msgspec.DecodeError:  # pragma: no cover
        raise ValueError("the body is not a JSON object") from None
    return body.rstrip()[:-1] + b"," + msgspec.json.encode(fields)[1:]


def shown(value: object) -> str:
    """Return a caller's value for a sentence, and no more than fits into one."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- sizes ----------------------------------------------------------------------------------------------------------


def has_prompt(raw: bytes) -> bool:
    """Return whether a body is a JSON object with messages or a prompt.  O(bytes), and no object is made of them."""
    try:
        raw.decode()
        told = msgspec.json.decode(raw, type=_raws(("messages", "prompt")))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return any(map(_is_there, msgspec.structs.astuple(told)))


def sized(raw: bytes, bytes_per_token: int, default_output_tokens: int, endpoint: Endpoint | None = None) -> CallSize:
    """Return the size of a call at an endpoint; without one at a likely one: with a prompt it is like a completion, and
    any other is a chat.

    O(bytes).  Raises `ValueError`, with a sentence for the caller, for what is none.
    """
    fields, endpoint = _fields(raw, endpoint)
    return _size(fields, endpoint, _Counter(bytes_per_token, MEDIA_TOKENS), default_output_tokens)


def _size(fields: Any, endpoint: Endpoint, counter: "_Counter", default_output_tokens: int) -> CallSize:
    if not any(_is_there(getattr(fields, name)) for name in endpoint.needs):
        raise ValueError(f"{' or '.join(endpoint.needs)} is missing")
    for name in endpoint.refused:
        if _is_there(getattr(fields, name)):
            raise ValueError(f"{name} is not served here: send the whole call, and wait for its answer")
    prompt, prompt_most = _prompt_tokens(fields, endpoint, counter)
    counts = [getattr(fields, name) for name in endpoint.answers]
    answers = max((1 if count is None else count for count in counts), default=1)
    if any(count is not None and count < 1 for count in counts):
        raise ValueError(f"{' and '.join(endpoint.answers)} are whole numbers from 1")
    prompts = [value for name in endpoint.prompts if _is_there(value := getattr(fields, name))]
    answers *= max(sum(map(_items, prompts)), 1)
    declared = [most for name in endpoint.most if (most := _most(fields, name)) is not None]
    if not declared and endpoint.most_default is not None:
        declared = [endpoint.most_default]
    # A call that generates nothing holds a place for one token, and is charged none.
    most = max(*declared, 1, 1) if declared else default_output_tokens if endpoint.generates else 1
    for what, tokens in (("prompt", prompt), ("output", most * answers)):
        if tokens > TOKENS_MAX:
            raise ValueError(f"{tokens} {what} tokens are over {TOKENS_MAX}")
    return CallSize(prompt, most * answers, bool(declared) or not endpoint.generates, answers, prompt_most)


def _text(value: msgspec.Raw) -> bytes:
    """Return JSON, without spaces where it is short."""
    text = bytes(value)
    return msgspec.json.format(text, indent=-1) if len(text) <= COMPACT_BYTES_MAX else text.strip()


def _plain(text: bytes) -> bytes:
    """Return JSON as long as it was without escaped backslashes: any that is left is one of another mark."""
    return text.replace(b"\\\\", b"__")


def _items(value: msgspec.Raw) -> int:
    """Return how many prompts a field holds: a list of texts, or of lists of token ids, is one each, and so are the
    parts of an object with content."""
    text = _text(value)
    if text.startswith(b"{"):
        text = bytes(msgspec.json.decode(text, type=_Part).content)
    first = text[1:].lstrip()[:1] if text.startswith(b"[") else b""
    if first == b"[":
        return max(text.count(b"[") - 1, 1)
    # Each text has two quotes that are not escaped.
    return max((text.count(b'"') - _plain(text).count(b'\\"')) // 2, 1) if first in (b'"', b"{") else 1


@attrs.define
class _Counter:
    """What fields come to: bytes of text, token ids, and media."""

    bytes_per_token: int
    media_tokens: int
    media_tokens_max: int = MEDIA_TOKENS_MAX

    def tokens(self, values: list[msgspec.Raw]) -> tuple[int, int]:
        """Return the tokens of these values, and how many they may be at most.  O(bytes)."""
        counted, most, texts = 0, 0, []
        for value in values:
            text = _text(value)
            if text.startswith(b'"'):
                texts.append(msgspec.json.decode(text, type=str).encode())
            elif text.startswith(b"[") and not (b'"' in text or b"{" in text):
                if _DEEP.match(text):
                    raise ValueError("token ids stand in a list, or in a list of lists")
                counted += text.count(b",") + 1
                most += text.count(b",") + 1
            else:
                media = list(_media_of(text)) if 0 < text.count(b"{") <= PARTS_MAX else []
                counted += len(media) * self.media_tokens
                most += len(media) * max(self.media_tokens_max, self.media_tokens)
                texts.append(_without(text, media))
        # An escape of six bytes stands for three at most.
        size = sum(len(text) - 3 * _plain(text).count(b"\\u") for text in texts)
        return counted - (-size // self.bytes_per_token), most + size


def _media_of(text: bytes, depth: int = 4) -> Iterator[bytes]:
    """Yield the data of media in messages, in their parts, and in what those hold; empty where that is elsewhere."""
    if not depth or not text.startswith(b"["):
        return
    try:
        parts = _PARTS.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return
    for part in parts:
        if isinstance(part, str):
            continue
        kind = part.type if isinstance(part.type, str) else ""
        keys = [_MEDIA[kind]] if kind in _MEDIA else [] if kind else _MEDIA.values()
        data = max((bytes(getattr(part, key)) for key in keys), key=len, default=b"")
        if len(data) > 2:
            yield data
            continue
        if kind and kind not in _TEXTS:
            yield b""
        yield from _media_of(bytes(part.content), depth - 1)
        yield from _media_of(bytes(part.output), depth - 1)


def _without(text: bytes, pieces: list[bytes]) -> bytes:
    """Return a text without these pieces, which it has in this order."""
    kept, begun = [], 0
    for piece in pieces:
        at = text.find(piece, begun)
        kept.append(text[begun:at])
        begun = at + len(piece)
    return b"".join((*kept, text[begun:]))


def _prompt_tokens(fields: Any, endpoint: Endpoint, counter: _Counter) -> tuple[int, int]:
    firsts, seconds = endpoint.pairs
    there = {name: value for name in endpoint.inputs if _is_there(value := getattr(fields, name))}
    tokens, most = counter.tokens([value for name, value in there.items() if name not in firsts])
    queries = [there[name] for name in firsts if name in there]
    if queries:
        items = sum(_items(there[name]) for name in seconds if name in there)
        # What is no text has more quotes than one.
        texts = [1 if re.match(rb"(\[\s*)?\{", _text(each)) else _items(each) for each in queries]
        times = max(items // sum(texts), 1)
        more, more_most = counter.tokens(queries)
        tokens, most = tokens + more * times, most + more_most * times
    return max(tokens // endpoint.cheap, 1), max(most // endpoint.cheap, 1)


def _quota_tokens(fields: Any, config: GatewayConfig, quota: QuotasConfig, endpoint: Endpoint, size: CallSize) -> int:
    """Return what of quotas a prompt reserves: what it may come to, whatever its tokens are.

    A limit that the gateway makes for several answers together is at least 1 for each of them.
    """
    counter = _Counter(quota.bytes_per_token, config.media_tokens)
    tokens = _prompt_tokens(fields, endpoint, counter)[0] + quota.template_tokens
    return tokens if size.declared else tokens + size.answers - 1
