"""Callers of every bad kind, through the process: each call ends once on both sides, and memory stays flat."""

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.adapters.gateway_processes import ask, caller, emptied, gateway, rss_kib, server, servers_text
from tests.support.adapters.http import LOST, Caller
from tests.support.adapters.loops import in_loop
from tests.support.adapters.openai_server import LONG

LIMITS = """
[limits]
body_bytes = 4000
stall_seconds = 20
waiting = 100000
waiting_per_client = 100000
"""
KINDS = ("good", "bad JSON", "good", "large prompt", "good", "large body", "leaves", "good", "slow", "whole")
"""What calls are of, in turn."""
PROMPT = "a prompt that is seven long."
"""28 bytes, so that the estimate is what the servers say."""
GROWTH = 1.15
"""Most by which memory may grow from the first fifth of the calls to the last."""


async def _leaves(http: Caller, client: str) -> None:
    """A stream that would take two seconds, of which the caller reads a little."""
    body = {"prompt": PROMPT, "max_tokens": LONG, "stream": True}
    with suppress(*LOST):
        async with http.stream("POST", "/v1/completions", json=body, headers={"x-client": client}) as answer:
            async for _ in answer.content.iter_any():
                return


async def _call(http: Caller, kind: str, client: str, seen: Counter[str]) -> None:
    """One call, and what its caller saw."""
    headers = {"x-client": client}
    match kind:
        case "good" | "slow":
            stream = await ask(http, client, 8, PROMPT, pause=0.02 if kind == "slow" else 0.0)
            assert stream.in_order
            assert len(stream.tokens) == 8
            seen["whole" if stream.whole else "cut"] += 1
        case "whole":
            answer = await http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4}, headers=headers)
            seen["whole" if answer.status == 200 else "cut"] += 1
        case "leaves":
            await _leaves(http, client)
            seen["left"] += 1
        case "bad JSON":
            answer = await http.post("/v1/completions", content=b'{"prompt": "a', headers=headers)
            seen[str(answer.status)] += 1
        case _:
            size = 3000 if kind == "large prompt" else 5000
            body = {"prompt": "x" * size, "max_tokens": 4}
            answer = await http.post("/v1/completions", json=body, headers=headers)
            seen[str(answer.status)] += 1


@pytest.mark.nightly
@in_loop
async def test_ten_thousand_calls_of_every_kind_end_once_and_memory_is_flat(full_budget: bool, tmp_path: Path) -> None:
    """Good calls are answered whole, bad JSON gets 400, what is too large 413, and who leaves is gone: the callers'
    counts, the gateway's and the servers' agree, nothing is left, and the process has not grown."""
    calls = 10_000 if full_budget else 200
    seen: Counter[str] = Counter()
    sizes: list[int] = []
    with server() as (_, one), server() as (_, two):
        text = servers_text([one, two], 600, 16) + LIMITS
        with gateway(tmp_path, text) as (started, url):
            async with caller(url) as http:
                turns = asyncio.Semaphore(24)

                async def run(i: int) -> None:
                    async with turns:
                        await _call(http, KINDS[i % len(KINDS)], "abcde"[i % 5], seen)

                for fifth in range(5):
                    first = fifth * calls // 5
                    await asyncio.gather(*(run(i) for i in range(first, first + calls // 5)))
                    await emptied(http)
                    sizes.append(rss_kib(started))
                said = await emptied(http)
            servers: Counter[str] = Counter()
            for address in (one, two):
                async with Caller(address) as http:
                    counts = (await http.get("/counts")).json()
                servers.update({name: counts.get(name, 0) for name in ("asked", "answered", "lost")})
    each = calls // len(KINDS)
    assert seen == {"whole": 6 * each, "left": each, "400": each, "413": 2 * each}
    outcomes = said["outcomes"]
    retried = sum(count for name, count in outcomes.items() if name.startswith("tried again"))
    assert outcomes["finished"] == 6 * each
    assert outcomes["left"] == each
    assert outcomes["refused"] == each
    assert outcomes["too large"] == 2 * each
    assert sum(outcomes.values()) - retried == calls
    assert servers["asked"] == servers["answered"] + servers["lost"]
    assert servers["answered"] >= 6 * each
    assert servers["asked"] <= 7 * each + retried
    assert (said["waiting"], said["in_flight"], said["in_flight_tokens"], said["overrun_tokens"]) == (0, 0, 0, 0)
    assert said["promise"]["bound_violations"] == 0
    if full_budget:
        assert sizes[-1] <= GROWTH * sizes[0], sizes
