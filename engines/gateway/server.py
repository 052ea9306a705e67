"""A gateway as a process: an HTTP server at its address, SIGHUP reads the configuration again, SIGTERM drains."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import msgspec
import uvicorn

from fairsched.engines.gateway.app import application
from fairsched.engines.gateway.books import Books
from fairsched.engines.gateway.config import ConfigError, GatewayConfig, reloaded
from fairsched.engines.gateway.gateway import Gateway
from fairsched.engines.gateway.keep import Kept
from fairsched.engines.gateway.priority import Tags
from fairsched.engines.gateway.record import Recorded, state_of
from fairsched.engines.gateway.status import status
from fairsched.engines.gateway.upstream import new_client
from fairsched.engines.gateway.window import Share, Window
from fairsched.engines.openai_size import Tokenizer
from fairsched.engines.serving_log import ServingLog
from fairsched.policies.base import LocalPolicy, Router

_log = logging.getLogger("fairsched.gateway")

OpenLog = Callable[[tuple[int, ...], dict[str, Any] | None], ServingLog]
"""Begins a log, for windows of so many tokens and a state that the policy goes on from."""

WINDOW_REQUESTS = 256
"""Requests at a server at a time, unless the configuration says otherwise."""


ENDLESS = 1 << 40
"""Tokens and requests of a server without a limit."""


@attrs.frozen
class Built:
    """A gateway, its books, and what is kept of it: debts, and its log."""

    gateway: Gateway
    books: Books
    kept: Kept | None = None
    recorded: Recorded | None = None

    def close(self) -> None:
        """It has drained: write what remains to be written."""
        if self.kept is not None:
            self.kept.close()
        if self.recorded is not None:
            self.recorded.close(self.gateway.window)


def build(
    config: GatewayConfig,
    policy: LocalPolicy[Any],
    router: Router[Any],
    *,
    shadow: bool = False,
    tokenizer: Tokenizer | None = None,
    open_log: OpenLog | None = None,
) -> Built:
    """A gateway.  Call it in the event loop that is to serve, or before there is one.

    `open_log` begins the event log of a gateway whose policy goes on from a state, if it does.  Raises `ConfigError`
    for debts that cannot be gone on from, and `OSError` where they cannot be kept.
    """
    unlimited = config.mode == "priority"
    shares = [
        Share(
            server.window_tokens or ENDLESS,
            server.window_requests or (ENDLESS if unlimited else WINDOW_REQUESTS),
        )
        for server in config.servers
    ]
    kept = None if config.state is None else Kept(Path(config.state), policy)
    state = None if kept is None else kept.state
    books = Books(policy, sum(share.tokens for share in shares), resumed=state is not None)
    windows = tuple(share.tokens for share in shares)
    recorded = None if open_log is None else Recorded(open_log(windows, state_of(policy, state)))
    tags = Tags() if config.mode == "priority" else None
    listening = (kept, recorded, tags, books)
    window = Window(policy, router, shares, [each.record for each in listening if each is not None], state)
    gateway = Gateway(
        config,
        window,
        new_client(),
        shadow=shadow,
        tokenizer=tokenizer,
        clients=() if kept is None else kept.clients,
        logs=[each for each in (kept, recorded) if each is not None],
        tags=tags,
    )
    if kept is not None:
        # Last, so that files of debts that cannot be gone on from stay as they are.
        kept.begin(window)
    return Built(gateway, books, kept, recorded)


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


def listening(config: GatewayConfig) -> list[socket.socket]:
    """The sockets at the address of a gateway: to be had before `build` touches files that another one may be using.

    Raises `ConfigError` for an address that cannot be had.
    """
    host, port = config.address
    found: list[socket.socket] = []
    try:
        places = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, place in dict.fromkeys(places):
            found.append(socket.create_server(place[:2], family=family))
    except (OSError, UnicodeError) as error:
        for each in found:
            each.close()
        raise ConfigError(f"listen: {config.listen}: {error}") from None
    return found


def serve(
    built: Built,
    path: Path,
    sockets: list[socket.socket],
    *,
    report: Path | None = None,
    say: Callable[[str], object] = print,
) -> None:
    """Serve until SIGTERM or SIGINT; what was taken on by then is served, within `drain_seconds`.

    Then `report` is written, and what is kept is closed.
    """
    gateway, books = built.gateway, built.books

    def stopped() -> None:
        built.close()
        if report is not None:
            report.write_bytes(msgspec.json.format(msgspec.json.encode(status(gateway, books)), indent=2) + b"\n")

    settings = uvicorn.Config(
        application(gateway, books, stopped),
        log_level="warning",
        access_log=False,
        ws="none",
        timeout_keep_alive=75,  # longer than callers keep theirs, for the same reason
        timeout_graceful_shutdown=gateway.config.limits.drain_seconds,
    )

    def again() -> None:
        if reload(gateway, path):
            settings.timeout_graceful_shutdown = gateway.config.limits.drain_seconds

    async def main() -> None:
        if hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, again)
        server = uvicorn.Server(settings)
        task = asyncio.ensure_future(server.serve(sockets=sockets))
        while not (server.started or task.done()):
            await asyncio.sleep(0.01)
        if server.started:
            host, bound = gateway.config.address[0], sockets[0].getsockname()[1]
            mode = " in shadow" if gateway.shadow is not None else ""
            say(f"serving{mode} at http://{host}:{bound} before {len(gateway.config.servers)} servers")
        await task

    asyncio.run(main())
