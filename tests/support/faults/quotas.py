"""Stores that look at every change of budgets, and callers that ask all at once."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import attrs
import msgspec

from fairsched.engines.gateway.account.quota import Budgets
from fairsched.engines.gateway.config import QuotaConfig, QuotasConfig
from fairsched.engines.gateway.window.leases import MemoryStore, Store, StoreError
from fairsched.engines.gateway.window.leases.store import Change
from fairsched.policies.guarantees.quota import DAY_NS, WINDOWS, Ledger
from tests.support.adapters.gateway_scenarios import ADMIN, World
from tests.support.adapters.http import Answered, Caller

T = TypeVar("T")
NOON_NS = 20_000 * DAY_NS + DAY_NS // 2
ADMINISTRATOR = {"authorization": f"Bearer {ADMIN}"}
HEAD = b"fairsched quotas 1\n"


class Clock:
    """Time stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ns = NOON_NS

    def __call__(self) -> int:
        return self.now_ns


@attrs.define
class Watched:
    """A store that holds each value that is written to its quotas; it may be cut off, and lose answers."""

    config: QuotasConfig
    store: Store = attrs.field(factory=MemoryStore)
    changes: int = 0
    highest: Counter[str] = attrs.field(factory=Counter)
    """The most that a window had of a quota, charged and reserved, by budget and window."""
    cut: bool = False
    loses_answers: bool = False

    async def change(self, key: str, change: Change[T]) -> T:
        """Change a value."""
        if self.cut:
            raise StoreError("the line is cut")

        def looked_at(value: bytes | None, now_ns: int) -> tuple[bytes, T]:
            after, answer = change(value, now_ns)
            if not key.endswith(".groups"):
                self._look(after)
            return after, answer

        answer = await self.store.change(key, looked_at)
        self.changes += 1
        if self.loses_answers:
            raise StoreError("no answer in time")
        return answer

    def _look(self, value: bytes) -> None:
        ledger = msgspec.msgpack.decode(value.removeprefix(HEAD), type=Ledger)
        for kind, name, quota in self.config.named():
            budget = ledger.budgets.get(f"{kind}/{name}")
            if budget is None:
                continue
            mosts = (quota.tokens_per_minute, quota.tokens_per_day, quota.tokens_per_month)
            for window, used, most in zip(WINDOWS, budget.used, mosts, strict=True):
                self._hold(f"{kind}/{name} {window}", used + budget.reserved, most)
            self._hold(f"{kind}/{name} concurrent", budget.reserved, quota.concurrent_tokens)

    def _hold(self, where: str, tokens: int, most: int | None) -> None:
        assert most is None or tokens <= most, f"{where}: {tokens} of {most}"
        self.highest[where] = max(self.highest[where], tokens)

    async def close(self) -> None:
        """End connections."""
        await self.store.close()


async def volley(callers: Sequence[Caller], calls: int, client: str = "a", **fields: Any) -> list[Answered]:
    """Ask so many calls of a client, all at once, of these gateways in turn."""

    async def ask(i: int) -> Answered:
        content = f"[tokens {60 + i % 41}] " + "é" * (i % 50)
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 100, **fields}
        body["stream"] = i % 16 == 0
        return await callers[i % len(callers)].post("/v1/chat/completions", json=body, headers={"x-client": client})

    return await asyncio.gather(*(ask(i) for i in range(calls)))


def quotas(**of_a: Any) -> QuotasConfig:
    """Quotas of the client a."""
    return QuotasConfig(client={"a": QuotaConfig(**of_a)})


def budgets_of(here: World) -> Budgets:
    """The budgets of a gateway under quotas."""
    assert here.account.quotas is not None
    return here.account.quotas


async def used(here: World, budget: str = "client/a") -> dict[str, Any]:
    """A budget, as the gateway says it."""
    answer = await here.http.get("/gateway/usage", headers=ADMINISTRATOR)
    found: dict[str, Any] = answer.json()["budgets"][budget]
    return found


async def settled(here: World) -> None:
    """Wait until no call of any gateway holds anything."""
    await here.emptied()
    async with asyncio.timeout(60):
        while (await used(here))["reserved"]:
            await asyncio.sleep(0.01)
