"""Bad input for the gateway: bodies, streams and headers, mutated from a corpus.

What is wrong raises `AssertionError` with the input.
"""

import json
from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

import msgspec

from fairsched.engines.gateway.config import ClientConfig, GatewayConfig, ServerConfig, hashed_key
from fairsched.engines.gateway.identity import CallerNames
from fairsched.engines.gateway.openai import BY_PATH, CallError, StreamReader, read_call, usage_of
from fairsched.model.request import TOKENS_MAX

T = TypeVar("T")
CONFIG = GatewayConfig(
    (ServerConfig("http://127.0.0.1:9", 4000),), clients={"gold": ClientConfig(keys=(hashed_key("sk-gold"),))}
)
NAMES = CallerNames(CONFIG)


def _json(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


_PARTS = [
    {"type": "text", "text": "what is this?"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
]
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
BODIES: list[tuple[str, bytes]] = [
    ("/v1/completions", _json({"prompt": "one two \u00e9", "max_tokens": 5, "n": 2, "best_of": 3, "echo": True})),
    ("/v1/completions", _json({"prompt": [[1, 2, 3], [4]], "stream": True, "suffix": "z", "logprobs": 3})),
    ("/v1/chat/completions", _json({"messages": [{"role": "user", "content": _PARTS}], "tools": [_TOOL]})),
    (
        "/v1/chat/completions",
        _json(
            {
                "messages": [{"role": "user", "content": "a"}],
                "stream": True,
                "stream_options": {"include_usage": False},
                "max_completion_tokens": 7,
                "temperature": 1.5e0,
            }
        ),
    ),
    ("/v1/responses", _json({"input": [{"role": "user", "content": _PARTS}], "instructions": "b", "background": None})),
    ("/v1/messages", _json({"messages": [{"role": "user", "content": "a"}], "system": [_PARTS[0]], "max_tokens": 3})),
    ("/v1/embeddings", _json({"input": ["a", "b"], "dimensions": 3})),
    ("/v1/rerank", _json({"query": "a", "documents": ["b", {"content": _PARTS}], "top_n": 1})),
    ("/v1/score", _json({"text_1": "a", "text_2": ["b", "c"]})),
]
_EVENT = '{"id":"a","choices":[{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":null}]}'
_STREAM_LINES = [
    b'data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}',
    *(b"data: " + (_EVENT % text).encode() for text in ("a", "", "b\\n", "\u00e9", '\\"')),
    b'data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
    b'data: {"id":"a","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5,"prompt_tokens_details":null}}',
    b'data: {"id":"a","choices":[{"text":"x"}],"usage":null}',
    b"data: [DONE]",
    b": ping",
    b"event: response.output_text.delta",
    b'data: {"type":"response.output_text.delta","delta":"a"}',
    b'data: {"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":4}}}',
    b'data: {"type":"message_start","message":{"usage":{"input_tokens":3,"output_tokens":1}}}',
    b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}',
    b'data: {"type":"message_delta","usage":{"output_tokens":4}}',
    b"",
    b"\r",
]
STREAMS = [
    b"".join(line + b"\n\n" for line in _STREAM_LINES[:10]),
    b"".join(line + b"\r\n\r\n" for line in _STREAM_LINES[:10]),
    b"".join(line + b"\n" + b"\n" * (not line.startswith(b"event")) for line in _STREAM_LINES[10:]),
]
_TOKENS = [
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\r\n", b"\0", b"\xff", b"\xed\xa0\x80", b" ", b"\t"),
    *(
        b"null",
        b"true",
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"-1",
        b"0.5",
        b"4294967296",
        b"9" * 30,
        b"\\ud800",
        b"\\u0000",
    ),
    *(b"data:", b"data: [DONE]\n\n", b'"usage":', b'"choices":[', b'"max_tokens":', b'"prompt":', b'"content":"'),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"GET / HTTP/1.1\r\n", b"HTTP/1.1", b"%00", b"../"),
]


