"""A gateway as a process: an HTTP server at its address, SIGHUP reads the configuration again, SIGTERM drains."""

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from fairsched.engines.gateway.app import application
from fairsched.engines.gateway.books import Books
from fairsched.engines.gateway.config import ConfigError, GatewayConfig, reloaded
from fairsched.engines.gateway.gateway import Gateway
from fairsched.engines.gateway.status import status
from fairsched.engines.gateway.upstream import new_client
from fairsched.engines.gateway.window import Share, Window
from fairsched.engines.openai_size import Tokenizer
from fairsched.policies.base import LocalPolicy, Router

_log = logging.getLogger("fairsched.gateway")


def build(
    config: GatewayConfig,
    policy: LocalPolicy[Any],
    router: Router[Any],
    *,
    shadow: bool = False,
    tokenizer: Tokenizer | None = None,
) -> tuple[Gateway, Books]:
    """A gateway and its books.  Call it in the event loop that is to serve, or before there is one."""
    shares = [Share(server.window_tokens, server.window_requests) for server in config.servers]
    books = Books(policy, sum(share.tokens for share in shares))
    window = Window(policy, router, shares, (books.record,))
    return Gateway(config, window, new_client(), shadow=shadow, tokenizer=tokenizer), books


def reload(gateway: Gateway, path: Path) -> bool:
    """Read the configuration again; returns whether it is in force.  What cannot be used is logged and changes
    nothing."""
    try:
        gateway.configure(reloaded(gateway.config, path))
    except (ConfigError, OSError) as error:
        _log.error("the configuration stays as it was: %s", error)
        return False
    _log.info("the configuration was read again")
    return True


def serve(
    gateway: Gateway, books: Books, path: Path, *, report: Path | None = None, say: Callable[[str], object] = print
) -> None:
    """Serve until SIGTERM or SIGINT; what was taken on by then is served, within `drain_seconds`.

    Then `report` is written.
    """

    def stopped() -> None:
        if report is not None:
            report.write_bytes(msgspec.json.format(msgspec.json.encode(status(gateway, books)), indent=2) + b"\n")

    host, port = gateway.config.address
    settings = uvicorn.Config(
        application(gateway, books, stopped),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        ws="none",
        timeout_keep_alive=75,  # longer than callers keep theirs, for the same reason
        timeout_graceful_shutdown=gateway.config.limits.drain_seconds,
    )

    async def main() -> None:
        if hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload, gateway, path)
        server = uvicorn.Server(settings)
        task = asyncio.ensure_future(server.serve())
        while not (server.started or task.done()):
            await asyncio.sleep(0.01)
        if server.started:
            bound = server.servers[0].sockets[0].getsockname()[1]
            mode = " in shadow" if gateway.shadow is not None else ""
            say(f"serving{mode} at http://{host}:{bound} before {len(gateway.config.servers)} servers")
        await task

    asyncio.run(main())
