"""The gateway before `fairsched serve`: one account of tokens at both, and callers that leave are gone at both."""

import asyncio
import json
from pathlib import Path

from tests.support.adapters.gateway_processes import ADMIN, gateway, servers_text
from tests.support.adapters.loops import in_loop, until
from tests.support.engines.fake_executor import GatedExecutor
from tests.support.engines.serving import Caller, a_server, served, text_of

ADMIN_HEADERS = {"authorization": f"Bearer {ADMIN}"}


@in_loop
async def test_clients_are_the_same_at_gateway_and_server(tmp_path: Path) -> None:
    """Answers pass unchanged, the gateway tells the server who calls, and both count the same tokens for each."""
    async with served(a_server()) as direct:
        # Bytes are tokens here, so the gateway's estimate of a prompt is the truth.
        with gateway(tmp_path, "bytes_per_token = 1\n" + servers_text([direct.url], 3000)) as (_, url):
            caller = Caller(url, direct.session)

            async def asked(name: str, i: int, stream: bool) -> None:
                prompt = [i, i, 5]
                call = {"model": "fake", "prompt": prompt, "max_tokens": 30}
                headers = {"x-client": name}
                if stream:
                    chunks = await caller.chunks("/v1/completions", {**call, "stream": True}, headers=headers)
                    said = "".join(chunk["choices"][0]["text"] for chunk in chunks)
                else:
                    status, answer = await caller.post("/v1/completions", call, headers=headers)
                    assert status == 200, answer
                    said = answer["choices"][0]["text"]
                assert said == text_of(prompt, 30)

            await asyncio.gather(
                *(asked("flood", i, i % 2 == 0) for i in range(40)), *(asked("jörg", i, i % 2 == 0) for i in range(6))
            )
            _, at_server = await direct.get("/status")
            _, at_gateway = await caller.get("/gateway/status", headers=ADMIN_HEADERS)
        # The gateway's unknown clients have names of its own making.
        assert len(at_server["clients"]) == len(at_gateway["clients"]) == 2
        assert set(at_server["clients"]) == set(at_gateway["clients"])
        for name, client in at_gateway["clients"].items():
            there = at_server["clients"][name]
            assert client["output_tokens"] == there["output_tokens"]
            assert client["prompt_tokens"] == there["prompt_tokens"]
        assert {client["output_tokens"] for client in at_server["clients"].values()} == {1200, 180}
        for promise in (at_gateway["promise"], at_server["workers"]["0"]["promise"]):
            assert promise["gap"] <= promise["gap_bound"]
            assert promise["bound_violations"] == 0


@in_loop
async def test_a_caller_that_leaves_the_gateway_leaves_the_server(tmp_path: Path) -> None:
    """The request behind it is cancelled, though the server would have gone on for long."""
    executor = GatedExecutor()
    server = a_server(lambda: executor)
    async with served(server) as direct:
        with gateway(tmp_path, servers_text([direct.url], 3000)) as (_, url):
            call = {"model": "fake", "prompt": [1, 2], "max_tokens": 900, "stream": True}
            posting = asyncio.ensure_future(
                direct.session.post(f"{url}/v1/completions", data=json.dumps(call).encode(), headers={"x-client": "a"})
            )
            await until(lambda: server.open == 1)
            executor.let.release(5)
            answer = await posting
            assert (await answer.content.readline()).startswith(b"data: ")
            answer.close()
            await until(lambda: executor.lets() and not server.open and not executor.contexts)
        executor.let.release(10)
        assert (await direct.get("/status"))[1]["requests"] == {"cancelled": 1}
