"""The queue inside the real LiteLLM's proxy: fairness by the referee, and ends of calls that LiteLLM makes of its own.

`LITELLM` is the program of an environment that has `litellm[proxy]` and this package.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

aiohttp: Any = pytest.importorskip("aiohttp")

from aiohttp import web  # noqa: E402

from fairsched.engines.conformance import CLIENTS, SCENARIOS, Gateways, Keys, ScenarioLimits, conform  # noqa: E402
from tests.integration.envoy_parts import free_ports  # noqa: E402
from tests.support.adapters.http import free_pair  # noqa: E402

LITELLM = Path(os.environ.get("LITELLM", Path(sys.prefix) / "litellm/bin/litellm"))
if not LITELLM.exists():
    pytest.skip("LiteLLM is not installed", allow_module_level=True)

pytestmark = pytest.mark.integration

PATIENCE = 300.0
APPLIES = [name for name, each in SCENARIOS.items() if "key" in each.ways and each.instances == 1]
SPENT = "sk-over-its-budget"
WINDOW, AT_ONCE = 400, 8
AUTH = f"""
from fastapi import HTTPException
from litellm.proxy import proxy_server
from litellm.proxy._types import UserAPIKeyAuth
from litellm.proxy.auth.auth_checks import virtual_key_max_budget_check

NAMES = {{
    "sk-conform-gold-0123456789": {{"team_id": "1", "team_alias": "gold"}},
    "sk-conform-bronze-0123456789": {{"user_id": "bronze"}},
    "sk-conform-polite-0123456789": {{"key_alias": "polite"}},
    "{SPENT}": {{"key_alias": "spent", "max_budget": 1.0, "spend": 2.0}},
}}

async def auth(request, api_key):
    if api_key not in NAMES:
        raise HTTPException(401, "unknown key")
    key = UserAPIKeyAuth(api_key=api_key, **NAMES[api_key])
    # Without a database LiteLLM leaves the budgets of keys to this function.
    await virtual_key_max_budget_check(valid_token=key, proxy_logging_obj=proxy_server.proxy_logging_obj)
    return key
