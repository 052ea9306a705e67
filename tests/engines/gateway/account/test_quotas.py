"""A gateway under quotas: never over one by a token, however many calls come at once, whatever fails."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairsched.engines.conformance.mock_server import MockEngine, MockServer, serving
from fairsched.engines.gateway.config import (
    ClientConfig,
    LimitConfig,
    OrganisationConfig,
    QuotaConfig,
    QuotasConfig,
)
from fairsched.engines.gateway.window.leases import MemoryStore, Store
from fairsched.engines.gateway.window.leases.store import FileStore
from fairsched.policies.guarantees.quota import DAY_NS, MINUTE_NS
from tests.engines.serving.test_metrics import sample, samples_of
from tests.support.adapters.gateway_scenarios import Fake, World, dying, faked, world
from tests.support.adapters.http import LOST, Answered
from tests.support.adapters.loops import in_loop, until
from tests.support.faults.quotas import ADMINISTRATOR, Clock, Watched, budgets_of, quotas, settled, used, volley
from tests.support.faults.redis_server import BINARY, redis

value = partial(sample, worker="gateway")
MANY = LimitConfig(waiting_per_client=4_000, waiting=8_000, stall_seconds=60.0)
CALLS = 1_000


@asynccontextmanager
async def gateways(stores: Sequence[Store], config: QuotasConfig) -> AsyncIterator[tuple[MockServer, list[World]]]:
    """Gateways before one server that counts what it spends, each with a store."""
    server = MockServer(MockEngine(64, 0.0, 0.0))
    async with serving(server) as url, AsyncExitStack() as stack:
        fields: dict[str, Any] = {"clients": {"a": ClientConfig()}, "limits": MANY, "quota": config}
        fields |= {"window_tokens": 10**6, "window_requests": 4_000}
        yield server, [await stack.enter_async_context(world(url, quota_store=store, **fields)) for store in stores]


def spent(server: MockServer) -> int:
    """What the server computed for all."""
    return sum(each.prompt_tokens + each.output_tokens for each in server.ledger.values())


def ends(answers: Sequence[Answered]) -> Counter[int]:
    """Answers by status."""
    return Counter(answer.status for answer in answers)


# --- at once ----------------------------------------------------------------------------------------------------------


CALL_MAX = 64 + 250 + 100
"""No call of a volley reserves so much."""


async def used_up(here: Sequence[World]) -> tuple[Counter[int], Answered]:
    """A thousand calls at once, and then fewer until none is let in; all ends, and a refusal of the last ones."""
    callers, count = [each.http for each in here], ends(await volley([each.http for each in here], CALLS))
    assert count[200] > 90 < count[429]
    while True:
        await settled(here[0])
        answers = await volley(callers, 50)
        count += ends(answers)
        if not ends(answers)[200]:
            return count, answers[0]


@in_loop
async def test_a_thousand_calls_at_once_are_not_over_a_quota_by_a_token() -> None:
    """With streams and without: what the server computed in a minute is what was charged, never more than the quota,
    and no call more would fit; each call is answered or refused with 429 and the seconds to wait; the next minute goes
    on."""
    clock, config = Clock(), quotas(tokens_per_minute=60_000, concurrent_tokens=40_000)
    store = Watched(config, MemoryStore(clock))
    async with gateways([store], config) as (server, (here,)):
        count, refused = await used_up([here])
        assert set(count) == {200, 429}
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert refused.headers["retry-after"] == "60"
        await settled(here)
        said = await used(here)
        assert 60_000 - CALL_MAX < said["used"]["minute"] == spent(server) <= 60_000
        assert said["prompt_tokens"] + said["output_tokens"] == spent(server)
        assert said["calls"] == count[200]
        assert store.highest["client/a concurrent"] > 40_000 - CALL_MAX
        clock.now_ns += MINUTE_NS
        assert ends(await volley([here.http], 10)) == {200: 10}
        await settled(here)
        said = await used(here)
        assert said["before"]["minute"] + said["used"]["minute"] == said["used"]["day"] == spent(server)


@pytest.mark.skipif(BINARY is None, reason="there is no redis-server")
@in_loop
async def test_three_gateways_with_one_redis_are_not_over_a_quota_by_a_token(tmp_path: Path) -> None:
    """A thousand calls at once, dealt to three gateways: what the server computed is what the store has, below the
    quota, and close to it."""
    config = quotas(tokens_per_month=60_000, concurrent_tokens=40_000)
    async with redis(tmp_path) as database:
        stores = [Watched(config, database.store(timeout_seconds=60.0)) for _ in range(3)]
        async with gateways(stores, config) as (server, here):
            count, _ = await used_up(here)
            assert set(count) == {200, 429}
            await settled(here[0])
            assert 60_000 - CALL_MAX < (await used(here[1]))["used"]["month"] == spent(server) <= 60_000
            assert all(budgets_of(each).refused.total() for each in here)
            # Calls that come together are changed together.
            assert sum(store.changes for store in stores) < count.total()


@in_loop
async def test_budgets_survive_a_restart(tmp_path: Path) -> None:
    """In a folder: a gateway that is started again goes on from what its clients used."""
    config = quotas(tokens_per_month=2_000)
    for time in range(2):
        async with gateways([FileStore(tmp_path)], config) as (server, (here,)):
            answers = await volley([here.http], 40)
            await settled(here)
            if time == 0:
                first = spent(server)
                assert ends(answers)[200] > 0
            assert (await used(here))["used"]["month"] == first + (spent(server) if time else 0) <= 2_000
    # Another gateway tells what these clients used, before any call of theirs.
    async with gateways([FileStore(tmp_path)], config) as (_, (here,)):
        assert (await used(here))["used"]["month"] > first


# --- what a caller sees -----------------------------------------------------------------------------------------------


@in_loop
async def test_answers_say_what_is_left_as_openai_does() -> None:
    """With the window of which the least is left; a refusal says when to come back, in whole seconds, and a client of
    OpenAI's is told not to try by itself where that is later than it waits."""
    clock = Clock()
    clock.now_ns += 18_000_000_001
    config = quotas(tokens_per_minute=1_000, tokens_per_day=1_200)
    async with faked(Fake(tokens=3), quota=config, quota_store=MemoryStore(clock), clients={"a": ClientConfig()}) as (
        _,
        here,
    ):
        answer = await here.ask(max_tokens=500)
        told = {name: answer.headers[f"x-ratelimit-{name}-tokens"] for name in ("limit", "remaining", "reset")}
        reserved = (1_000 - int(told["remaining"])) - 500
        assert told == {"limit": "1000", "remaining": str(500 - reserved), "reset": "42s"}
        await settled(here)
        # 10 tokens were used.
        for _ in range(3):
            answer = await here.ask(max_tokens=1_000 - 10 - reserved + 1)
            assert answer.status == 429
            assert answer.headers["retry-after"] == "42"
            assert "x-should-retry" not in answer.headers
            assert answer.json()["error"]["type"] == "rate_limit_error"
            assert "your client's 1000 tokens a minute" in answer.json()["error"]["message"]
        assert (await here.ask(max_tokens=1_000 - 10 - reserved)).status == 200
        never = await here.ask(max_tokens=950)
        assert never.json()["error"]["code"] == never.json()["error"]["type"] == "insufficient_quota"
        assert (never.status, never.headers["x-should-retry"], "retry-after" in never.headers) == (429, "false", False)
        assert here.status["outcomes"]["over quota"] == 4