def mutated(data: bytes, random: Random, corpus: Iterable[bytes] = ()) -> bytes:
    """The bytes with one to four changes: bits, cuts, repeats, tokens of the languages, a piece of another input."""
    others = list(corpus)
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randint(0, len(made))
        end = min(len(made), at + random.choice((1, 1, 2, 8, 60)))
        match random.randrange(8):
            case 0 if made:
                made[min(at, len(made) - 1)] ^= 1 << random.randrange(8)
            case 1:
                del made[at:end]
            case 2:
                made[at:at] = made[at:end] * random.choice((1, 2, 50))
            case 3 | 4:
                made[at:at] = random.choice(_TOKENS)
            case 5:
                made[at:end] = random.choice(_TOKENS)
            case 6 if others:
                other = random.choice(others)
                start = random.randint(0, len(other))
                made[at:end] = other[start : start + random.choice((4, 40, 400))]
            case _:
                made[at:at] = random.choice((b"[", b'{"a":', b"9", b"x", b"\xc3")) * random.choice((3, 300, 3000))
    return bytes(made)


_VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    3,
    1 << 31,
    1 << 70,
    0.5,
    1e300,
    "",
    "a",
    "\u00e9\0",
    [],
    {},
    [[]],
    [1, "a"],
    {"": 1},
]


def restructured(data: bytes, random: Random) -> bytes:
    """The JSON document with one to three values or names in it changed: it is JSON, and may be no call."""
    document = json.loads(data)
    for _ in range(random.randint(1, 3)):
        place = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = random.choice(keys)
            if isinstance(place[key], dict | list) and random.random() < 0.7:
                place = place[key]
                continue
            old = place[key]
            place[key] = deepcopy(random.choice([*_VALUES, [old] * 3, {"content": old}, {"type": old}]))
            break
    return _json(document)


# --- parsers --------------------------------------------------------------------------------------------------------


def _or_refusal(read: Callable[[], T]) -> T | CallError:
    try:
        return read()
    except CallError as error:
        return error


def check_body(path: str, raw: bytes) -> str:
    """A body is a call whose numbers make sense and whose other bytes go on, or one clear 400.  Return which."""
    call = _or_refusal(lambda: read_call(raw, CONFIG, BY_PATH[path]))
    if isinstance(call, CallError):
        assert call.status == 400, (call.status, raw)
        assert 0 < len(call.message) < 300, raw
        assert "\n" not in call.message, raw
        return "refused"
    assert 1 <= call.prompt_tokens <= TOKENS_MAX, raw
    assert call.answers <= call.max_output_tokens <= TOKENS_MAX, raw
    assert call.declared or call.endpoint.generates, raw
    said, asked = msgspec.json.decode(raw), msgspec.json.decode(call.body)
    if call.hides_usage:
        assert asked.pop("stream_options")["include_usage"] is True, raw
        said.pop("stream_options", None)
    if call.endpoint.most_default is not None and said.get("max_tokens") is None:
        said["max_tokens"] = call.endpoint.most_default
    assert said == asked, raw
    msgspec.json.decode(call.body_with_most(call.max_output_tokens))
    return "read"


def check_stream(data: bytes, cuts: list[int], *, hides: bool) -> str:
    """A stream says the same however it is cut, and what is hidden is lines with usage alone."""
    for form in ("choices", "responses", "messages"):
        whole, cut = (StreamReader(form, hides_usage=hides) for _ in range(2))
        tokens, seen = whole.pass_on(data)
        seen += whole.rest()
        passed = [cut.pass_on(data[start:end]) for start, end in pairwise([0, *sorted(cuts), len(data)])]
        assert sum(count for count, _ in passed) == tokens, (data, cuts)
        assert b"".join(each for _, each in passed) + cut.rest() == seen, (data, cuts)
        assert cut.usage == whole.usage, (data, cuts)
        assert seen == data or (hides and form == "choices" and b'"usage"' in data), (data, cuts)
        left = [line for line in data.split(b"\n") if line.strip()]
        for line in filter(bytes.strip, seen.split(b"\n")):
            while left[0] != line:
                assert b'"usage"' in left.pop(0), (data, cuts)
            left.pop(0)
        assert all(b'"usage"' in line for line in left), (data, cuts)
    usage_of(data, 5, 4)
    return "stream"


def check_headers(headers: dict[str, str]) -> str:
    """A caller has a name, or is refused."""
    name = _or_refusal(lambda: NAMES.of(headers))
    if isinstance(name, CallError):
        assert name.status in (400, 401), headers
        return "unknown"
    assert name, headers
    return "known"
