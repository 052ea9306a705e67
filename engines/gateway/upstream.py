"""One server behind a gateway: a call to it, its answer as it comes, and whether another server may be tried.

`open_answer` returns when the first bytes of a stream, or the whole of any other answer, are here.  Until then nothing
was passed on, so that whatever fails (`Failed`) can be tried elsewhere without a token being seen twice.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy

import attrs
import httpx

from fairsched.engines.gateway.account import Upstream, Why

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 2.0
"""Connections idle for longer are not used again: servers close theirs after 5 seconds (uvicorn's and vLLM's default),
and a call that meets the closing looks like a server that failed."""
ANSWER_BYTES_MAX = 64 << 20
"""Longest answer that is no stream."""

Headers = list[tuple[bytes, bytes]]

_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding"}
    | {"upgrade", "host", "content-length", "accept-encoding", "expect", "date", "server"}
)
"""Headers of one connection, and those that the two sides make themselves."""
_BUSY = frozenset({429, 503})
_BROKEN = frozenset({502, 504})
"""A 500 goes to the caller: its own call may be the cause, and must not take server after server out."""


class FailedError(Exception):
    """The server gave no answer that a caller should see, and nothing of it was passed on."""

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message)
        self.why: Why = why


class UnsendableError(ValueError):
    """What the caller wants forwarded is no HTTP request: the caller's fault, and no server's."""


class BrokenError(Exception):
    """The server's answer broke off after some of it was passed on."""


@attrs.frozen
class Answer:
    """An answer's head, and its bytes: for a stream as they come, else all at once."""

    status: int
    headers: Headers
    streams: bool
    chunks: AsyncIterator[bytes]


def new_client() -> httpx.AsyncClient:
    """Return the connections to all servers; how many are open is bounded by the windows.

    No cookie is kept: it would be one caller's, and go out with the calls of others.
    """
    pool = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=IDLE_SECONDS)
    nobodys = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    return httpx.AsyncClient(limits=pool, follow_redirects=False, trust_env=False, cookies=nobodys)


@asynccontextmanager
async def open_answer(
    client: httpx.AsyncClient,
    server: Upstream,
    call: tuple[str, str, Sequence[tuple[str, str]], bytes],
    read_seconds: float,
) -> AsyncIterator[Answer]:
    """Yield the server's answer to a call: method, path, headers, body.  Raises `FailedError`, `UnsendableError` before
    anything was sent, and reading the answer's `chunks` raises `BrokenError`.

    Leaving the context closes the connection of an answer that is not whole, so that the server stops.
    """
    method, path, headers, body = call
    timeout = httpx.Timeout(read_seconds, connect=CONNECT_SECONDS, pool=None)
    try:
        request = client.build_request(
            method, server.url + path, headers=_sent(headers, server.api_key), content=body, timeout=timeout
        )
        response = await client.send(request, stream=True)
    except (httpx.InvalidURL, httpx.LocalProtocolError) as error:
        raise UnsendableError(f"the call cannot be forwarded: {error}") from None
    except httpx.HTTPError as error:
        lost = isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError)
        raise FailedError("lost" if lost else "failed", f"{type(error).__name__}: {error}") from None
    try:
        if response.status_code in _BUSY | _BROKEN:
            why: Why = "busy" if response.status_code in _BUSY else "failed"
            raise FailedError(why, f"HTTP {response.status_code}")
        yield await _begun(response)
    finally:
        # A cancelled caller must not leave the connection open.
        await asyncio.shield(response.aclose())


def _sent(headers: Sequence[tuple[str, str]], api_key: str | None) -> Headers:
    """Return the headers that a server sees.  Bytes, as they came: a value need not be ASCII."""
    dropped = _HOP if api_key is None else _HOP | {"authorization"}
    sent = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers if name.lower() not in dropped]
    if api_key is not None:
        sent.append((b"authorization", f"Bearer {api_key}".encode()))
    # An answer that is not compressed can be read while it passes by.
    return [*sent, (b"accept-encoding", b"identity")]


async def _begun(response: httpx.Response) -> Answer:
    streams = response.headers.get("content-type", "").startswith("text/event-stream")
    raw = response.aiter_raw()
    try:
        if streams:
            first = await anext(raw, b"")
            chunks = _passed(first, raw)
        else:
            whole = bytearray()
            async for chunk in raw:
                whole += chunk
                if len(whole) > ANSWER_BYTES_MAX:
                    raise FailedError("failed", f"an answer of more than {ANSWER_BYTES_MAX} bytes that is no stream")
            chunks = _passed(bytes(whole), None)
    except httpx.HTTPError as error:
        raise FailedError("failed", f"{type(error).__name__}: {error}") from None
    kept = [(name, value) for name, value in response.headers.raw if name.decode("latin-1").lower() not in _HOP]
    return Answer(response.status_code, kept, streams, chunks)


async def _passed(first: bytes, rest: AsyncIterator[bytes] | None) -> AsyncIterator[bytes]:
    if first:
        yield first
    if rest is None:
        return
    try:
        async for chunk in rest:
            yield chunk
    except httpx.HTTPError as error:
        raise BrokenError(f"{type(error).__name__}: {error}") from None
