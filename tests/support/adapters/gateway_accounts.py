"""An account in this process, and one behind a connection, in virtual time."""

import asyncio
import socket
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

import attrs

from fairsched.engines.gateway import Share, Window, window_policy
from fairsched.engines.gateway import account as gateway_account
from fairsched.engines.gateway.account.wire import Wire
from fairsched.engines.gateway.config import ClientConfig, GatewayConfig, LimitConfig, ServerConfig
from fairsched.engines.gateway.openai import CallError
from fairsched.engines.gateway.window.leases import Store
from fairsched.model.events import Event
from fairsched.policies.registry import ROUTERS
from tests.support.adapters.loops import VirtualLoop

SERVERS = tuple(ServerConfig(f"http://server{i}", tokens, 3) for i, tokens in enumerate((60, 40)))


def configuration(**limits: Any) -> GatewayConfig:
    """Two small servers, and a client of weight 2."""
    clients = {"heavy": ClientConfig(weight=2)}
    values = {"waiting_per_client": 4, "waiting": 9, "down_seconds": 2.0, **limits}
    return GatewayConfig(SERVERS, clients=clients, limits=LimitConfig(**values))


class VirtualAccount(gateway_account.LocalAccount):
    """Its clock is the loop's; `events` are all that its window told."""

    def __init__(self, config: GatewayConfig, quota_store: Store | None = None) -> None:
        self.events: list[Event] = []
        shares = [Share(server.window_tokens or 0, server.window_requests or 1) for server in config.servers]
        policy: Any = window_policy("fcfs+deficit", 20)
        window = Window(policy, ROUTERS["join-shortest-queue"], shares, (self.events.append,))
        super().__init__(config, window, quota_store=quota_store)

    def now_ns(self) -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop.now_ns()


async def join(here: Wire, there: Wire) -> None:
    """Connect two ends, until the loop's own end."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    for wire, end in zip((there, here), socket.socketpair(), strict=True):
        await loop.create_unix_connection(lambda wire=wire: wire, sock=end)  # type: ignore[misc]
        loop.ends.append(partial(wire.abort, "the test is over"))


async def connect(host: gateway_account.AccountHost) -> gateway_account.RemoteAccount:
    """Return a process's end of a new connection to the host, greeted."""
    remote = gateway_account.RemoteAccount()
    await join(remote.wire, host.wire())
    await remote.greet()
    return remote


@attrs.define(eq=False)
class Calls:
    """Calls at an account, each by its number in the order of `place`; and what became of them."""

    account: gateway_account.Account
    tasks: "list[asyncio.Task[None]]" = attrs.field(factory=list)
    became: list[str] = attrs.field(factory=list)
    """Where a call is: "waits", "at URL", "left", "refused ..." or its end."""
    numbers: dict[int, int] = attrs.field(factory=dict)

    def place(
        self, name: str, prompt: int, output: int, declared: bool, wait_seconds: float, avoid: frozenset[int]
    ) -> None:
        """The next call waits."""
        placing = self.account.place(gateway_account.PlaceRequest(name, prompt, output, declared, wait_seconds, avoid))
        self.became.append("waits")
        self.tasks.append(asyncio.ensure_future(self._place(len(self.tasks), placing)))

    async def _place(self, call: int, placing: Coroutine[Any, Any, gateway_account.Placed]) -> None:
        try:
            placed = await placing
        except CallError as error:
            self.became[call] = f"refused {error.status} {error.message} {error.retry_after_seconds}"
        except asyncio.CancelledError:
            self.became[call] = "left"
            raise
        else:
            self.numbers[call] = placed.request_id
            self.became[call] = f"at {placed.upstream.url} {placed.priority}"

    def step(self, kind: str, value: Any) -> None:
        """Do what a step says, to one of the calls that it is for, if there is one."""
        waiting, there, account = self.there("waits"), self.there(), self.account
        match kind:
            case "place":
                self.place(*value)
            case "leave" if waiting:
                self.tasks[waiting[value % len(waiting)]].cancel()
            case "produce" if there:
                account.produced(self.numbers[there[value[0] % len(there)]], value[1])
            case "finish" if there:
                self.end(there[value[0] % len(there)], kind, *value[1:])
            case "cancel" | "give back" if there:
                self.end(there[value % len(there)], kind)
            case "fail":
                account.failed(gateway_account.Failed(value[0], "a", value[1], "said so"))
            case "work":
                account.worked(*value)
            case "count":
                account.count(value)

    def there(self, where: str = "at ") -> Sequence[int]:
        """The calls that are there."""
        return [call for call, became in enumerate(self.became) if became.startswith(where)]

    def end(self, call: int, how: str, computed: int | None = None, output: int | None = None) -> None:
        """End a call that has a place."""
        number, self.became[call] = self.numbers[call], how
        if how == "finish":
            self.account.finish(number, computed, output)
        elif how == "cancel":
            self.account.cancel(number, "broken")
        else:
            self.account.give_back(number, "refused by server")
