"""kill -9 of a server and of the gateway: each call ends once, no token comes twice, and debts are kept."""

import asyncio
import signal
from contextlib import ExitStack
from pathlib import Path

from fairsched.cli import main
from tests.support.adapters.gateway_processes import (
    Stream,
    ask,
    caller,
    emptied,
    first_served,
    gateway,
    kill,
    output_tokens,
    server,
    servers_text,
)
from tests.support.adapters.loops import in_loop


@in_loop
async def test_a_server_that_is_killed_costs_nobody_a_token_twice(tmp_path: Path) -> None:
    """In the middle of 24 streams: those that had no byte yet are answered by the other server, the others end with
    what they have and an error; each call ends once on both sides."""
    with server() as (first, one), server() as (_, two):
        limits = "[limits]\ndown_seconds = 60\n"
        with gateway(tmp_path, servers_text([one, two], 5000, 8) + limits) as (_, url):
            async with caller(url) as http:
                seen = [Stream() for _ in range(24)]
                calls = [ask(http, "abc"[i % 3], 100, seen=stream) for i, stream in enumerate(seen)]
                ended = asyncio.gather(*calls)
                async with asyncio.timeout(60):
                    # A server has eight at most: of nine that are under way, one at least is the first server's.
                    while sum(0 < len(stream.tokens) < 50 for stream in seen) < 9:
                        await asyncio.sleep(0.01)
                kill(first)
                await ended
                said = await emptied(http)
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
async def test_a_gateway_that_is_killed_forgives_no_debt(tmp_path: Path) -> None:
    """A hog is in the middle of its streams: its callers are cut off with what they have, and the next gateway serves
    somebody else first, though the hog asked before.  Without the file it is served first."""
    with server() as (_, address):
        keep = f'quantum = 64\nstate = "{tmp_path / "debts.json"}"\n'
        text = servers_text([address], 5000, 4) + CLIENTS
        with gateway(tmp_path, keep + text) as (started, url):
            async with caller(url) as http:
                await ask(http, "light", 2)
                calls = [asyncio.ensure_future(ask(http, "hog", 100)) for _ in range(6)]
                async with asyncio.timeout(60):
                    while await output_tokens(http, "hog") < 200:
                        await asyncio.sleep(0.05)
                kill(started)
                seen = await asyncio.gather(*calls)
                assert all(each.in_order and not each.whole for each in seen)
                # What was charged is also estimated, ahead of what callers of a busy machine have seen.
                assert sum(len(each.tokens) for each in seen) > 0
        one = servers_text([address], 5000, 1) + CLIENTS
        with gateway(tmp_path, keep + one) as (started, url):
            async with caller(url) as http:
                assert await first_served(http, address) == "light"
                kill(started)
        with gateway(tmp_path, "quantum = 64\n" + one) as (_, url):
            async with caller(url) as http:
                assert await first_served(http, address) == "hog"


@in_loop
async def test_the_log_of_a_gateway_that_drained_replays(tmp_path: Path) -> None:
    """It ends with the digest of the policy's state, and `fairsched replay` rebuilds it."""
    log = tmp_path / "calls.jsonl"
    with ExitStack() as stack:
        _, address = stack.enter_context(server())
        text = servers_text([address], 500, 2)
        started, url = stack.enter_context(gateway(tmp_path, text, "--log", str(log)))
        async with caller(url) as http:
            await asyncio.gather(*(ask(http, "abc"[i % 3], 5 + i) for i in range(12)))
            await http.post("/v1/completions", json={"prompt": "x" * 99, "max_tokens": 7})
            await emptied(http)
        started.terminate()
        assert started.wait(30) in (0, -signal.SIGTERM)
    assert main(["replay", str(log), "--json"]) == 0
