"""A gateway as several processes: one that has the account, and others that serve callers and ask it for places.

This process has neither: it holds the address, starts the others, and starts again what ended.  The address is one
socket that all inherit.  (With a socket each, `SO_REUSEPORT`, a process that is stopped or killed would keep or lose
the connections that were dealt to it, a second gateway at the same address would not be refused, and macOS would deal
all to one.)  Connections that nobody has taken yet wait while processes are started again.

A process that ends is started again, and its calls end once at the account.  When the account's process ends the others
notice and end, too, and all are started again: the account goes on from its state, if it keeps one.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from fairsched.engines.settings import ConfigError

_log = logging.getLogger("fairsched.gateway")

ACCOUNT = "account"
LOST, UNUSABLE, SILENT, UNEXPLAINED = 3, 2, 4, 5
"""Statuses with which a process ends: the account is gone; its configuration cannot be used (it says why); the account
is there, and says nothing."""
STEADY_SECONDS = 10.0
"""A process that lived so long is started again at once; otherwise after a pause that doubles."""
PAUSE_MIN_SECONDS, PAUSE_MAX_SECONDS = 0.1, 5.0
END_SECONDS = 15.0
"""Beyond `drain_seconds` a process has so long to end before it is killed."""


class Spec(msgspec.Struct, frozen=True):
    """What a process is told: its role, the configuration's file, options of the command, and open files.

    `account` is the path of the Unix socket, `listener` that socket where it listens, `sockets` those of the address;
    `lifeline` ends when this process does.
    """

    config: str
    processes: int
    said: str
    """The line that tells that all processes are there."""
    shadow: bool = False
    tokenizer: str | None = None
    report: str | None = None
    log: str | None = None
    log_format: str = "text"
    role: str = ACCOUNT
    account: str = ""
    listener: int = -1
    sockets: tuple[int, ...] = ()
    lifeline: int = -1


class Supervisor:
    """Runs the processes of `spec` until SIGTERM or SIGINT; then they leave and finish within `drain_seconds`.

    A second signal ends them at once.  `held` are files that the account's process holds, too.
    """

    def __init__(self, spec: Spec, drain_seconds: float, held: Sequence[int] = ()) -> None:
        self._spec = spec
        self._drain_seconds = drain_seconds
        self._held = tuple(held)
        self._there: dict[str, asyncio.subprocess.Process] = {}
        self._ending = asyncio.Event()
        self._status = 0

    async def run(self) -> int:
        """Return the exit status when all have ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._tell, signal.SIGHUP, (ACCOUNT,))
        roles = [ACCOUNT, *(f"process {i}" for i in range(self._spec.processes))]
        keeping = [asyncio.ensure_future(self._keep(role)) for role in roles]
        await self._ending.wait()
        _, late = await asyncio.wait(keeping, timeout=self._drain_seconds + END_SECONDS)
        if late:
            _log.error("%d processes did not end in time and are killed", len(late))
            self._tell(signal.SIGKILL)
            await asyncio.wait(late)
        return self._status

    def _end(self, status: int = 0) -> None:
        if self._ending.is_set():
            self._tell(signal.SIGKILL)
            return
        self._status = status
        self._ending.set()
        self._tell(signal.SIGTERM)

    def _tell(self, number: signal.Signals, roles: Sequence[str] | None = None) -> None:
        for role, process in self._there.items():
            if process.returncode is None and (roles is None or role in roles):
                process.send_signal(number)

    async def _keep(self, role: str) -> None:
        """Start a process, and again whenever it ends."""
        loop = asyncio.get_running_loop()
        pause = 0.0
        while not self._ending.is_set():
            begun = loop.time()
            account = self._there.get(ACCOUNT)
            try:
                process = self._there[role] = await self._start(role)
            except OSError as error:
                _log.error("the %s cannot be started: %s", role, error)
                await self._pause(PAUSE_MAX_SECONDS)
                continue
            if self._ending.is_set():
                self._tell(signal.SIGTERM, (role,))
            status = await process.wait()
            if self._ending.is_set():
                self._status = self._status or (status if status == UNEXPLAINED else 0)
                return
            if status == UNUSABLE:
                self._end(UNUSABLE)
                return
            _log.error("the %s ended (%s) and is started again", role, _ending(status))
            if status == SILENT and account is self._there.get(ACCOUNT):
                self._tell(signal.SIGKILL, (ACCOUNT,))
            steady = loop.time() - begun >= STEADY_SECONDS
            pause = 0.0 if steady else min(max(2 * pause, PAUSE_MIN_SECONDS), PAUSE_MAX_SECONDS)
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    async def _start(self, role: str) -> asyncio.subprocess.Process:
        spec = msgspec.structs.replace(self._spec, role=role)
        files = [spec.lifeline, *((spec.listener, *self._held) if role == ACCOUNT else spec.sockets)]
        module = "fairsched.engines.gateway.server.child"
        command = [sys.executable, "-m", module, msgspec.json.encode(spec).decode()]
        return await asyncio.create_subprocess_exec(*command, pass_fds=files)


def _ending(status: int) -> str:
    return f"status {status}" if status >= 0 else signal.Signals(-status).name


def supervise(spec: Spec, sockets: Sequence[socket.socket], *, drain_seconds: float, held: Sequence[int] = ()) -> int:
    """Run a gateway of several processes at these sockets; returns the exit status.

    Raises `ConfigError` where there is no Unix socket to speak over.
    """
    if sys.platform == "win32":
        raise ConfigError(f"processes: on Windows a gateway is one process, not {spec.processes}")
    lifeline, ours = os.pipe()
    with tempfile.TemporaryDirectory(prefix="fairsched-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder) / "account")
        try:
            listener.bind(path)
        except OSError as error:
            raise ConfigError(f"processes: no Unix socket at {path}: {error}") from None
        listener.listen(spec.processes + 8)
        files = tuple(each.fileno() for each in sockets)
        spec = msgspec.structs.replace(spec, account=path, listener=listener.fileno(), sockets=files, lifeline=lifeline)
        try:
            return asyncio.run(Supervisor(spec, drain_seconds, held).run())
        finally:
            os.close(ours)
            os.close(lifeline)
