"""What a quota costs a call: CPU time of this process, and the wait for its reservation, by store.

`held` calls are under way meanwhile; calls come one after the other, or 100 at a time.
"""

import asyncio
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from fairsched.engines.gateway import config
from fairsched.engines.gateway.account.quota import Budgets
from fairsched.engines.gateway.window.leases import MemoryStore, Store, open_store
from fairsched.engines.gateway.window.leases.store import FileStore
from fairsched.policies.guarantees.quota import NOTHING, Spent

CALLS = 1_000
WARM = 50
QUOTA = config.QuotasConfig(client={"a": config.QuotaConfig(tokens_per_minute=10**9, tokens_per_month=10**9)})
CONFIG = config.GatewayConfig(
    (config.ServerConfig("http://127.0.0.1:1", 1_000),), clients={"a": config.ClientConfig()}, quota=QUOTA
)


async def measured(store: Store, held: int, at_once: int) -> str:
    """CPU time a call, and its wait."""
    budgets = Budgets(CONFIG, store)
    quotas = budgets.quotas_of("a")
    waits: list[float] = []

    async def call() -> None:
        begun = time.perf_counter()
        reserved = await budgets.reserve("a", 100, quotas)
        waits.append(time.perf_counter() - begun)
        assert reserved is not None
        budgets.end(reserved, Spent(prompt=5, output=5))

    under_way = [await budgets.reserve("a", 100, quotas) for _ in range(held)]
    await asyncio.gather(*(call() for _ in range(WARM)))
    waits.clear()
    begun = time.process_time()
    for _ in range(CALLS // at_once):
        await asyncio.gather(*(call() for _ in range(at_once)))
    micros = (time.process_time() - begun) / CALLS * 1e6
    for reserved in under_way:
        assert reserved is not None
        budgets.end(reserved, NOTHING)
    await budgets.close()
    waits.sort()
    p50, p99 = (waits[len(waits) * percent // 100] * 1e3 for percent in (50, 99))
    return f"{micros:.0f} us of CPU a call, wait p50 {p50:.2f} ms, p99 {p99:.2f} ms"


def main() -> None:
    """Print a line for each case."""
    with tempfile.TemporaryDirectory(prefix="fairsched-") as name:
        folder = Path(name)
        stores = {"memory": MemoryStore, "folder": lambda: FileStore(folder / "quotas")}
        binary = shutil.which("redis-server") or shutil.which("valkey-server")
        redis = None
        if binary is not None:
            options = ["--port", "0", "--unixsocket", str(folder / "redis"), "--save", ""]
            redis = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)
            while not (folder / "redis").exists():
                time.sleep(0.05)
            address = config.StoreAddress(f"unix://{folder / 'redis'}", timeout_seconds=60.0)
            stores["Redis"] = lambda: open_store(address)
        try:
            for store, make in stores.items():
                for held in (0, 200):
                    for at_once in (1, 100):
                        said = asyncio.run(measured(make(), held, at_once))
                        print(f"{store}, {held} under way, {at_once} at once: {said}")
        finally:
            if redis is not None:
                redis.kill()
                redis.wait()


if __name__ == "__main__":
    main()
