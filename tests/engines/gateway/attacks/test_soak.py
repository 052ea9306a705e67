"""All floods at once for ten minutes, through processes: calls end once, memory is flat, no traceback is logged."""

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest

from tests.support.adapters.loops import in_loop
from tests.support.attacks.floods import World, beside, chat, fills_names, loops, polite_client, random_keys, sockets
from tests.support.attacks.processes import engines, gateway, memory_mib
from tests.support.attacks.table import ADMIN_KEY, ATTACKS, CHAT, HEAD, LARGE

GROWTH = 1.15
"""Most by which memory may grow from the end of the first fifth to the end."""
MIXED = beside(
    loops(3, CHAT),
    loops(3, chat(stream=True, stop=["z" * 20_000]), keys=("sk-f1",)),
    loops(3, chat("[tokens 60]", 60), keys=("sk-f2",), leaves=(0.1, 1.0)),
    loops(3, chat("[tokens {n}] [fails late]"), tokens=20, keys=("sk-f3",)),
    loops(3, chat(most=300, stream=True), keys=("sk-f4", "bearer sk-f5")),
    loops(1, chat("[tokens 8] [answers 20000000 bytes]", 8), keys=("sk-f6",), pause=1.0),
    random_keys(2, CHAT),
    sockets(20, b""),
    sockets(20, HEAD + b"x: ", b"x"),
    sockets(5, LARGE),
    fills_names(200),
)
ATTACK = attrs.evolve(
    ATTACKS[0],
    engines=2,
    limits=(("header_seconds", 2.0), ("idle_seconds", 3.0), ("waiting", 12), ("waiting_per_client", 6)),
)


@pytest.mark.nightly
@in_loop
async def test_ten_minutes_of_all_floods_leave_nothing_behind(full_budget: bool, tmp_path: Path) -> None:
    """What callers saw agrees with what the gateway counted, nothing is in flight in the end, at engines either, the
    polite client was answered throughout, the bound held, and memory has not grown."""
    seconds = 120.0 if full_budget else 2.0
    sizes: list[float] = []
    answered: list[int] = []
    with engines(ATTACK) as urls, gateway(ATTACK.config(urls), tmp_path) as (url, pid):
        patience = aiohttp.ClientTimeout(total=None, sock_connect=60)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=patience) as http:
            world = World((url,), urls, http)
            for _ in range(5):
                flood = asyncio.ensure_future(MIXED(world))
                await polite_client(world, "sk-polite", 3, 12, seconds)
                answered.append(world.polite.answered)
                flood.cancel()
                with suppress(asyncio.CancelledError):
                    await flood
                said = await _emptied(world)
                sizes.append(memory_mib(pid))
            ledgers = [await _get(http, f"{each}/ledger") for each in urls]
    outcomes = Counter(said["outcomes"])
    assert outcomes["finished"] >= world.seen["200"] + world.polite.answered
    assert outcomes["failed at server"] >= world.seen["500"]
    assert outcomes["limited"] >= world.seen["429"] + world.polite.refused["429"]
    ended = sum(count for outcome, count in outcomes.items() if not outcome.startswith("tried again"))
    assert ended >= sum(count for end, count in world.seen.items() if end.isdecimal()) + world.polite.answered
    assert said["promise"]["bound_violations"] == 0
    assert said["set_aside"] is None
    assert not (set(world.polite.refused) - {"429"}), world.polite.refused
    assert [(each["waiting"], each["running"]) for each in ledgers] == [(0, 0), (0, 0)]
    computed = sum(spent["output_tokens"] for each in ledgers for spent in each["spent"].values())
    charged = sum(each["output_tokens"] for each in said["clients"].values())
    assert charged >= 0.8 * computed
    assert "Traceback" not in (tmp_path / "errors.txt").read_text(errors="replace")
    if full_budget:
        # Less than that a machine may be too busy for.
        assert answered == sorted(set(answered)), answered
        assert min(world.seen["500"], outcomes["left"]) > 0
        assert sizes[-1] <= GROWTH * sizes[0], sizes


async def _get(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with http.get(url, headers={"authorization": f"Bearer {ADMIN_KEY}"}) as answer:
        return dict(await answer.json())


async def _emptied(world: World) -> dict[str, Any]:
    """Wait until nothing waits or is in flight, and return what the gateway says then."""
    said: dict[str, Any] = {}

    async with asyncio.timeout(120):
        while not said or said["waiting"] or said["in_flight"]:
            await asyncio.sleep(0.05)
            said = await _get(world.http, f"{world.url}/gateway/status")
    return said
