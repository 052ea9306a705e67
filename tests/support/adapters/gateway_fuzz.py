"""Bad input for the gateway: bodies, streams, headers and raw bytes of connections, mutated from a corpus.

What is wrong raises `AssertionError` with the input.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
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
SECONDS = 60.0
"""A good call that takes longer hangs."""
PAUSE = 0.1
"""An answer that does not go on for so long is taken for whole."""
SILENCE = 1.0
"""Where no answer begins for so long, none is expected: the gateway waits for the rest of a call."""


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
    call = _or_refusal(lambda: read_call(raw, CONFIG, None, BY_PATH[path]))
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
    """A stream says the same however it is cut, and what is not hidden passes."""
    for form in ("choices", "responses", "messages"):
        whole, cut = (StreamReader(form, hides_usage=hides) for _ in range(2))
        tokens, seen = whole.pass_on(data)
        seen += whole.rest()
        passed = [cut.pass_on(data[start:end]) for start, end in pairwise([0, *sorted(cuts), len(data)])]
        assert sum(count for count, _ in passed) == tokens, (data, cuts)
        assert b"".join(each for _, each in passed) + cut.rest() == seen, (data, cuts)
        assert cut.usage == whole.usage, (data, cuts)
        assert seen == data or (hides and form == "choices" and b'"usage"' in data), (data, cuts)
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


def check_parsers(random: Random, count: int) -> Counter[str]:
    """Put so many inputs through the parsers."""
    seen: Counter[str] = Counter()
    bodies = [body for _, body in BODIES]
    for i in range(count):
        if i % 8 < 5:
            path, body = random.choice(BODIES)
            changed = restructured(body, random) if i % 2 else mutated(body, random, bodies)
            seen[check_body(path, changed)] += 1
        elif i % 8 < 7:
            data = mutated(random.choice(STREAMS), random, STREAMS)
            cuts = [random.randint(0, len(data)) for _ in range(random.randint(0, 6))]
            seen[check_stream(data, cuts, hides=random.random() < 0.7)] += 1
        else:
            value = mutated(b"Bearer sk-gold", random).decode("utf-8", "surrogateescape")
            seen[check_headers({random.choice(("authorization", "x-api-key", "x-client")): value})] += 1
    return seen


# --- connections ----------------------------------------------------------------------------------------------------


def http(*headers: str, body: bytes = b"", method: str = "POST", path: str = "/v1/completions") -> bytes:
    """The bytes of a call."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: x", "X-Client: a", *headers, "", "")).encode() + body


GOOD = b'{"prompt": "a", "max_tokens": 2}'
LENGTH = f"Content-Length: {len(GOOD)}"
CHUNKED = "Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)
REQUESTS = [
    http(LENGTH, body=GOOD),
    http(LENGTH, "Content-Type: application/json", "Authorization: Bearer sk-gold", "Expect: 100-continue", body=GOOD),
    http(CHUNKED, body=CHUNKS),
    http(CHUNKED, body=CHUNKS.replace(b"0\r\n\r\n", b"0\r\nX-Trailer: a\r\n\r\n")),
    http(LENGTH, CHUNKED, body=CHUNKS),
    http(CHUNKED, LENGTH, body=GOOD),
    http(LENGTH, LENGTH, body=GOOD),
    http(LENGTH, "Content-Length: 3", body=GOOD),
    http("Content-Length: +5", body=GOOD),
    http("Content-Length: -1", body=GOOD),
    http("Content-Length: 99999999999999999999999", body=GOOD),
    http("Content-Length: 0x20", body=GOOD),
    http("Transfer-Encoding: identity, chunked, x", body=CHUNKS),
    http("Transfer-Encoding : chunked", body=CHUNKS),
    http(CHUNKED, body=b"zz\r\nab\r\n0\r\n\r\n"),
    http(CHUNKED, body=b"ffffffffffffffffff\r\nab"),
    http(CHUNKED, body=b"-1\r\nab\r\n0\r\n\r\n"),
    http(CHUNKED, body=b"2;x=" + b"y" * 9000 + b"\r\nab\r\n0\r\n\r\n"),
    http(LENGTH, "X-Fold: a\r\n b", body=GOOD),
    http(LENGTH, "X-Null: a\0b", body=GOOD),
    http(LENGTH, "X-Long: " + "a" * (1 << 20), body=GOOD),
    http(LENGTH, *(f"X-{i}: a" for i in range(2000)), body=GOOD),
    http(LENGTH, "X-Client: b", body=GOOD),
    http(LENGTH, "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: x", body=GOOD),
    http(LENGTH, "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA", "Connection: Upgrade", body=GOOD),
    http(LENGTH, "Content-Encoding: gzip", body=GOOD),
    http(LENGTH, "Content-Encoding: \u00e9", body=GOOD).replace("\u00e9".encode(), b"\xe9"),
    http(LENGTH, "Expect: \u00e9", body=GOOD).replace("\u00e9".encode(), b"\xe9"),
    http(method="GET", path="/\u00e9").replace("\u00e9".encode(), b"\xe9"),
    http(LENGTH, body=GOOD) * 5,
    http(LENGTH, body=GOOD) + b"GET /v1/mod",
    http(LENGTH, path="/v1/completions?" + "x" * 70_000, body=GOOD),
    http(LENGTH, path="/v1/%63ompletions", body=GOOD),
    http(LENGTH, path="/v1/../v1/completions", body=GOOD),
    http(LENGTH, path="//v1/completions%00", body=GOOD),
    http(LENGTH, path="http://elsewhere/v1/completions", body=GOOD),
    http(method="GET", path="/v1/models"),
    http(method="HEAD", path="/v1/models"),
    http(method="OPTIONS", path="*"),
    http("Origin: https://a", "Access-Control-Request-Method: POST", method="OPTIONS"),
    http(method="CONNECT", path="a:80"),
    http(method="TRACE", path="/"),
    http(method="GET", path="/v1/completions"),
    http(method="DELETE", path="/v1/models"),
    http(method="PRI", path="*").replace(b"HTTP/1.1", b"HTTP/2.0") + b"SM\r\n\r\n",
    b"GET /v1/models\r\n\r\n",
    b"GET /v1/models HTTP/1.0\r\n\r\n",
    b"GET /v1/models HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET /v1/models HTTP/1.1\nHost: x\n\n",
    b"\r\n\r\n\r\n" + http(LENGTH, body=GOOD),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\0" * 64,
    http(LENGTH, body=b"{"),
]


