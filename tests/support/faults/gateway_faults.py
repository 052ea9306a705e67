"""What may happen to gateways and their store, each with what it may cost: played by tests and by a benchmark.

A fault waits for its own effect before it mends anything, so that it is never over before it was felt.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import attrs

from tests.support.faults.gateway_world import CALLERS, WEIGHTS, World, weighed

N = len(CALLERS)
TIMEOUT_SECONDS = 0.5
"""A renewal is given up after so long: the default of `store.timeout_seconds`."""


@attrs.frozen
class Fault:
    """Something that happens; `costs` is what the page says that it may add to the gap, by client, in cost units."""

    name: str
    play: Callable[[World], Awaitable[None]]
    costs: Callable[[World, str], int]
    by_day: bool = False
    """It is played by day, too."""
    kills: int = 0
    """Gateways that it kills, with what they had charged before servers computed it."""


@attrs.frozen
class Outcome:
    """What came of a world: calls, the gap in cost units times 4 by weight, what it may be, and all that was served."""

    sent: int
    answered: int
    refused: int
    cut: int
    lost: tuple[str, ...]
    twice: int
    gap: int
    bound: int
    """What `--check` prints."""
    allowed: int
    """That, what the fault costs, and what is charged before it is computed."""
    served: int
    overrun: int
    """Tokens that gateways did not foresee; with some, the bound does not hold."""
    errors: str
    """What all gateways said on standard error."""


async def _nothing(world: World) -> None:
    await world.serves(world.bound)


async def _gateway_killed(world: World) -> None:
    """And started again: it is refused until the one before counts as gone."""
    gateway = world.gateways[1]
    await gateway.kill()
    await world.serves(world.bound)
    await gateway.start()
    await world.until(lambda: world.is_up(1), "a gateway that was killed leases again")


async def _redis_killed(world: World) -> None:
    before = await world.counted("lost_writes")
    world.redis.kill()
    await world.until_all(world.has_spent, "leases are spent")
    await world.redis.start()
    await _knows_that_it_lost(world, before)


async def _redis_forgets(world: World) -> None:
    """It comes back with what it had some time ago."""
    await world.redis.ask("SAVE")
    await world.serves(world.bound)
    before = await world.counted("lost_writes")
    world.redis.kill()
    await world.redis.start()
    await _knows_that_it_lost(world, before)


async def _knows_that_it_lost(world: World, before: int) -> None:
    async def told() -> bool:
        return await world.counted("lost_writes") > before

    await world.until(told, "a gateway says that writes are lost")
    await world.until(lambda: world.has_gateways(N), "all gateways are known")
    await world.until_all(world.is_up, "the store is back")


async def _cut_off(world: World) -> None:
    """Until it counts as gone; what it said meanwhile arrives when the line is whole again."""
    line = world.gateways[0].line
    assert line is not None
    line.cut = True
    await world.until(lambda: world.has_spent(0), "a gateway without a store has spent its leases")
    await world.until(lambda: world.has_gateways(N - 1), "a gateway that is cut off counts as gone")
    await world.serves(world.bound)
    line.cut = False
    await world.until(lambda: world.is_up(0), "the line is whole again")


async def _stands_still(world: World) -> None:
    """A gateway is stopped until it counts as gone, with calls under way: to it time has jumped."""
    world.gateways[0].tell(signal.SIGSTOP)
    await world.until(lambda: world.has_gateways(N - 1), "a gateway that stands still counts as gone")
    await world.serves(world.bound)
    world.gateways[0].tell(signal.SIGCONT)
    await world.until(lambda: world.has_gateways(N), "it is known again")
    await world.until(lambda: world.is_up(0), "it leases again")


async def _redis_stands_still(world: World) -> None:
    world.redis.stop()
    await world.until_all(world.has_spent, "leases are spent")
    world.redis.resume()
    await world.until_all(world.is_up, "the store is back")


async def _slow(world: World) -> None:
    """Some answers come, and some too late, after a write or before one."""
    for gateway in world.gateways:
        assert gateway.line is not None
        gateway.line.delay = 0.6 * TIMEOUT_SECONDS
    await world.serves(world.bound)
    for gateway in world.gateways:
        assert gateway.line is not None
        gateway.line.delay = 0.0
    await world.until_all(world.is_up, "the store is back")


async def _drained(world: World) -> None:
    """All calls that it has are answered, and another gateway takes its place."""
    gateway = world.gateways[1]
    gateway.up.clear()

    async def has_all() -> bool:
        said = await world.status(1)
        return int(said["waiting"] + said["in_flight"]) == len(gateway.open)

    await world.until(has_all, "a gateway has all calls that were sent to it")
    gateway.tell(signal.SIGTERM)
    assert gateway.process is not None
    assert await asyncio.wait_for(gateway.process.wait(), 300) in (0, -signal.SIGTERM)
    assert not gateway.open
    assert await world.has_gateways(N - 1), "it has left"
    await world.serves(world.bound)
    await gateway.start()
    await world.until(lambda: world.is_up(1), "the next one leases")


def _free(_: World, __: str) -> int:
    return 0


def _one_gateway(world: World, _: str) -> int:
    """What it had is gone, or what was owed there."""
    return world.debt + world.lease


def _account(world: World, client: str) -> int:
    return 2 * world.hidden(client)


FAULTS = (
    Fault("none", _nothing, _free),
    Fault("kill -9 of a gateway, and its restart", _gateway_killed, _one_gateway, by_day=True, kills=1),
    Fault("kill -9 of Redis, which restarts empty", _redis_killed, lambda world, client: world.hidden(client)),
    Fault("kill -9 of Redis, which restarts from an old copy", _redis_forgets, _account),
    Fault("Redis stands still", _redis_stands_still, _free),
    Fault("Redis is slow, and some answers come too late", _slow, _free),
    Fault("a gateway is cut off from Redis until it counts as gone", _cut_off, _one_gateway),
    Fault("a gateway stands still until it counts as gone", _stands_still, _one_gateway),
    Fault("a gateway is drained, and another one comes", _drained, _free),
)


async def play(fault: Fault, folder: Path) -> Outcome:
    """Return what came of a fault in the middle of a flood."""
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(World.serving(folder))
        await world.serves(world.bound)
        await fault.play(world)
        await world.serves(2 * world.bound)
        gap, served = world.ledger.gap, world.ledger.total
        await world.end()
        overrun = sum([(await world.status(number))["overrun_tokens"] for number in range(N)])
        callers = world.callers
        costs = weighed(lambda client: fault.costs(world, client))
        return Outcome(
            callers.sent,
            callers.answered,
            callers.refused,
            callers.cut,
            tuple(callers.lost),
            sum(count > 1 for count in world.ledger.begun.values()),
            gap,
            world.bound,
            world.bound + costs + (1 + fault.kills) * world.ahead,
            served,
            overrun,
            "".join(gateway.errors.read_text(errors="replace") for gateway in world.gateways),
        )


__all__ = ["FAULTS", "WEIGHTS", "Fault", "Outcome", "play"]
