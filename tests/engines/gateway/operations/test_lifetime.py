"""What a gateway begins it ends: in one list, each part once, whatever another part does."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fairsched.engines.gateway.config import ClientConfig, JwtConfig, StoreConfig
from tests.support.adapters.credentials import AUDIENCE, ISSUER, bearer, jwk, jwks, token
from tests.support.adapters.gateway_scenarios import Fake, World, world
from tests.support.adapters.http import served
from tests.support.adapters.loops import in_loop, until

BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}


@asynccontextmanager
async def whole(folder: Path) -> AsyncIterator[tuple[World, list[int]]]:
    """A gateway with all that is begun and ended: keys of tokens by a URL, a store, and a server whose health is
    asked; and how often the keys were asked for."""
    asked: list[int] = []

    async def keys(_: web.Request) -> web.Response:
        asked.append(len(asked))
        if len(asked) > 3:
            # One is always under way.
            await asyncio.Event().wait()
        return web.Response(body=jwks(jwk("rsa-1")))

    issuer = web.Application()
    issuer.router.add_get("/keys", keys)
    fields: dict[str, Any] = {
        "identify": "jwt",
        "unknown_clients": "reject",
        "clients": {"ann": ClientConfig(jwt=("ann",))},
        "store": StoreConfig((folder / "account").as_uri(), gateways=1),
    }
    async with served(issuer) as keys_url, served(Fake().app) as url:
        jwt = JwtConfig(f"{keys_url}/keys", ISSUER, AUDIENCE, refresh_seconds=1e-3, retry_seconds=1e-3)
        async with world(url, jwt=jwt, **fields) as here:
            yield here, asked


def holders(folder: Path) -> bool:
    """Whether a gateway has credit on lease."""
    return b"holders\x80" not in (folder / "account/fairsched.default.account").read_bytes()


@in_loop
async def test_a_gateway_with_keys_by_url_and_a_store_ends_all_that_it_began(tmp_path: Path) -> None:
    """Its leases are returned, the keys of tokens are asked for no more, connections are closed, and no task is
    left."""
    before = asyncio.all_tasks()
    async with whole(tmp_path) as (here, asked):
        assert (await here.http.post("/v1/chat/completions", json=BODY, headers=bearer(token()))).status == 200
        await until(lambda: len(asked) > 3)
        assert holders(tmp_path)
        gateway = here.gateway
        await gateway.stop()
        assert (holders(tmp_path), gateway.http.closed) == (False, True)
        count = len(asked)
        await asyncio.sleep(0.1)
        assert len(asked) == count
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


@in_loop
async def test_a_part_that_fails_is_told_at_once_and_keeps_no_other_from_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has its error while the gateway serves on; at the end all others end as they should."""
    with pytest.MonkeyPatch.context() as patch:

        async def fails(_: object) -> None:
            raise RuntimeError("the refresher broke")

        patch.setattr("fairsched.engines.gateway.identity.CallerNames.run", fails)
        with caplog.at_level(logging.ERROR):
            async with whole(tmp_path) as (here, _):
                await until(lambda: "the refresher broke" in caplog.text)
                answer = await here.http.post("/v1/chat/completions", json=BODY, headers=bearer(token()))
                assert answer.status == 200
                assert holders(tmp_path)
    assert not holders(tmp_path)
