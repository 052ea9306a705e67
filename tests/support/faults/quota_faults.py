"""What may happen to gateways under quotas and to their Redis: played by tests and by a benchmark.

Callers ask for more than their quotas until nothing is left of them, and a fault is in the middle of that.  What is
counted is what servers computed, and what Redis has at every moment that it is looked at.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
from redis.asyncio import Redis
from redis.exceptions import RedisError

from fairsched.engines.gateway import read_config
from fairsched.engines.gateway.account.quota import Budgets, _decoded
from fairsched.engines.gateway.window.leases import MemoryStore
from fairsched.policies.guarantees.quota import WINDOWS, Ledger
from tests.support.faults.gateway_faults import TIMEOUT_SECONDS
from tests.support.faults.gateway_world import CALLERS, OUTPUT, PROMPT, RESERVED, Quotas, World

N = len(CALLERS)
CONCURRENT = {"heavy": 15 * RESERVED, "light": 10 * RESERVED}
"""More than the callers of one gateway may hold: what it holds when it is killed is free only after a minute."""
LOOKS_SECONDS = 0.02
REST_SECONDS = 0.2
"""While servers computed something in so many seconds, nothing is asked."""


@attrs.frozen
class QuotaFault:
    """Something that happens."""

    name: str
    play: Callable[[World], Awaitable[None]]
    by_day: bool = False
    """It is played by day, too."""
    kills: bool = False
    """It kills a gateway."""
    to_the_end: bool = False
    """It is over when what the gateway held that was killed is charged."""


@attrs.frozen
class Use:
    """What came of a client's quota of tokens a month."""

    quota: int
    computed: int
    """Tokens that servers computed."""
    used: int
    """Tokens that were charged."""
    said: int
    """Of them, those of calls whose servers said their usage."""
    reserved: int
    """Tokens that are still held, of calls of a gateway that was killed."""
    highest: int
    """The most that was charged and held, at any moment that Redis was looked at."""
    together: int
    """The most that was held at a time."""


@attrs.frozen
class QuotaOutcome:
    """What came of a world: calls, and the quota of each client."""

    sent: int
    answered: int
    refused: int
    cut: int
    lost: tuple[str, ...]
    twice: int
    uses: Mapping[str, Use]
    later: Mapping[str, Use]
    """The same, unless the fault goes on until what a killed gateway held is charged."""
    errors: str

    @property
    def over(self) -> int:
        """Tokens over a quota: that servers computed, that were charged, or that were held at a time."""
        uses = [*self.uses.items(), *self.later.items()]
        month = max(max(use.computed, use.used + use.reserved, use.highest) - use.quota for _, use in uses)
        return max(month, *(use.together - CONCURRENT[name] for name, use in uses), 0)


async def _nothing(_: World) -> None:
    pass


async def _gateway_killed(world: World) -> None:
    await world.gateways[1].kill()


async def _gateway_starts_again(world: World) -> None:
    await _gateway_killed(world)
    await _goes_on(world)
    await world.gateways[1].start()


async def _redis_killed(world: World) -> None:
    """It comes back with all that it answered."""
    world.redis.kill()
    await world.until_all(world.is_without_quotas, "gateways have no quotas")
    await world.redis.start()


async def _redis_stands_still(world: World) -> None:
    world.redis.stop()
    await world.until_all(world.is_without_quotas, "gateways have no quotas")
    world.redis.resume()


async def _slow(world: World) -> None:
    """Some answers come, and some too late, after a write or before one."""
    for gateway in world.gateways:
        assert gateway.line is not None
        gateway.line.delay = 0.6 * TIMEOUT_SECONDS
    await world.until_all(world.has_refused_for_its_store, "an answer of the store is late")
    for gateway in world.gateways:
        assert gateway.line is not None
        gateway.line.delay = 0.0


async def _cut_off(world: World) -> None:
    """What it said meanwhile arrives when the line is whole again."""
    line = world.gateways[1].line
    assert line is not None
    line.cut = True
    await world.until(lambda: world.is_without_quotas(1), "a gateway that is cut off has no quotas")
    await _goes_on(world)
    line.cut = False


async def _goes_on(world: World) -> None:
    """Other gateways serve, or nothing is left of the quotas."""
    enough = world.ledger.total + world.bound // 4
    await world.until(lambda: world.ledger.total >= enough or world.callers.refused > 2 * N, "service goes on")


