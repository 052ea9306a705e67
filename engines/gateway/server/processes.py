"""A gateway as several processes, each of which is a gateway with a part of the windows; they share one account by
leases (`engines.gateway.window.leases`), in the configuration's store or in a folder that ends with the gateway.

The process that was started serves nobody: it holds the address, starts the others, and starts again what ended.  The
address is one socket that all inherit.  (With a socket each, `SO_REUSEPORT`, a process that is stopped or killed would
keep or lose the connections that were dealt to it, a second gateway at the same address would not be refused, and macOS
would deal all to one.)

Each process says a line a second, and one that says nothing for `SILENCE_SECONDS` is killed; each ends when the
standard input that it has from the first one does.  With each of these lines it writes its status and metrics to the
folder, and any of them tells those of all (`Siblings`).
"""

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from fairsched.engines.files import write_whole
from fairsched.engines.gateway.config import GatewayConfig, read_config
from fairsched.engines.gateway.gateway import Gateway, beside
from fairsched.engines.gateway.policy import gateway_policy
from fairsched.engines.gateway.server import process
from fairsched.engines.serving import Document
from fairsched.engines.settings import ConfigError

_log = logging.getLogger("fairsched.gateway")

LOST, UNUSABLE, UNEXPLAINED = 3, 2, 5
"""Statuses with which a process ends: the first one is gone; its configuration cannot be used (it says why); a gap was
over its bound and no assumption was broken."""
BEAT_SECONDS, SILENCE_SECONDS = 1.0, 30.0
TOLD_SECONDS = 3.0
"""A process that has told nothing for so long is left out of what is told of all."""
STEADY_SECONDS = 10.0
"""A process that lived so long is started again at once; otherwise after a pause that doubles."""
PAUSE_MIN_SECONDS, PAUSE_MAX_SECONDS = 0.1, 5.0
END_SECONDS = 15.0
"""Beyond `drain_seconds` a process has so long to end before it is killed."""


class Spec(msgspec.Struct, frozen=True):
    """What a process is told: the configuration's file, options of the command, which one it is, and open files.

    `number` is its own from 0, `run` counts how often it was started before; `folder` is that of all processes, and
    `sockets` are those of the address.
    """

    config: str
    processes: int
    report: str | None = None
    log: str | None = None
    number: int = 0
    run: int = 0
    folder: str = ""
    sockets: tuple[int, ...] = ()

    @property
    def report_part(self) -> Path:
        return Path(self.folder) / f"report-{self.number}"

    @property
    def log_part(self) -> Path | None:
        """The file of this process's events: `calls.jsonl` is `calls.0.jsonl`, and `calls.0-1.jsonl` when it was
        started again."""
        path = None if self.log is None else Path(self.log)
        again = f"-{self.run}" if self.run else ""
        return None if path is None else path.with_name(f"{path.stem}.{self.number}{again}{path.suffix}")

    def read(self, path: Path) -> GatewayConfig:
        """Return the configuration of this process.  Raises `ConfigError`."""
        config = msgspec.structs.replace(read_config(path), processes=self.processes)
        return config.of_process(self.number, Path(self.folder))


# --- the first process ----------------------------------------------------------------------------------------------


