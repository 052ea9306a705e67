"""Budgets while their store is away, forgets, or is asked from another process."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from fairsched.engines.gateway.config import ClientConfig, QuotaConfig, QuotasConfig
from fairsched.engines.gateway.window.leases import MemoryStore
from tests.support.adapters.gateway_scenarios import Fake, faked
from tests.support.adapters.loops import in_loop, until
from tests.support.faults.quotas import ADMINISTRATOR, Clock, Watched, budgets_of, quotas, settled, used

# --- the store --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("away", ["closed", "open"])
@in_loop
async def test_a_store_that_is_away(away: Any) -> None:
    """Calls are refused with 503 and `Retry-After`, or pass uncounted, as configured; ends that could not be said are
    said when it is back, once."""
    config = QuotasConfig(client={"a": QuotaConfig(tokens_per_month=5_000)}, store_away=away)
    store = Watched(config)
    async with faked(Fake(held=True), quota=config, quota_store=store, clients={"a": ClientConfig()}) as (fake, here):
        call = asyncio.ensure_future(here.ask(max_tokens=10))
        await until(lambda: fake.running == 1)
        store.cut = True
        fake.answers.set()
        assert (await call).status == 200
        for _ in range(3):
            answer = await here.ask(max_tokens=10)
            assert answer.status == (503 if away == "closed" else 200)
            assert ("retry-after" in answer.headers) == (away == "closed")
        budgets = budgets_of(here)
        assert (budgets.unchecked, budgets.refused["store"]) == ((0, 3) if away == "closed" else (3, 0))
        status = (await here.http.get("/gateway/status", headers=ADMINISTRATOR)).json()
        assert status["quota"]["up"] is False
        assert (await here.http.get("/gateway/usage", headers=ADMINISTRATOR)).status == 503
        store.cut = False
        await until(lambda: not budgets.why)
        await settled(here)
        assert (await used(here))["used"]["month"] == 10
        assert (await here.ask(max_tokens=10)).status == 200


@in_loop
async def test_an_answer_that_is_lost_reserves_nothing_for_good() -> None:
    """The store wrote, and the gateway did not hear of it: the caller is refused, and what was reserved is free again;
    an end that comes twice is charged once."""
    config = quotas(tokens_per_month=5_000)
    store = Watched(config)
    async with faked(Fake(held=True), quota=config, quota_store=store, clients={"a": ClientConfig()}) as (fake, here):
        call = asyncio.ensure_future(here.ask(max_tokens=10))
        await until(lambda: fake.running == 1)
        store.loses_answers = True
        assert (await here.ask(max_tokens=10)).status == 503
        fake.answers.set()
        assert (await call).status == 200
        await until(lambda: store.changes >= 3)
        store.loses_answers = False
        await until(lambda: not budgets_of(here).why)
        await settled(here)
        assert (await used(here))["used"]["month"] == 10


@pytest.mark.parametrize("value", [b"", b"fairsched quotas 2\n\x80", b"fairsched quotas 1\n\xff\xff", b"else"], ids=str)
@in_loop
async def test_what_are_no_budgets_of_this_version_is_left_alone(value: bytes) -> None:
    """The gateway refuses, says what is there, and does not write over it."""
    config = quotas(tokens_per_month=5_000)
    store = MemoryStore()
    async with faked(Fake(), quota=config, quota_store=store, clients={"a": ClientConfig()}) as (_, here):
        budgets = budgets_of(here)
        key = budgets._group("a").key
        store.values[key] = value
        assert (await here.ask()).status == 503
        assert "there" in budgets.why
        assert store.values[key] == value
        # A store that begins anew begins with nothing, and has all that comes.
        store.values.clear()
        await until(lambda: not budgets.why)
        assert (await here.ask()).status == 200
        await settled(here)
        assert (await used(here))["calls"] == 1


@in_loop
async def test_a_gateway_that_is_gone_has_its_calls_charged_whole() -> None:
    """After the longest time that a call may take; until then they hold what they reserved."""
    clock, config = Clock(), quotas(tokens_per_month=5_000, concurrent_tokens=400)
    store = MemoryStore(clock)
    clients = {"a": ClientConfig()}
    async with faked(Fake(held=True), quota=config, quota_store=store, clients=clients) as (fake, here):
        call = asyncio.ensure_future(here.ask(max_tokens=200))
        await until(lambda: fake.running == 1)
        kept = dict(store.values)
        fake.answers.set()
        await call
        await settled(here)
    # As if it had been killed instead.
    store.values = kept
    async with faked(Fake(), quota=config, quota_store=store, clients=clients) as (_, here):
        refused = await here.ask(max_tokens=200)
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        reserved = (await used(here))["reserved"]
        clock.now_ns += 1_261 * 10**9
        assert (await here.ask(max_tokens=200)).status == 200
        await settled(here)
        said = await used(here)
        assert (said["used"]["month"], said["unsaid_tokens"]) == (reserved + 10, reserved)


@in_loop
async def test_quotas_change_while_a_gateway_serves() -> None:
    """A larger one lets calls in at once, and a smaller one none until there is room below it."""
    clients = {"a": ClientConfig()}
    async with faked(Fake(tokens=10), quota=quotas(tokens_per_month=150), clients=clients) as (_, here):
        assert (await here.ask(max_tokens=10)).status == 200
        await settled(here)
        assert (await here.ask(max_tokens=80)).status == 429
        for most, status in ((300, 200), (100, 429)):
            here.gateway.configure(replace(here.gateway.config, quota=quotas(tokens_per_month=most)))
            assert (await here.ask(max_tokens=80)).status == status
            await settled(here)
