"""What it costs a call that gateways share an account: waiting for a place, CPU, and renewals of leases.

    python benchmarks/gateway/leases.py [--gateways N] [--rounds N] [--seconds N] [--quantum N]

One to N gateways (3), with no store, one in memory, one in Redis on this machine (`redis-server` has to be installed),
and that with 5 ms of delay on each answer.  Eight callers of each of four clients ask each gateway; a call takes 50 ms
and has 100 prompt and 50 output tokens, so that each gateway serves about 640 calls and 128,000 cost units a second, 31
times the default quantum and lease of 4,096.  Rounds of all cases are interleaved; all is in one process and one event
loop.
"""

import argparse
import asyncio
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TypeVar

from fairsched.engines.gateway import gateway_policy
from fairsched.engines.gateway.account import Account, PlaceRequest
from fairsched.engines.gateway.config import ClientConfig, GatewayConfig, ServerConfig, StoreConfig
from fairsched.engines.gateway.server.process import build_account
from fairsched.engines.gateway.window.leases import MemoryStore, Store, open_store
from fairsched.engines.gateway.window.leases.store import Change

T = TypeVar("T")
CLIENTS = ("a", "b", "c", "d")
CALLERS = 8
PROMPT, OUTPUT = 100, 50
DELAY_SECONDS = 0.005


class Far:
    """A store whose every change takes longer, there and back."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def change(self, key: str, change: Change[T]) -> T:
        """Change a value: a read and a write, each with its delay."""
        await asyncio.sleep(2 * DELAY_SECONDS)
        return await self._store.change(key, change)

    async def close(self) -> None:
        """End connections."""
        await self._store.close()


def settings(gateways: int, url: str | None, quantum: int) -> GatewayConfig:
    """A gateway's configuration."""
    store = None if url is None else StoreConfig(url, gateways=gateways, name=f"bench-{gateways}", timeout_seconds=5.0)
    clients = {name: ClientConfig() for name in CLIENTS}
    return GatewayConfig(
        (ServerConfig("http://127.0.0.1:1", 20_000),),
        identify="header",
        store=store,
        clients=clients,
        quantum=quantum,
    )


async def measured(
    config: GatewayConfig, stores: list[Store | None], seconds: float
) -> tuple[list[float], float, float]:
    """Return how long each call waited for a place, CPU seconds a call, and renewals a call."""
    policy = gateway_policy(config, Path("benchmark"))
    accounts = [build_account(config, policy, store=store) for store in stores]
    waits: list[float] = []

    async def calls(account: Account, client: str) -> None:
        while True:
            begun = time.perf_counter()
            placed = await account.place(PlaceRequest(client, PROMPT, OUTPUT, wait_seconds=60.0))
            waits.append(time.perf_counter() - begun)
            await asyncio.sleep(0.05)
            account.produced(placed.request_id, OUTPUT)
            account.finish(placed.request_id, PROMPT, OUTPUT)

    tasks = [asyncio.ensure_future(account.leasing.run()) for account in accounts if account.leasing is not None]
    for account in accounts:
        tasks += [asyncio.ensure_future(calls(account, client)) for client in CLIENTS for _ in range(CALLERS)]
    await asyncio.sleep(0.5)
    waits.clear()
    before, renewals = time.process_time(), sum(renewed(account) for account in accounts)
    await asyncio.sleep(seconds)
    cpu = time.process_time() - before
    count = len(waits)
    renewals = sum(renewed(account) for account in accounts) - renewals
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return waits[:count], cpu / count, renewals / count


def renewed(account: Account) -> int:
    """How often a gateway renewed its leases."""
    return 0 if account.leasing is None else account.leasing.counts["renewed"]


async def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--quantum", type=int, default=4_096, help="of every client, and its lease (4096)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, binary = Path(folder, "redis.sock"), shutil.which("redis-server") or shutil.which("valkey-server")
        server = None
        if binary is not None:
            quiet = ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"]
            server = subprocess.Popen([binary, *quiet], stdout=subprocess.DEVNULL, cwd=folder)
        cases = ["no store", "memory", *(["Redis", "Redis, 5 ms away"] if server else [])]
        found: dict[tuple[int, str], list[tuple[float, float, float, float]]] = {}
        try:
            for _ in range(given.rounds):
                for gateways in range(1, given.gateways + 1):
                    for case in cases:
                        url = None if case == "no store" else f"unix://{path}"
                        config = settings(gateways, url, given.quantum)
                        waits, cpu, renewals = await measured(config, stores_of(case, config, gateways), given.seconds)
                        ranked = sorted(waits)
                        at = [ranked[int(len(ranked) * share)] * 1e3 for share in (0.5, 0.99)]
                        found.setdefault((gateways, case), []).append((at[0], at[1], cpu * 1e6, renewals))
        finally:
            if server is not None:
                server.kill()
                server.wait()
    print(f"{'gateways':>8} {'store':18} {'p50 ms':>8} {'p99 ms':>8} {'CPU us a call':>14} {'renewals a call':>16}")
    for (gateways, case), rounds in found.items():
        p50, p99, cpu, renewals = (statistics.median(each) for each in zip(*rounds, strict=True))
        print(f"{gateways:>8} {case:18} {p50:>8.2f} {p99:>8.2f} {cpu:>14.0f} {renewals:>16.3f}")


def stores_of(case: str, config: GatewayConfig, gateways: int) -> list[Store | None]:
    """What each gateway is given."""
    if case == "no store":
        return [None] * gateways
    if case == "memory":
        one = MemoryStore()
        return [one] * gateways
    assert config.store is not None
    stores = [open_store(config.store) for _ in range(gateways)]
    return [Far(store) if "away" in case else store for store in stores]


if __name__ == "__main__":
    asyncio.run(main())
