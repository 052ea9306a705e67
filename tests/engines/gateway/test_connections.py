"""Connections of callers: how many there are, how long one may take, and what it may hold."""

import asyncio
import json
import ssl
import subprocess
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from fairsched.engines.gateway import app
from fairsched.engines.gateway.config import ClientConfig, LimitConfig, TlsConfig, hashed_key
from fairsched.engines.gateway.server import connections
from fairsched.engines.gateway.tls import tls_context
from tests.support.adapters.gateway_scenarios import Fake, World, faked
from tests.support.adapters.http import Caller
from tests.support.adapters.loops import in_loop, until

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-client: a\r\ncontent-type: application/json\r\n"
BODY = b'{"prompt": "a", "max_tokens": 2}'


class Line:
    """A caller's connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def closed(self) -> bytes:
        """What came until the other side closed it."""
        with suppress(ConnectionError):
            return await self.reader.read()
        return b""

    async def says(self) -> bytes:
        """The status of the next answer."""
        return (await self.reader.readline()).split()[1]


async def line(here: World, stack: AsyncExitStack, first: bytes = b"") -> Line:
    """A connection to the gateway, on which these bytes are sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", here.http.url.port)
    stack.callback(writer.close)
    writer.write(first)
    return Line(reader, writer)


@in_loop
async def test_idle_connections_make_room_oldest_first_and_calls_never_do() -> None:
    """Of many idle connections as many are kept as there may be; a call that runs keeps its connection, and a new
    caller is answered, however many come.  Where every connection has a call, one more is closed at once."""
    limits = LimitConfig(connections=8)
    async with faked(Fake(held=True), limits=limits) as (fake, here), AsyncExitStack() as stack:
        call = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
        runs = await line(here, stack, call)
        await until(lambda: fake.running == 1)
        idle = [await line(here, stack) for _ in range(40)]
        await until(lambda: here.connections.count == 8)
        async with asyncio.timeout(60):
            # The oldest are closed, and the last ones are not.
            await asyncio.gather(*(each.closed() for each in idle[:30]))
        assert not any(each.reader.at_eof() for each in idle[-7:])
        assert (await here.http.get("/health")).status == 200
        more = [await line(here, stack, call) for _ in range(7)]
        await until(lambda: fake.running == 8)
        over = await line(here, stack)
        async with asyncio.timeout(60):
            assert await over.closed() == b""
        fake.answers.set()
        assert [await each.says() for each in (runs, *more)] == [b"200"] * 8


@in_loop
async def test_of_idle_connections_those_of_the_address_with_most_make_room() -> None:
    """An older one of another address stays."""
    async with faked(Fake(), limits=LimitConfig(connections=8)) as (_, here), AsyncExitStack() as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.http.url.port, local_addr=("127.0.0.2", 0))
        stack.callback(writer.close)
        many = [await line(here, stack) for _ in range(20)]
        async with asyncio.timeout(60):
            await asyncio.gather(*(each.closed() for each in many[:10]))
        assert not reader.at_eof()


@in_loop
async def test_a_head_and_an_idle_connection_have_their_time() -> None:
    """A connection without a byte, one with half a head, one whose second head is late and one that rests too long are
    closed; a call that takes longer is not."""
    limits = LimitConfig(header_seconds=0.3, idle_seconds=0.3)
    async with faked(Fake(held=True), limits=limits) as (fake, here), AsyncExitStack() as stack:
        call = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
        runs = await line(here, stack, call)
        await until(lambda: fake.running == 1)
        health = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
        slow = [await line(here, stack, sent) for sent in (b"", HEAD, health, health + HEAD)]
        async with asyncio.timeout(60):
            said = [await each.closed() for each in slow]
        assert [answers.count(b"HTTP/1.1 200") for answers in said] == [0, 0, 1, 1]
        fake.answers.set()
        assert await runs.says() == b"200"


