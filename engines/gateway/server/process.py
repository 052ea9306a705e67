"""A gateway as a process: an HTTP server at its address, SIGHUP reads the configuration again, SIGTERM drains."""

import asyncio
import gc
import logging
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import msgspec

from fairsched.engines.files import write_whole
from fairsched.engines.gateway.account import Account, Recorded, quota_store
from fairsched.engines.gateway.app import application
from fairsched.engines.gateway.config import GatewayConfig, read_config, reloaded
from fairsched.engines.gateway.gateway import Gateway
from fairsched.engines.gateway.identity import access_warnings
from fairsched.engines.gateway.policy import window_router, window_terms
from fairsched.engines.gateway.server.connections import Connections, sockets_at
from fairsched.engines.gateway.tls import check_files, tls_context
from fairsched.engines.gateway.window import LeasedWindow, Share, Window
from fairsched.engines.gateway.window.leases import Store
from fairsched.engines.serving import ServingLog
from fairsched.engines.settings import ConfigError
from fairsched.policies.gates import AnyLeasedGate, Terms
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.registry import parameters

_log = logging.getLogger("fairsched.gateway")


def build(
    config: GatewayConfig,
    policy: ComposedPolicy,
    *,
    log: Path | None = None,
    budgets: Store | None = None,
) -> Gateway:
    """Return a gateway of one process (`build_account`)."""
    account = build_account(config, policy, log=log, budgets=budgets)
    return Gateway(config, account)


def build_account(
    config: GatewayConfig,
    policy: ComposedPolicy,
    *,
    log: Path | None = None,
    clock: Callable[[], int] = time.time_ns,
    store: Store | None = None,
    budgets: Store | None = None,
) -> Account:
    """Return an account under the configuration's policy (`gateway_policy`).  Call it in the event loop that is to have
    it, or before there is one.

    `store` and `budgets` are used instead of those that the configuration names for leases and for quotas, if it does.
    `log` is the file of its event log, which says when it began by `clock`, in nanoseconds since 1970.  Raises
    `OSError` where that cannot be written.
    """
    shares = [Share(server.window_tokens, server.window_requests) for server in config.servers if not server.resolve]
    recorded = None if log is None else Recorded(_begun_log(log, config, policy, clock()))
    listeners = [] if recorded is None else [recorded.record]
    kind: Any = Window if config.store is None else LeasedWindow
    terms, router = window_terms(config), window_router(config.router)
    return Account(
        config,
        kind(policy, router, shares, listeners, None, terms, config.decision_budget_ms),
        log=recorded,
        store=store,
        quota_store=None if config.quota is None else budgets or quota_store(config),
    )


def _begun_log(path: Path, config: GatewayConfig, policy: ComposedPolicy, begun_ns: int) -> ServingLog:
    lease = None
    if isinstance(policy.gate, AnyLeasedGate):
        lease = Terms(policy.gate.lease, policy.gate.holders)
        policy = attrs.evolve(policy, gate=policy.gate.unshared)
    # A name that is looked up later begins as one server; the log says when there is more.
    windows = tuple(server.window_tokens for server in config.servers)
    return ServingLog(
        path,
        policy.name,
        parameters(policy),
        kv_capacity_tokens=sum(windows),
        router=config.router,
        name="gateway",
        windows=windows,
        terms=window_terms(config),
        lease=lease,
        begun_ns=begun_ns,
    )


def reload(gateway: Gateway, path: Path, read: Callable[[Path], GatewayConfig] = read_config) -> bool:
    """Read the configuration again; returns whether it is in force.  What cannot be used is logged and changes
    nothing."""
    try:
        fresh = reloaded(gateway.config, path, read)
        check_files(fresh)
        gateway.configure(fresh)
    except (ConfigError, OSError) as error:
        _log.error("the configuration stays as it was: %s", error)
        return False
    _log.info("the configuration was read again")
    for warning in access_warnings(fresh):
        _log.warning("%s", warning)
    return True


def log_to_stderr() -> None:
    """Have this process log to its standard error; other people's code only its warnings."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("fairsched").setLevel(logging.INFO)


def listening(config: GatewayConfig) -> list[socket.socket]:
    """Return the sockets at the address of a gateway: to be had before `build` touches files that another one may be
    using.

    Raises `ConfigError` for an address that cannot be had.
    """
    try:
        return sockets_at(*config.address)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"listen: {config.listen}: {error}") from None


def serve(
    gateway: Gateway,
    path: Path,
    sockets: list[socket.socket],
    *,
    report: Path | None = None,
    say: Callable[[str], object] = print,
) -> bool:
    """Serve until SIGTERM or SIGINT, and `leave_seconds` more; what was taken on is served, within `drain_seconds`.

    Then `report` is written, and what is kept is closed.  Returns what `write_report` does.
    """

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(serving(gateway, path, sockets, report, say))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes an event loop: uvloop's where it exists."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


GARBAGE = 50_000
"""Objects that are made before any are looked through for cycles."""


async def serving(
    gateway: Gateway,
    path: Path,
    sockets: list[socket.socket],
    report: Path | None,
    say: Callable[[str], object],
    read: Callable[[Path], GatewayConfig] = read_config,
) -> bool:
    """Do what `serve` does in the running loop; `read` reads the configuration again."""
    config, ended = gateway.config, asyncio.Event()
    tls = None if config.tls is None else tls_context(config.tls)
    connections = Connections(config.limits, tls, alone=config.processes == 1)

    def again() -> None:
        if reload(gateway, path, read):
            connections.configure(gateway.config.limits)
            if gateway.config.tls is not None:
                # A context of its own: the one that is in use cannot forget an authority.
                connections.tls = tls_context(gateway.config.tls)

    loop = asyncio.get_running_loop()
    for number, handler in (("SIGHUP", again), ("SIGTERM", ended.set), ("SIGINT", ended.set)):
        with suppress(NotImplementedError):  # Windows.
            if hasattr(signal, number):
                loop.add_signal_handler(getattr(signal, number), handler)
    # What is here by now stays, and looking through all calls for cycles every 700 objects finds next to none.
    gc.freeze()
    gc.set_threshold(GARBAGE)
    await connections.start(application(gateway), sockets)
    host, bound = config.address[0], sockets[0].getsockname()[1]
    scheme = "http" if config.tls is None else "https"
    several = "" if config.processes == 1 else f", {config.processes} processes"
    say(f"serving at {scheme}://{host}:{bound} before {len(config.servers)} servers{several}")
    await ended.wait()
    gateway.draining = True
    await asyncio.sleep(gateway.config.limits.leave_seconds)
    await connections.stop(gateway.config.limits.drain_seconds)
    gateway.account.close()
    return await write_report(gateway.account, report)


async def write_report(account: Account, report: Path | None) -> bool:
    """Write the status at the end, if a file is named.  Returns whether a gap was over its bound and no assumption of
    the theorem was broken."""
    status = await account.status()
    if report is not None:
        write_whole(report, msgspec.json.format(msgspec.json.encode(status), indent=2) + b"\n")
    return bool(status.get("promise", {}).get("unexplained"))
