"""A process of a gateway that is several, started by `supervisor`: `python -m ... SPEC`.

The account's process has the window, what is kept of it, the servers' health and the configuration's file; it serves
nobody.  The others have connections of callers and to servers; they have the configuration from the account.
"""

import asyncio
import importlib
import logging
import os
import shutil
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from fairsched.engines.gateway.account import Account, AccountHost, AccountLostError, ProcessPeer, connected
from fairsched.engines.gateway.config import GatewayConfig, read_config
from fairsched.engines.gateway.gateway import Gateway, beside
from fairsched.engines.gateway.openai import Tokenizer
from fairsched.engines.gateway.operations import log_to_stderr
from fairsched.engines.gateway.policy import gateway_policy, window_router
from fairsched.engines.gateway.server import process
from fairsched.engines.gateway.server.supervisor import ACCOUNT, LOST, SILENT, UNEXPLAINED, UNUSABLE, Spec
from fairsched.engines.settings import ConfigError

_log = logging.getLogger("fairsched.gateway")

WATCH_SECONDS = 0.25
"""Processes learn so often which servers take calls."""


async def _account(spec: Spec, account: Account, config: GatewayConfig, listener: socket.socket) -> int:
    """Keep the account until SIGTERM, and then until no process is connected."""
    loop, ending = asyncio.get_running_loop(), asyncio.Event()
    ready: set[int] = set()

    def is_ready(peer: ProcessPeer) -> None:
        ready.add(peer.pid)
        if len(ready) == spec.processes:
            print(spec.said, flush=True)  # noqa: T201

    host = AccountHost(account, config, ready=is_ready, lost=_kill_silent)

    async def watch() -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            host.watch()

    loop.add_signal_handler(signal.SIGHUP, process.reload, host, Path(spec.config))
    loop.add_signal_handler(signal.SIGTERM, ending.set)
    async with beside(watch()), beside(account.run()):
        server = await loop.create_unix_server(host.wire, sock=listener)
        await ending.wait()
        await host.empty.wait()
        server.close()
    account.close()
    unexplained = await process.write_report(account, None if spec.report is None else Path(spec.report))
    return UNEXPLAINED if unexplained else 0


def _kill_silent(peer: ProcessPeer) -> None:
    """End a process that hangs and keeps its callers; another one is started."""
    if peer.wire.silent:
        os.kill(peer.pid, signal.SIGKILL)


async def _serve(spec: Spec, sockets: list[socket.socket], tokenizer: Tokenizer | None) -> int:
    """Serve callers until SIGTERM, or until the account is gone."""
    loop, ending = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ending.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    try:
        account, config = await connected(spec.account)
    except AccountLostError as error:
        _log.error("%s", error)
        return LOST
    gateway = Gateway(config, account, shadow=spec.shadow, tokenizer=tokenizer)
    gateway.weigh = account.weigh
    gateway.drain = partial(os.kill, os.getppid(), signal.SIGTERM)
    serving = process.Serving(gateway, alone=spec.processes == 1)

    def configured(fresh: GatewayConfig) -> None:
        gateway.configure(fresh)
        serving.configure()

    account.configured = configured
    await serving.start(sockets)
    account.ready()
    lost = asyncio.ensure_future(account.lost.wait())
    ended = asyncio.ensure_future(ending.wait())
    await asyncio.wait([lost, ended], return_when=asyncio.FIRST_COMPLETED)
    stopping = asyncio.ensure_future(serving.stop())
    await asyncio.wait([lost, stopping], return_when=asyncio.FIRST_COMPLETED)
    if account.lost.is_set():
        # Calls that wait are answered with 503 meanwhile; no other has an account any more.
        await asyncio.sleep(0.1)
        return SILENT if account.wire.silent else LOST
    account.close()
    await account.lost.wait()
    return 0


def main(text: str) -> int:
    """Run the process that the text (`Spec` as JSON) says; returns the exit status."""
    spec = msgspec.json.decode(text, type=Spec)
    log_to_stderr(spec.log_format)
    # Ctrl-C is for the supervisor, which lets calls end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work: Any
    try:
        if spec.role == ACCOUNT:
            path = Path(spec.config)
            config = read_config(path)
            policy, router = gateway_policy(config, path), window_router(config.router)
            open_log = None if spec.log is None else process.log_opener(Path(spec.log), config, policy)
            account = process.build_account(config, policy, router, shadow=spec.shadow, open_log=open_log)
            work = _account(spec, account, config, socket.socket(fileno=spec.listener))
        else:
            module, _, function = (spec.tokenizer or "").partition(":")
            tokenizer = getattr(importlib.import_module(module), function) if module else None
            work = _serve(spec, [socket.socket(fileno=each) for each in spec.sockets], tokenizer)
    except (ConfigError, OSError) as error:
        print(f"fairsched gateway: {error}", file=sys.stderr)  # noqa: T201
        return UNUSABLE
    with asyncio.Runner(loop_factory=process.loop_factory()) as runner:
        runner.get_loop().add_reader(spec.lifeline, _alone, spec)
        return int(runner.run(work))


def _alone(spec: Spec) -> None:
    """Stop where the supervisor was killed: end as it did."""
    if spec.role == ACCOUNT:
        shutil.rmtree(Path(spec.account).parent, ignore_errors=True)
    os._exit(LOST)


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stdout.flush()
    # Not held up by a thread that still looks up a name.
    os._exit(status)
