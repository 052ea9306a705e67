"""The picker behind the real Envoy, with the configuration of the page: calls are answered also without a picker."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("grpc")
pytest.importorskip("grpc_health")
pytest.importorskip("yaml")

from tests.integration.envoy_parts import ENVOY, WINDOW, Configuration, Stack, is_whole, streams

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