QUOTA_FAULTS = (
    QuotaFault("none", _nothing),
    QuotaFault("kill -9 of a gateway", _gateway_killed, by_day=True, kills=True),
    QuotaFault("kill -9 of a gateway, and its restart", _gateway_starts_again, kills=True, to_the_end=True),
    QuotaFault("kill -9 of Redis, which writes before it answers", _redis_killed),
    QuotaFault("Redis stands still", _redis_stands_still),
    QuotaFault("Redis is slow, and some answers come too late", _slow),
    QuotaFault("a gateway is cut off from Redis", _cut_off),
)


class _Looks:
    """What Redis had of the quotas whenever it was looked at."""

    def __init__(self, world: World) -> None:
        self.highest: Counter[str] = Counter()
        self.together: Counter[str] = Counter()
        budgets = Budgets(read_config(world.promises), MemoryStore())
        self._keys = {name: budgets._group_of(f"client/{name}").key for name in world.quotas}
        self._redis: Any = Redis(unix_socket_path=str(world.redis.path))

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._redis.aclose()

    async def _run(self) -> None:
        while True:
            with suppress(RedisError, OSError):
                for name, key in self._keys.items():
                    if value := await self._redis.get(key):
                        # Behind the stamp of the writer.
                        budget = _decoded(value[16:], Ledger).budgets[f"client/{name}"]
                        held, month = budget.reserved, budget.used[WINDOWS.index("month")]
                        self.highest[name] = max(self.highest[name], held + month)
                        self.together[name] = max(self.together[name], held)
            await asyncio.sleep(LOOKS_SECONDS)


async def _uses(world: World, looks: _Looks) -> dict[str, Use]:
    found = {}
    for name, budget in (await world.budgets()).items():
        said = sum(budget[f"{kind}_tokens"] for kind in ("prompt", "cached", "output"))
        most, used = world.quotas[name]["tokens_per_month"], budget["used"]["month"]
        seen = looks.highest[name], looks.together[name]
        found[name] = Use(most, world.ledger.tokens[name], used, said, budget["reserved"], *seen)
    return found


async def _nothing_is_left(world: World) -> bool:
    """Whether no call is under way, and none has room any more."""
    total = world.ledger.total
    await asyncio.sleep(REST_SECONDS)
    if total != world.ledger.total:
        return False
    before = await world.budgets()
    said = [await world.status(number) for number, gateway in enumerate(world.gateways) if gateway.up.is_set()]
    if any(each["waiting"] or each["in_flight"] or not each["quota"]["up"] for each in said):
        return False
    left = [
        world.quotas[name]["tokens_per_month"] - budget["used"]["month"] - budget["reserved"]
        for name, budget in before.items()
    ]
    return max(left) < RESERVED and before == await world.budgets()


async def play(fault: QuotaFault, folder: Path, calls: int) -> QuotaOutcome:
    """Return what came of a fault while clients spend quotas of about so many calls."""
    tokens = calls * (PROMPT + OUTPUT)
    quotas: Quotas = {
        "heavy": {"tokens_per_month": tokens * 4 // 5, "concurrent_tokens": CONCURRENT["heavy"]},
        "light": {"tokens_per_month": tokens // 5, "concurrent_tokens": CONCURRENT["light"]},
    }
    async with AsyncExitStack() as stack:
        durable = fault.play is _redis_killed
        world = await stack.enter_async_context(World.serving(folder, quotas=quotas, durable=durable))
        looks = _Looks(world)
        await stack.enter_async_context(looks.beside())
        await fault.play(world)
        await world.until(lambda: _nothing_is_left(world), "quotas are used up")
        await world.end()
        uses = later = await _uses(world, looks)
        if fault.to_the_end:

            async def charged() -> bool:
                return not any(budget["reserved"] for budget in (await world.budgets()).values())

            await world.until(charged, "what a killed gateway held is charged")
            later = await _uses(world, looks)
        callers = world.callers
        return QuotaOutcome(
            callers.sent,
            callers.answered,
            callers.refused,
            callers.cut,
            tuple(callers.lost),
            sum(count > 1 for count in world.ledger.begun.values()),
            uses,
            later,
            "".join(gateway.errors.read_text(errors="replace") for gateway in world.gateways),
        )


__all__ = ["QUOTA_FAULTS", "QuotaFault", "QuotaOutcome", "Use", "play"]
