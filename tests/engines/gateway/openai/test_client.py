"""The clients of OpenAI and Anthropic at a gateway with quotas: what they make of its refusals, by their own code.

Time stands still, for the store and for a client, which waits by moving it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairsched.engines.conformance.mock_server import MockEngine, MockServer, serving
from fairsched.engines.gateway.config import ClientConfig, QuotasConfig
from fairsched.engines.gateway.window.leases import MemoryStore
from tests.support.adapters.gateway_scenarios import World, world
from tests.support.adapters.loops import in_loop
from tests.support.faults.quotas import Clock, Watched, quotas, settled

anyio = pytest.importorskip("anyio")
openai = pytest.importorskip("openai")

pytestmark = pytest.mark.integration
SECOND_NS = 10**9


class Waits(Clock):
    """The clock of the store, 18 s after a minute began, and the waits of a client, which move it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now_ns += 18 * SECOND_NS
        self.seconds: list[float] = []
        patch.setattr(anyio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.now_ns += round(seconds * SECOND_NS)


@asynccontextmanager
async def gateway(config: QuotasConfig, store: Watched) -> AsyncIterator[tuple[World, Any]]:
    """A gateway with quotas, and OpenAI's client of it, which tries twice again."""
    async with (
        serving(MockServer(MockEngine(8, 0.0, 0.0))) as url,
        world(url, quota=config, quota_store=store, clients={"a": ClientConfig()}) as here,
        openai.AsyncOpenAI(
            base_url=f"{here.http.url}/v1", api_key="none", default_headers={"x-client": "a"}, max_retries=2
        ) as client,
    ):
        yield here, client


def asked(outputs: int, **fields: Any) -> dict[str, Any]:
    """A call that has so many outputs."""
    return {"model": "made-up", "messages": [{"role": "user", "content": "hello"}], "max_tokens": outputs, **fields}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """The waits of a client."""
    return Waits(monkeypatch)


@in_loop
async def test_a_client_waits_until_the_minute_ends_and_is_answered(waits: Waits) -> None:
    """As long as `Retry-After` says, once, with a stream and without; `x-ratelimit-*` are in its answers."""
    config = quotas(tokens_per_minute=400)
    async with gateway(config, Watched(config, MemoryStore(waits))) as (here, client):
        raw = await client.chat.completions.with_raw_response.create(**asked(200))
        told = {name: raw.headers[f"x-ratelimit-{name}-tokens"] for name in ("limit", "remaining", "reset")}
        assert told["limit"] == "400"
        assert 0 < int(told["remaining"]) < 200
        assert told["reset"] == "42s"
        usage = raw.parse().usage
        assert (usage.completion_tokens, waits.seconds) == (200, [])
        await settled(here)
        answer = await client.chat.completions.create(**asked(200))
        assert answer.usage.completion_tokens == 200
        assert waits.seconds == [42.0]
        await settled(here)
        chunks = [chunk async for chunk in await client.chat.completions.create(**asked(200, stream=True))]
        assert chunks[-1].choices[0].finish_reason == "length"
        assert waits.seconds == [42.0, 60.0]


@in_loop
async def test_a_client_does_not_try_again_where_that_is_in_vain(waits: Waits) -> None:
    """A day that is used up, and a call that is larger than its quota: the error is `RateLimitError`, and says which;
    OpenAI's client waits for none of it, nor does Anthropic's, which would wait until the day ends."""
    config = quotas(tokens_per_day=400)
    async with gateway(config, Watched(config, MemoryStore(waits))) as (here, client):
        await client.chat.completions.create(**asked(200))
        await settled(here)
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(**asked(200))
        assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "rate_limit_error")
        assert refused.value.response.headers["retry-after"] == str(12 * 3600 - 18)
        assert refused.value.response.headers["x-ratelimit-reset-tokens"] == "719m42s"
        with pytest.raises(openai.RateLimitError) as never:
            await client.chat.completions.create(**asked(401))
        assert never.value.code == "insufficient_quota"
        anthropic = pytest.importorskip("anthropic")
        async with anthropic.AsyncAnthropic(
            base_url=str(here.http.url), api_key="none", default_headers={"x-client": "a"}
        ) as other:
            with pytest.raises(anthropic.RateLimitError) as said:
                await other.messages.create(**asked(200))
        assert "tokens a day are left" in said.value.body["error"]["message"]
        assert waits.seconds == []


@in_loop
async def test_a_client_tries_again_soon_while_the_store_is_away(waits: Waits) -> None:
    """It waits a second, as it is told, and then raises what it was told last."""
    config = quotas(tokens_per_day=400)
    store = Watched(config, MemoryStore(waits))
    async with gateway(config, store) as (_, client):
        store.cut = True
        with pytest.raises(openai.InternalServerError) as refused:
            await client.chat.completions.create(**asked(200))
        assert (refused.value.status_code, refused.value.code) == (503, "server_overloaded")
        assert waits.seconds == [1.0, 1.0]