@in_loop
async def test_a_head_that_came_is_not_late_while_the_loop_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each turn of the loop takes longer than a head may, calls whose heads came are answered."""
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.05)
    async with faked(Fake(), limits=LimitConfig(header_seconds=0.3)) as (_, here), AsyncExitStack() as stack:
        loop = asyncio.get_running_loop()

        def behind(turns: int) -> None:
            time.sleep(0.15)
            if turns:
                loop.call_soon(behind, turns - 1)

        loop.call_soon(behind, 12)
        call = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
        lines = [await line(here, stack, call) for _ in range(5)]
        assert [await each.says() for each in lines] == [b"200"] * 5


@in_loop
async def test_a_slow_body_is_refused_and_its_connection_closed() -> None:
    """A body that comes byte by byte ends with 408, and nothing of it is held any more."""
    limits = LimitConfig(body_seconds=0.3)
    async with faked(Fake(), limits=limits) as (fake, here), AsyncExitStack() as stack:
        slow = await line(here, stack, HEAD + b"content-length: 1000\r\n\r\n" + BODY)
        async with asyncio.timeout(60):
            said = await slow.closed()
        assert said.startswith(b"HTTP/1.1 408")
        assert (fake.asked, here.status["outcomes"]) == ([], {"refused": 1})


@in_loop
async def test_an_unknown_caller_is_refused_before_its_body_is_read() -> None:
    """401 comes with the head alone; the bytes of a body that is sent all the same are not held."""
    clients = {"gold": ClientConfig(keys=(hashed_key("sk-1"),))}
    fields = {"identify": "key", "unknown_clients": "reject", "clients": clients}
    async with faked(Fake(), **fields) as (_, here), AsyncExitStack() as stack:
        stranger = await line(here, stack, HEAD + b"content-length: 8000000\r\n\r\n")
        async with asyncio.timeout(60):
            assert await stranger.says() == b"401"
        known = await line(here, stack, HEAD + b"authorization: bearer sk-1\r\ncontent-length: 32\r\n\r\n" + BODY)
        assert await known.says() == b"200"


@in_loop
async def test_bodies_are_bounded_in_all_and_leave_room_for_others() -> None:
    """A client with as much as is left for others then gets 503 for more; another client is answered meanwhile, and
    when its calls end the first one is, too."""
    limits = LimitConfig(bodies_bytes=100_000, body_bytes=60_000, body_seconds=60)
    fields = {"limits": limits, "window_requests": 64, "window_tokens": 200_000}
    async with faked(Fake(held=True), **fields) as (fake, here):
        large = json.dumps({"prompt": "a" * 20_000, "max_tokens": 2}).encode()
        small = json.dumps({"prompt": "a" * 2_000, "max_tokens": 2}).encode()

        async def ask(client: str, body: bytes) -> int:
            answer = await here.http.post("/v1/completions", content=body, headers={"x-client": client})
            return answer.status

        hog = [asyncio.ensure_future(ask("hog", large)) for _ in range(6)]
        await here.told("limited", 4)
        await until(lambda: fake.running == 2)
        polite = asyncio.ensure_future(ask("polite", small))
        await until(lambda: fake.running == 3)
        fake.answers.set()
        assert sorted(await asyncio.gather(*hog)) == [200] * 2 + [503] * 4
        assert await polite == 200
        await here.emptied()
        assert await ask("hog", large) == 200


@in_loop
async def test_a_client_that_sends_bodies_slowly_makes_room_for_others() -> None:
    """Where its bodies take all connections, its oldest one is cut off for each that comes, and others are answered."""
    limits = LimitConfig(connections=8)
    async with faked(Fake(), limits=limits) as (_, here), AsyncExitStack() as stack:
        slow = [await line(here, stack, HEAD + b"content-length: 1000\r\n\r\n{") for _ in range(8)]
        await until(lambda: here.connections.count == 8 and not here.connections.heads)
        async with asyncio.timeout(60):
            assert (await here.ask("b")).status == 200
            await slow[0].closed()
        assert not slow[-1].reader.at_eof()


@in_loop
async def test_a_client_whose_calls_wait_makes_room_for_others() -> None:
    """Where calls that wait take all connections, their client loses its newest for each caller that comes."""
    fields = {"window_requests": 1, "limits": LimitConfig(connections=8)}
    async with faked(Fake(held=True), **fields) as (fake, here), AsyncExitStack() as stack, asyncio.timeout(60):
        call = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
        lines = [await line(here, stack, call) for _ in range(8)]
        await until(lambda: here.account.window.waiting == 7)
        polite = asyncio.ensure_future(here.ask("b"))
        assert await lines[-1].says() == b"429"
        await until(lambda: here.account.window.waiting == 7)
        fake.answers.set()
        assert (await polite).status == 200
        assert [await each.says() for each in lines[:-1]] == [b"200"] * 7


@in_loop
async def test_a_client_whose_bodies_wait_to_be_read_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where they come slowly."""
    monkeypatch.setattr(app, "READ_BYTES_PER_SECOND", 1 << 10)
    large = json.dumps({"prompt": "a" * app.LARGE_BYTES, "max_tokens": 2}).encode()
    fields = {"window_tokens": 100_000, "limits": LimitConfig(connections=8)}
    async with faked(Fake(), **fields) as (fake, here), AsyncExitStack() as stack, asyncio.timeout(60):
        for _ in range(9):
            await line(here, stack, HEAD + b"content-length: %d\r\n\r\n" % len(large) + large)
        await until(lambda: len(fake.asked) == 1)
        assert (await here.ask("b")).status == 200


