"""A call as it comes: its size, and the body that a server gets.

Before a call is forwarded a prompt's tokens are estimated from its text: the bytes of the endpoint's input fields as
compact JSON in UTF-8, divided by `bytes_per_token` and rounded up; a list of token ids counts as it is.  No token of a
byte-level vocabulary is shorter than a byte, so for text the truth is at most `bytes_per_token` times the estimate.
An image, a sound or a film is `media_tokens`, however many bytes its data URL has; what the server says of it stands in
the end.  A `Tokenizer` that is given counts text instead.  Outputs are what the caller declares at most, times `n`, for
each of its prompts.

Bytes that need no change go on as they came.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import msgspec

from fairsched.engines.gateway.config import GatewayConfig, QuotasConfig
from fairsched.engines.gateway.openai.endpoints import CHAT, COMPLETIONS, Endpoint
from fairsched.engines.gateway.openai.errors import CallError
from fairsched.engines.gateway.openai.fields import document_of, flag, table, whole, with_fields
from fairsched.engines.gateway.openai.streams import StreamReader, WholeReader
from fairsched.model.request import TOKENS_MAX

MEDIA_TOKENS = 1024
"""What an image, a sound or a film is taken for where nothing else is said."""
PARTS_MAX = 1 << 14
"""Messages and parts that are searched for media; any beyond count by their bytes."""
Tokenizer = Callable[[str], int]
"""How many tokens a text has."""

_MEDIA = {
    "image_url": ("image_url", "url"),
    "input_image": ("image_url", "url"),
    "image": ("source", "data"),
    "input_audio": ("input_audio", "data"),
    "audio_url": ("audio_url", "url"),
    "video_url": ("video_url", "url"),
}
"""Content parts that are no text, by type: the field that holds the data, or an object whose field does.  A file may be
text, and counts by its bytes."""
_NESTED = ("content", "output")
"""Fields of a message or a part that hold parts."""


_PROMPT = attrs.evolve(COMPLETIONS, most_default=None)
"""What a call with a prompt is taken for whose endpoint is not known: another protocol has another default."""


@attrs.frozen
class CallSize:
    """Tokens of a call, outputs for all its `answers` together; `declared` is False where its caller named no most, nor
    does the protocol, and the default stands."""

    prompt_tokens: int
    max_output_tokens: int
    declared: bool
    answers: int = 1


@attrs.frozen
class ForwardedCall:
    """A call as it is forwarded: its body, how many tokens it may come to, and whether the caller said so.

    `streams`: it asks for a stream.  `hides_usage`: the gateway asks for a stream's usage, and the caller did not.
    `quota_tokens`: what of quotas its prompt reserves; 0 where there are none.
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

    def body_with_most(self, max_output_tokens: int) -> bytes:
        """Return the body that tells the server how many tokens all answers may have, if its caller did not."""
        if self.declared or not self.endpoint.generates:
            return self.body
        return with_fields(self.body, {self.endpoint.most[0]: max(max_output_tokens // self.answers, 1)})

    def reader(self, *, streams: bool, bytes_per_token: int) -> StreamReader | WholeReader:
        """Return a reader of the call's answer, which may be a stream, or an error that is none."""
        if streams:
            return StreamReader(self.endpoint.form, hides_usage=self.hides_usage)
        return WholeReader(self.max_output_tokens if self.endpoint.generates else 0, bytes_per_token)


def read_call(
    raw: bytes, config: GatewayConfig, tokenizer: Tokenizer | None = None, endpoint: Endpoint | None = None
) -> ForwardedCall:
    """Return the call in a body.  Raises `CallError` (400) for what is none.

    Without an endpoint a call with a prompt is like a completion, and any other a chat.
    """
    try:
        document = document_of(raw)
        endpoint = endpoint or _likely(document)
        tokens = config.bytes_per_token, config.default_output_tokens
        size = sized(document, *tokens, tokenizer, endpoint, config.media_tokens)
        quota_tokens = 0 if config.quota is None else _quota_tokens(document, config, config.quota, endpoint, size)
        streams = flag(document, "stream")
        asked = table(document, "stream_options") if streams and endpoint.asks_usage else None
    except RecursionError:
        raise CallError(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise CallError(400, str(error)) from None
    told: dict[str, object] = {}
    hides = asked is not None and asked.get("include_usage") is not True
    if asked is not None and hides:
        told["stream_options"] = {**asked, "include_usage": True}
    if endpoint.most_default is not None and all(document.get(name) is None for name in endpoint.most):
        # Some servers have another default, or none.
        told[endpoint.most[0]] = endpoint.most_default
    return ForwardedCall(
        endpoint,
        with_fields(raw, told) if told else raw,
        size.prompt_tokens,
        size.max_output_tokens,
        size.declared,
        size.answers,
        streams=streams,
        hides_usage=hides,
        quota_tokens=quota_tokens,
    )


def _likely(document: Mapping[str, object]) -> Endpoint:
    return _PROMPT if document.get("prompt") else CHAT


# --- sizes ----------------------------------------------------------------------------------------------------------


def sized(
    document: Mapping[str, object],
    bytes_per_token: int,
    default_output_tokens: int,
    tokenizer: Tokenizer | None = None,
    endpoint: Endpoint | None = None,
    media_tokens: int = MEDIA_TOKENS,
) -> CallSize:
    """Return the size of a call.  O(bytes).  Raises `ValueError`, with a sentence for the caller, for what is none.

    Without an endpoint a document with a prompt is like a completion, and any other a chat.
    """
    endpoint = endpoint or _likely(document)
    if not any(document.get(name) for name in endpoint.needs):
        raise ValueError(f"{' or '.join(endpoint.needs)} is missing")
    for name in endpoint.refused:
        if document.get(name):
            raise ValueError(f"{name} is not served here: send the whole call, and wait for its answer")
    prompt = _prompt_tokens(document, endpoint, _Counter(bytes_per_token, tokenizer, media_tokens))
    answers = max((whole(document, name) or 1 for name in endpoint.answers), default=1)
    answers *= _items(document.get(endpoint.prompts)) if endpoint.prompts else 1
    declared = [most for name in endpoint.most if (most := whole(document, name)) is not None]
    if not declared and endpoint.most_default is not None:
        declared = [endpoint.most_default]
    # A call that generates nothing holds a place for one token, and is charged none.
    most = max(declared, default=default_output_tokens) if endpoint.generates else 1
    for what, count in (("prompt", prompt), ("output", most * answers)):
        if count > TOKENS_MAX:
            raise ValueError(f"{count} {what} tokens are over {TOKENS_MAX}")
    return CallSize(prompt, most * answers, bool(declared) or not endpoint.generates, answers)


def _items(value: object) -> int:
    """Return how many prompts a field holds: a list of texts, or of lists of token ids, is one each."""
    if isinstance(value, list) and value and not isinstance(value[0], int):
        return len(value)
    return 1


@attrs.define
class _Counter:
    """What fields come to: bytes of text or what a tokenizer says of it, token ids, and media."""

    bytes_per_token: int
    tokenizer: Tokenizer | None
    media_tokens: int
    _media: int = 0
    _parts: int = 0

    def tokens(self, values: list[object]) -> int:
        """Return the tokens of these values."""
        counted, texts = 0, []
        self._media = 0
        for value in values:
            if isinstance(value, str):
                texts.append(value)
            elif (ids := _ids(value)) is not None:
                counted += ids
            else:
                texts.append(msgspec.json.encode(self._plain(value)).decode())
        counted += self._media * self.media_tokens
        if self.tokenizer is not None:
            return counted + sum(self.tokenizer(text) for text in texts)
        return counted - (-sum(len(text.encode()) for text in texts) // self.bytes_per_token)

    def _plain(self, value: Any) -> Any:
        """Return messages or parts without the data of media, which are counted."""
        if isinstance(value, list):
            left = PARTS_MAX - self._parts
            self._parts += min(len(value), left)
            before = self._media
            plain = [self._plain(each) for each in value[:left]]
            return value if self._media == before else plain + value[left:]
        if not isinstance(value, dict):
            return value
        kind = value.get("type")
        keys = _MEDIA.get(kind) if isinstance(kind, str) else None
        part = None if keys is None else _without_data(value, keys)
        if part is not None:
            self._media += 1
            return part
        for key in _NESTED:
            if isinstance(value.get(key), list | dict):
                value = {**value, key: self._plain(value[key])}
        return value


def _prompt_tokens(document: Mapping[str, object], endpoint: Endpoint, counter: _Counter) -> int:
    firsts, seconds = endpoint.pairs
    plain = [document[name] for name in endpoint.inputs if document.get(name) and name not in firsts]
    tokens = counter.tokens(plain)
    queries = [document[name] for name in firsts if document.get(name)]
    if queries:
        items = sum(_items(document[name]) for name in seconds if document.get(name))
        tokens += counter.tokens(queries) * max(items // sum(map(_items, queries)), 1)
    return max(tokens, 1)


def _quota_tokens(
    document: Mapping[str, object], config: GatewayConfig, quota: QuotasConfig, endpoint: Endpoint, size: CallSize
) -> int:
    """Return what of quotas a prompt reserves: what it may come to, whatever its tokens are.

    A limit that the gateway makes for several answers together is at least 1 for each of them.
    """
    counter = _Counter(quota.bytes_per_token, None, config.media_tokens)
    tokens = _prompt_tokens(document, endpoint, counter) + quota.template_tokens
    return tokens if size.declared else tokens + size.answers - 1


def _ids(value: object) -> int | None:
    """Return how many token ids a list has, or its lists have; None for anything else."""
    first = value[0] if isinstance(value, list) and value else None
    try:
        if type(first) is int:
            return len(msgspec.convert(value, list[int]))
        if isinstance(first, list):
            return sum(map(len, msgspec.convert(value, list[list[int]])))
    except msgspec.ValidationError:
        pass
    return None


def _without_data(part: dict[str, Any], keys: tuple[str, str]) -> dict[str, Any] | None:
    """Return a part of media without its data; None for a part that has none."""
    outer, inner = keys
    held = part.get(outer)
    if isinstance(held, dict):
        data = held.get(inner) if inner in held else held.get("url")
        return {**part, outer: {**held, inner: ""}} if isinstance(data, str) else None
    for key in keys:
        if isinstance(part.get(key), str):
            return {**part, key: ""}
    return None
