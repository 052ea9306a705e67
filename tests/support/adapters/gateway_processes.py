"""A gateway and servers as processes that can be killed, and callers of them."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fairsched.engines.gateway.config import hashed_key
from tests.support.adapters.http import LOST, Caller

ADMIN = "sk-admin-of-the-tests"
ROOT = Path(__file__).parents[3]
LISTENING = re.compile(r"serving .*at (https?://\S+) before")
COMMAND = (sys.executable, "-c", "import sys; from fairsched.cli import main; sys.exit(main(sys.argv[1:]))", "gateway")


@contextmanager
def process(
    command: Sequence[str], cwd: Path = ROOT, patience: float = 0.0, **options: Any
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and its first line; told to end, if there is patience for so many seconds, and killed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd, **options) as started:
        try:
            assert started.stdout is not None
            yield started, started.stdout.readline()
        finally:
            if patience:
                started.terminate()
                with suppress(subprocess.TimeoutExpired):
                    started.wait(patience)
            started.kill()


@contextmanager
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server (`tests.support.adapters.openai_server`) and its address."""
    with process([sys.executable, "-m", "tests.support.adapters.openai_server"]) as (started, line):
        yield started, f"http://127.0.0.1:{int(line)}"


@contextmanager
def gateway(folder: Path, text: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`fairsched gateway` with this configuration, and its address."""
    path = folder / "gateway.toml"
    known = 'identify = "header"\nunknown_clients = "own"\n'
    path.write_text(f'listen = "127.0.0.1:0"\n{known}status = true\nadmin_keys = ["{hashed_key(ADMIN)}"]\n{text}')
    with process([*COMMAND, str(path), *options]) as (started, line):
        found = LISTENING.search(line)
        assert found is not None, line
        yield started, found[1]


def servers_text(urls: list[str], tokens: int, requests: int = 64) -> str:
    """The configuration's tables of servers."""
    return "".join(
        f'[[server]]\nurl = "{url}"\nwindow_tokens = {tokens}\nwindow_requests = {requests}\n' for url in urls
    )


def kill(started: subprocess.Popen[str]) -> None:
    """kill -9, and wait until it is gone."""
    os.kill(started.pid, signal.SIGKILL)
    started.wait(30)


class Stream:
    """What a caller saw of a stream: tokens, the end, an error."""

    def __init__(self) -> None:
        self.status = 0
        self.tokens: list[str] = []
        self.whole = False
        self.error = False

    def take(self, line: str) -> None:
        """The next line of the stream."""
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            self.whole = True
        elif line:
            document = json.loads(data)
            self.error |= "error" in document
            self.tokens += [choice["text"] for choice in document.get("choices", ())]

    @property
    def in_order(self) -> bool:
        """Whether no token is missing or comes twice."""
        return self.tokens == [f"t{i}" for i in range(len(self.tokens))]


async def ask(
    http: Caller, client: str, tokens: int, prompt: str = "hello", pause: float = 0.0, seen: Stream | None = None
) -> Stream:
    """A stream, which `seen` shows as it comes; a caller that is cut off has what it has."""
    seen = seen or Stream()
    body = {"prompt": prompt, "max_tokens": tokens, "stream": True}
    with suppress(*LOST):
        async with http.stream("POST", "/v1/completions", json=body, headers={"x-client": client}) as answer:
            seen.status = answer.status
            if seen.status != 200:
                return seen
            async for line in answer.content:
                seen.take(line.decode().strip())
                if pause:
                    await asyncio.sleep(pause)
    return seen


async def status(http: Caller) -> dict[str, Any]:
    """What the gateway says of itself."""
    headers = {"authorization": f"Bearer {ADMIN}"}
    found: dict[str, Any] = (await http.get("/gateway/status", headers=headers)).json()
    return found


async def emptied(http: Caller) -> dict[str, Any]:
    """Wait until nothing waits or is in flight."""
    async with asyncio.timeout(60):
        while (said := await status(http))["waiting"] or said["in_flight"]:
            await asyncio.sleep(0.05)
    return said


def caller(url: str) -> Caller:
    """A client of the gateway."""
    return Caller(url)
