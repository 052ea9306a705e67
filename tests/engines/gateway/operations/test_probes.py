"""Probes of a gateway, and how it leaves: it says so first, takes calls a little longer, and finishes what it has."""

import asyncio
import time
from pathlib import Path

import pytest

from fairsched.engines.gateway.config import LimitConfig
from tests.support.adapters.gateway_processes import Stream, ask, caller, gateway, server, servers_text
from tests.support.adapters.gateway_scenarios import Fake, faked, world
from tests.support.adapters.http import LOST, Caller
from tests.support.adapters.loops import in_loop

LEAVE_SECONDS = 3.0
LIMITS = f"[limits]\nleave_seconds = {LEAVE_SECONDS}\n"


@in_loop
async def test_ready_is_said_with_a_server_and_alive_without() -> None:
    """`/readyz` is 200 while a server takes calls and 503, with the reason, when none does; `/healthz` always is."""
    async with faked(Fake()) as (_, here):
        answer = await here.http.get("/readyz")
        assert (answer.status, answer.json()) == (200, {"ready": True, "why": ""})
    async with world("http://127.0.0.1:9", limits=LimitConfig(health_seconds=0.05)) as here:
        async with asyncio.timeout(60):
            while (answer := await here.http.get("/readyz")).status != 503:
                await asyncio.sleep(0.01)
        assert answer.json() == {"ready": False, "why": "no server takes calls"}
        assert (await here.http.get("/healthz")).status == 200


@in_loop
async def test_a_draining_gateway_serves_and_closes_connections() -> None:
    """It is not ready, and answers a call all the same, with `Connection: close`, so that its caller goes elsewhere."""
    async with faked(Fake()) as (_, here):
        assert "Connection" not in (await here.http.get("/healthz")).headers
        here.gateway.draining = True
        answer = await here.http.get("/readyz")
        assert (answer.status, answer.json()["why"]) == (503, "the gateway is draining")
        answer = await here.http.post(
            "/v1/completions", json={"prompt": "hi", "max_tokens": 3}, headers={"x-client": "a"}
        )
        assert (answer.status, answer.headers["Connection"]) == (200, "close")


async def _until_unready(http: Caller) -> None:
    async with asyncio.timeout(60):
        while (await http.get("/readyz")).status != 503:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["one process", "two"])
@in_loop
async def test_sigterm_is_told_before_calls_are_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    """For `leave_seconds` `/readyz` is 503 and a new call is served; then none is taken, the stream that was there
    comes to its end, and the status is 0."""
    with server() as (_, one), gateway(tmp_path, LIMITS + servers_text([one], 50_000), *options) as (started, url):
        seen = Stream()
        async with caller(url) as long, caller(url) as http:
            stream = asyncio.ensure_future(ask(long, "a", 300, seen=seen))
            async with asyncio.timeout(60):
                while not seen.tokens:
                    await asyncio.sleep(0.01)
            begun = time.monotonic()
            started.terminate()
            await _until_unready(http)
            if time.monotonic() < begun + LEAVE_SECONDS - 1:
                assert (await ask(http, "b", 2)).whole
            async with asyncio.timeout(60):
                while not await _refuses(url):
                    await asyncio.sleep(0.05)
            assert time.monotonic() >= begun + LEAVE_SECONDS - 0.1
            await stream
        assert seen.whole
        assert seen.in_order
        assert started.wait(60) == 0


async def _refuses(url: str) -> bool:
    """Whether no connection is taken."""
    try:
        async with caller(url) as http:
            await http.get("/healthz")
    except LOST:
        return True
    return False


@in_loop
async def test_a_drain_ends_in_its_time(tmp_path: Path) -> None:
    """A call that would take longer than `drain_seconds` is cut off, and the gateway ends."""
    text = "[limits]\ndrain_seconds = 1\n"
    with server() as (_, one), gateway(tmp_path, text + servers_text([one], 50_000)) as (started, url):
        async with caller(url) as http:
            seen = Stream()
            stream = asyncio.ensure_future(ask(http, "a", 40_000, seen=seen))
            async with asyncio.timeout(60):
                while not seen.tokens:
                    await asyncio.sleep(0.01)
            started.terminate()
            assert await asyncio.to_thread(started.wait, 60) == 0
            await stream
        assert not seen.whole