@in_loop
async def test_what_came_to_no_call_is_paid_by_its_bytes() -> None:
    """A client whose large bodies are refused waits before the next one is read; others do not."""
    async with faked(Fake(), window_tokens=100_000) as (_, here):
        junk = b'{"stream":1,"x":"' + b"y" * (1 << 19) + b'"}'
        good = json.dumps({"prompt": "a" * (1 << 17), "max_tokens": 2}).encode()

        async def ask(client: str, body: bytes) -> tuple[int, float]:
            begun = asyncio.get_running_loop().time()
            answer = await here.http.post("/v1/completions", content=body, headers={"x-client": client})
            return answer.status, asyncio.get_running_loop().time() - begun

        assert [(await ask("a", junk))[0] for _ in range(8)] == [400] * 8
        (status, waited), (other, at_once) = await asyncio.gather(ask("a", good), ask("b", good))
        assert (status, other) == (200, 200)
        assert waited > 0.2 + at_once


@in_loop
async def test_a_caller_that_leaves_in_its_body_is_gone() -> None:
    """It is counted as one that left, and what it sent is not held."""
    async with faked(Fake()) as (fake, here), AsyncExitStack() as stack:
        gone = await line(here, stack, HEAD + b"content-length: 1000\r\n\r\n" + BODY)
        await until(lambda: here.connections.count == 1 and not here.connections.heads)
        gone.writer.close()
        await here.told("left", 1)
        assert fake.asked == []


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    """A certificate of this machine."""
    folder = tmp_path_factory.mktemp("tls")
    names = TlsConfig(str(folder / "certificate.pem"), str(folder / "key.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", names.certificate, "-keyout", names.key]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl makes the certificate, and is not here")
    return names


@in_loop
async def _tls(certificate: TlsConfig) -> None:
    async with faked(Fake(), tls=certificate) as (_, here), AsyncExitStack() as stack:
        trusted = ssl.create_default_context(cafile=certificate.certificate)
        async with Caller(f"https://127.0.0.1:{here.http.url.port}", tls=trusted) as http:
            body = {"prompt": "a", "max_tokens": 2}
            answer = await http.post("/v1/completions", json={**body, "stream": True}, headers={"x-client": "a"})
            assert answer.content.endswith(b"[DONE]\n\n")
            plain = await line(here, stack, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            async with asyncio.timeout(60):
                assert b"200 OK" not in await plain.closed()
            assert (await http.get("/health")).status == 200


def test_callers_are_served_with_tls(certificate: TlsConfig) -> None:
    """A caller that checks the certificate gets its stream; plain HTTP gets nothing; both leave it serving."""
    _tls(certificate)


def test_a_certificate_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    """The files are named."""
    missing = TlsConfig(str(tmp_path / "none.pem"), str(tmp_path / "key.pem"))
    with pytest.raises(ValueError, match=r"tls: .*none\.pem"):
        tls_context(missing)
