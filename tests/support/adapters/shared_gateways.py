"""Several gateways' accounts before servers that take their time, all in virtual time, and what they charged."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fairsched.engines.gateway import build_account, gateway_policy
from fairsched.engines.gateway.account import LocalAccount
from fairsched.engines.gateway.account.shared import Change, Leasing, MemoryStore, Store, StoreError
from fairsched.engines.gateway.config import ClientConfig, GatewayConfig, ServerConfig, StoreConfig
from fairsched.engines.gateway.policy import window_terms
from fairsched.model.request import Client
from fairsched.policies.guarantees import SECOND_NS, window_limits
from fairsched.policies.registry import ROUTERS

T = TypeVar("T")

WEIGHTS = {"heavy": 4, "light": 1}
PROMPT, OUTPUT, PIECES = 40, 60, 6
WINDOW = 1_000
CALLERS = 12


class Line:
    """A gateway's own way to a store: it may be cut, and answers may be lost on it after the store has written."""

    def __init__(self, store: Store, clock_ns: Callable[[], int]) -> None:
        self.store = store
        self.clock_ns = clock_ns
        self.cut = False
        self.loses_answers = False

    async def change(self, key: str, change: Change[T]) -> T:
        """Change a value, if the line is not cut."""
        if self.cut:
            raise StoreError("the line is cut")
        answer = await self.store.change(key, lambda value, _: change(value, self.clock_ns()))
        if self.loses_answers:
            raise StoreError("no answer in time")
        return answer

    async def close(self) -> None:
        """Do nothing: others have the store, too."""


def config(store: StoreConfig | None, requests: int = 64, **fields: Any) -> GatewayConfig:
    """A gateway's settings before one server that takes `WINDOW` tokens, and so many requests."""
    clients = {name: ClientConfig(weight=weight) for name, weight in WEIGHTS.items()}
    servers = (ServerConfig("http://127.0.0.1:1", WINDOW, requests),)
    values: dict[str, Any] = {
        "identify": "header",
        "unknown_clients": "own",
        "quantum": 1024,
        "clients": clients,
    } | fields
    return GatewayConfig(servers, store=store, **values)


class Gateways:
    """Accounts, and callers that always have a call; in virtual time."""

    def __init__(self, count: int, store: Store | None, requests: int = 64, **fields: Any) -> None:
        shared = None if store is None else StoreConfig("file:///nowhere", gateways=count, lease=512, **fields)
        self.config = config(shared, requests)
        self.policy = gateway_policy(self.config, Path("test.toml"))
        self.jumped_seconds = 0.0
        """By so much the store's clock is ahead of virtual time."""
        self.lines = [Line(store or MemoryStore(), self._clock_ns) for _ in range(count)]
        self.accounts = [
            build_account(self.config, self.policy, ROUTERS[self.config.router], store=line) for line in self.lines
        ]
        self._tasks: list[list[asyncio.Task[None]]] = [[] for _ in range(count)]
        for gateway, each in enumerate(self.accounts):
            if each.leasing is not None:
                self.run(gateway, each.leasing.run())

    def _clock_ns(self) -> int:
        return round((asyncio.get_running_loop().time() + self.jumped_seconds) * SECOND_NS)

    def run(self, gateway: int, work: Coroutine[Any, Any, None]) -> None:
        """Let a gateway do something until it is stopped."""
        self._tasks[gateway].append(asyncio.ensure_future(work))

    def flood(self, gateway: int, client: str, callers: int = CALLERS) -> None:
        """Let so many callers of a client ask a gateway, one call after the other."""
        for _ in range(callers):
            self.run(gateway, self._calls(self.accounts[gateway], client))

    async def _calls(self, there: LocalAccount, client: str) -> None:
        while True:
            placed = await there.place(client, PROMPT, OUTPUT, declared=True, wait_seconds=1e6)
            for _ in range(PIECES):
                await asyncio.sleep(0.1)
                there.produced(placed.request_id, OUTPUT // PIECES)
            there.finish(placed.request_id, PROMPT, OUTPUT)

    def leasing(self, gateway: int) -> Leasing:
        """What a gateway has on lease."""
        found = self.accounts[gateway].leasing
        assert found is not None
        return found

    async def stop(self, gateway: int) -> None:
        """End a gateway in good order: leases are returned."""
        for task in self._tasks[gateway]:
            task.cancel()
        await asyncio.gather(*self._tasks[gateway], return_exceptions=True)

    def kill(self, gateway: int) -> None:
        """End a gateway at once: its store hears nothing more, and its calls are gone."""
        self.lines[gateway].cut = True
        for task in self._tasks[gateway]:
            task.cancel()

    # --- what was charged -------------------------------------------------------------------------------------------

    def charged(self) -> Mapping[str, int]:
        """What all gateways charged each client, in cost units."""
        total: Counter[str] = Counter()
        for there in self.accounts:
            there._ticked()
            for client in there.clients.all:
                usage = there.window.usage.of(client)
                total[client.name] += usage["prompt_tokens"] + 2 * (usage["output_tokens"] + usage["hold_tokens"])
        return total

    def gap(self, since: Mapping[str, int]) -> int:
        """How far apart both clients are since then, as the bound counts: in service by weight, times 4."""
        now = self.charged()
        heavy, light = (4 * (now[name] - since.get(name, 0)) // WEIGHTS[name] for name in WEIGHTS)
        return abs(heavy - light)

    @property
    def bound(self) -> int:
        """What the theorem promises of that."""
        guarantee = self.policy.guarantee
        terms = window_terms(self.config).of(WINDOW)
        clients = tuple(Client(i, name, weight) for i, (name, weight) in enumerate(WEIGHTS.items()))
        found = guarantee.service_gap_bound(clients, window_limits(guarantee, WINDOW, terms))
        assert found is not None
        return found

    async def held_to(self, bound: Callable[[], int], seconds: float) -> Mapping[str, int]:
        """Let time pass, and hold the gap to a bound all the while; returns what was charged in it."""
        since, loop = dict(self.charged()), asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            await asyncio.sleep(0.25)
            assert self.gap(since) <= bound()
        return {name: units - since.get(name, 0) for name, units in self.charged().items()}
