"""kill -9 of a server and of the gateway: each call ends once, no token comes twice, and debts are kept."""

import asyncio
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fairsched.cli import main
from fairsched.engines.gateway.window.leases.leasing import _decoded
from tests.support.adapters import gateway_processes
from tests.support.adapters.gateway_processes import ADMIN
from tests.support.adapters.http import Caller
from tests.support.adapters.loops import in_loop


@in_loop
async def test_a_server_that_is_killed_costs_nobody_a_token_twice(tmp_path: Path) -> None:
    """In the middle of 24 streams: those that had no byte yet are answered by the other server, the others end with
    what they have and an error; each call ends once on both sides."""
    with gateway_processes.server() as (first, one), gateway_processes.server() as (_, two):
        limits = "[limits]\ndown_seconds = 60\n"
        with gateway_processes.gateway(tmp_path, gateway_processes.servers_text([one, two], 5000, 8) + limits) as (
            _,
            url,
        ):
            async with gateway_processes.caller(url) as http:
                seen = [gateway_processes.Stream() for _ in range(24)]
                calls = [gateway_processes.ask(http, "abc"[i % 3], 100, seen=stream) for i, stream in enumerate(seen)]
                ended = asyncio.gather(*calls)
                async with asyncio.timeout(60):
                    # A server has eight at most: of nine that are under way, one at least is the first server's.
                    while sum(0 < len(stream.tokens) < 50 for stream in seen) < 9:
                        await asyncio.sleep(0.01)
                gateway_processes.kill(first)
                await ended
                said = await gateway_processes.emptied(http)
        assert all(each.in_order and each.status == 200 for each in seen)
        assert all(each.whole != each.error for each in seen)
        assert all(len(each.tokens) == 100 for each in seen if each.whole)
        broken = sum(each.error for each in seen)
        assert 1 <= broken <= 8
        outcomes = said["outcomes"]
        assert (outcomes["finished"], outcomes["broken"]) == (24 - broken, broken)
        assert sum(count for name, count in outcomes.items() if not name.startswith("tried again")) == 24
        assert [each["up"] for each in said["servers"].values()] == [False, True]


CLIENTS = "[client.hog]\n[client.light]\n[client.third]\n"


@in_loop
async def test_a_gateway_that_ends_forgives_no_debt(tmp_path: Path) -> None:
    """What a hog owes is in the folder of the store: a gateway that serves another
    client meanwhile gives it the rounds of credit that are due, and no more."""
    owed: list[int] = []
    with gateway_processes.server() as (_, address):
        store = f'[store]\nurl = "file://{tmp_path}/account"\ngateways = 1\n'
        text = "quantum = 64\n" + gateway_processes.servers_text([address], 5000, 4) + CLIENTS + store
        for client, tokens in (("hog", 100), ("light", 2)):
            with gateway_processes.gateway(tmp_path, text) as (started, url):
                async with gateway_processes.caller(url) as http:
                    calls = [gateway_processes.ask(http, client, tokens) for _ in range(6)]
                    assert all(each.whole for each in await asyncio.gather(*calls))
                    started.terminate()
                    assert await asyncio.to_thread(started.wait, 60) in (0, -signal.SIGTERM)
            account = _decoded((tmp_path / "account/fairsched.default.account").read_bytes())
            assert not account.holders
            owed.append(account.clients["hog"].units)
    assert owed[0] <= owed[1] < 0
    assert (owed[1] - owed[0]) % 64 == 0


@in_loop
async def test_the_log_of_a_gateway_that_drained_replays(tmp_path: Path) -> None:
    """It ends with the digest of the policy's state, and `fairsched audit --replay` rebuilds it."""
    log = tmp_path / "calls.jsonl"
    with ExitStack() as stack:
        _, address = stack.enter_context(gateway_processes.server())
        text = gateway_processes.servers_text([address], 500, 2)
        started, url = stack.enter_context(gateway_processes.gateway(tmp_path, text, "--log", str(log)))
        async with gateway_processes.caller(url) as http:
            await asyncio.gather(*(gateway_processes.ask(http, "abc"[i % 3], 5 + i) for i in range(12)))
            await http.post("/v1/completions", json={"prompt": "x" * 99, "max_tokens": 7})
            await gateway_processes.emptied(http)
        started.terminate()
        assert started.wait(30) in (0, -signal.SIGTERM)
    assert main(["audit", str(log), "--replay", "--json", "-"]) == 0


@in_loop
async def test_gateways_that_are_killed_forget_no_budget(tmp_path: Path) -> None:
    """One process, and the one with the account of several: what was used is kept, and a call in the middle holds what
    it reserved."""
    quota = f'[client.a]\n[quota.store]\nurl = "file://{tmp_path}/quotas"\n[quota.client.a]\ntokens_per_month = 9_000\n'
    with gateway_processes.server() as (_, address):
        text, used, held = gateway_processes.servers_text([address], 5000) + quota, 0, 0
        for options in ((), ("--processes", "2"), ()):
            with gateway_processes.gateway(tmp_path, text, *options) as (started, url):
                async with gateway_processes.caller(url) as http:
                    said = await budget(http)
                    assert (said.get("used", {}).get("month", 0), said.get("reserved", 0)) == (used, held)
                    assert (await gateway_processes.ask(http, "a", 5)).whole
                    used += 7 + 5
                    seen = gateway_processes.Stream()
                    call = asyncio.ensure_future(gateway_processes.ask(http, "a", 1_000, seen=seen))
                    async with asyncio.timeout(60):
                        while len(seen.tokens) < 4:
                            await asyncio.sleep(0.01)
                    await told(http, used)
                    held = (await budget(http))["reserved"]
                    gateway_processes.kill(started)
                    await call
        assert held > 3_000


async def budget(http: Caller) -> dict[str, Any]:
    """What the gateway says of the budget of the client a."""
    answer = await http.get("/gateway/usage", headers={"authorization": f"Bearer {ADMIN}"})
    found: dict[str, Any] = answer.json()["budgets"].get("client/a", {})
    return found


async def told(http: Caller, used: int) -> None:
    """Wait until the store has been told what was used."""
    async with asyncio.timeout(60):
        while (await budget(http))["used"]["month"] != used:
            await asyncio.sleep(0.02)
