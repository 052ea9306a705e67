"""OpenAI's API over the engine: what comes back is what the engine computes, and each request ends once."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from fairsched.engines.server import Access, app
from fairsched.engines.server.calls import COMPLETION_TOKENS
from fairsched.model.decision import StepPlan
from fairsched.policies.routers import RoundRobin
from tests.support.adapters.loops import in_loop, until
from tests.support.engines.fake_executor import FakeExecutor, GatedExecutor, answer_of
from tests.support.engines.serving import CONTEXT, Caller, a_server, served, text_of

PROMPT = [3, 1, 4, 1, 5]


async def ends(caller: Caller) -> dict[str, int]:
    """How many requests ended, by how."""
    _, document = await caller.get("/status")
    return dict(document["requests"])


@in_loop
async def test_an_answer_has_the_tokens_of_the_engine() -> None:
    """Text, usage and the reason of the end, for a prompt of token ids and for a text."""
    async with served(a_server()) as caller:
        answer = await caller.complete(PROMPT, max_tokens=20)
        assert answer["choices"] == [
            {"index": 0, "text": text_of(PROMPT, 20), "logprobs": None, "finish_reason": "length"}
        ]
        assert (answer["object"], answer["model"]) == ("text_completion", "fake")
        usage = {"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 25}
        assert answer["usage"] == {**usage, "prompt_tokens_details": {"cached_tokens": 0}}
        words = "WHAT IS 6 TIMES 7?"
        answer = await caller.complete(words, max_tokens=7)
        assert answer["choices"][0]["text"] == text_of(list(words.encode()), 7)


@in_loop
async def test_a_chat_is_a_prompt_with_roles() -> None:
    """A chat without a template is written role by role, and its answer is the assistant's message."""
    async with served(a_server(vocabulary=256, make_executor=Wide)) as caller:
        messages = [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]
        status, answer = await caller.post("/v1/chat/completions", {"messages": messages, "max_completion_tokens": 3})
        assert status == 200
        assert answer["object"] == "chat.completion"
        prompt = list(b"system: be brief\nuser: ab\nassistant:")
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": text_of(prompt, 3)}
        assert answer["usage"]["prompt_tokens"] == len(prompt)


class Wide(FakeExecutor):
    """Takes every byte; its answers are still below 97."""

    def submit(self, request_id: int, prompt_ids: Any, sampling: Any, generated: Any = ()) -> None:
        self.contexts[request_id] = [*prompt_ids, *generated]


@in_loop
async def test_a_stream_has_an_event_for_every_token() -> None:
    """One event a token, the last of them with the reason; usage only where it is asked for."""
    async with served(a_server()) as caller:
        call = {"prompt": PROMPT, "max_tokens": 12, "stream": True}
        chunks = await caller.chunks("/v1/completions", call)
        assert [chunk["choices"][0]["text"] for chunk in chunks] == list(text_of(PROMPT, 12))
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 11 + ["length"]
        assert not any("usage" in chunk for chunk in chunks)
        assert len({chunk["id"] for chunk in chunks}) == 1
        *chunks, last = await caller.chunks("/v1/completions", {**call, "stream_options": {"include_usage": True}})
        assert [chunk["usage"] for chunk in chunks] == [None] * 12
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 12


@in_loop
async def test_a_chat_stream_says_the_role_first_and_its_usage_as_it_goes() -> None:
    """With continuous usage each event says what was computed until then, and it never falls."""
    async with served(a_server()) as caller:
        options = {"include_usage": True, "continuous_usage_stats": True}
        # A chat's template has letters that this vocabulary lacks, so the prompt is refused: see `Wide`.
        call = {"prompt": [PROMPT, PROMPT[::-1]], "n": 2, "max_tokens": 6, "stream": True, "stream_options": options}
        *chunks, last = await caller.chunks("/v1/completions", call)
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == last["usage"]["completion_tokens"] == 24
        assert last["usage"]["prompt_tokens"] == 10
        texts = ["", "", "", ""]
        for chunk in chunks:
            (choice,) = chunk["choices"]
            texts[choice["index"]] += choice["text"]
        assert texts == [text_of(PROMPT, 6)] * 2 + [text_of(PROMPT[::-1], 6)] * 2
    async with served(a_server(make_executor=Wide, vocabulary=256)) as caller:
        call = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream": True}
        first, *rest = await caller.chunks("/v1/chat/completions", call)
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in rest) == text_of(
            list(b"user: x\nassistant:"), 2
        )
        assert {chunk["object"] for chunk in (first, *rest)} == {"chat.completion.chunk"}


