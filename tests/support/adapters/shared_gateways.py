"""Several gateways or pickers before servers that take their time, all in virtual time, and what they charged."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from fairsched.engines.adapters.endpoint_picker import Picker
from fairsched.engines.adapters.endpoint_picker.config import EndpointPool, PickedClient, PickerConfig, PickerLimits
from fairsched.engines.gateway import Usage, Window, gateway_policy
from fairsched.engines.gateway.account import Account, PlaceRequest
from fairsched.engines.gateway.config import ClientConfig, GatewayConfig, ServerConfig, StoreConfig
from fairsched.engines.gateway.server.process import build_account
from fairsched.engines.gateway.window.leases import MemoryStore, Store, StoreError
from fairsched.engines.gateway.window.leases.leasing import Leasing
from fairsched.engines.gateway.window.leases.store import Change
from fairsched.engines.serving import ClientRegistry
from fairsched.model.request import Client
from fairsched.policies.guarantees import SECOND_NS, window_limits
from fairsched.policies.local import ComposedPolicy

T = TypeVar("T")

WEIGHTS = {"heavy": 4, "light": 1}
PROMPT, OUTPUT, PIECES = 40, 60, 6
WINDOW = 1_000
CALLERS = 12
QUANTUM = 1024
ENDPOINT = "10.0.0.1:80"


class Line:
    """A gateway's own way to a store: it may be cut, and answers may be lost on it after the store has written."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.jumped_seconds = 0.0
        """By so much the store's clock is ahead of virtual time."""
        self.cut = False
        self.loses_answers = False

    async def change(self, key: str, change: Change[T]) -> T:
        """Change a value, if the line is not cut."""
        if self.cut:
            raise StoreError("the line is cut")
        now_ns = round((asyncio.get_running_loop().time() + self.jumped_seconds) * SECOND_NS)
        answer = await self.store.change(key, lambda value, _: change(value, now_ns))
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
        "quantum": QUANTUM,
        "clients": clients,
    } | fields
    return GatewayConfig(servers, store=store, **values)


class Door(Protocol):
    """Where calls come in."""

    window: Window
    clients: ClientRegistry
    leasing: Leasing | None

    def now_ns(self) -> int:
        """Time since its start."""


D = TypeVar("D", bound=Door)


class Doors(Generic[D]):
    """Doors that share one account or none, and callers that always have a call; in virtual time.

    `call` asks one of them for a place, has the answer of a server, and ends the call.
    """

    def __init__(
        self, policy: ComposedPolicy, accounts: list[D], lines: list[Line], call: Callable[[D, str], Awaitable[None]]
    ) -> None:
        self.policy, self.accounts, self.lines = policy, accounts, lines
        self._call = call
        self._tasks: list[list[asyncio.Task[None]]] = [[] for _ in accounts]
        for door, each in enumerate(accounts):
            if each.leasing is not None:
                self.run(door, each.leasing.run())

    def run(self, gateway: int, work: Coroutine[Any, Any, None]) -> None:
        """Let a gateway do something until it is stopped."""
        self._tasks[gateway].append(asyncio.ensure_future(work))

    def flood(self, gateway: int, client: str, callers: int = CALLERS) -> None:
        """Let so many callers of a client ask a gateway, one call after the other."""
        for _ in range(callers):
            self.run(gateway, self._calls(self.accounts[gateway], client))

    def flood_all(self) -> None:
        """Let both clients flood every gateway."""
        for gateway in range(len(self.accounts)):
            for client in WEIGHTS:
                self.flood(gateway, client)

    async def _calls(self, there: D, client: str) -> None:
        while True:
            await self._call(there, client)

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

    def jump(self, seconds: float) -> None:
        """Let the store's clock jump."""
        for line in self.lines:
            line.jumped_seconds += seconds

    # --- what was charged -------------------------------------------------------------------------------------------

    def charged(self) -> Mapping[str, int]:
        """What all gateways charged each client, in cost units."""
        total: Counter[str] = Counter()
        for there in self.accounts:
            there.window.charge(there.now_ns())
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
        terms = self.accounts[0].window.terms
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


class Gateways(Doors[Account]):
    """Accounts of gateways, which write event logs into a folder, if there is one; `fields` are the store's settings,
    `others` the gateways'."""

    def __init__(
        self,
        count: int,
        store: Store | None,
        *,
        logs: Path | None = None,
        others: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        settings = config(_shared(count, store, fields), **others or {})
        policy = gateway_policy(settings, Path("test.toml"))
        lines = [Line(store or MemoryStore()) for _ in range(count)]
        paths = [None if logs is None else logs / f"{i}.log" for i in range(count)]
        accounts = [
            build_account(settings, policy, log=path, clock=lambda: 0, store=line)
            for line, path in zip(lines, paths, strict=True)
        ]
        super().__init__(policy, accounts, lines, _placed)

    async def close(self) -> None:
        """End all in good order, with their logs."""
        for gateway, account in enumerate(self.accounts):
            await self.stop(gateway)
            account.close()


class Pickers(Doors[Picker]):
    """Pickers of one pool of one endpoint."""

    def __init__(self, count: int, store: Store | None, **fields: Any) -> None:
        settings = PickerConfig(
            EndpointPool(WINDOW, 64, (ENDPOINT,)),
            quantum=QUANTUM,
            store=_shared(count, store, fields),
            limits=PickerLimits(wait_seconds=1e6),
            client={name: PickedClient(weight) for name, weight in WEIGHTS.items()},
        )
        lines = [Line(store or MemoryStore()) for _ in range(count)]
        pickers = [Picker(settings, store=line) for line in lines]
        for each in pickers:
            each.see([ENDPOINT])
        policy = pickers[0].window.guard.policy
        assert isinstance(policy, ComposedPolicy)
        super().__init__(policy, pickers, lines, _picked)


def _shared(count: int, store: Store | None, fields: Mapping[str, Any]) -> StoreConfig | None:
    return None if store is None else StoreConfig("file:///nowhere", gateways=count, lease=512, **fields)


async def _placed(there: Account, client: str) -> None:
    placed = await there.place(PlaceRequest(client, PROMPT, OUTPUT, wait_seconds=1e6))
    for _ in range(PIECES):
        await asyncio.sleep(0.1)
        there.produced(placed.request_id, OUTPUT // PIECES)
    there.finish(placed.request_id, PROMPT, OUTPUT)


async def _picked(there: Picker, client: str) -> None:
    picked = await there.pick(client, PROMPT, OUTPUT)
    for _ in range(PIECES):
        await asyncio.sleep(0.1)
        there.produced(picked, OUTPUT // PIECES)
    there.finish(picked, Usage(PROMPT, OUTPUT))
