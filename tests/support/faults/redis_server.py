"""`redis-server` as a process that can be killed and come back with what it had, and a line to it that may fail."""

import asyncio
import random
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

import attrs

from fairsched.engines.gateway.config import StoreConfig
from fairsched.engines.gateway.window.leases import Store, open_store
from tests.support.adapters.loops import until

BINARY = shutil.which("redis-server") or shutil.which("valkey-server")
READ_BYTES = 1 << 16


@attrs.define
class RedisServer:
    """A server at a Unix socket, which writes nothing to its disk unless it is told to, or is `durable`: then it writes
    each change before it answers."""

    path: Path
    durable: bool = False
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def dump(self) -> Path:
        """What it begins with, if the file is there."""
        return self.path.with_suffix(".rdb")

    def store(self, **fields: Any) -> Store:
        """A connection of its own."""
        return open_store(StoreConfig(f"unix://{self.path}", **fields))

    async def start(self) -> None:
        """Serve, from what was written last, or else from an empty memory."""
        options = ["--port", "0", "--unixsocket", str(self.path), "--save", ""]
        options += ["--appendonly", "yes" if self.durable else "no", "--appendfsync", "always"]
        options += ["--dir", str(self.path.parent), "--dbfilename", self.dump.name]
        self.process = subprocess.Popen([str(BINARY), *options], stdout=subprocess.DEVNULL, cwd=self.path.parent)
        await until(self._answers)

    def _answers(self) -> bool:
        with socket(AF_UNIX) as line:
            return line.connect_ex(str(self.path)) == 0

    async def ask(self, *command: str) -> bytes:
        """Return what it answers to a command."""
        asked = await asyncio.create_subprocess_exec(
            *("redis-cli", "-s", str(self.path), *command), stdout=subprocess.PIPE
        )
        answer, _ = await asked.communicate()
        assert asked.returncode == 0, answer
        return answer.removesuffix(b"\n")

    def stop(self) -> None:
        """Let it stand still; `resume` lets it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.path.unlink(missing_ok=True)


@asynccontextmanager
async def redis(folder: Path, *, durable: bool = False) -> AsyncIterator[RedisServer]:
    """A server that serves."""
    server = RedisServer(folder / "redis.sock", durable)
    await server.start()
    try:
        yield server
    finally:
        server.kill()


class Line:
    """The way from one gateway to a server, at a Unix socket of its own.

    While it is cut nothing passes; what was sent meanwhile passes when it is whole again, as with TCP.  With `delay`,
    a time of up to so many seconds passes before anything arrives, each way.
    """

    def __init__(self, path: Path, server: Path) -> None:
        self.path = path
        self.delay = 0.0
        self._server = server
        self._whole = asyncio.Event()
        self._whole.set()
        self._random = random.Random(path.name)
        self._passing: set[asyncio.Task[None]] = set()

    @property
    def cut(self) -> bool:
        """Whether nothing passes."""
        return not self._whole.is_set()

    @cut.setter
    def cut(self, cut: bool) -> None:
        (self._whole.clear if cut else self._whole.set)()

    @asynccontextmanager
    async def open(self) -> "AsyncIterator[Line]":
        """Take connections."""
        listener = await asyncio.start_unix_server(self._take, self.path)
        try:
            yield self
        finally:
            listener.close()
            for task in self._passing:
                task.cancel()
            await asyncio.gather(*self._passing, return_exceptions=True)

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._join(reader, writer))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there: asyncio.StreamWriter | None = None
        try:
            await self._whole.wait()
            back, there = await asyncio.open_unix_connection(self._server)
            await asyncio.gather(self._pass(reader, there), self._pass(back, writer))
        except OSError:
            pass  # The server is away: its client sees the connection end.
        finally:
            for each in (writer, there):
                if each is not None:
                    each.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(READ_BYTES):
            if self.delay:
                await asyncio.sleep(self._random.uniform(0, self.delay))
            await self._whole.wait()
            writer.write(data)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()
