"""HTTP of any kind against a gateway: what a server sees is what another reader of HTTP reads, at a path of ours."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import h11
import pytest
from aiohttp import web
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairsched.engines.gateway.config import ServerConfig
from fairsched.engines.gateway.openai import BY_PATH
from fairsched.engines.gateway.window import SLOT_PATHS
from tests.support.adapters.gateway_fuzz import mutated
from tests.support.adapters.gateway_scenarios import World, world
from tests.support.adapters.http import served
from tests.support.adapters.loops import in_loop, in_virtual_time

PAUSE = 0.1
"""An answer that does not go on for so long is taken for whole."""
SILENCE = 1.0
"""Where no answer begins for so long, none is expected: the gateway waits for the rest of a call."""
GOOD = b'{"messages":[{"role":"user","content":"@"}],"max_tokens":2}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}"
ASKED = tuple(b"GET %s " % path.encode() for path in ("/health", "/v1/models", *SLOT_PATHS))
"""What a gateway asks of a server for itself."""
PATHS = ["/v1/chat/completions", "/v1/chat/completions?beta=true", "/v1/models", "/health", "/admin/flush"]
ODD_PATHS = ["/v1/%63hat/completions", "/v1/../admin", "//evil/v1/models", "/v1/chat/completions#x", "", "?x", "/\xe9"]
HOSTS = ["x", "evil:80", "x@evil", "", "127.0.0.1:9", "[::1]:80", ".example.com"]


def read(data: bytes) -> list[tuple[str, str, bytes]]:
    """The requests in these bytes, as `h11` reads them: method, target, body; none from the first that is no HTTP."""
    found, connection = [], h11.Connection(h11.SERVER)
    connection.receive_data(data)
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                method, target, body = event.method.decode(), event.target.decode("latin-1"), b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                found.append((method, target, body))
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                connection.start_next_cycle()
            else:
                break
    except h11.ProtocolError:
        pass
    return found


@attrs.define
class Upstream:
    """A server of raw sockets: what it was sent."""

    heads: list[bytes] = attrs.field(factory=list)
    bodies: list[bytes] = attrs.field(factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer calls on a connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                if not head.startswith(ASKED):
                    self.heads.append(head)
                    self.bodies.append(await reader.readexactly(int(length[0]) if length else 0))
                writer.write(ANSWER)
        except asyncio.IncompleteReadError:
            writer.close()


@asynccontextmanager
async def recorded(**fields: Any) -> AsyncIterator[tuple[Upstream, World]]:
    """A gateway with a key before such a server."""
    upstream = Upstream()
    server = await asyncio.start_server(upstream.handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with world(servers=(ServerConfig(url, 1000, api_key="sk-of-the-server"),), **fields) as here:
            yield upstream, here
    finally:
        server.close()


def chunked(body: bytes, size: int, more: bytes = b"") -> bytes:
    """A body in chunks."""
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x%s\r\n%s\r\n" % (len(each), more, each) for each in pieces) + b"0\r\n\r\n"


LENGTH = b"Content-Length: %d" % len(GOOD)
CHUNKED = b"Transfer-Encoding: chunked"
FRAMINGS = [
    ([LENGTH], GOOD),
    ([LENGTH, LENGTH], GOOD),
    ([LENGTH, b"Content-Length: 3"], GOOD),
    ([b"Content-Length: +%d" % len(GOOD)], GOOD),
    ([b"Content-Length : %d" % len(GOOD)], GOOD),
    ([b"Content-Length: %d, %d" % (len(GOOD), len(GOOD))], GOOD),
    ([LENGTH, CHUNKED], chunked(GOOD, 20)),
    ([CHUNKED], chunked(GOOD, 7)),
    ([CHUNKED], chunked(GOOD, 30, b";a=b")),
    ([CHUNKED, CHUNKED], chunked(GOOD, 30)),
    ([b"Transfer-Encoding: chunked, identity"], chunked(GOOD, 30)),
    ([b"Transfer-Encoding: xchunked"], GOOD),
    ([b"Transfer-Encoding : chunked"], chunked(GOOD, 30)),
    ([], b""),
]
"""Headers that say where a body ends, and the body."""
EXTRA = [
    b"Host: y",
    b"X-Client: b",
    b"Connection: close",
    b"Connection: host",
    b" folded",
    b"No colon",
    b"X-Bare: a\rb",
]

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Client: a\r\n"
ODD = (
    [
        HEAD + LENGTH + more + b"\r\n\r\n" + GOOD
        for more in (
            b"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x",
            b"\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nConnection: Upgrade",
            b"\r\nContent-Encoding: gzip",
            b"\r\nContent-Encoding: \xe9",
            b"\r\nExpect: 100-continue",
            b"\r\nExpect: \xe9",
            b"\r\nX-Null: a\0b",
            b"\r\nX-Long: " + b"a" * (1 << 18),
            b"".join(b"\r\nX-%d: a" % i for i in range(2000)),
        )
    ]
    + [
        HEAD + CHUNKED + b"\r\n\r\n" + body
        for body in (
            b"zz\r\nab\r\n0\r\n\r\n",
            b"f" * 18 + b"\r\nab",
            b"-1\r\nab\r\n0\r\n\r\n",
            b"2;" + b"y" * 9000 + b"\r\nab",
        )
    ]
    + [
        b"GET /v1/models\r\n\r\n",
        b"GET /v1/models HTTP/9.9\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 64,
    ]
)
"""Requests that no grammar makes."""

TARGETS = st.one_of(
    st.sampled_from(PATHS),
    st.sampled_from(ODD_PATHS),
    st.tuples(
        st.sampled_from(["http://", "https://", "HTTP://", "munity://", "ftp://", "http:", "://", "javascript:"]),
        st.sampled_from(HOSTS),
        st.sampled_from(PATHS + ODD_PATHS),
    ).map("".join),
    st.sampled_from(HOSTS),
    st.just("*"),
)
"""In the four forms of RFC 9112, and what looks like them."""


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """The bytes of a request."""
    method = draw(st.sampled_from(["POST", "POST", "POST", "GET", "OPTIONS", "CONNECT", "HEAD", "post"]))
    version = draw(st.sampled_from(["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0"]))
    framing, body = draw(st.sampled_from(FRAMINGS) | st.just(FRAMINGS[0]))
    body = body.replace(b"@", draw(st.sampled_from([b"1", b"2", b"3"])))
    headers = [b"Host: x", b"X-Client: a", *framing, *draw(st.lists(st.sampled_from(EXTRA), max_size=1))]
    headers = draw(st.permutations(headers)) if draw(st.booleans()) else headers
    end = draw(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]))
    line = f"{method} {draw(TARGETS)} {version}".encode("latin-1")
    return end.join([line, *headers, b"", b""]) + body


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


def request(target: str) -> bytes:
    """A good call of this target."""
    return b"POST %s HTTP/1.1\r\nHost: x\r\nX-Client: a\r\n%s\r\n\r\n%s" % (target.encode(), LENGTH, GOOD)


MUTATED = st.builds(mutated, requests(), st.randoms(use_true_random=False))


@example([request("munity://x/v1/chat/completions")])
@example([request("http://evil:80/v1/chat/completions")])
@example([request("munity://admin/v1/chat/completions"), request("/v1/chat/completions")])
@settings(deadline=None)
@given(st.lists(requests() | st.sampled_from(ODD) | MUTATED, min_size=1, max_size=3))
def test_a_server_sees_what_another_reader_reads_and_no_path_of_a_caller(sent: list[bytes]) -> None:
    """Of each connection a server gets calls that `h11` reads, too, in order and with their bodies, at a path of ours
    under the server's own name; scheme, host and fragment of a target say nothing.  What is no HTTP is answered as
    HTTP or not at all, and never as a failure of the gateway, which serves on and logs no traceback."""
    data = b"".join(sent)

    told: list[logging.LogRecord] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.extend([record] * bool(record.exc_info))

    @in_virtual_time
    async def run() -> None:
        async with recorded() as (upstream, here):
            url = here.http.url
            assert url.port is not None
            said = await raw_answer("127.0.0.1", url.port, data)
            check_answer(data, said)
            assert (await here.ask()).status == 200, "the next caller is served"
            await here.emptied()
            upstream.heads.pop()
            upstream.bodies.pop()
            own = str(here.account.upstreams()[0].url).removeprefix("http://")
        expected = iter([body for method, _, body in read(data) if method == "POST"])
        assert all(body in expected for body in upstream.bodies), "some calls of these, in their order"
        for head in upstream.heads:
            line, *headers = head.decode("latin-1").split("\r\n")
            method, target, _ = line.split(" ")
            assert (method, target.partition("?")[0] in BY_PATH) == ("POST", True), head
            hosts = [value for name, value in (each.split(": ", 1) for each in headers[:-2]) if name.lower() == "host"]
            assert hosts == [own], head

    handler = Kept()
    logging.getLogger().addHandler(handler)
    try:
        run()
    finally:
        logging.getLogger().removeHandler(handler)
    assert [record.getMessage() for record in told] == []


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("munity://x/v1/chat/completions", "400"),
        ("munity://admin/v1/chat/completions", "400"),
        ("http://x:99/v1/chat/completions", "200"),
        ("https://x/v1/chat/completions?beta=true", "200"),
        ("x:80", "400"),
    ],
)
@in_loop
async def test_no_caller_chooses_where_the_servers_key_goes(target: str, status: str) -> None:
    """A target in absolute form is a call of its path (RFC 9112, 3.2.2), and adds nothing to the server's address."""
    async with recorded() as (upstream, here):
        assert here.http.url.port is not None
        said = await raw_answer("127.0.0.1", here.http.url.port, request(target))
        assert check_answer(b"", said) == status
        for head in upstream.heads:
            assert head.split(b" ")[1].partition(b"?")[0] == b"/v1/chat/completions"
        assert len(upstream.heads) == (status == "200")


