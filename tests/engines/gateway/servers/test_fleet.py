"""Servers that fail behind a gateway that serves: what callers see, which servers are asked, and for whom."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from fairsched.engines.gateway.config import ClientConfig, LimitConfig, ServerConfig, hashed_key
from fairsched.engines.gateway.servers import fleet
from tests.support.adapters.gateway_scenarios import Fake, World, world
from tests.support.adapters.http import served
from tests.support.adapters.loops import in_loop, until

LONG = 300.0
"""Seconds that no test waits."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ANSWER = {"choices": [{"text": "x"}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}


async def good(_: web.Request) -> web.StreamResponse:
    """An answer that works."""
    return web.json_response(ANSWER)


class Server:
    """A server that answers calls and its health path as it is told; what it was asked."""

    def __init__(self, answer: Handler = good, health: Handler = good) -> None:
        self.answer = answer
        self.health = health
        self.asked: list[web.Request] = []
        self.app = web.Application()
        self.app.router.add_post("/v1/completions", self._called)
        self.app.router.add_get("/health", self._health)

    async def _called(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        self.asked.append(request)
        return await self.answer(request)

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return await self.health(request)


def failing(status: int, **headers: str) -> Handler:
    """Answers of this status, at once."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=status, headers=headers)

    return answer


@asynccontextmanager
async def before(*servers: Server, limits: dict[str, Any] | None = None, **fields: Any) -> AsyncIterator[World]:
    """A gateway before these servers; by itself it leaves a server alone for longer than any test, and asks no health
    path."""
    if not servers:
        limited = LimitConfig(**{"down_seconds": LONG, "health_seconds": LONG, **(limits or {})})
        async with world(*fields.pop("urls"), limits=limited, **fields) as here:
            yield here
        return
    async with served(servers[0].app) as url:
        urls = [*fields.pop("urls", []), url]
        async with before(*servers[1:], limits=limits, urls=urls, **fields) as here:
            yield here


async def ask(here: World, client: str = "a", **headers: str) -> int:
    """The status that a call of the client gets."""
    body = {"prompt": "hello", "max_tokens": 2}
    answer = await here.http.post("/v1/completions", json=body, headers={"x-client": client, **headers})
    return answer.status


@in_loop
async def test_a_key_over_its_limit_rests_servers_for_its_client_only() -> None:
    """The caller is told when to come back, as the server said; until then no server is asked by it, and the other
    client has both."""

    async def answer(request: web.Request) -> web.StreamResponse:
        limited = request.headers["authorization"] == "Bearer sk-a"
        return await (failing(429, **{"Retry-After": "77"}) if limited else good)(request)

    servers = Server(answer), Server(answer)
    clients = {name: ClientConfig((hashed_key(f"sk-{name}"),)) for name in "ab"}
    async with before(*servers, identify="key", unknown_clients="reject", clients=clients) as here:
        body = {"prompt": "hello", "max_tokens": 2}
        for _ in range(3):
            refused = await here.http.post("/v1/completions", json=body, headers={"authorization": "Bearer sk-a"})
            assert refused.status == 429
            assert 70 <= int(refused.headers["retry-after"]) <= 77
        assert sum(len(server.asked) for server in servers) == 2
        for _ in range(20):
            assert await ask(here, authorization="Bearer sk-b") == 200
        assert all(each["up"] for each in here.status["servers"].values())


@in_loop
async def test_health_counts_no_dead_server_as_up() -> None:
    """The gateway's health path answers 503 when no server does, without a call that finds out."""
    async with served(Server().app) as url:
        limits = LimitConfig(health_seconds=0.05)
        async with world(url, limits=limits) as here:
            assert (await here.http.get("/health")).status == 200
            here.gateway.configure(replace(here.gateway.config, servers=(ServerConfig("http://127.0.0.1:9", 1000),)))
            async with asyncio.timeout(LONG):
                while (await here.http.get("/health")).status != 503:
                    await asyncio.sleep(0.01)


@in_loop
async def test_calls_that_cost_nothing_take_no_name() -> None:
    """Random keys at `/v1/models`, and with bodies that are none: an honest stranger has a name of its own then."""
    async with before(Server(), identify="key", limits={"clients": 2}) as here:
        for i in range(50):
            key = {"authorization": f"Bearer sk-{i}"}
            await here.http.get("/v1/models", headers=key)
            assert (await here.http.post("/v1/completions", content=b"{", headers=key)).status == 400
            assert await ask(here, authorization="Basic x") == 200
        assert await ask(here, authorization="bearer sk-honest") == 200
        names = list(here.status["clients"])
        assert len(names) == 2
        assert "others" not in names


@in_loop
async def test_a_server_that_is_taken_out_of_the_file_finishes_its_calls() -> None:
    """A call that is there is answered, new ones go to the server that came, and both windows count while they are
    there."""
    fake, fresh = Fake(held=True), Server()
    async with served(fake.app) as url, served(fresh.app) as other, before(urls=[url]) as here:
        call = asyncio.ensure_future(ask(here))
        await until(lambda: fake.running)
        here.gateway.configure(replace(here.gateway.config, servers=(ServerConfig(other, 500),)))
        assert here.account.window.tokens == 1500
        assert [await ask(here) for _ in range(3)] == [200] * 3
        assert len(fresh.asked) == 3
        assert list(here.status["servers"]) == [other]
        fake.answers.set()
        assert await call == 200
        await here.emptied()
        assert here.account.window.servers.tokens == 500


@in_loop
async def test_a_name_is_a_server_at_each_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come and go while it serves, each with its window; the server is told the name, and the client's, which a
    caller cannot set itself."""
    addresses = ["127.0.0.1"]

    async def found(_: ServerConfig) -> list[str]:
        return addresses

    monkeypatch.setattr(fleet, "addresses_of", found)
    server = Server()
    async with served(server.app) as url, before(urls=[url], limits={"resolve_seconds": 0.01}) as here:
        name = url.replace("127.0.0.1", "pool.example")
        pool = ServerConfig(name, 400, resolve=True)
        here.gateway.configure(replace(here.gateway.config, servers=(pool,)))
        await until(lambda: list(here.status["servers"]) == [f"{name} (127.0.0.1)"])
        assert await ask(here, "a", **{"x-fairsched-client": "other"}) == 200
        (asked,) = server.asked
        assert asked.headers["host"] == name.removeprefix("http://")
        assert asked.headers.getall("x-fairsched-client")[0].startswith("~")
        assert len(asked.headers.getall("x-fairsched-client")) == 1
        addresses.append("127.0.0.9")
        await until(lambda: len(here.status["servers"]) == 2)
        assert here.account.window.servers.tokens == 800
        assert [await ask(here) for _ in range(5)] == [200] * 5
        addresses.remove("127.0.0.9")
        await until(lambda: len(here.status["servers"]) == 1)
        assert here.account.window.servers.tokens == 400
