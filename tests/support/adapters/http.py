"""A small HTTP client for tests, and applications that serve on loopback."""

import json
import logging
import random
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import attrs
from aiohttp import web
from multidict import CIMultiDictProxy
from yarl import URL

LOG = logging.getLogger("tests.served")
"""What these applications log, apart from what a gateway does."""
LOST = (aiohttp.ClientError, ConnectionError, TimeoutError)
"""What a caller sees whose connection is cut off."""


@attrs.frozen
class Answered:
    """An answer, whole."""

    status: int
    headers: CIMultiDictProxy[str]
    content: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.content.decode()

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.content)


class Caller:
    """A client of the server at an address, as an asynchronous context."""

    def __init__(self, url: str, seconds: float = 60.0, *, tls: ssl.SSLContext | None = None) -> None:
        self.url = URL(url)
        self._tls = tls
        self._seconds = seconds
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Caller":
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0, ssl=self._tls or True),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=self._seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._http is not None
        await self._http.close()

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer whose body has still to be read."""
        assert self._http is not None
        data: Any = {"data": content} if content is not None else {"json": json} if json is not None else {}
        async with self._http.request(method, self.url.with_path(path), headers=headers, **data) as answer:
            yield answer

    async def request(self, method: str, path: str, **fields: Any) -> Answered:
        """An answer."""
        async with self.stream(method, path, **fields) as answer:
            return Answered(answer.status, answer.headers, await answer.read())

    async def get(self, path: str, **fields: Any) -> Answered:
        """An answer to a GET."""
        return await self.request("GET", path, **fields)

    async def post(self, path: str, **fields: Any) -> Answered:
        """An answer to a POST."""
        return await self.request("POST", path, **fields)


def free_pair() -> int:
    """A port that is free, as is the next one, below those that connections are given."""
    while True:
        port = random.randrange(20_000, 32_000)
        with (
            suppress(OSError),
            socket.create_server(("127.0.0.1", port)),
            socket.create_server(("127.0.0.1", port + 1)),
        ):
            return port


@asynccontextmanager
async def served(app: web.Application, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The address of an application on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        runner = web.AppRunner(app, access_log=None, logger=LOG, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        await web.SockSite(runner, listener, ssl_context=tls).start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            await runner.cleanup()


async def streamed(request: web.Request, chunks: AsyncIterator[bytes]) -> web.StreamResponse:
    """An answer of server-sent events."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    async for chunk in chunks:
        await response.write(chunk)
    return response
