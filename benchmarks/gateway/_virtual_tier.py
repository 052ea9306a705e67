"""A routing tier in virtual time: as many routers as asked for, each with a core of its own, and one store.

Leases, their account and the loop that writes it are those that ship.  A router is a stand-in that spends what it has
on lease, one decision after the other, as fast as its core lets it.  A core is busy with decisions and with renewals;
the server of the store does one operation at a time.
"""

import asyncio
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

sys.path.insert(0, str(Path(__file__).parents[2]))

from fairsched.engines.gateway.config import StoreConfig
from fairsched.engines.gateway.window.leases.leasing import Leasing
from fairsched.engines.gateway.window.leases.redis_store import RedisStore
from fairsched.engines.serving import ClientRegistry
from tests.support.adapters.loops import VirtualLoop

STEP_SECONDS = 0.001


@attrs.frozen
class Costs:
    """Seconds: of a router's core a decision and a renewal, what each try of that takes, and a byte of the value; a
    trip to the store and back; of the store's core an operation, and a byte of the value.

    Defaults were measured with one Redis on one machine, but for the trip, which is that of a network.
    """

    decision: float = 180e-6
    renewal: float = 220e-6
    attempt: float = 110e-6
    byte: float = 8e-9
    trip: float = 250e-6
    operation: float = 28e-6
    operation_byte: float = 2e-9


@attrs.define
class Window:
    """A window of clients that always wait, as leases see it: balances in cost units."""

    gate: Any
    spent: list[int]
    alone: bool = False
    starved: bool = False

    def choosable_clients(self) -> list[int]:
        """All of them."""
        return list(range(len(self.spent)))

    def balance(self, client: int) -> int:
        """What a client has on lease."""
        return -self.spent[client]

    def balances(self) -> dict[int, int]:
        """What clients have, or owe."""
        return {client: -units for client, units in enumerate(self.spent) if units}

    def lend(self, moved: Mapping[int, int], _: int) -> None:
        """Take what came on lease."""
        for client, units in moved.items():
            self.spent[client] -= units


@attrs.frozen
class Gate:
    """A gate's terms."""

    lease: int
    holders: int
    quantum: int


@attrs.define
class Server:
    """A store's server: values, when it is free again, and what it did."""

    costs: Costs
    values: dict[str, bytes] = attrs.field(factory=dict)
    free: float = 0.0
    busy: float = 0.0
    operations: int = 0
    written: int = 0
    lost: int = 0


class VirtualStore(RedisStore):
    """The store of one router, without a Redis: trips and operations take virtual time."""

    def __init__(self, server: Server, costs: Costs) -> None:
        self.server, self.costs = server, costs
        self.cpu = 0.0
        """What the router's core owes to renewals."""

    async def _ask(self, key: str, *args: bytes) -> tuple[bool, bytes, int]:
        loop, server, costs = asyncio.get_running_loop(), self.server, self.costs
        size = max(len(server.values.get(key, b"")), len(args[1]) if args else 0)
        if args:
            await self.compute(costs.attempt + costs.byte * size)
        await asyncio.sleep(costs.trip / 2 * random.uniform(0.7, 1.3))
        took = (costs.operation + costs.operation_byte * size) * random.uniform(0.7, 1.3)
        server.free = max(server.free, loop.time()) + took
        server.busy += took
        server.operations += 1
        await asyncio.sleep(server.free - loop.time())
        value = server.values.get(key, b"")
        written = bool(args) and value[:16] == args[0]
        if written:
            server.values[key] = args[1]
            server.written += 1
        server.lost += bool(args) and not written
        await asyncio.sleep(costs.trip / 2 * random.uniform(0.7, 1.3))
        return written, b"" if args else value, round(loop.time() * 1e9)

    async def compute(self, seconds: float) -> None:
        """Have the router's core for so long."""
        self.cpu += seconds
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Do nothing."""


class Router:
    """A stand-in that spends leases; `units` are the cost units of a call."""

    def __init__(
        self, server: Server, costs: Costs, weights: list[int], units: int, quantum: int, lease: int, routers: int
    ) -> None:
        self.decisions = 0
        self._costs, self._units, self._next, self._part = costs, units, 0, 0.0
        self._window = Window(Gate(lease, routers, quantum), [0] * len(weights))
        self._store = VirtualStore(server, costs)
        self._wakes = asyncio.Event()
        clients = ClientRegistry({f"client-{i}": weight for i, weight in enumerate(weights)})
        config = StoreConfig("redis://virtual", gateways=routers, lease=lease)
        window: Any = self._window
        self.leasing = Leasing(config, self._store, window, clients, self._wakes.set, lambda: 0)

    async def run(self) -> None:
        """Decide until cancelled."""
        window, spent = self._window, self._window.spent
        charged = 0
        while True:
            renewals, charged = self.leasing.counts["renewed"] - charged, self.leasing.counts["renewed"]
            # What a renewal costs beside its tries.
            self._store.cpu += renewals * (self._costs.renewal - self._costs.attempt)
            window.starved = min(spent) >= 0
            if window.starved:
                self.leasing.pumped()
                self._wakes.clear()
                await self._wakes.wait()
                continue
            busy, self._store.cpu = self._store.cpu, 0.0
            self._part += STEP_SECONDS / self._costs.decision
            while self._part >= 1 and min(spent) < 0:
                self._part -= 1
                self._decide(spent)
            self._part %= 1
            for client in range(len(spent)):
                self.leasing.arrived(client)
            await asyncio.sleep(STEP_SECONDS + busy)

    def _decide(self, spent: list[int]) -> None:
        """Let in a call of the next client with credit."""
        while spent[self._next] >= 0:
            self._next = (self._next + 1) % len(spent)
        spent[self._next] += self._units
        self._next = (self._next + 1) % len(spent)
        self.decisions += 1


@attrs.frozen
class Seen:
    """What a tier did in a second."""

    decisions: float
    renewals: float
    written: float
    lost: float
    operations: float
    store_busy: float
    bytes: int


def play(
    routers: int, weights: list[int], units: int, quantum: int, lease: int, costs: Costs, seconds: float = 1.0
) -> Seen:
    """Return what a tier of so many routers does in a second, after half a second to begin."""
    loop = VirtualLoop()
    found: list[Seen] = []

    async def run() -> None:
        server = Server(costs)
        tier = [Router(server, costs, weights, units, quantum, lease, routers) for _ in range(routers)]
        tasks = []
        for router in tier:
            tasks += [asyncio.ensure_future(router.leasing.run()), asyncio.ensure_future(router.run())]
            await asyncio.sleep(0.05 / routers)

        def counts() -> tuple[float, ...]:
            renewals = sum(router.leasing.counts["renewed"] for router in tier)
            done = sum(router.decisions for router in tier)
            return done, renewals, server.written, server.lost, server.operations, server.busy

        await asyncio.sleep(0.5)
        before = counts()
        await asyncio.sleep(seconds)
        done, renewals, written, lost, operations, busy = (
            (after - was) / seconds for was, after in zip(before, counts(), strict=True)
        )
        size = len(next(iter(server.values.values())))
        found.append(Seen(done, renewals, written, lost, operations, busy, size))
        for task in tasks:
            task.cancel()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())
    return found[0]
