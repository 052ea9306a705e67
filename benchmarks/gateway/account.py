"""What it costs that the account is in another process: both ends of a connection, and an account that decides nothing.

    python benchmarks/gateway/account.py

Both ends share one event loop and a Unix socket, so that the figures are CPU time and no waiting for a core.
"""

import asyncio
import socket
import time
from typing import Any

import uvloop

from fairsched.engines.gateway.account import AccountHost, Placed, PlaceRequest, RemoteAccount
from fairsched.engines.gateway.config import GatewayConfig, ServerConfig
from fairsched.engines.gateway.servers import Upstream

CALLS = 6000
REPORTS = 100


class Idle:
    """An account that places each call at once, and charges nothing."""

    def __init__(self) -> None:
        self.hung = print
        self._placed = 0

    async def place(self, *_: object, **__: object) -> Placed:
        """Return the next number."""
        self._placed += 1
        return Placed(self._placed, Upstream(0, "http://server:8000"))

    def finish(self, *_: object) -> None:
        """Do nothing."""

    def produced(self, *_: object) -> None:
        """Do nothing."""

    def upstreams(self) -> tuple[Upstream, ...]:
        """Return none."""
        return ()


async def main() -> None:
    """Print what calls and tokens cost."""
    idle: Any = Idle()
    host, remote = AccountHost(idle, GatewayConfig((ServerConfig("http://server", 1000),))), RemoteAccount()
    loop = asyncio.get_running_loop()
    here, there = socket.socketpair()
    await loop.create_unix_connection(host.wire, sock=here)
    await loop.create_unix_connection(lambda: remote.wire, sock=there)
    await remote.greet()
    for width in (1, 10, 100):
        trips: list[float] = []

        async def ask(trips: list[float] = trips, width: int = width) -> None:
            for _ in range(CALLS // width):
                begun = time.perf_counter()
                placed = await remote.place(PlaceRequest("client", 100, 100, wait_seconds=60.0))
                trips.append(time.perf_counter() - begun)
                remote.finish(placed.request_id, 100, 50)

        begun = time.process_time()
        await asyncio.gather(*(ask() for _ in range(width)))
        cpu = time.process_time() - begun
        middle = sorted(trips)[len(trips) // 2]
        print(f"{width:>3} calls at a time: {cpu / len(trips) * 1e6:.0f} us CPU a call, trip p50 {middle * 1e6:.0f} us")
    begun = time.process_time()
    for _ in range(REPORTS):
        for call in range(100):
            remote.produced(call, 1)
        await asyncio.sleep(0.021)
    print(f"{(time.process_time() - begun) / REPORTS / 100 * 1e6:.1f} us CPU a token of 100 streams")
    remote.close()
    await remote.lost.wait()


if __name__ == "__main__":
    uvloop.run(main())
