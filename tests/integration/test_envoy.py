"""The picker behind the real Envoy, with the configuration of the page: calls are answered also without a picker, none
goes around the policy beside one, and no caller says more than it may."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

aiohttp: Any = pytest.importorskip("aiohttp")
pytest.importorskip("grpc")
pytest.importorskip("grpc_health")
pytest.importorskip("yaml")

from fairsched.engines.adapters.endpoint_picker.config import PickerLimits  # noqa: E402
from tests.integration.envoy_parts import ENVOY, WINDOW, Configuration, Stack, is_whole, streams  # noqa: E402

if not ENVOY.exists():
    pytest.skip("Envoy is not installed", allow_module_level=True)

pytestmark = pytest.mark.integration


@pytest.fixture(params=["60s"])
def stack(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """The processes; calls pass the picker."""

    def edit(made: Configuration) -> None:
        assert made.processor["message_timeout"] == "60s"
        made.processor["message_timeout"] = request.param

    made = Stack(tmp_path, edit)
    try:
        asyncio.run(made.until(413))
        yield made
    finally:
        made.close()


def test_with_a_picker_calls_go_where_it_says(stack: Stack) -> None:
    """A call that is too large is refused by the picker, a stream passes whole, and so does a body of 2 MiB."""

    async def main() -> None:
        assert (await stack.call())[0] == 413
        assert is_whole(await stack.call(streams(20)), 20)
        plain = await stack.call({"model": "m", "prompt": "x", "max_tokens": 2, "pad": "y" * (2 << 20)})
        assert (plain[0], json.loads(plain[1])["usage"]["completion_tokens"]) == (200, 2)

    asyncio.run(main())


def test_a_dead_picker_lets_calls_pass_and_a_new_one_decides_again(stack: Stack) -> None:
    """Killed: the call that waits in it goes on, the answer that streams comes to its end, new calls are answered."""

    async def main() -> None:
        begun = asyncio.Event()
        streaming = asyncio.create_task(stack.call(streams(150), hears=begun.set))
        await begun.wait()
        waiting = [asyncio.create_task(stack.call(streams(160))) for _ in range(3)]
        await asyncio.sleep(0.2)
        stack.kill_picker()
        assert is_whole(await streaming, 150)
        for each in waiting:
            assert is_whole(await each, 160)
        assert is_whole(await stack.call(), WINDOW)
        assert (await stack.call({"model": "m", "prompt": "x", "max_tokens": 2}))[0] == 200
        stack.start_picker()
        await stack.until(413)

    asyncio.run(main())


def test_a_stopped_picker_lets_calls_pass_soon_and_decides_again_when_it_goes_on(stack: Stack) -> None:
    """It answers neither pings nor health checks: calls in it go on before `message_timeout`, new ones do not wait."""

    async def main() -> None:
        begun = asyncio.Event()
        streaming = asyncio.create_task(stack.call(streams(150), hears=begun.set))
        await begun.wait()
        stack.picker.send_signal(signal.SIGSTOP)
        calls = [asyncio.create_task(stack.call(streams(20))) for _ in range(5)]
        assert is_whole(await streaming, 150)
        for each in calls:
            assert is_whole(await each, 20)
        assert await stack.stat("http.calls.ext_proc.message_timeouts") == 0
        assert is_whole(await stack.call(), WINDOW)
        stack.picker.send_signal(signal.SIGCONT)
        await stack.until(413)

    asyncio.run(main())


@pytest.mark.parametrize("stack", ["1s"], indirect=True)
def test_calls_that_wait_for_longer_than_the_message_timeout_pass_the_picker(stack: Stack) -> None:
    """With both windows full, a call that would wait in the picker for longer goes on without it."""

    async def main() -> None:
        calls = [asyncio.create_task(stack.call(streams(250))) for _ in range(6)]
        for each in calls:
            assert is_whole(await each, 250)
        assert await stack.stat("http.calls.ext_proc.message_timeouts") > 0
        assert (await stack.call())[0] == 413

    asyncio.run(main())


# --- what the file keeps ----------------------------------------------------------------------------------------------

MANY = 1200
HEAD = "POST {} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n{}\r\n"
SAYS = {"model": "m", "prompt": "x", "max_tokens": 2}
SERVED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@asynccontextmanager
async def raw(
    made: Stack, path: str = "/v1/completions", more: str = "", body: Any = SAYS, key: str = "", missing: int = 0
) -> AsyncIterator[Any]:
    """A connection with a call on it, as it is."""
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
    writer.write(HEAD.format(path, key or made.key, len(data) + missing, more).encode() + data)
    try:
        yield reader
    finally:
        writer.transport.abort()


async def error_of(made: Stack, *said: Any, **more: Any) -> tuple[int, str]:
    """Status and message of a refusal, which is JSON as OpenAI's clients read it."""
    async with raw(made, *said, **more) as reader:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        assert b"\r\ncontent-type: application/json" in head, head
        body = await asyncio.wait_for(reader.readuntil(b"}}"), 60)
    error = json.loads(body[body.index(b"{") :])["error"]
    assert isinstance(error["type"], str)
    return int(head.split()[1]), error["message"]