async def raw_answer(host: str, port: int, data: bytes) -> bytes:
    """What a connection says to these bytes before it closes, or falls silent."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 22)
    said = bytearray()
    try:
        writer.write(data)
        # A server that closes while it is written to is right.
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(SILENCE):
                await writer.drain()
        with suppress(OSError, TimeoutError):
            while more := await asyncio.wait_for(reader.read(1 << 16), PAUSE if said else SILENCE):
                said += more
    finally:
        writer.transport.abort()
    return bytes(said)


def check_answer(data: bytes, said: bytes) -> str:
    """The answers on a connection are HTTP, and none is a failure of the gateway.  Return the first one's status."""
    if not said:
        return "silence"
    head = said[:200]
    assert said.startswith(b"HTTP/"), (data[:2000], head)
    status = said[9:12].decode()
    assert status.isdecimal(), (data[:2000], head)
    assert not re.search(rb"HTTP/\d\.\d 500", said), (data[:2000], head)
    assert b"Traceback" not in said, (data[:2000], said)
    return status


async def good_answer(host: str, port: int) -> None:
    """A good call is answered."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(http(LENGTH, "Connection: close", body=GOOD))
        said = await asyncio.wait_for(reader.read(), SECONDS)
        assert said.startswith(b"HTTP/1.1 200"), said[:500]
    finally:
        writer.transport.abort()


async def check_connections(host: str, port: int, inputs: Iterable[bytes], at_once: int = 64) -> Counter[str]:
    """Send each of these on a connection of its own; good calls are answered between them."""
    seen: Counter[str] = Counter()
    turns = asyncio.Semaphore(at_once)

    async def one(i: int, data: bytes) -> None:
        async with turns:
            seen[check_answer(data, await raw_answer(host, port, data))] += 1
            if i % 50 == 0:
                await good_answer(host, port)

    async with asyncio.TaskGroup() as group:
        for i, data in enumerate(inputs):
            # Tasks are not all there at once.
            while turns.locked():
                await asyncio.sleep(0.001)
            group.create_task(one(i, data))
            await asyncio.sleep(0)
    await good_answer(host, port)
    return seen


def requests(random: Random, count: int) -> Iterable[bytes]:
    """Bytes for so many connections: the corpus as it is, then changed, and good calls of changed bodies."""
    short = [request for request in REQUESTS if len(request) < 20_000]
    for i in range(count):
        if i < len(REQUESTS):
            yield REQUESTS[i]
        elif i % 3 == 0:
            path, body = random.choice(BODIES)
            body = restructured(body, random) if i % 2 else mutated(body, random)
            yield http(f"Content-Length: {len(body)}", path=path, body=body)
        else:
            yield mutated(random.choice(REQUESTS if i % 16 == 0 else short), random, short)