"""
FAIR = f"""
quantum = 64
[pool]
window_tokens = {WINDOW}
window_requests = {AT_ONCE}
[limits]
wait_seconds = 20.0
[client."team:gold"]
weight = 4
"""


def configuration(servers: list[int], broken: int) -> str:
    """A configuration of LiteLLM (JSON is YAML): one model on two servers, a slow one, and two whose server is not
    there, one of which falls back to the first."""

    def deployed(name: str, port: int, **more: Any) -> dict[str, Any]:
        params = {"model": "openai/made-up", "api_base": f"http://127.0.0.1:{port}/v1", "api_key": "x"}
        return {"model_name": name, "litellm_params": params | more}

    return json.dumps(
        {
            "model_list": [
                *(deployed("made-up", port) for port in servers),
                *(deployed(name, broken) for name in ("dead", "falls-back")),
                deployed("slow", servers[0], timeout=0.2),
            ],
            "router_settings": {
                "fallbacks": [{"falls-back": ["made-up"]}],
                "num_retries": 1,
                "disable_cooldowns": True,
            },
            "general_settings": {
                "custom_auth": "conform_auth.auth",
                "cancel_on_disconnect": True,
            },
            "litellm_settings": {"callbacks": ["fairsched.integrations.litellm.fair_queue"]},
        }
    )


@contextmanager
def proxy(
    folder: Path, settings: str, servers: list[int], broken: int
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The proxy as a process: its address, which may not be listened at yet."""
    (folder / "conform_auth.py").write_text(AUTH)
    (folder / "litellm.yaml").write_text(configuration(servers, broken))
    (folder / "fair.toml").write_text(settings)
    (port,) = free_ports(1)
    environment = os.environ | {
        "FAIRSCHED_LITELLM_CONFIG": str(folder / "fair.toml"),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MASTER_KEY": "sk-5d8f1c3a9e7b2d4f6a8c0e1b3d5f7a9c",
    }
    command = [str(LITELLM), "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            process.kill()


Ports = tuple[str, list[int]]


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """The proxy when it listens: its address, and the ports where its model's servers are to be."""
    first = free_pair()
    (broken,) = free_ports(1)
    with proxy(tmp_path_factory.mktemp("litellm"), FAIR, [first, first + 1], broken) as (url, process):

        async def up() -> None:
            async with aiohttp.ClientSession() as http:
                begun = time.monotonic()
                while True:
                    assert process.poll() is None
                    assert time.monotonic() < begun + PATIENCE
                    try:
                        async with http.get(f"{url}/health/liveliness"):
                            return
                    except aiohttp.ClientError:
                        await asyncio.sleep(0.2)

        asyncio.run(up())
        yield url, [first, first + 1]


def test_the_referee_passes_all_that_applies(listening: Ports) -> None:
    """All scenarios for one instance and keys pass: a flood gets half, weights hold, and callers that leave leave
    nothing behind; the clients are a team, a user and a key."""
    url, (port, _) = listening
    gateways = Gateways((url,), Keys({name: f"sk-conform-{name}-0123456789" for name in CLIENTS}), "made-up")
    limits = ScenarioLimits.of(AT_ONCE, None, None)
    found = asyncio.run(conform(gateways, limits, servers=2, port=port, names=APPLIES, wait_seconds=PATIENCE))
    assert {each.scenario.name: each.verdict.result for each in found} == dict.fromkeys(APPLIES, "passes")


# --- what LiteLLM does with a call ------------------------------------------------------------------------------------


class Server:
    """A model server that answers at once what LiteLLM asks of OpenAI, or while it `hangs` nothing."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        asked, kind = await request.json(), request.path.rpartition("/")[2]
        await self.answers.wait()
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        base = {"id": "1", "created": 0, "model": "made-up", "usage": usage}
        text: dict[str, Any] = {"index": 0, "text": "x", "finish_reason": "stop"}
        message = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
        output: dict[str, Any] = {"type": "message", "id": "2", "role": "assistant", "status": "completed"}
        output |= {"content": [{"type": "output_text", "text": "x", "annotations": []}]}
        whole: dict[str, dict[str, Any]] = {
            "completions": {"object": "text_completion", "choices": [text]},
            "embeddings": {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}]},
            "responses": {"object": "response", "created_at": 0, "status": "completed", "output": [output]}
            | {"usage": {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}, "parallel_tool_calls": False}
            | {"tool_choice": "auto", "tools": []},
        }
        document = base | whole[kind]
        if "messages" in asked:
            document |= {"object": "chat.completion", "choices": [message]}
        if not asked.get("stream"):
            return web.json_response(document)
        events: list[dict[str, Any]]
        if kind == "responses":
            delta = {"type": "response.output_text.delta", "delta": "x", "item_id": "2", "output_index": 0}
            events = [delta | {"content_index": 0}, {"type": "response.completed", "response": document}]
        elif "messages" in asked:
            delta = {"index": 0, "delta": {"role": "assistant", "content": "x"}, "finish_reason": None}
            events = [base | {"object": "chat.completion.chunk", "choices": [delta], "usage": None}]
            events += [base | {"object": "chat.completion.chunk", "choices": [delta | {"finish_reason": "stop"}]}]
        else:
            events = [document]
        lines = "".join(f"data: {json.dumps(each)}\n\n" for each in events) + "data: [DONE]\n\n"
        return web.Response(body=lines.encode(), headers={"content-type": "text/event-stream"})


Ask = Callable[..., Coroutine[Any, Any, tuple[int, str]]]


def beside_servers(listening: Ports, main: Callable[[Server, Ask], Awaitable[None]]) -> None:
    """Run it with model servers, and with what sends a call and returns status and body."""
    url, ports = listening

    async def run() -> None:
        server = Server()
        app = web.Application()
        app.router.add_post("/v1/{kind:.*}", server.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        for port in ports:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as http:

            async def ask(
                path: str = "chat/completions", key: str = "sk-conform-polite-0123456789", **fields: Any
            ) -> tuple[int, str]:
                body = {"model": "made-up", **({} if fields.keys() & {"input", "prompt"} else SAID), **fields}
                headers = {"authorization": f"Bearer {key}"}
                async with http.post(f"{url}/v1/{path}", json=body, headers=headers) as answer:
                    return answer.status, await answer.text()

            try:
                await main(server, ask)
            finally:
                server.answers.set()
                await runner.cleanup()

    asyncio.run(run())


SAID = {"messages": [{"role": "user", "content": "x"}]}
MANY = range(2 * AT_ONCE + 1)
"""So many calls one after the other would find no place, if some kept theirs."""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "most"),
    [
        ("chat/completions", {}, "max_tokens"),
        ("completions", {"prompt": "x"}, "max_tokens"),
        ("responses", {"input": "x"}, "max_output_tokens"),
        ("messages", SAID, "max_tokens"),
        ("embeddings", {"input": "x"}, ""),
    ],
)
def test_each_kind_of_call_waits_and_ends(
    path: str, fields: dict[str, Any], most: str, stream: bool, listening: Ports
) -> None:
    """A call over the window is refused, so it was asked for; after its answer its place is free."""
    if stream and not most:
        pytest.skip("embeddings have no streams")

    async def main(server: Server, ask: Ask) -> None:
        too_large = {most: 2 * WINDOW} if most else {"input": "x" * 8 * WINDOW}
        status, said = await ask(path, **fields | too_large, **{"stream": True} if stream else {})
        assert (status, server.asked) == (413, 0), said
        assert "over the window" in said
        small = {most: 20, "stream": stream} if most else {}
        for _ in MANY:
            status, said = await ask(path, **fields, **small)
            assert status == 200, said

    beside_servers(listening, main)


def test_failures_time_outs_and_fallbacks_end_once(listening: Ports) -> None:
    """A model without a server fails after LiteLLM's retry, one that falls back is answered, and a server that is too
    slow is given up: none of them keeps a place."""

    async def main(server: Server, ask: Ask) -> None:
        async def all_get(expected: int, model: str) -> None:
            got = await asyncio.gather(*(ask(model=model, max_tokens=20) for _ in MANY))
            assert {status for status, _ in got} == {expected}, got

        await all_get(500, "dead")
        await all_get(200, "falls-back")
        server.answers.clear()
        await all_get(408, "slow")
        server.answers.set()
        await all_get(200, "made-up")

    beside_servers(listening, main)


def test_a_key_over_its_budget_does_not_wait(listening: Ports) -> None:
    """LiteLLM refuses it before the queue is asked, also while no place is free, and it holds none."""

    async def main(server: Server, ask: Ask) -> None:
        server.answers.clear()
        held = [asyncio.create_task(ask(max_tokens=20)) for _ in range(AT_ONCE)]
        while server.asked < AT_ONCE:
            await asyncio.sleep(0.02)
        waits = asyncio.create_task(ask(max_tokens=20))
        for _ in MANY:
            status, said = await ask(key=SPENT, max_tokens=20)
            assert 400 <= status < 500, said
            assert "budget" in said.lower()
        assert not waits.done()
        server.answers.set()
        assert {status for status, _ in await asyncio.gather(*held, waits)} == {200}

    beside_servers(listening, main)


def test_settings_that_cannot_be_used_stop_the_proxy(tmp_path: Path) -> None:
    """The proxy does not serve, and its log has one line that says the file and what is wrong in it."""
    with proxy(tmp_path, f"quantumm = 3\n{FAIR}", [1, 2], 3) as (_, process):
        assert process.wait(PATIENCE) != 0
    said = f"fairsched: {tmp_path / 'fair.toml'}: unknown key quantumm; did you mean quantum?"
    assert (tmp_path / "proxy.log").read_text().count(said) == 1