class Supervisor:
    """Runs the processes of `spec` until SIGTERM or SIGINT; then they leave and finish within `drain_seconds`.

    A second signal ends them at once.
    """

    def __init__(self, spec: Spec, drain_seconds: float) -> None:
        self._spec = spec
        self._drain_seconds = drain_seconds
        self._there: dict[int, asyncio.subprocess.Process] = {}
        self._ready: set[int] = set()
        self._ending = asyncio.Event()
        self._status = 0

    async def run(self) -> int:
        """Return the exit status when all have ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._tell, signal.SIGHUP)
        keeping = [asyncio.ensure_future(self._keep(i)) for i in range(self._spec.processes)]
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

    def _tell(self, number: signal.Signals) -> None:
        for each in self._there.values():
            if each.returncode is None:
                each.send_signal(number)

    async def _keep(self, number: int) -> None:
        """Start a process, and again whenever it ends."""
        loop = asyncio.get_running_loop()
        pause, run = 0.0, 0
        while not self._ending.is_set():
            begun = loop.time()
            spec = msgspec.structs.replace(self._spec, number=number, run=run)
            try:
                there = self._there[number] = await _started(spec)
            except OSError as error:
                _log.error("process %d cannot be started: %s", number, error)
                await self._pause(PAUSE_MAX_SECONDS)
                continue
            if self._ending.is_set():
                there.terminate()
            status = await self._ended(number, there)
            if self._ending.is_set():
                self._status = self._status or (status if status == UNEXPLAINED else 0)
                return
            if status == UNUSABLE and not run:
                self._end(UNUSABLE)
                return
            how = f"status {status}" if status >= 0 else signal.Signals(-status).name
            _log.error("process %d ended (%s) and is started again", number, how)
            steady = loop.time() - begun >= STEADY_SECONDS
            pause, run = 0.0 if steady else min(max(2 * pause, PAUSE_MIN_SECONDS), PAUSE_MAX_SECONDS), run + 1
            await self._pause(pause)

    async def _ended(self, number: int, there: asyncio.subprocess.Process) -> int:
        """Return the status with which a process ends, or is ended for its silence."""
        assert there.stdout is not None
        # Its first line says that it serves; whatever it loads before that takes as long as it takes.
        line = await there.stdout.readline()
        if line and number not in self._ready:
            self._ready.add(number)
            if len(self._ready) == self._spec.processes:
                print(line.decode().rstrip(), flush=True)  # noqa: T201
        try:
            while line:
                line = await asyncio.wait_for(there.stdout.readline(), SILENCE_SECONDS)
        except TimeoutError:
            _log.error("process %d says nothing for %.0f s and is killed", number, SILENCE_SECONDS)
            there.kill()
        return await there.wait()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()


async def _started(spec: Spec) -> asyncio.subprocess.Process:
    program = "from fairsched.engines.gateway.server import processes; processes.main()"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, msgspec.json.encode(spec).decode()),
        pass_fds=spec.sockets,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


def supervise(spec: Spec, sockets: Sequence[socket.socket], *, drain_seconds: float) -> int:
    """Run a gateway of several processes at these sockets; returns the exit status.

    Raises `ConfigError` where there can be one only.
    """
    if sys.platform == "win32":
        raise ConfigError(f"processes: on Windows a gateway is one process, not {spec.processes}")
    with tempfile.TemporaryDirectory(prefix="fairsched-") as folder:
        spec = msgspec.structs.replace(spec, folder=folder, sockets=tuple(each.fileno() for each in sockets))
        status = asyncio.run(Supervisor(spec, drain_seconds).run())
        if spec.report is not None:
            said = {path.name.removeprefix("report-"): json.loads(path.read_bytes()) for path in _parts(folder)}
            write_whole(Path(spec.report), json.dumps({"processes": said}, indent=2) + "\n")
    return status


def _parts(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("report-*"))


# --- the others -----------------------------------------------------------------------------------------------------


class Siblings:
    """What the processes of a gateway tell of themselves together.

    From here on the gateway's status and metrics are those of all, as each wrote them to the folder last.
    """

    def __init__(self, gateway: Gateway, spec: Spec) -> None:
        self._account = gateway.account
        self._folder = Path(spec.folder)
        self._path = self._folder / f"{spec.number}.told"
        gateway.status, gateway.metrics = self.status, self.metrics

    async def beat(self) -> None:
        """Say that this process is there, and what it is to tell, until cancelled."""
        while True:
            await self._tell()
            await asyncio.sleep(BEAT_SECONDS)
            print(flush=True)  # noqa: T201

    async def _tell(self) -> None:
        said = {"pid": os.getpid(), **await self._account.status()}, (await self._account.metrics()).decode()
        part = self._path.with_suffix(".part")
        part.write_bytes(msgspec.msgpack.encode(said))
        part.replace(self._path)

    async def _all(self) -> dict[str, tuple[Document, str]]:
        """Return what each process has told, by number."""
        await self._tell()
        since = time.time() - TOLD_SECONDS
        paths = [path for path in sorted(self._folder.glob("*.told")) if path.stat().st_mtime > since]
        return {path.stem: msgspec.msgpack.decode(path.read_bytes(), type=tuple[Document, str]) for path in paths}

    async def status(self) -> Document:
        return {"processes": {number: said for number, (said, _) in (await self._all()).items()}}

    async def metrics(self) -> bytes:
        """Return the metrics of all: worker 0 is `gateway-0`."""
        return merged({number: said for number, (_, said) in (await self._all()).items()}).encode()


def merged(texts: Mapping[str, str]) -> str:
    """Return metrics of processes as one text, in which each name is explained once."""
    families: dict[str, list[str]] = {}
    for number, text in texts.items():
        told = text.replace('worker="gateway"', f'worker="gateway-{number}"')
        for family in re.split(r"^(?=# HELP )", told, flags=re.MULTILINE)[1:]:
            what, kind, samples = family.split("\n", 2)
            families.setdefault(f"{what}\n{kind}\n", []).append(samples)
    return "".join(head + "".join(samples) for head, samples in families.items())


def _alone(spec: Spec) -> None:
    """Stop where the first process was killed."""
    shutil.rmtree(spec.folder, ignore_errors=True)
    os._exit(LOST)


def _serve(spec: Spec) -> bool:
    path = Path(spec.config)
    config = spec.read(path)
    policy = gateway_policy(config, path)
    gateway = process.build(config, policy, log=spec.log_part)
    sockets = [socket.socket(fileno=each) for each in spec.sockets]

    async def work() -> bool:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _alone, spec)
        report = None if spec.report is None else spec.report_part
        async with beside(Siblings(gateway, spec).beat()):
            return await process.serving(gateway, path, sockets, report, partial(print, flush=True), spec.read)

    with asyncio.Runner(loop_factory=process.loop_factory()) as runner:
        return runner.run(work())


def main() -> None:
    """Be the process that the argument (`Spec` as JSON) says, until it ends."""
    spec = msgspec.json.decode(sys.argv[1], type=Spec)
    process.log_to_stderr()
    try:
        status = UNEXPLAINED if _serve(spec) else 0
    except (ConfigError, OSError) as error:
        print(f"fairsched gateway: {error}", file=sys.stderr)  # noqa: T201
        status = UNUSABLE
    sys.stdout.flush()
    # Not held up by a thread that still looks up a name.
    os._exit(status)
