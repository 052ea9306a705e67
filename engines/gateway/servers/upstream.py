"""One server behind a gateway: a call to it, its answer as it comes, and whether another server may be tried.

`open_answer` returns when the first bytes of an answer are here.  Until then nothing was passed on, so that what fails
(`ServerFailedError`) can be tried elsewhere without a token being seen twice.  Nothing here has a time-out: the life of
a call watches over it (`watch`).
"""

import asyncio
import errno
import io
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp
import attrs
from multidict import CIMultiDict

from fairsched.engines.gateway.servers.health import Failure, Why, retry_after_seconds
from fairsched.engines.gateway.servers.target import Upstream
from fairsched.engines.gateway.servers.watch import Watch
from fairsched.engines.settings import ConfigError

IDLE_SECONDS = 2.0
"""Connections idle for longer are not used again: servers close theirs after 5 seconds (uvicorn's and vLLM's default),
and a call that meets the closing looks like a server that failed."""
HEADER_BYTES_MAX = 64 << 10
"""Longest line in the head of an answer."""
BUFFER_BYTES = 16 << 10
"""Of an answer that its caller does not take, twice as much is read ahead at most."""
_LARGE_BODY = 1 << 20
_TOLD_BYTES_MAX, _TOLD_SECONDS = 4 << 20, 5.0

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
Headers = list[tuple[str, str]]

_PASSED = frozenset(
    {"accept", "accept-language", "authorization", "baggage", "content-type", "traceparent", "tracestate", "user-agent"}
    | {"anthropic-beta", "anthropic-version", "openai-beta", "openai-organization", "openai-project", "x-api-key"}
)
"""Headers of a call that go on as they came.  Others say things to a server that are no caller's to say: which of its
replicas computes, before whom, under whose session."""
_ANSWERED = frozenset(
    {"cache-control", "content-disposition", "content-encoding", "content-language", "content-length", "content-type"}
    | {"openai-model", "openai-processing-ms", "openai-version", "retry-after"}
)
"""Headers of an answer that go on.  Others may say what is of no caller: where a server stands, how full it is, and
whose session this was."""
_BUSY = frozenset({429, 503})
_SKIPPED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that the HTTP client would add of itself."""


class ServerFailedError(Exception):
    """The server gave no answer that a caller should see, and nothing of it was passed on.

    `sent`: it may have computed something, since the call was sent.
    """

    def __init__(self, failure: Failure, *, sent: bool) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.sent = sent


class UnsendableError(ValueError):
    """What the caller wants forwarded is no HTTP request: the caller's fault, and no server's."""


class BrokenError(Exception):
    """The server's answer broke off after some of it was passed on."""


@attrs.frozen
class ServerAnswer:
    """An answer's head and the first of its bytes; `read` gives the next ones, none at the end."""

    status: int
    headers: Headers
    streams: bool
    first: bytes
    _content: aiohttp.StreamReader

    async def read(self) -> bytes:
        """Return the next bytes.  Raises `BrokenError`."""
        try:
            return await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenError(f"{type(error).__name__}: {error}") from None


def new_session() -> aiohttp.ClientSession:
    """Return the connections to all servers; how many are open is bounded by the windows.

    No cookie is kept: it would be one caller's, and go out with the calls of others.
    """
    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(_sent)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        auto_decompress=False,
        read_bufsize=BUFFER_BYTES,
        max_line_size=HEADER_BYTES_MAX,
        max_field_size=HEADER_BYTES_MAX,
        skip_auto_headers=_SKIPPED,
        trace_configs=[trace],
    )


async def _sent(_: aiohttp.ClientSession, context: SimpleNamespace, __: aiohttp.TraceRequestHeadersSentParams) -> None:
    watch: Watch | None = context.trace_request_ctx
    if watch is not None:
        watch.sent()


@asynccontextmanager
async def open_answer(
    session: aiohttp.ClientSession,
    upstream: Upstream,
    watch: Watch,
    path: str,
    query: str,
    headers: CIMultiDict[str],
    body: bytes,
) -> AsyncIterator[ServerAnswer]:
    """Yield the server's answer to a call of a path of ours.  Raises `ServerFailedError`, and `UnsendableError` before
    anything was sent.

    Leaving the context closes the connection of an answer that is not whole, so that the server stops.
    """
    try:
        # The client warns of a large body that it writes in one piece.
        data = io.BytesIO(body) if len(body) > _LARGE_BODY else body
        target = f"{path}{'?' * bool(query)}{query}"
        response = await upstream.request(
            session, "POST", target, headers, data=data or None, trace_request_ctx=watch
        ).__aenter__()
    except aiohttp.ClientConnectorError as error:
        why: Why = "ours" if is_our_lack(error) else "refused"
        raise ServerFailedError(Failure(why, f"{type(error).__name__}: {error}"), sent=False) from None
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, OSError) as error:
        raise ServerFailedError(Failure("lost", f"{type(error).__name__}: {error}"), sent=True) from None
    except ConfigError as error:
        raise ServerFailedError(Failure("failed", str(error)), sent=False) from None
    except (aiohttp.InvalidURL, ValueError) as error:
        raise UnsendableError("the call cannot be forwarded: its query or a header is none of HTTP") from error
    except aiohttp.ClientError as error:
        raise ServerFailedError(Failure("failed", f"{type(error).__name__}: {error}"), sent=True) from None
    try:
        answer = await _begun(response, upstream)
        watch.passed = True
        watch.begin("read")
        yield answer
    finally:
        # Nothing happens to a connection whose answer is whole: it was given back.
        response.close()