@in_loop
async def test_headers_pass_that_servers_need_and_no_others() -> None:
    """A caller gives itself no priority, replica, session or id at a server; a server's cookies and redirections stay
    where they are."""
    told = {
        "priority": "9",
        "x-data-parallel-rank": "1",
        "cookie": "a=b",
        "x-request-id": "mine",
        "x-forwarded-for": "1",
    }
    async with recorded() as (upstream, here):
        passed = {"user-agent": "me", "anthropic-version": "2023-06-01", "traceparent": "00-1-2-01"}
        body = json.loads(GOOD)
        answer = await here.http.post("/v1/chat/completions", json=body, headers={"x-client": "a", **passed, **told})
        assert answer.status == 200
        (head,) = upstream.heads
        seen = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:-2])
        assert set(told) & set(seen) == {"x-request-id"}
        assert seen["x-request-id"] != "mine"
        assert passed.items() <= seen.items()


@in_loop
async def test_a_caller_hears_no_address_of_a_server() -> None:
    """Of one that is not there, that sends callers elsewhere, or that breaks off."""

    async def elsewhere(_: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": "http://internal:8000/"})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", elsewhere)
    async with served(app) as url, world(url) as here, world("http://127.0.0.1:9") as gone:
        for each in (here, gone):
            answer = await each.ask()
            assert answer.status == 502
            assert not {"127.0.0.1", "internal", "Error"} & set(answer.text.replace(":", " ").replace("/", " ").split())
            assert "location" not in answer.headers


@pytest.mark.parametrize("expects", [b"", b"expect: 100-continue\r\n"])
@in_loop
async def test_a_body_that_is_too_large_is_refused_while_it_comes(expects: bytes) -> None:
    """Its caller reads 413, not a connection that is reset; no server hears of it."""
    async with recorded() as (upstream, here):
        size = 20 << 20
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-client: a\r\ncontent-length: %d\r\n" % size
        data = head + expects + b"\r\n" + b" " * (size // 20)
        assert here.http.url.port is not None
        assert check_answer(data, await raw_answer("127.0.0.1", here.http.url.port, data)) == "413"
        assert upstream.heads == []