@in_loop
async def test_a_stop_text_ends_an_output_before_it() -> None:
    """The text ends before the stop text, usage counts its tokens, and the engine computes no more than it must."""
    tokens = answer_of(PROMPT, 40)
    text = bytes(tokens).decode()
    stop = text[17:20]
    cut = text.index(stop)
    executor = GatedExecutor()
    server = a_server(lambda: executor)

    async def asked(asking: Coroutine[Any, Any, Any]) -> Any:
        """Ask and let a step be computed at a time: all 900 tokens do not come before the engine hears of the stop."""
        task = asyncio.ensure_future(asking)
        await until(lambda: executor.lets() and task.done() and not (server.open or executor.contexts))
        return task.result()

    async with served(server) as caller:
        call: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 900, "stop": [stop, "never said"]}
        answer = await asked(caller.complete(**call))
        assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == (text[:cut], "stop")
        assert answer["usage"]["completion_tokens"] == cut + len(stop)
        call |= {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, last = await asked(caller.chunks("/v1/completions", call))
        choices = [chunk["choices"][0] for chunk in chunks]
        assert ("".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]) == (text[:cut], "stop")
        assert last["usage"]["completion_tokens"] == len(chunks) == cut + len(stop)
        assert await ends(caller) == {"cancelled": 2}