def sent_headers(
    headers: Iterable[tuple[str, str]], name: tuple[str, str], api_key: str | None, request_id: tuple[str, str]
) -> CIMultiDict[str]:
    """Return the headers that a server sees: those of a caller that may pass, the client's name, the server's own key,
    and the id of this try.

    Raises `UnsendableError` for values that are no text in UTF-8, of which the HTTP client would leave bytes out.
    """
    given = list(headers)
    for key, value in given:
        if not value.isascii() and any("\ud800" <= mark <= "\udfff" for mark in value):
            raise UnsendableError(f"the value of the header {key} is no text in UTF-8")
    passed = _PASSED - _named(given)
    if api_key is not None:
        passed -= {"authorization", "x-api-key"}
    sent = CIMultiDict((key, value) for key, value in given if key.lower() in passed)
    if api_key is not None:
        sent["Authorization"] = f"Bearer {api_key}"
    sent.update((name, request_id))
    # An answer that is not compressed can be read while it passes by.
    sent["Accept-Encoding"] = "identity"
    return sent


def _named(headers: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the headers that a `Connection` header says are of this connection only."""
    found = (value.lower().split(",") for key, value in headers if key.lower() == "connection")
    return frozenset(each.strip() for values in found for each in values)


async def _begun(response: aiohttp.ClientResponse, upstream: Upstream) -> ServerAnswer:
    status = response.status
    if status in _BUSY:
        own: Why = "limited" if upstream.config.api_key is None else "full"
        why: Why = own if status == 429 else "busy"
        again = retry_after_seconds(response.headers.get("Retry-After"))
        raise ServerFailedError(Failure(why, f"HTTP {status}", again), sent=False)
    if status == 502 or 300 <= status < 400:
        # Where a server sends its callers is no place for those of a gateway.
        raise ServerFailedError(Failure("failed", f"HTTP {status}"), sent=True)
    try:
        first = await response.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise ServerFailedError(Failure("lost", f"{type(error).__name__}: {error}"), sent=True) from None
    streams = response.headers.get("Content-Type", "").startswith("text/event-stream")
    passed = _ANSWERED - _named(response.headers.items())
    kept = [(key, value) for key, value in response.headers.items() if key.lower() in passed]
    return ServerAnswer(status, kept, streams, first, response.content)


def is_our_lack(error: BaseException) -> bool:
    """Return whether a connection failed for want of descriptors, ports or memory here, not because of the server."""
    return isinstance(error, OSError) and error.errno in _OURS


async def probe(http: aiohttp.ClientSession, upstream: Upstream, path: str) -> str | None:
    """Ask a server's health path; returns why it is not well, None if it is.  Raises `OSError` for what lacks here.

    Any answer under 500 is a good one: a server without such a path says so, and is there.
    """
    try:
        async with upstream.request(http, "GET", path, {}) as answer:
            return f"{path}: HTTP {answer.status}" if answer.status >= 500 else None
    except (aiohttp.ClientError, OSError, ConfigError) as error:
        if isinstance(error, OSError) and is_our_lack(error):
            raise
        return f"{path}: {type(error).__name__}: {error}"


async def told(http: aiohttp.ClientSession, upstream: Upstream, path: str, key: str | None = None) -> bytes | None:
    """Return what a server tells at a path, to its own key or this one: empty where it has none, None where it cannot
    be asked."""
    key = key if upstream.config.api_key is None else f"Bearer {upstream.config.api_key}"
    headers, body = {} if key is None else {"Authorization": key}, bytearray()
    try:
        async with asyncio.timeout(_TOLD_SECONDS), upstream.request(http, "GET", path, headers) as answer:
            while answer.status == 200 and len(body) <= _TOLD_BYTES_MAX and (chunk := await answer.content.readany()):
                body += chunk
            return None if answer.status >= 500 else bytes(body)
    except (aiohttp.ClientError, OSError, ConfigError, ValueError):
        return None
