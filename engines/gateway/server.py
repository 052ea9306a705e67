"""A gateway as a process: an HTTP server at its address, SIGHUP reads the configuration again, SIGTERM drains."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvicorn

from fairsched.engines.gateway.account import LocalAccount
from fairsched.engines.gateway.app import application
from fairsched.engines.gateway.config import ConfigError, GatewayConfig, reloaded
from fairsched.engines.gateway.gateway import Gateway
from fairsched.engines.gateway.openai import Tokenizer
from fairsched.engines.gateway.priority import Tags
from fairsched.engines.gateway.state_store import UsageStore
from fairsched.engines.gateway.upstream import new_client
from fairsched.engines.gateway.window import Share, Window
from fairsched.engines.serving import EventBus, ServingLog
from fairsched.model.events import Arrived, Event
from fairsched.model.request import Client, Job
from fairsched.policies.base import AnyLocalPolicy, AnyRouter

_log = logging.getLogger("fairsched.gateway")

OpenLog = Callable[[tuple[int, ...], dict[str, object] | None], ServingLog]
"""Begins a log, for windows of so many tokens and a state that the policy goes on from."""

WINDOW_REQUESTS = 256
"""Requests at a server at a time, unless the configuration says otherwise."""


ENDLESS = 1 << 40
"""Tokens and requests of a server without a limit."""


class Recorded:
    """A listener of the window that writes its event log, which `fairsched replay` and `audit` read.

    The window is the log's one worker.  A log that cannot be written any more stops, and the gateway serves on.
    """

    def __init__(self, log: ServingLog) -> None:
        self._log = log
        self._bus = EventBus(log, ())

    def client(self, client: Client) -> None:
        """Define the next client."""
        self._bus.client(client)

    def record(self, event: Event) -> None:
        """Write the window's next event."""
        if isinstance(event, Arrived):
            self._bus.request(Job(event.request, event.request.max_output_tokens))
        self._bus.tell([event])

    def drain(self, window: Window) -> None:
        """Write the last line; without it, as where the policy was set aside, the log is an interrupted one."""
        if window.guard.set_aside is None and self._bus.log is not None:
            self._log.complete(window.guard.state)
        else:
            self._log.close()


def build(
    config: GatewayConfig,
    policy: AnyLocalPolicy,
    router: AnyRouter,
    *,
    shadow: bool = False,
    tokenizer: Tokenizer | None = None,
    open_log: OpenLog | None = None,
) -> Gateway:
    """Return a gateway.  Call it in the event loop that is to serve, or before there is one.

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
    store = None if config.state is None else UsageStore(Path(config.state), policy)
    state = None if store is None else store.state
    logs: list[UsageStore | Recorded] = [] if store is None else [store]
    if open_log is not None:
        windows = tuple(share.tokens for share in shares)
        logs.append(Recorded(open_log(windows, None if state is None else policy.state_to_json(state))))
    tags = Tags() if unlimited else None
    listeners = [each.record for each in (*logs, tags) if each is not None]
    account = LocalAccount(
        config,
        Window(policy, router, shares, listeners, state),
        shadow=shadow,
        clients=() if store is None else tuple(store.clients.values()),
        logs=logs,
        tags=tags,
    )
    if store is not None:
        # Last, so that files of debts that cannot be gone on from stay as they are.
        store.begin(account.window)
    return Gateway(config, account, new_client(), shadow=shadow, tokenizer=tokenizer)


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
    gateway: Gateway,
    path: Path,
    sockets: list[socket.socket],
    *,
    report: Path | None = None,
    say: Callable[[str], object] = print,
) -> None:
    """Serve until SIGTERM or SIGINT; what was taken on by then is served, within `drain_seconds`.

    Then `report` is written, and what is kept is closed.
    """

    async def stopped() -> None:
        gateway.account.close()
        if report is not None:
            status = await gateway.account.status()
            report.write_bytes(msgspec.json.format(msgspec.json.encode(status), indent=2) + b"\n")

    settings = uvicorn.Config(
        application(gateway, stopped),
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
            mode = " in shadow" if gateway.shadow else ""
            say(f"serving{mode} at http://{host}:{bound} before {len(gateway.config.servers)} servers")
        await task

    asyncio.run(main())
