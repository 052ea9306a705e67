"""Endpoints through the gateway: what they are charged, what callers see, and what the server is told."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from fairsched.engines.gateway.config import LimitConfig, QuotasConfig
from fairsched.engines.gateway.openai.endpoints import GATED
from tests.support.adapters.gateway_scenarios import World, world
from tests.support.adapters.http import served, streamed
from tests.support.adapters.loops import in_loop, until


def event(document: Any, name: str | None = None) -> bytes:
    """An event of a stream."""
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(document).encode() + b"\n\n"


class Model:
    """A server of all endpoints that answers with what it is given, and says usage as vLLM does: in a stream of chats
    or completions only where it is asked to."""

    def __init__(
        self, events: Sequence[bytes] = (), answer: dict[str, Any] | None = None, models: Sequence[str] = ()
    ) -> None:
        self.events = events
        self.usage: dict[str, Any] = {"prompt_tokens": 30, "completion_tokens": 200}
        self.answer = answer or {"usage": self.usage}
        self.models: list[dict[str, Any]] = [{"id": name, "max_model_len": 512} for name in models]
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.app = web.Application()
        for path in [endpoint.path for endpoint in GATED]:
            self.app.router.add_post(path, self._answer)
        self.app.router.add_get("/v1/models", self._models)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.models})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append((request.path, body))
        if not body.get("stream"):
            return web.json_response(self.answer)

        async def chunks() -> AsyncIterator[bytes]:
            for each in self.events:
                if not each:
                    await asyncio.Event().wait()
                yield each
            if (body.get("stream_options") or {}).get("include_usage"):
                yield event({"choices": [], "usage": self.usage})
            if request.path.endswith("completions"):
                yield b"data: [DONE]\n\n"

        return await streamed(request, chunks())


@asynccontextmanager
async def modelled(model: Model, **fields: Any) -> AsyncIterator[World]:
    """A gateway before this server."""
    async with served(model.app) as url, world(url, **fields) as here:
        yield here


async def charged(here: World) -> tuple[int, int]:
    """Prompt and output tokens of the one client, when nothing is left of its calls."""
    await here.emptied()
    (client,) = here.status["clients"].values()
    return client["prompt_tokens"], client["output_tokens"]


USER = {"X-Client": "a"}
CHAT = "/v1/chat/completions"
PLAIN = {"messages": [{"role": "user", "content": "hello"}]}
DONE = b"data: [DONE]\n\n"


@in_loop
async def test_responses_and_messages_are_charged_by_their_own_usage() -> None:
    """Streams of other forms are charged and pass as they are, and their servers are told nothing of usage."""
    for path, events in (
        (
            "/v1/responses",
            [
                event({"type": "response.output_text.delta", "delta": "a"}, "response.output_text.delta"),
                event(
                    {"type": "response.completed", "response": {"usage": {"input_tokens": 40, "output_tokens": 50}}},
                    "response.completed",
                ),
            ],
        ),
        (
            "/v1/messages",
            [
                event({"type": "message_start", "message": {"usage": {"input_tokens": 40}}}, "message_start"),
                event({"type": "content_block_delta", "delta": {"text": "a"}}, "content_block_delta"),
                event({"type": "message_delta", "usage": {"output_tokens": 50}}, "message_delta"),
                event({"type": "message_stop"}, "message_stop"),
            ],
        ),
    ):
        model = Model(events)
        async with modelled(model) as here:
            body = {**PLAIN, "input": "a", "stream": True, "max_tokens": 60, "max_output_tokens": 60}
            answer = await here.http.post(path, json=body, headers=USER)
            assert answer.content == b"".join(events)
            assert await charged(here) == (40, 50)
            assert model.asked == [(path, body)]


SAYS = {"prompt_tokens": 30_000, "completion_tokens": 1}
TOKEN = {"index": 0, "delta": {"content": "x"}, "finish_reason": None}
STARTS = {"type": "message_start", "message": {"usage": {"input_tokens": 30_000, "output_tokens": 1}}}


def of(content: object) -> dict[str, Any]:
    """A message of a user."""
    return {"messages": [{"role": "user", "content": content}]}


@in_loop
@pytest.mark.parametrize(
    ("path", "first", "body", "least", "most"),
    [
        (CHAT, {"choices": [TOKEN]}, of("9" * 4000), 4000, 4050),
        (CHAT, {"choices": [TOKEN], "usage": SAYS}, of("9" * 4000), 30_000, 30_000),
        ("/v1/messages", STARTS, of("9" * 4000) | {"max_tokens": 9}, 30_000, 30_000),
        (
            CHAT,
            {"choices": [TOKEN]},
            of([{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]),
            16_384,
            16_600,
        ),
        (
            CHAT,
            {"choices": [TOKEN]},
            of([{"type": "video_url", "video_url": {"url": "http://x/y.mp4"}}]),
            16_384,
            16_600,
        ),
    ],
    ids=["digits", "usage with the first token", "usage at the start", "picture", "film"],
)
async def test_a_caller_that_leaves_at_the_first_token_is_charged_what_the_prompt_was_or_may_be(
    path: str, first: dict[str, Any], body: dict[str, Any], least: int, most: int
) -> None:
    """What the server has said by then; else a token a byte of text, and the most of media."""
    async with modelled(Model([event(first), b""]), window_tokens=100_000) as here:
        async with here.http.stream("POST", path, json=body | {"stream": True}, headers=USER) as answer:
            await anext(answer.content.iter_any())
        assert least <= (await charged(here))[0] <= most
        assert here.status["outcomes"] == {"left": 1}


@in_loop
@pytest.mark.parametrize("asks", [False, True])
async def test_a_server_that_can_is_asked_for_usage_with_each_event_which_its_caller_does_not_see(asks: bool) -> None:
    """The bytes that pass are those without it; a caller that asks for usage sees that at the end."""
    beside = [event({"choices": [TOKEN | {"index": i}], "usage": SAYS}) for i in range(3)]
    model = Model(beside)
    model.models = [{"id": "m", "owned_by": "vllm"}]
    async with modelled(model) as here:
        await until(lambda: here.gateway.models.says_usage(here.account.upstreams()[0].url))
        options = {"stream_options": {"include_usage": True}} if asks else {}
        answer = await here.http.post(CHAT, json=PLAIN | {"stream": True} | options, headers=USER)
        last = event({"choices": [], "usage": model.usage}) if asks else b""
        seen = b"".join(event({"choices": [TOKEN | {"index": i}]}) for i in range(3))
        assert answer.content == seen + last + DONE
        assert model.asked[0][1]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
        assert await charged(here) == (30, 200)


@in_loop
async def test_what_generates_nothing_is_charged_its_input() -> None:
    """Embeddings, pooling, scores and ranks: prompt tokens as the server says, no outputs; without a word of the
    server, a token a byte, and of what only splits texts into tokens a sixteenth of that."""
    for endpoint in GATED:
        if endpoint.generates:
            continue
        body: dict[str, Any] = {"input": "x" * 400, "text": "x" * 400, "query": "q" * 400, "documents": ["d" * 396]}
        body |= {"prompt": "x" * 6400, "tokens": [1] * 1600, "system": "x" * 6380, "messages": "x"}
        for answer, prompt in (({"usage": {"prompt_tokens": 30, "total_tokens": 30}}, 30), ({"data": [1] * 99}, None)):
            async with modelled(Model(answer=answer)) as here:
                assert (await here.http.post(endpoint.path, json=body, headers=USER)).json() == answer
                said = await charged(here)
                assert said[1] == 0
                # Token ids are counted.
                most = (100, 100) if "tokens" in endpoint.inputs else (4 * 99, 4 * 201)
                assert said[0] == prompt or (prompt is None and most[0] <= said[0] <= most[1])


@in_loop
async def test_a_server_that_lists_no_models_is_asked_for_them_once_at_a_time() -> None:
    """However many callers ask."""
    running: list[int] = [0, 0]

    async def models(_: web.Request) -> web.Response:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0.1)
        running[0] -= 1
        return web.Response(status=404)

    server = web.Application()
    server.router.add_get("/v1/models", models)
    async with served(server) as url, world(url) as here:
        answers = await asyncio.gather(*(here.http.get("/v1/models", headers={"x-client": "a"}) for _ in range(40)))
        assert [each.status for each in answers] == [200] * 40
        # The gateway asks for itself, too.
        assert running[1] <= 2


@in_loop
async def test_a_base_url_without_v1_is_the_same() -> None:
    """`/chat/completions` is `/v1/chat/completions`, to the server too, and is charged as that; so are the models."""
    model = Model(models=["a"])
    async with modelled(model, unknown_clients="reject", identify="key") as here:
        assert (await here.http.post("/chat/completions", json=PLAIN)).status == 401
    async with modelled(model) as here:
        for path in (CHAT, CHAT.removeprefix("/v1"), "/messages"):
            assert (await here.http.post(path, json={**PLAIN, "max_tokens": 3}, headers=USER)).status == 200
        assert [path for path, _ in model.asked] == [CHAT, CHAT, "/v1/messages"]
        await here.emptied()
        assert here.status["outcomes"] == {"finished": 3}
        refused = (await here.http.post("/messages", json={}, headers=USER)).json()
        assert refused["type"] == "error"
        assert (await here.http.get("/models/a", headers=USER)).json()["id"] == "a"
        assert (await here.http.get("/models", headers=USER)).json()["data"] == model.models


@in_loop
async def test_models_are_those_of_all_servers_and_calls_go_where_theirs_is() -> None:
    """Each is listed once, for known callers; a call of a model that no server lists goes anywhere.  A model is found
    by its name, with a slash in it or behind it, and by `HEAD`."""
    one, two = Model(models=["a/x", "both"]), Model(models=["b", "both"])
    one.models[0]["about"] = "x" * 200_000
    async with served(one.app) as first, served(two.app) as second, world(first, second) as here:
        await until(lambda: len(here.gateway.models._of) == 2)
        listed = await here.http.get("/v1/models", headers=USER)
        assert [each["id"] for each in listed.json()["data"]] == ["a/x", "both", "b"]
        assert (await here.http.get("/v1/models/a/x", headers=USER)).json()["max_model_len"] == 512
        assert (await here.http.request("HEAD", "/v1/models/", headers=USER)).status == 200
        for name in ("a/x", "b", "both", "other", None):
            body = {**PLAIN, "model": name, "max_tokens": 3}
            calls = [here.http.post(f"{CHAT}/", json=body, headers=USER) for _ in range(4)]
            assert {answer.status for answer in await asyncio.gather(*calls)} == {200}
        asked = [[body["model"] for _, body in each.asked] for each in (one, two)]
        assert (asked[0].count("a/x"), asked[1].count("b")) == (4, 4)
        assert "b" not in asked[0]
        assert "a/x" not in asked[1]
        assert asked[0].count("both") == asked[1].count("both") == 2
    async with modelled(Model(models=["a"]), unknown_clients="reject", identify="key") as here:
        assert (await here.http.get("/v1/models")).status == 401
        assert (await here.http.post("/tokenize", json={"prompt": "a"})).status == 401


@in_loop
async def test_what_splits_texts_waits_like_any_call_and_goes_to_all_servers() -> None:
    """Calls of /tokenize are spread and charged, and a client has so many that wait."""
    models = Model(), Model()
    async with served(models[0].app) as first, served(models[1].app) as second, world(first, second) as here:
        body = {"prompt": "x" * 640}
        calls = [here.http.post("/tokenize", json=body, headers=USER) for _ in range(6)]
        assert {answer.status for answer in await asyncio.gather(*calls)} == {200}
        assert [len(each.asked) for each in models] == [3, 3]
        assert (await charged(here))[0] == 6 * 30
    limits = LimitConfig(waiting_per_client=1)
    async with modelled(Model(answer={}), window_requests=1, limits=limits) as here:
        calls = [here.http.post("/tokenize", json=body, headers=USER) for _ in range(20)]
        assert 429 in {answer.status for answer in await asyncio.gather(*calls)}


@in_loop
async def test_a_chat_that_names_no_limit_is_answered_as_it_is_without_a_gateway() -> None:
    """Its server is told none, whatever is reserved; where quotas must hold, one that fits into the model's context."""
    model = Model(models=["a"])
    async with modelled(model) as here:
        await until(lambda: here.gateway.models._of)
        body = {**PLAIN, "model": "a"}
        assert (await here.http.post(CHAT, json=body, headers=USER)).status == 200
        assert model.asked == [(CHAT, body)]
        here.gateway.configure(msgspec.structs.replace(here.gateway.config, quota=QuotasConfig()))
        assert (await here.http.post(CHAT, json=body, headers=USER)).status == 200
        assert 200 < model.asked[-1][1]["max_tokens"] < 512 - 20
        large = {**body, "max_tokens": 900}
        assert (await here.http.post(CHAT, json=large, headers=USER)).status == 200
        assert model.asked[-1][1] == large


