"""The picker as a gRPC server: Envoy's external processor, and gRPC's health check.

SIGHUP reads endpoints, clients and limits again; a file that cannot be used changes nothing.  SIGTERM takes no more
calls, and serves what is there for up to `drain_seconds`.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ext_proc_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from fairsched.engines.adapters.endpoint_picker.config import PickerConfig, reloaded
from fairsched.engines.adapters.endpoint_picker.exchange import Exchange
from fairsched.engines.adapters.endpoint_picker.picker import Picker
from fairsched.engines.files import write_whole
from fairsched.engines.settings import ConfigError

_log = logging.getLogger("fairsched.endpoint_picker")

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_OPTIONS = [
    # A body that Envoy buffered is one message; `limits.body_bytes` is what bounds it.
    ("grpc.max_receive_message_length", -1),
    # Envoy's keepalive, by which it notices that the picker hangs, is not an attack.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
]
_UP, _DOWN = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class ExternalProcessor(ext_proc_grpc.ExternalProcessorServicer):  # type: ignore[misc]
    """A stream is one HTTP call."""

    def __init__(self, picker: Picker) -> None:
        self._picker = picker

    async def Process(self, _: object, context: Any) -> None:
        """Answer Envoy's messages in order.  Iterators would cost more CPU than reading and writing."""
        exchange = Exchange(self._picker)
        try:
            while (request := await context.read()) is not grpc.aio.EOF:
                for answer in await exchange.answers(request):
                    await context.write(answer)
                if exchange.over:
                    return
        finally:
            exchange.close()


class PickerServer:
    """A server that listens; `port` is the one that it found if the configuration says 0."""

    def __init__(self, picker: Picker) -> None:
        self.picker = picker
        self.port = 0
        self._server: Any = None
        self._health = HealthServicer()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen.  Raises `ConfigError` for an address that cannot be had, `OSError` for TLS files that cannot be
        read."""
        config = self.picker.config
        self._server = grpc.aio.server(options=_OPTIONS)
        ext_proc_grpc.add_ExternalProcessorServicer_to_server(ExternalProcessor(self.picker), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        try:
            self.port = self._listen(config)
        except RuntimeError as error:
            raise ConfigError(f"listen: {config.listen}: {error}") from None
        self.picker.see(config.pool.endpoints)
        if config.pool.dns is not None:
            await self._resolve()
            self._tasks.append(asyncio.create_task(self._ask()))
        self._tasks += [asyncio.create_task(self.picker.run()), asyncio.create_task(self.picker.follow())]
        await self._server.start()
        await self._tell_health()

    def _listen(self, config: PickerConfig) -> int:
        if config.tls_certificate is None or config.tls_key is None:
            return int(self._server.add_insecure_port(config.listen))
        pair = (Path(config.tls_key).read_bytes(), Path(config.tls_certificate).read_bytes())
        return int(self._server.add_secure_port(config.listen, grpc.ssl_server_credentials([pair])))

    async def stop(self) -> None:
        """Take no more calls, and serve what is there."""
        await self._health.set("readiness", _DOWN)
        await self._health.set(SERVICE, _DOWN)
        await self._server.stop(self.picker.config.limits.drain_seconds)
        for task in self._tasks:
            task.cancel()
        # The leases are returned.
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def configure(self, config: PickerConfig) -> None:
        """Set endpoints, clients and limits from now on."""
        self.picker.configure(config)
        if config.pool.dns is None:
            self.picker.see(config.pool.endpoints)
        else:
            await self._resolve()
        await self._tell_health()

    async def _tell_health(self) -> None:
        ready = _UP if self.picker.endpoints else _DOWN
        await self._health.set("liveness", _UP)
        for service in ("", "readiness", SERVICE):
            await self._health.set(service, ready)

    # --- discovery --------------------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        while True:
            await asyncio.sleep(self.picker.config.pool.resolve_seconds)
            try:
                await self._resolve()
                await self._tell_health()
            except Exception:
                _log.exception(
                    "the pool could not be asked for; it is again in %g s", self.picker.config.pool.resolve_seconds
                )

    async def _resolve(self) -> None:
        """Take the endpoints that the name stands for now; where it cannot be resolved, the last ones stay."""
        pool = self.picker.config.pool
        assert pool.dns is not None
        name, _, port = pool.dns.rpartition(":")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # The latter for a name that is none.
            _log.warning("%s cannot be resolved: %s; the endpoints stay as they are", pool.dns, error)
            return
        addresses = [f"[{each[4][0]}]:{port}" if ":" in str(each[4][0]) else f"{each[4][0]}:{port}" for each in found]
        self.picker.see([*pool.endpoints, *addresses])


def serve(picker: Picker, path: Path, *, report: Path | None = None, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; the status is written to `report` at the end."""
    asyncio.run(_serve(picker, path, report, say))


async def _serve(picker: Picker, path: Path, report: Path | None, say: Callable[[str], None]) -> None:
    server, stopped, loop = PickerServer(picker), asyncio.Event(), asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    async def reload() -> None:
        try:
            await server.configure(reloaded(picker.config, path))
            _log.info("%s was read again", path)
        except (ConfigError, OSError) as error:
            _log.error("nothing changes: %s", error)

    def again() -> None:
        reloads.add(task := asyncio.create_task(reload()))
        task.add_done_callback(reloads.discard)

    await server.start()
    loop.add_signal_handler(signal.SIGHUP, again)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    host = picker.config.listen.rpartition(":")[0]
    say(f"picking from {len(picker.endpoints)} endpoints at {host}:{server.port}")
    await stopped.wait()
    say("draining")
    await server.stop()
    if report is not None:
        write_whole(report, msgspec.json.format(msgspec.json.encode(picker.status())))