@in_loop
async def test_a_stop_token_is_counted_and_not_said() -> None:
    """The model's own end, another one by its id, and `ignore_eos`, which goes on."""
    tokens = answer_of(PROMPT, 30)
    end, other = tokens[20], tokens[9]
    first, before = tokens.index(end), tokens.index(other)
    async with served(a_server(stop_tokens=frozenset({end}))) as caller:
        answer = await caller.complete(PROMPT, max_tokens=30)
        assert answer["choices"][0]["text"] == text_of(PROMPT, first)
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == first + 1
        answer = await caller.complete(PROMPT, max_tokens=30, stop_token_ids=[other])
        assert answer["usage"]["completion_tokens"] == min(first, before) + 1
        answer = await caller.complete(PROMPT, max_tokens=30, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == 30
        assert await ends(caller) == {"finished": 3}


@in_loop
async def test_outputs_without_a_most_have_openais() -> None:
    """A completion is short; a chat may fill the context."""
    async with served(a_server()) as caller:
        answer = await caller.complete(PROMPT)
        assert answer["usage"]["completion_tokens"] == COMPLETION_TOKENS
        answer = await caller.complete([1] * (CONTEXT - 3))
        assert answer["usage"]["completion_tokens"] == 3
    async with served(a_server(make_executor=Wide, vocabulary=256)) as caller:
        messages = [{"role": "user", "content": "x"}]
        _, answer = await caller.post("/v1/chat/completions", {"messages": messages})
        assert answer["usage"]["total_tokens"] == CONTEXT


@in_loop
async def test_what_was_cached_is_said() -> None:
    """The second of two equal prompts takes whole blocks from the cache, and usage says so for both ends of outputs."""
    async with served(a_server()) as caller:
        prompt = [7] * 40
        cached = [
            (await caller.complete(prompt, max_tokens=4, **stop))["usage"]["prompt_tokens_details"]["cached_tokens"]
            for stop in ({}, {}, {"stop": text_of(prompt, 2)[1]})
        ]
        assert cached == [0, 32, 32]


BAD: list[tuple[dict[str, Any] | bytes, str]] = [
    (b"{", "not JSON"),
    (b"[" * 100_000, "not a JSON object"),
    (b'{"prompt": "A", "prompt": "B"}', "comes twice"),
    (b"[]", "not a JSON object"),
    (b'{"prompt": "\xff"}', "not JSON"),
    ({}, "prompt is a text"),
    ({"prompt": ""}, "no token"),
    ({"prompt": []}, "no token"),
    ({"prompt": ["A", ""]}, "no token"),
    ({"prompt": [1, "A"]}, "prompt is a text"),
    ({"prompt": [1, 97]}, "token 97 is not in the vocabulary of 97"),
    ({"prompt": [-1]}, "token -1 is not"),
    ({"prompt": [True]}, "prompt is a text"),
    ({"prompt": "a"}, "tokens are 0 to 96"),
    ({"prompt": {"text": "A"}}, "prompt is a text"),
    ({"prompt": ["A"] * 129}, "129 prompts"),
    ({"prompt": ["A"] * 65, "n": 2}, "more than 128 outputs"),
    ({"prompt": "A", "n": 0}, "n is a whole number from 1 to 128"),
    ({"prompt": "A", "n": 2.0}, "n is a whole number"),
    ({"prompt": "A", "n": True}, "n is a whole number"),
    ({"prompt": "A", "max_tokens": 0}, "max_tokens is a whole number from 1"),
    ({"prompt": "A", "max_tokens": "9"}, "max_tokens is a whole number"),
    (
        {"prompt": "A", "max_tokens": 1000},
        "a prompt of 1 tokens and 1000 output tokens are more than this server's 1000",
    ),
    ({"prompt": [1] * 1000}, "a prompt of 1000 tokens and 1 output tokens"),
    ({"prompt": "A", "temperature": -0.1}, "temperature is a number from 0 to 2"),
    ({"prompt": "A", "temperature": "hot"}, "temperature is a number"),
    ({"prompt": "A", "top_k": -2}, "top_k is a whole number from -1"),
    ({"prompt": "A", "seed": 1 << 63}, "seed is a whole number"),
    ({"prompt": "A", "seed": 0.5}, "seed is a whole number"),
    ({"prompt": "A", "stop": [""]}, "stop is a text or a list of texts"),
    ({"prompt": "A", "stop": 7}, "stop is a text or a list of texts"),
    ({"prompt": "A", "stop": ["A"] * 17}, "17 stop texts are more than 16"),
    ({"prompt": "A", "stop_token_ids": [97]}, "token 97"),
    ({"prompt": "A", "stop_token_ids": "A"}, "token ids are whole numbers"),
    ({"prompt": "A", "stream": "yes"}, "stream is true or false"),
    ({"prompt": "A", "stream_options": {"include_usage": True}}, "stream_options are for calls with stream"),
    ({"prompt": "A", "stream": True, "stream_options": {"usage": True}}, "stream_options is an object with"),
    ({"prompt": "A", "stream": True, "stream_options": {"include_usage": 1}}, "include_usage is true or false"),
    ({"prompt": "A", "top_p": 0.9}, "does not support top_p = 0.9"),
    ({"prompt": "A", "best_of": 2}, "does not support best_of"),
    ({"prompt": "A", "echo": True}, "does not support echo"),
    ({"prompt": "A", "logprobs": 0}, "does not support logprobs"),
    ({"prompt": "A", "suffix": "B"}, "does not support suffix"),
    ({"prompt": "A", "presence_penalty": 1}, "does not support presence_penalty"),
    ({"prompt": "A", "logit_bias": {"5": 1}}, "does not support logit_bias"),
    ({"prompt": "A", "response_format": {"type": "json_object"}}, "does not support response_format"),
    ({"prompt": "A", "tools": [{}]}, "does not support tools"),
    ({"prompt": "A", "temprature": 1}, "'temprature' is no field"),
    ({"prompt": "A", "x" * 100_000: 1}, "is no field"),
]


@in_loop
async def test_bad_calls_are_refused_by_name() -> None:
    """Each is a 400 of one sentence that names what is wrong, nothing reaches the engine, and the server serves on."""
    async with served(a_server()) as caller:
        for call, said in BAD:
            status, document = await caller.post("/v1/completions", call)
            assert (status, document["error"]["type"]) == (400, "invalid_request_error"), call
            assert said in document["error"]["message"], document
            assert len(document["error"]["message"]) < 300
        for messages, said in (
            (None, "messages is a list"),
            ([], "messages is a list"),
            (["x"], "messages[0] is a table"),
            ([{"role": "robot", "content": "x"}], "messages[0].role is one of"),
            ([{"role": "user"}], "messages[0].content is a text"),
            (
                [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
                "parts of type text, not 'image_url'",
            ),
            ([{"role": "assistant", "content": "", "tool_calls": [{}]}], "knows no tools"),
        ):
            status, document = await caller.post("/v1/chat/completions", {"messages": messages})
            assert status == 400
            assert said in document["error"]["message"]
        assert await ends(caller) == {}
        # What changes nothing is no reason to refuse a call.
        harmless = {"top_p": 1.0, "logprobs": None, "frequency_penalty": 0, "user": "me", "best_of": 1, "stop": None}
        await caller.complete("A", model="fake", **harmless)


@in_loop
async def test_other_errors_are_json_too() -> None:
    """Another model, another path, another method, a body that is too long."""
    async with served(a_server()) as caller:
        for (status, document), expected in (
            (await caller.post("/v1/completions", {"prompt": "A", "model": "gpt"}), (404, "model_not_found")),
            (await caller.post("/v1/completions", {"prompt": [1] * 1001}), (400, "context_length_exceeded")),
            (await caller.get("/v1/engines"), (404, "unknown_url")),
            (await caller.get("/v1/completions"), (405, "method_not_supported")),
            (await caller.post("/v1/completions", b" " * (app.BODY_BYTES_MAX + 1)), (413, "request_too_large")),
        ):
            assert (status, document["error"]["code"]) == expected
        assert (await caller.get("/v1/models"))[1]["data"][0]["id"] == "fake"
        assert await caller.get("/health") == (200, {})


@in_loop
async def test_a_key_is_asked_of_every_caller() -> None:
    """Without it only the health is told; the scheme may be written in any case."""
    async with served(a_server(access=Access(api_key="sk-1"))) as caller:
        for path in ("/v1/models", "/status", "/v1/completions"):
            assert (await caller.get(path))[0] == 401
        assert (await caller.get("/health"))[0] == 200
        for wrong in ("Bearer sk-2", "Basic sk-1", "sk-1"):
            assert (await caller.get("/status", headers={"authorization": wrong}))[0] == 401
        for right in ("Bearer sk-1", "bearer sk-1"):
            assert (await caller.get("/status", headers={"authorization": right}))[0] == 200


@in_loop
async def test_too_many_open_outputs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is open goes on, the next call gets 429 and when to come again, and later there is room."""
    monkeypatch.setattr(app, "OPEN_MAX", 3)
    executor = GatedExecutor()
    server = a_server(lambda: executor)
    async with served(server) as caller:
        held = [asyncio.ensure_future(caller.complete([i], max_tokens=2)) for i in range(3)]
        await until(lambda: server.open == 3)
        async with caller.session.post(f"{caller.url}/v1/completions", data=b'{"prompt": "A"}') as answer:
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        executor.let.release(1000)
        assert [answer["choices"][0]["text"] for answer in await asyncio.gather(*held)] == [
            text_of([i], 2) for i in range(3)
        ]
        await caller.complete("A")


@in_loop
@pytest.mark.parametrize("stream", [False, True])
async def test_callers_that_leave_cancel_their_requests(stream: bool) -> None:
    """Waiting or running, streamed or not: the engine forgets them, and each request has ended once."""
    executor = GatedExecutor()
    server = a_server(lambda: executor)
    async with served(server) as caller:
        call = {"prompt": PROMPT, "max_tokens": 900, "n": 2, "stream": stream}
        body = json.dumps(call).encode()
        leaving = [
            asyncio.ensure_future(caller.session.post(f"{caller.url}/v1/completions", data=body)) for _ in range(3)
        ]
        staying = asyncio.ensure_future(caller.complete([9], max_tokens=3))
        await until(lambda: server.open == 7)
        # A step at a time, until all are at the executor and some run.
        await until(lambda: executor.lets() and len(executor.contexts) == 7)
        if stream:
            for answer in await asyncio.gather(*leaving):
                answer.close()
        else:
            for task in leaving:
                task.cancel()
        await until(lambda: executor.lets() and staying.done())
        assert staying.result()["choices"][0]["text"] == text_of([9], 3)
        await until(lambda: executor.lets() and not (server.open or executor.contexts))
        assert await ends(caller) == {"cancelled": 6, "finished": 1}


class Broken(FakeExecutor):
    """Computes three steps and fails for good."""

    def execute(self, plan: StepPlan) -> dict[int, int]:
        if self.steps >= 3:
            raise RuntimeError("out of order")
        return super().execute(plan)


@in_loop
async def test_an_engine_that_fails_is_said_to() -> None:
    """A stream under way ends with an error and no mark of a whole one; later calls get 5xx, and so does the health."""
    made: list[Broken] = []

    def make() -> Broken:
        if made:
            raise RuntimeError("no device")
        made.append(Broken())
        return made[0]

    async with served(a_server(make)) as caller:
        call = {"prompt": PROMPT, "max_tokens": 50, "stream": True}
        async with caller.session.post(f"{caller.url}/v1/completions", data=json.dumps(call).encode()) as answer:
            assert answer.status == 200
            events = (await answer.read()).split(b"\n\n")
        assert b"[DONE]" not in events
        assert "no executor" in json.loads(events[-2][6:])["error"]["message"]
        status, document = await caller.post("/v1/completions", {"prompt": "A"})
        assert (status, document["error"]["type"]) == (500, "server_error")
        assert (await caller.get("/health"))[0] == 503


@in_loop
async def test_clients_share_by_weight_and_the_bound_is_seen() -> None:
    """A flood beside a polite client: service by client, the gap below its bound, in status and metrics."""
    access = Access(weights={"gold": 4})
    async with served(a_server(access=access), metrics=True) as caller:
        header = access.client_header
        calls = [
            caller.post("/v1/completions", {"prompt": [i % 90] * 30, "max_tokens": 60}, headers={header: name})
            for name, count in (("flood", 60), ("gold", 12))
            for i in range(count)
        ]
        answers = await asyncio.gather(*calls)
        assert {status for status, _ in answers} == {200}
        assert (await caller.post("/v1/completions", {"prompt": "A"}))[0] == 200
        _, document = await caller.get("/status")
        clients = document["clients"]
        assert {name: client["weight"] for name, client in clients.items()} == {"gold": 4, "flood": 1, "others": 1}
        assert {name: client["output_tokens"] for name, client in clients.items()} == {
            "gold": 720,
            "flood": 3600,
            "others": 16,
        }
        promise = document["workers"]["0"]["promise"]
        assert 0 < promise["gap"] <= promise["gap_bound"]
        # Weights are quanta: the theorem of equal ones is not what bounds this gap.
        assert (promise["bound_violations"], set(promise["broken_assumptions"])) == (0, {"EqualQuanta"})
        async with caller.session.get(f"{caller.url}/metrics") as answer:
            text = await answer.text()
        assert 'fairsched_client_service_tokens_total{client="flood",phase="decode",worker="0"} 3600.0' in text
        assert 'fairsched_bound_violations_total{worker="0"} 0.0' in text


@in_loop
async def test_several_workers_serve_as_one() -> None:
    """Two processes: the same tokens, cached prompts and ends, and a promise of each."""
    server = await asyncio.to_thread(lambda: a_server(FakeExecutor, workers=2, router=RoundRobin()))
    async with served(server, metrics=True) as caller:
        answers = await asyncio.gather(*(caller.complete([i] * 20, max_tokens=30) for i in range(8)))
        assert [answer["choices"][0]["text"] for answer in answers] == [text_of([i] * 20, 30) for i in range(8)]
        text = text_of(PROMPT, 40)
        answer = await caller.complete(PROMPT, max_tokens=500, stop=text[17:20])
        assert answer["choices"][0]["text"] == text[: text.index(text[17:20])]
        _, document = await caller.get("/status")
        # The engine may have computed all 500 before it is told that the answer has its end.
        assert document["requests"] in ({"cancelled": 1, "finished": 8}, {"finished": 9})
        assert [worker["promise"]["bound_violations"] for worker in document["workers"].values()] == [0, 0]
        async with caller.session.get(f"{caller.url}/metrics") as scraped:
            assert 'fairsched_requests_total{outcome="finished",worker="1"} 4.0' in await scraped.text()
