"""The account in a real Redis, where Debian's `redis-server` is installed."""

import asyncio
from pathlib import Path

import pytest

from fairsched.engines.gateway.window.leases import Store, StoreError
from tests.support.adapters.loops import in_loop
from tests.support.faults.redis_server import BINARY, redis

pytestmark = pytest.mark.skipif(BINARY is None, reason="there is no redis-server")


def one_more(value: bytes | None, now_ns: int) -> tuple[bytes, int]:
    """Count."""
    count = int(value or b"0") + 1
    return str(count).encode(), count


@in_loop
async def test_changes_of_many_at_a_time_are_all_there_and_none_twice(tmp_path: Path) -> None:
    """Ten connections change one value, ten times each."""
    async with redis(tmp_path) as server:
        stores = [server.store(timeout_seconds=60.0) for _ in range(10)]

        async def ten(store: Store) -> list[int]:
            return [await store.change("count", one_more) for _ in range(10)]

        counts = await asyncio.gather(*map(ten, stores))
        assert sorted(count for each in counts for count in each) == list(range(1, 101))
        for store in stores:
            await store.close()


@in_loop
async def test_a_value_that_stays_is_not_written(tmp_path: Path) -> None:
    """Not a byte of it changes, so that no other's change is lost to it."""
    async with redis(tmp_path) as server:
        store = server.store(timeout_seconds=60.0)
        assert await store.change("count", one_more) == 1
        before = await server.ask("GET", "count")
        assert await store.change("count", lambda value, _: (value or b"", value)) == b"1"
        assert await server.ask("GET", "count") == before
        await store.close()


@in_loop
async def test_a_server_that_dies_is_told_and_one_that_comes_back_is_used_again(tmp_path: Path) -> None:
    """Empty, as it keeps nothing; nobody has to connect anew."""
    async with redis(tmp_path) as server:
        store = server.store(timeout_seconds=60.0)
        assert await store.change("count", one_more) == 1
        server.kill()
        with pytest.raises(StoreError):
            await store.change("count", one_more)
        await server.start()
        assert await store.change("count", one_more) == 1
        await store.close()


@in_loop
async def test_what_redis_does_not_take_is_an_error(tmp_path: Path) -> None:
    """A key that holds no text, a memory that is full, a password that is wrong."""
    async with redis(tmp_path) as server:
        store = server.store(timeout_seconds=60.0)
        for command in ("LPUSH list 1", "CONFIG SET maxmemory 1"):
            await server.ask(*command.split())
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await store.change("list", one_more)
        with pytest.raises(StoreError, match="maxmemory"):
            await store.change("count", one_more)
        wrong = server.store(password="guess", timeout_seconds=60.0)
        with pytest.raises(StoreError):
            await wrong.change("count", one_more)
        await asyncio.gather(store.close(), wrong.close())


@in_loop
async def test_times_are_the_servers(tmp_path: Path) -> None:
    """All gateways see one clock, which goes on."""
    async with redis(tmp_path) as server:
        stores = [server.store(timeout_seconds=60.0) for _ in range(2)]
        times = [await stores[i % 2].change("time", lambda value, now_ns: (b"", now_ns)) for i in range(6)]
        assert times == sorted(times)
        for store in stores:
            await store.close()
