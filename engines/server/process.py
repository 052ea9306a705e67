"""The server as a process: it listens, says how things stand now and then, and drains at SIGTERM."""

import asyncio
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from fairsched.engines.gateway import LimitConfig
from fairsched.engines.gateway.server import Connections, loop_factory, sockets_at
from fairsched.engines.server.app import ApiServer
from fairsched.engines.server.backend import Backend
from fairsched.engines.serving import Document

Say = Callable[[str], object]


def listening(host: str, port: int) -> list[socket.socket]:
    """Return sockets at that address; raises `ValueError` where it cannot be had."""
    try:
        return sockets_at(host, port)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"cannot listen at {host}:{port}: {error}") from None


def address(host: str, sockets: list[socket.socket]) -> str:
    """Return the URL of a server at these sockets."""
    name = f"[{host}]" if ":" in host else host or "localhost"
    return f"http://{name}:{sockets[0].getsockname()[1]}"


def run(
    server: ApiServer,
    sockets: list[socket.socket],
    *,
    metrics: bool = False,
    drain_seconds: float = 30.0,
    report_seconds: float = 0.0,
    started: Callable[[], object] = lambda: None,
    say: Say = print,
) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is open within `drain_seconds` and cancel the rest.

    Every `report_seconds` (0: never) a line says how things stand, where anything was served since the last one.
    """

    async def serve() -> None:
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError):  # Windows.
                loop.add_signal_handler(number, over.set)
        connections = Connections(LimitConfig())
        await connections.start(server.application(metrics=metrics), sockets)
        started()
        reports = asyncio.ensure_future(_reports(server.backend, report_seconds, say)) if report_seconds else None
        await over.wait()
        if server.open:
            say(f"finishing {server.open} open outputs, within {drain_seconds:g} s")
        await connections.stop(drain_seconds)
        if reports is not None:
            reports.cancel()
            with suppress(asyncio.CancelledError):
                await reports

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(serve())
    finally:
        server.backend.close(drain=False)


async def _reports(backend: Backend, every_s: float, say: Say) -> None:
    begun, before, then = time.monotonic(), 0, time.monotonic()
    while True:
        await asyncio.sleep(every_s)
        document, now = await backend.ask(backend.document), time.monotonic()
        output = sum(client["output_tokens"] for client in document["clients"].values())
        if output != before:
            say(report_line(document, now - begun, (output - before) / (now - then)))
        before, then = output, now


def report_line(document: Document, seconds: float, tokens_per_s: float) -> str:
    """Return how things stand in a line: load, speed, and the worker whose gap is nearest to its bound."""
    workers = document["workers"].values()
    waiting, running = (sum(worker[key] for worker in workers) for key in ("waiting", "running"))
    line = f"{seconds:6.0f} s  {running} run, {waiting} wait  {tokens_per_s:,.0f} tokens/s"
    promises = [worker["promise"] for worker in workers if "promise" in worker]
    gaps = [(each["gap"], each["gap_bound"]) for each in promises if each["gap"] is not None and each["gap_bound"]]
    if gaps:
        gap, bound = max(gaps, key=lambda pair: pair[0] / pair[1])
        line += f"  gap {gap:,} of {bound:,}"
    broken = sum(each["bound_violations"] for each in promises)
    if any(each["unexplained"] for each in promises):
        return f"{line}  BOUND BROKEN {broken} times, and no assumption is: an error in fairsched"
    return f"{line}  BOUND BROKEN {broken} times" if broken else line
