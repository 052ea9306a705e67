"""A gateway that passes every call on at once, in order of arrival; and one that does all wrong that it can.

`Careless(urls)` is a plain proxy before servers.  `Careless(urls, wrong=True)` asks for no key, forgets that callers
leave, sends each call twice, holds a stream until it is whole, hides its usage, and says of one that broke that it is
whole.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import aiohttp
from aiohttp import web

from fairsched.engines.conformance import CLIENTS


class Careless:
    """The proxy."""

    def __init__(self, urls: Sequence[str], *, wrong: bool = False) -> None:
        self._urls = itertools.cycle(urls)
        self._wrong = wrong
        self._keys = {f"Bearer sk-{client}" for client in CLIENTS}
        self._http: aiohttp.ClientSession | None = None
        self._forgotten: set[asyncio.Task[None]] = set()

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_get("/v1/models", self._models)

        async def session(_: web.Application) -> AsyncIterator[None]:
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
            yield
            for task in self._forgotten:
                task.cancel()
            await self._http.close()

        app.cleanup_ctx.append(session)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "made-up"}]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if not self._wrong and request.headers.get("authorization") not in self._keys:
            return web.Response(status=401)
        url = next(self._urls) + request.path
        if not self._wrong:
            return await self._pass_on(request, url, body)
        _ = self._forget(self._read(url, body, bytearray()))
        kept = bytearray()
        await asyncio.shield(self._forget(self._read(url, body, kept)))
        if not json.loads(body).get("stream"):
            return web.Response(body=bytes(kept), content_type="application/json")
        lines = [line for line in bytes(kept).splitlines(keepends=True) if b'"usage"' not in line]
        if not any(b"[DONE]" in line for line in lines):
            lines.append(b"data: [DONE]\n\n")
        return web.Response(body=b"".join(lines), content_type="text/event-stream")

    def _forget(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._forgotten.add(task)
        return task

    async def _read(self, url: str, body: bytes, kept: bytearray) -> None:
        assert self._http is not None
        with suppress(aiohttp.ClientError):
            async with self._http.post(url, data=body) as answer:
                async for chunk in answer.content.iter_any():
                    kept += chunk

    async def _pass_on(self, request: web.Request, url: str, body: bytes) -> web.StreamResponse:
        assert self._http is not None
        async with self._http.post(url, data=body) as answer:
            response = web.StreamResponse(status=answer.status, headers={"content-type": answer.content_type})
            await response.prepare(request)
            with suppress(aiohttp.ClientPayloadError):
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                return response
            await response.write(b'data: {"error": {"message": "the server is gone"}}\n\n')
            return response