@pytest.mark.parametrize("breakers", [True, False])
def test_held_calls_do_not_go_around_the_policy(breakers: bool, tmp_path: Path) -> None:
    """Of 1,200 calls the two that have a place are sent, and all others wait in the picker; without the file's circuit
    breakers those over Envoy's own limit are sent at once."""

    def edit(made: Configuration) -> None:
        if not breakers:
            del made.picker["circuit_breakers"]

    async def main() -> None:
        await made.until(413)
        for server in made.processes:
            server.send_signal(signal.SIGSTOP)
        sent = await made.stat("cluster.pool.upstream_rq_total")
        async with AsyncExitStack() as calls:
            for _ in range(MANY):
                await calls.enter_async_context(raw(made, body=streams(WINDOW - 10)))
            while (held := await made.stat("cluster.picker.upstream_rq_active")) < (MANY if breakers else 1024):
                await asyncio.sleep(0.1)
            await asyncio.sleep(1)
            around = await made.stat("cluster.pool.upstream_rq_total") - sent - 2
            # Threads of Envoy may go over its limit at once, and some of those are sent then.
            assert around == 0 if breakers else around >= MANY - held

    made = Stack(tmp_path, edit, more=f"[limits]\nwaiting_per_client = {MANY}\nwait_seconds = 300")
    try:
        asyncio.run(main())
    finally:
        made.close()


def test_a_caller_has_the_name_of_its_key(tmp_path: Path) -> None:
    """Whatever it says in the header of the name; servers see no key, no cookie and no priority of a caller."""
    seen: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        # Beside calls a picker asks servers how many they run.
        seen.extend([head] if head.startswith("post") else [])
        writer.write(SERVED)
        writer.close()

    async def main() -> None:
        servers = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in range(2)]
        made = Stack(tmp_path, ports=[each.sockets[0].getsockname()[1] for each in servers])
        try:
            await made.until(413)
            claims = "x-gateway-inference-fairness-id: gold\r\nx-llm-d-inference-fairness-id: gold\r\ncookie: a=1\r\n"
            claims += "priority: -9\r\nx-data-parallel-rank: 3\r\nx-gateway-destination-endpoint: 10.0.0.9:1\r\n"
            async with raw(made, more=claims, key=made.keys["free"]) as reader:
                assert (await reader.readline()).split()[1] == b"200"
            assert all(each not in seen[0] for each in ("sk-", "cookie", "priority", "parallel", "10.0.0.9", "gold"))
            assert "x-gateway-inference-fairness-id: free" in seen[0]
            clients = (await asyncio.to_thread(made.status))["clients"]
            assert clients["free"]["prompt_tokens"] > 0
            assert "gold" not in clients or not clients["gold"]["prompt_tokens"]
        finally:
            made.close()
        for server in servers:
            server.close()

    asyncio.run(main())


def test_refusals_are_json(stack: Stack) -> None:
    """Without a key, with a wrong one, on a path that is not served (however it is written), with a body that is too
    long, without a server; and those of the picker say what it says."""

    async def main() -> None:
        asked = [await stack.counts(i) for i in range(2)]
        assert (await error_of(stack, key="wrong"))[0] == 401
        for path in ("/reset_prefix_cache", "/metrics", "/v1/../tokenize", "/v1/%2e%2e/tokenize", "//tokenize"):
            assert (await error_of(stack, path))[0] == 404
        assert (await error_of(stack, "/v1%2f..%2ftokenize"))[0] == 400
        async with raw(stack, "munity://x/v1/completions") as reader:
            assert b" 200 " not in await reader.read()
        assert (await error_of(stack, body={"pad": "y" * (9 << 20)}))[0] == 413
        status, message = await error_of(stack, body=streams(WINDOW))
        assert status == 413
        assert "tokens" in message
        assert [await stack.counts(i) for i in range(2)] == asked
        for server in stack.processes:
            server.kill()
            server.wait()
        assert (await error_of(stack))[0] == 503

    asyncio.run(main())


def test_time_outs_are_longer_than_calls_wait(stack: Stack, tmp_path: Path) -> None:
    """The one for a message of the picker's is longer than a call may wait in it, and an idle call is not cut; but a
    body that does not come is."""
    calls = Configuration().calls
    assert calls["stream_idle_timeout"] == "0s"
    (route, *_) = calls["route_config"]["virtual_hosts"][0]["routes"]
    assert route["route"]["timeout"] == "0s"
    assert PickerLimits().wait_seconds < float(Configuration().processor["message_timeout"].removesuffix("s"))
    assert 0 < float(calls["request_timeout"].removesuffix("s")) <= 60


@pytest.mark.parametrize("idle", ["0s", "1s"])
def test_a_call_that_waits_is_idle(idle: str, tmp_path: Path) -> None:
    """It is answered when there is a place; with an idle time-out of Envoy's it is cut, with an error in JSON.  A body
    that does not come in time is refused, whatever waits."""

    def edit(made: Configuration) -> None:
        made.calls |= {"stream_idle_timeout": idle, "request_timeout": "1s"}

    async def main() -> None:
        await made.until(413)
        calls = [asyncio.create_task(made.call(streams(270))) for _ in range(4)]
        answers = [await each for each in calls]
        assert sorted(status for status, _ in answers) == ([200] * 4 if idle == "0s" else [200] * 2 + [504] * 2)
        assert all("error" in json.loads(text) for status, text in answers if status == 504)
        async with raw(made, missing=100) as reader:
            assert b" 408 " in await asyncio.wait_for(reader.readline(), 60)

    made = Stack(tmp_path, edit)
    try:
        asyncio.run(main())
    finally:
        made.close()


def test_streams_come_to_their_end_where_envoy_drains(stack: Stack) -> None:
    """As the page does it: the listener is drained, and closes when they have ended."""

    async def main() -> None:
        begun = asyncio.Event()
        streaming = asyncio.create_task(stack.call(streams(150), hears=begun.set))
        await begun.wait()
        async with aiohttp.ClientSession() as session:
            await session.post(f"http://127.0.0.1:{stack.admin}/drain_listeners?graceful&skip_exit")
        assert is_whole(await streaming, 150)

    asyncio.run(main())
