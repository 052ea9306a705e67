"""OpenAI-compatible servers that are made up, and a gateway before them, all in one event loop on loopback."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from fairsched.engines.gateway import build, gateway_policy
from fairsched.engines.gateway.account import Account
from fairsched.engines.gateway.app import application
from fairsched.engines.gateway.config import GatewayConfig, LimitConfig, ServerConfig, hashed_key
from fairsched.engines.gateway.gateway import Gateway
from fairsched.engines.gateway.server import Connections
from fairsched.engines.gateway.tls import tls_context
from fairsched.engines.gateway.window.leases import Store
from tests.support.adapters.http import Answered, Caller, served, streamed
from tests.support.adapters.loops import until


def events(tokens: int, *, usage: bool = False) -> list[bytes]:
    """The events of a stream of so many tokens; with what it came to, if that was asked for."""
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}]
    chunks += [{"choices": [{"index": 0, "delta": {"content": f"t{i} é"}}]} for i in range(tokens)]
    if usage:
        chunks += [{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}}]
    return [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode() for chunk in chunks] + [b"data: [DONE]\n\n"]


class Fake:
    """A server: `tokens` of output, `pause` seconds before each event; what it was asked and who left.

    While `answers` is not set, calls that are no streams are held, from the start if it is `held`.
    """

    def __init__(self, tokens: int = 3, pause: float = 0.0, status: int = 200, *, held: bool = False) -> None:
        self.tokens = tokens
        self.pause = pause
        self.status = status
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.left = 0
        self.answers = asyncio.Event()
        if not held:
            self.answers.set()
        self.running = self.running_max = 0
        self.app = web.Application()
        self.app.router.add_post("/v1/chat/completions", self._answer)
        self.app.router.add_post("/v1/completions", self._answer)
        self.app.router.add_get("/v1/models", self._models)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "tiny"}]}, headers={"x-from": "fake"})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        self.keys.append(request.headers.get("authorization"))
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        if body.get("stream"):
            asked = (body.get("stream_options") or {}).get("include_usage", False)
            return await streamed(request, self._stream(usage=asked))
        self._enter()
        try:
            await self.answers.wait()
        finally:
            self.running -= 1
        usage = {"prompt_tokens": 7, "completion_tokens": self.tokens}
        return web.json_response({"choices": [{"text": "x" * self.tokens}], "usage": usage})

    def _enter(self) -> None:
        self.running += 1
        self.running_max = max(self.running, self.running_max)

    async def _stream(self, *, usage: bool) -> AsyncIterator[bytes]:
        self._enter()
        try:
            for event in events(self.tokens, usage=usage):
                await asyncio.sleep(self.pause)
                yield event
        except asyncio.CancelledError:
            self.left += 1
            raise
        finally:
            self.running -= 1


@asynccontextmanager
async def dying(after: bytes) -> AsyncIterator[str]:
    """A server that reads a call, sends these bytes and is gone."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        sizes = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        await reader.readexactly(sum(sizes))
        writer.write(after if head.startswith(b"POST") else b"")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


ADMIN = "sk-admin-of-the-tests"
OPEN: dict[str, Any] = {
    "identify": "header",
    "unknown_clients": "own",
    "status": True,
    "admin_keys": (hashed_key(ADMIN),),
}
"""Settings under which any caller is served by the name that it gives itself."""


class World:
    """A gateway that serves, and a client of it."""

    def __init__(self, gateway: Gateway, http: Caller, connections: Connections) -> None:
        self.gateway = gateway
        self.connections = connections
        assert isinstance(gateway.account, Account)
        self.account = gateway.account
        self.http = http

    @property
    def status(self) -> dict[str, Any]:
        """What the gateway says of itself."""
        return self.account.document()

    def empty(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        window = self.account.window
        return not (window.waiting or window.in_flight or window.in_flight_tokens)

    async def told(self, outcome: str, count: int) -> None:
        """Wait until so many calls ended so."""
        await until(lambda: self.account.outcomes[outcome] >= count)

    async def emptied(self) -> None:
        """Wait until nothing is left of any call."""
        await until(self.empty)

    async def ask(self, client: str = "a", **fields: Any) -> Answered:
        """A chat completion for the client."""
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10, **fields}
        return await self.http.post("/v1/chat/completions", json=body, headers={"x-client": client})


@asynccontextmanager
async def world(
    *urls: str,
    window_tokens: int = 1000,
    window_requests: int = 64,
    quota_store: Store | None = None,
    **fields: Any,
) -> AsyncIterator[World]:
    """A gateway before these servers, with clients known by a header."""
    limits = fields.pop("limits", LimitConfig(down_seconds=0.05, stall_seconds=1.0))
    servers = fields.pop("servers", tuple(ServerConfig(url, window_tokens, window_requests) for url in urls))
    config = GatewayConfig(servers, limits=limits, **{**OPEN, **fields})
    policy = gateway_policy(config, Path("test.toml"))
    gateway = build(config, policy, budgets=quota_store)
    connections = Connections(config.limits, None if config.tls is None else tls_context(config.tls))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await connections.start(application(gateway), [listener])
        try:
            async with Caller(f"http://127.0.0.1:{listener.getsockname()[1]}") as http:
                made = World(gateway, http, connections)
                yield made
                await made.emptied()
        finally:
            await connections.stop(1.0)


@asynccontextmanager
async def faked(fake: Fake, **fields: Any) -> AsyncIterator[tuple[Fake, World]]:
    """A gateway before one server, and that server."""
    async with served(fake.app) as url, world(url, **fields) as here:
        yield fake, here
