"""A gateway before made-up servers: bytes pass through, every call ends once, nothing is said twice."""

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from msgspec.structs import replace

from fairsched.engines.gateway import Share, gateway
from fairsched.engines.gateway.account import Placed, PlaceRequest
from fairsched.engines.gateway.config import ClientConfig, LimitConfig, ServerConfig, hashed_key
from tests.support.adapters.gateway_scenarios import ADMIN, STREAM_HEAD, Fake, dying, events, faked, world
from tests.support.adapters.http import served, streamed
from tests.support.adapters.loops import in_loop, until


@in_loop
async def test_streams_pass_byte_for_byte_and_usage_settles_what_was_charged() -> None:
    """A stream's bytes are the server's; prompt and output are charged as its usage says."""
    async with faked(Fake(tokens=5)) as (_, here):
        answer = await here.ask(stream=True)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.content == b"".join(events(5))
        await here.emptied()
        (client,) = here.status["clients"].values()
        assert (client["prompt_tokens"], client["output_tokens"]) == (7, 5)
        assert here.status["outcomes"] == {"finished": 1}


PROMPT_TOKENS = 35
"""A token a byte: no server says what it was."""
"""What the prompt of `World.ask` is taken for."""


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@in_loop
async def test_whole_answers_models_and_health(path: str) -> None:
    """An answer that is no stream comes whole; models are the servers'; health says that servers are up."""
    async with faked(Fake(tokens=4)) as (_, here):
        body = {"prompt": "hi", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
        answer = await here.http.post(path, json=body, headers={"x-client": "a"})
        assert answer.json()["choices"] == [{"text": "xxxx"}]
        models = await here.http.get("/v1/models")
        assert models.json()["data"] == [{"id": "tiny"}]
        assert (await here.http.get("/health")).json() == {"servers_up": 1}
        admin = {"authorization": f"Bearer {ADMIN}"}
        assert (await here.http.get("/gateway/status", headers=admin)).json() == here.status
        assert (await here.http.get("/gateway/status")).status == 401


@in_loop
async def test_keys_name_clients_and_a_server_may_have_its_own() -> None:
    """A key belongs to its client, a stranger is refused where strangers are, and a server sees its own key."""
    fake = Fake()
    async with served(fake.app) as url:
        clients = {"gold": ClientConfig(keys=(hashed_key("sk-1"),), weight=3)}
        fields: dict[str, Any] = {"identify": "key", "unknown_clients": "reject", "clients": clients}
        async with world(url, **fields) as here:
            body = {"prompt": "a", "max_tokens": 1}
            right, wrong = ({"Authorization": f"Bearer sk-{i}"} for i in (1, 2))
            assert (await here.http.post("/v1/completions", json=body, headers=wrong)).status == 401
            assert (await here.http.get("/v1/models", headers=wrong)).status == 401
            assert (await here.http.post("/v1/completions", json=body, headers=right)).status == 200
            config = here.account.config
            here.gateway.configure(replace(config, servers=(ServerConfig(url, 1000, api_key="sk-server"),)))
            assert (await here.http.post("/v1/completions", json=body, headers=right)).status == 200
            assert fake.keys == ["Bearer sk-1", "Bearer sk-server"]
            assert here.status["clients"]["gold"]["weight"] == 3


@in_loop
async def test_what_a_caller_sends_takes_no_server_out_and_reaches_no_other_caller() -> None:
    """Headers that are not ASCII pass; what is no HTTP request is the caller's fault (400), charged to nobody, and
    rests no server; cookies that a server sets for one caller do not go out with another's call."""
    seen: list[tuple[str | None, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.headers.get("user-agent"), request.headers.get("cookie")))
        response = web.json_response({})
        response.set_cookie("session", "of-the-first")
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    limits = LimitConfig(down_seconds=60.0)
    async with served(app) as url, world(url, limits=limits, clients={"a": ClientConfig()}) as here:
        body = json.dumps({"prompt": "a" * 400, "max_tokens": 1}).encode()

        async def ask(more: bytes = b"", path: bytes = b"/v1/completions") -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", here.http.url.port)
            head = b"POST %s HTTP/1.1\r\nhost: x\r\nx-client: a\r\n%scontent-length: %d\r\n\r\n"
            writer.write(head % (path, more, len(body)) + body)
            status = await reader.readline()
            writer.close()
            return status.split()[1]

        assert await ask("user-agent: Jörg\r\n".encode()) == b"200"
        assert await ask() == b"200"
        assert seen == [("Jörg", None), (None, None)]
        charged = here.status["clients"]["a"]["prompt_tokens"]
        for more in (b"x-odd: J\xf6rg\r\n", b"x-odd: a\x0bb\r\n", b"x-odd: a\rb\r\n"):
            assert await ask(more) == b"400"
        assert await ask(path=b"/v1/completions?" + b"x" * 70_000) == b"400"
        assert here.status["clients"]["a"]["prompt_tokens"] == charged
        assert [server.up for server in here.account.window.servers] == [True]
        assert (len(seen), here.empty()) == (2, True)


@in_loop
async def test_who_leaves_before_anything_was_sent_is_charged_nothing() -> None:
    """A call that was let in, and whose caller left before it went on, gives back what it was charged."""
    clients = {"second": ClientConfig()}
    async with faked(Fake(held=True), window_requests=1, clients=clients) as (fake, here):
        first = asyncio.ensure_future(here.ask("first"))
        await until(lambda: fake.running)
        second = asyncio.ensure_future(here.account.place(PlaceRequest("second", 100, 1, wait_seconds=60)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert here.account.window.waiting == 1
        here.account.window.servers[0].share = Share(1000, 2)
        here.account.pump()
        assert here.account.window.in_flight == 2
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert here.status["clients"]["second"]["prompt_tokens"] == 0
        assert here.account.window.in_flight == 1
        fake.answers.set()
        await first
        assert len(fake.asked) == 1


@in_loop
async def test_a_queue_that_is_too_long_may_choose_a_call_whose_caller_leaves_at_that_moment() -> None:
    """Found by ten minutes of all floods: the newcomer's call was an error, and stayed in the window for ever."""
    limits = LimitConfig(waiting_per_client=1, waiting=1)
    clients = {"heavy": ClientConfig(weight=9), "light": ClientConfig()}
    async with faked(Fake(held=True), window_requests=1, clients=clients, limits=limits) as (fake, here):
        first = asyncio.ensure_future(here.ask("first"))
        await until(lambda: fake.running)

        def call(name: str) -> asyncio.Task[Placed]:
            return asyncio.ensure_future(here.account.place(PlaceRequest(name, 100, 1, wait_seconds=60)))

        leaving = call("light")
        await until(lambda: here.account.window.waiting)
        # The newcomer's turn is before that of the call that is told to leave.
        newcomer = call("heavy")
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert here.account.window.waiting == 1
        fake.answers.set()
        await first
        here.account.give_back((await newcomer).request_id, "left")
        assert here.empty()
        assert here.status["outcomes"] == {"finished": 1, "left": 2}


@in_loop
async def test_the_window_is_never_exceeded_and_too_many_waiting_are_told_when_to_come_back() -> None:
    """Two requests at a time at the server; of those that wait for a client two at most, others get 429."""
    limits = LimitConfig(waiting_per_client=2, waiting=3, retry_after_seconds=4)
    async with faked(Fake(held=True), window_requests=2, limits=limits) as (fake, here):
        calls = asyncio.gather(*(here.ask() for _ in range(10)))
        await here.told("limited", 6)
        await until(lambda: fake.running >= 2)
        fake.answers.set()
        answers = await calls
        codes = sorted(answer.status for answer in answers)
        assert codes == [200] * 4 + [429] * 6
        assert all(a.headers["retry-after"] == "4" for a in answers if a.status == 429)
        assert fake.running_max == 2
        assert here.status["outcomes"] == {"finished": 4, "limited": 6}


@in_loop
async def test_who_leaves_while_it_waits_or_runs_is_gone_everywhere() -> None:
    """A caller that leaves cancels its stream at the server, frees the window, and nobody serves it later."""
    async with faked(Fake(tokens=1000, pause=0.01), window_requests=1) as (fake, here):
        first = asyncio.ensure_future(here.ask(stream=True))
        await until(lambda: fake.running)
        second = asyncio.ensure_future(here.ask(stream=True))
        await until(lambda: here.account.window.waiting)
        second.cancel()
        await until(lambda: not here.account.window.waiting)
        first.cancel()
        await here.emptied()
        await until(lambda: fake.left)
        assert (len(fake.asked), fake.running) == (1, 0)
        assert here.status["outcomes"] == {"left": 2}


@in_loop
async def test_a_server_that_dies_before_a_byte_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection, a connection that closes, and a head without a byte of the body: the other server answers, and
    the caller is charged for that answer alone."""
    monkeypatch.setattr(gateway, "AT_ONCE_SECONDS", 60.0)
    fake = Fake(tokens=2)
    for last_words in (b"", STREAM_HEAD):
        async with dying(last_words) as dead, served(fake.app) as url, world(dead, url) as here:
            answer = await here.ask(stream=True)
            if last_words and answer.content == b"":
                raise AssertionError("an empty answer was passed on")
            assert answer.content == b"".join(events(2))
            await here.emptied()
            (client,) = here.status["clients"].values()
            assert (client["prompt_tokens"], client["output_tokens"]) == (7, 2)
            assert here.status["retries"] == 1
    async with served(fake.app) as url, world("http://127.0.0.1:9", url) as here:
        assert (await here.ask()).status == 200
        (client,) = here.status["clients"].values()
        assert client["prompt_tokens"] == 7


@in_loop
async def test_a_stream_that_breaks_off_is_never_begun_again() -> None:
    """After the first byte nobody else is asked: the caller sees what came, an error event, and no second beginning."""
    fake, token = Fake(), events(1)[1]
    words = STREAM_HEAD + b"%x\r\n%s\r\n" % (len(token), token)
    async with dying(words) as dead, served(fake.app) as url, world(dead, url) as here:
        answer = await here.ask(stream=True)
        assert answer.content.startswith(token)
        rest = answer.content.removeprefix(token)
        assert "broke off" in json.loads(rest.removeprefix(b"data: "))["error"]["message"]
        assert fake.asked == []
        assert here.status["outcomes"] == {"broken": 1}


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_an_answer_that_its_server_packs_passes_as_it_is_and_is_charged(stream: bool, coding: str) -> None:
    """Some do, though they are asked not to."""
    told = json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 400}})
    body = f"data: {told}\n\ndata: [DONE]\n\n" if stream else told
    packed = gzip.compress(body.encode()) if coding == "gzip" else zlib.compress(body.encode())
    headers = {"content-encoding": coding, "content-type": "text/event-stream" if stream else "application/json"}

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=packed, headers=headers)

    server = web.Application()
    server.router.add_post("/v1/chat/completions", answer)
    async with served(server) as url, world(url) as here:
        said = await here.ask(stream=stream, max_tokens=500)
        assert said.content in (packed, body.encode())
        await here.emptied()
        (client,) = here.status["clients"].values()
        assert (client["prompt_tokens"], client["output_tokens"]) == (7, 400)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("br", b"\x1b?"),
        ("zstd", b"\x28\xb5"),
        ("gzip, br", b"\x1f\x8b"),
        ("gzip", b"none"),
        ("gzip", gzip.compress(b"", mtime=0) * 2),
    ],
)
@in_loop
async def test_an_answer_that_cannot_be_read_is_charged_for_all_that_it_may_be(
    coding: str, packed: bytes, stream: bool
) -> None:
    """In a coding that is not known here, or with bytes that are none of it: it passes as it is."""
    headers = {"content-encoding": coding, "content-type": "text/event-stream" if stream else "application/json"}

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=packed, headers=headers)

    server = web.Application()
    server.router.add_post("/v1/chat/completions", answer)
    async with (
        served(server) as url,
        world(url) as here,
        aiohttp.ClientSession(here.http.url, auto_decompress=False) as http,
        http.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "hello"}], "max_tokens": 300, "stream": stream},
            headers={"x-client": "a"},
        ) as said,
    ):
        assert await said.read() == packed
        assert said.headers["content-encoding"] == coding
        await here.emptied()
        (client,) = here.status["clients"].values()
        assert client["output_tokens"] == 300
        assert client["prompt_tokens"] == PROMPT_TOKENS


@in_loop
async def test_headers_of_an_answer_pass_by_a_list() -> None:
    """What a server says of its content passes; what it says of itself, its sessions and its tenants does not."""
    kept = {
        "content-type": "application/json",
        "cache-control": "no-store",
        "retry-after": "7",
        "content-language": "en",
    }
    dropped = ("set-cookie", "x-internal-host", "alt-svc", "x-ratelimit-limit-requests", "www-authenticate", "via")

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=b"{}", headers={**kept, **dict.fromkeys(dropped, "told")})

    server = web.Application()
    server.router.add_post("/v1/chat/completions", answer)
    async with served(server) as url, world(url) as here:
        said = (await here.ask()).headers
        assert {name: said.get(name) for name in kept} == kept
        assert not {name.lower() for name in said} & set(dropped)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("status", [503, 429, 502, 400, 500])
@in_loop
async def test_what_a_server_refuses(status: int, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken server is tried as often as the limits say, a busy one once and then elsewhere; any other answer is the
    caller's.  What is refused or fails at once is not charged; later it may have come after the work."""
    monkeypatch.setattr(gateway, "AT_ONCE_SECONDS", 0.0 if late else 60.0)
    limits = LimitConfig(tries=2, down_seconds=0.02)
    async with faked(Fake(status=status), limits=limits) as (fake, here):
        answer = await here.ask()
        assert answer.status == status
        assert len(fake.asked) == (2 if status == 502 else 1)
        await here.emptied()
        (client,) = here.status["clients"].values()
        tries = {502: 2, 500: 1, 400: 1}.get(status, 0)
        assert client["prompt_tokens"] == PROMPT_TOKENS * tries * late


@in_loop
async def test_a_caller_that_reads_nothing_is_cut_off() -> None:
    """It holds its part of the window no longer than `stall_seconds`, and then the server is told to stop."""
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                await asyncio.sleep(0)
                yield b": " + b"x" * (1 << 18) + b"\n\n"
        finally:
            ended.set()

    async def answer(request: web.Request) -> web.StreamResponse:
        return await streamed(request, endless())

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with served(app) as url, world(url, limits=LimitConfig(stall_seconds=0.2)) as here:
        _, writer = await asyncio.open_connection("127.0.0.1", here.http.url.port, limit=1024)
        body = b'{"prompt": "a", "max_tokens": 10, "stream": true}'
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        async with asyncio.timeout(20):
            await ended.wait()
        await here.emptied()
        writer.close()
        assert here.status["outcomes"] == {"stalled": 1}


@in_loop
async def test_nobody_waits_for_ever() -> None:
    """With no room in `wait_seconds` a call ends with 503."""
    limits = LimitConfig(wait_seconds=0.05)
    async with faked(Fake(held=True), window_requests=1, limits=limits) as (fake, here):
        calls = asyncio.gather(here.ask(), here.ask())
        await here.told("waited too long", 1)
        fake.answers.set()
        answers = await calls
        assert sorted(answer.status for answer in answers) == [200, 503]


@pytest.mark.nightly
@in_loop
async def test_many_calls_end_once_and_keep_the_bound(full_budget: bool) -> None:
    """Of calls of three clients to three servers, one of which fails now and then, each gets one whole answer, the
    window is empty afterwards, and the gap of clients that wait is within its bound."""
    calls = 10_000 if full_budget else 200
    fakes = [Fake(tokens=i + 1) for i in range(3)]
    async with (
        served(fakes[0].app) as one,
        served(fakes[1].app) as two,
        served(fakes[2].app) as three,
        world(one, two, three, window_tokens=200, window_requests=4, quantum=50) as here,
    ):
        turns = asyncio.Semaphore(60)

        async def ask(i: int) -> None:
            async with turns:
                fakes[2].status = 503 if i % 50 == 7 else 200
                answer = await here.ask("abc"[i % 5 % 3], stream=i % 2 == 0)
                assert answer.status == 200
                if i % 2 == 0:
                    assert answer.content in [b"".join(events(n)) for n in (1, 2, 3)]

        await asyncio.gather(*(ask(i) for i in range(calls)))
        await here.emptied()
        told, promise = here.status, here.status["promise"]
        assert told["outcomes"]["finished"] == calls
        assert told["set_aside"] is None
        assert promise["bound_violations"] == 0
        assert 0 < promise["gap"] <= promise["gap_bound"]
        assert set(promise["broken_assumptions"]) <= {"NothingRefunded", "ExtendAsPlanned", "EqualQuanta"}