@in_loop
async def test_a_day_that_is_used_up_is_not_tried_again_by_itself() -> None:
    """OpenAI's clients wait a minute at most; the header tells them that it is longer."""
    clock = Clock()
    config = quotas(tokens_per_day=200)
    async with faked(Fake(tokens=80), quota=config, quota_store=MemoryStore(clock), clients={"a": ClientConfig()}) as (
        _,
        here,
    ):
        assert (await here.ask(max_tokens=80)).status == 200
        await settled(here)
        answer = await here.ask(max_tokens=80)
        assert (answer.status, answer.headers["retry-after"]) == (429, str(DAY_NS // 2 // 10**9))
        assert answer.headers["x-should-retry"] == "false"
        assert answer.headers["x-ratelimit-reset-tokens"] == "720m0s"
        clock.now_ns += DAY_NS // 2
        assert (await here.ask(max_tokens=80)).status == 200


@in_loop
async def test_a_call_that_names_no_most_is_given_what_its_quota_has() -> None:
    """Where the usual limit is over the quota, the server is told a smaller one."""
    config = quotas(tokens_per_minute=300)
    async with faked(Fake(), quota=config, clients={"a": ClientConfig()}, default_output_tokens=500) as (fake, here):
        assert (await here.ask(max_tokens=None)).status == 200
        (asked,) = fake.asked
        assert 100 < asked["max_tokens"] < 300 - 64


@in_loop
async def test_clients_without_a_quota_know_nothing_of_it() -> None:
    """No header, no change of the store."""
    config = quotas(tokens_per_minute=1_000)
    store = Watched(config)
    clients = {name: ClientConfig() for name in "ab"}
    async with faked(Fake(), quota=config, quota_store=store, clients=clients) as (_, here):
        answer = await here.ask("b")
        assert answer.status == 200
        assert not [name for name in answer.headers if name.lower().startswith("x-ratelimit")]
        assert store.changes == 0


@in_loop
async def test_users_and_organisations_have_quotas_of_all_their_clients() -> None:
    """One client is refused for what another of its user used; another user of the organisation is not, until the
    organisation has no more."""
    config = QuotasConfig(
        client={"*": QuotaConfig()},
        user={"acme/ann": QuotaConfig(tokens_per_day=300)},
        organisation={"acme": QuotaConfig(tokens_per_day=500)},
    )
    places = {"a1": "ann", "a2": "ann", "b": "bob"}
    fields: dict[str, Any] = {
        "policy": "fcfs+hierarchical",
        "clients": {name: ClientConfig(organisation="acme", user=user) for name, user in places.items()},
        "organisations": {"acme": OrganisationConfig()},
    }
    async with faked(Fake(tokens=160), quota=config, quota_store=MemoryStore(Clock()), **fields) as (_, here):
        assert (await here.ask("a1", max_tokens=160)).status == 200
        await until(lambda: here.account.outcomes["finished"] == 1)
        refused = await here.ask("a2", max_tokens=160)
        assert (refused.status, "your user's 300" in refused.text) == (429, True)
        assert (await here.ask("b", max_tokens=160)).status == 200
        await until(lambda: here.account.outcomes["finished"] == 2)
        refused = await here.ask("b", max_tokens=160)
        assert (refused.status, "your organisation's 500" in refused.text) == (429, True)
        budgets = (await here.http.get("/gateway/usage", headers=ADMINISTRATOR)).json()["budgets"]
        assert {name: each["used"]["day"] for name, each in budgets.items()} == {
            "client/a1": 167, "client/b": 167, "user/acme/ann": 167, "organisation/acme": 334
        }  # fmt: skip
        assert (await here.http.get("/gateway/usage")).status == 401


# --- ends -------------------------------------------------------------------------------------------------------------


@in_loop
async def test_each_end_of_a_call_ends_its_reservation() -> None:
    """Answered, refused by its server, left while it is served, broken off, failed over and over: nothing stays
    reserved, and what is not known is charged whole."""
    config = quotas(tokens_per_month=5_000)
    clients = {"a": ClientConfig()}
    async with faked(Fake(status=400), quota=config, clients=clients) as (fake, here):
        for status in (400, 500, 502):
            fake.status = status
            assert (await here.ask(max_tokens=900)).status == status
            await settled(here)
            assert (await used(here))["used"]["month"] == 0
    async with faked(Fake(held=True), quota=config, clients=clients) as (fake, here):
        call = asyncio.ensure_future(here.ask(max_tokens=10))
        await until(lambda: fake.running == 1)
        reserved = (await used(here))["reserved"]
        call.cancel()
        await here.told("left", 1)
        await settled(here)
        said = await used(here)
        assert said["used"]["month"] == said["unsaid_tokens"] == reserved > 64 + 10
    async with (
        dying(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf") as url,
        world(url, quota=config, clients=clients) as here,
    ):
        with pytest.raises(LOST):
            await here.ask(max_tokens=10)
        await settled(here)
        assert (await used(here))["unsaid_tokens"] == reserved
    limits = LimitConfig(tries=1)
    async with world("http://127.0.0.1:9", quota=config, clients=clients, limits=limits) as here:
        # It takes no connection: nothing was computed.
        assert (await here.ask(max_tokens=10)).status == 502
        await settled(here)
        assert (await used(here))["used"]["month"] == 0


@in_loop
async def test_a_call_that_waits_and_leaves_gives_its_reservation_back() -> None:
    """It was not sent."""
    config = quotas(tokens_per_month=5_000)
    async with faked(Fake(held=True), quota=config, clients={"a": ClientConfig()}, window_requests=1) as (fake, here):
        first = asyncio.ensure_future(here.ask(max_tokens=10))
        await until(lambda: fake.running == 1)
        one = (await used(here))["reserved"]
        second = asyncio.ensure_future(here.ask(max_tokens=10))
        await until(lambda: here.account.window.waiting == 1)
        assert (await used(here))["reserved"] == 2 * one
        second.cancel()
        await here.told("left", 1)
        async with asyncio.timeout(60):
            while (await used(here))["reserved"] != one:
                await asyncio.sleep(0.01)
        fake.answers.set()
        await first
        await settled(here)
        assert (await used(here))["used"]["month"] == 10


@in_loop
async def test_what_a_call_uses_beyond_its_reservation_is_charged_and_counted() -> None:
    """A server whose template adds more than was said: the one way over a quota, and status and metrics say so."""
    config = QuotasConfig(client={"a": QuotaConfig(tokens_per_month=200)}, template_tokens=0, bytes_per_token=100)
    clients = {"a": ClientConfig()}
    async with faked(Fake(tokens=10), quota=config, clients=clients, metrics=True) as (_, here):
        assert (await here.ask(max_tokens=10)).status == 200
        await settled(here)
        said = await used(here)
        assert (said["used"]["month"], said["overrun_tokens"]) == (17, 6)
        status = (await here.http.get("/gateway/status", headers=ADMINISTRATOR)).json()
        assert status["quota"]["overrun_tokens"] == 6
        samples = samples_of((await here.http.get("/metrics", headers=ADMINISTRATOR)).text)
        assert value(samples, "quota_overrun_tokens_total") == 6
        assert value(samples, "quota_tokens_total", client="a", kind="prompt") == 7
        assert value(samples, "quota_tokens_total", client="a", kind="output") == 10
        assert value(samples, "quota_used_tokens", budget="client/a", window="month") == 17
        assert value(samples, "quota_most_tokens", budget="client/a", window="month") == 200