@in_loop
async def test_what_is_not_served_is_an_error_of_the_protocol() -> None:
    """Other paths, other methods, `HEAD` where there is a `GET`, and calls that no server has room for."""
    model = Model()
    async with modelled(model) as here:
        for method, path, status, code in (
            ("POST", "/v1/load_lora_adapter", 404, "unknown_url"),
            ("POST", "/flush_cache", 404, "unknown_url"),
            ("GET", "/v1/responses/resp_1", 404, "unknown_url"),
            ("GET", "/v1/models/other", 404, "model_not_found"),
            ("GET", "/v1/completions", 405, "method_not_supported"),
            ("DELETE", "/v1/models", 405, "method_not_supported"),
        ):
            answer = await here.http.request(method, path, headers=USER)
            assert (answer.status, answer.json()["error"]["code"]) == (status, code)
            assert answer.json()["error"]["type"] == "invalid_request_error"
        assert (await here.http.request("HEAD", "/health")).status == 200
        wrong = await here.http.post("/v1/messages", content=b"{", headers=USER)
        assert (wrong.status, wrong.json()["type"]) == (400, "error")
        assert wrong.json()["error"]["type"] == "invalid_request_error"
        assert (await here.http.post(CHAT, json={**PLAIN, "max_tokens": 1_001}, headers=USER)).status == 413
        assert model.asked == []


@in_loop
async def test_a_packed_body_is_refused_before_it_is_read() -> None:
    """A small body that would be a large one is a clear error, and reaches no server."""
    model = Model()
    async with modelled(model) as here:
        headers = {**USER, "Content-Encoding": "gzip"}
        answer = await here.http.post(CHAT, content=b"\x1f\x8b", headers=headers)
        assert answer.status == 415
        assert "packed" in answer.json()["error"]["message"]
        assert model.asked == []
