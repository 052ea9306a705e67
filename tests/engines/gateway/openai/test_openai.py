"""The protocol: what a call may come to, what a server gets of it, and what an answer says while it passes."""

import base64
import json
import time
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairsched.engines.gateway import CallError, StreamReader, Usage, openai, usage_of
from fairsched.engines.gateway.config import GatewayConfig, ServerConfig
from fairsched.engines.gateway.openai.endpoints import GATED
from tests.support.adapters import gateway_fuzz

CONFIG = GatewayConfig((ServerConfig("http://127.0.0.1:9", 4000),), media_tokens=500)
CHAT = "/v1/chat/completions"
IMAGE = "data:image/png;base64," + base64.b64encode(bytes(30_000)).decode()


def read(path: str, fields: dict[str, Any]) -> openai.ForwardedCall:
    """The call with these fields at this path."""
    return openai.read_call(json.dumps(fields).encode(), CONFIG, openai.BY_PATH[path])


def user(content: Any) -> list[dict[str, Any]]:
    """A message of a user."""
    return [{"role": "user", "content": content}]


# --- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "fields", "prompt", "output"),
    [
        ("/v1/completions", {"prompt": "x" * 41}, 11, 16),
        ("/v1/completions", {"prompt": ["ab", "cd"], "n": 2, "best_of": 3}, 3, 96),
        ("/v1/completions", {"prompt_embeds": "x" * 40, "max_tokens": 5}, 10, 5),
        ("/v1/completions", {"prompt_embeds": ["x" * 40] * 3, "max_tokens": 5}, 33, 15),
        ("/v1/completions", {"prompt": "ab", "suffix": "x" * 40, "max_tokens": 5, "logprobs": 5, "echo": True}, 11, 5),
        (CHAT, {"messages": user("a"), "max_completion_tokens": 7, "max_tokens": 5, "n": 3}, 8, 21),
        ("/v1/responses", {"input": "x" * 40, "instructions": "y" * 8, "max_output_tokens": 9}, 12, 9),
        ("/v1/messages", {"messages": user("a"), "system": "s" * 40, "max_tokens": 6}, 18, 6),
        ("/v1/embeddings", {"input": ["x" * 40, "y" * 40]}, 22, 1),
        ("/v1/embeddings", {"input": [1, 2, 3]}, 3, 1),
        ("/v1/embeddings", {"input": [[1, 2, 3], [4]]}, 4, 1),
        ("/v1/rerank", {"query": "q" * 40, "documents": ["d" * 38]}, 21, 1),
        ("/v1/rerank", {"query": "q" * 40, "documents": ["d" * 7] * 10}, 126, 1),
        ("/v1/score", {"text_1": "q" * 40, "text_2": ["d" * 7] * 10}, 126, 1),
        ("/v1/score", {"query": [1] * 5, "items": [[1] * 2] * 4}, 28, 1),
        ("/score", {"queries": ["q" * 4] * 10, "documents": ["d" * 4] * 10}, 36, 1),
        # Objects count for as many as they may be.
        ("/score", {"queries": "q" * 40, "documents": {"content": [{"type": "text", "text": "d"}] * 10}}, 471, 1),
        ("/score", {"queries": [{"text": "q", "a": "", "b": ""}], "documents": ["d"] * 10}, 81, 1),
        ("/pooling", {"messages": user("a")}, 8, 1),
    ],
)
def test_the_size_of_a_call_at_its_endpoint(path: str, fields: dict[str, Any], prompt: int, output: int) -> None:
    """Input fields by their bytes, ids by their number, a query with each document that it is compared to; outputs for
    all answers of all prompts, and one place for a call that generates nothing."""
    call = read(path, fields)
    assert (call.prompt_tokens, call.max_output_tokens) == (prompt, output)
    assert call.declared


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": user([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": IMAGE}}])}),
        (CHAT, {"messages": user([{"type": "image_url", "image_url": IMAGE}])}),
        (CHAT, {"messages": user([{"type": "input_audio", "input_audio": {"data": IMAGE[22:], "format": "wav"}}])}),
        ("/v1/responses", {"input": user([{"type": "input_image", "image_url": IMAGE}])}),
        ("/v1/messages", {"messages": user([{"type": "image", "source": {"type": "base64", "data": IMAGE[22:]}}])}),
        (
            "/v1/messages",
            {"messages": user([{"type": "tool_result", "content": [{"type": "image", "source": {"data": IMAGE}}]}])},
        ),
    ],
)
def test_an_image_is_not_its_bytes(path: str, fields: dict[str, Any]) -> None:
    """An image of 30 kB, or a sound, is the setting's tokens and a little text, and is forwarded as it came."""
    call = read(path, {**fields, "max_tokens": 5, "max_output_tokens": 5})
    assert 500 < call.prompt_tokens < 560
    assert IMAGE[22:].encode() in call.body


@pytest.mark.parametrize(
    ("path", "field", "part"),
    [
        (CHAT, "messages", {"type": "file", "file": {"file_id": "file-1"}}),
        (CHAT, "messages", {"type": "image_embeds", "image_embeds": "x"}),
        (CHAT, "messages", {"image_url": {"url": "http://x/y.png"}}),
        (CHAT, "messages", {"type": "image_url", "uuid": "known"}),
        ("/v1/responses", "input", {"type": "input_image", "file_id": "file-1"}),
        ("/v1/responses", "input", {"type": "input_file", "file_id": "file-1"}),
        ("/v1/messages", "messages", {"type": "document", "source": {"type": "url", "url": "http://x/y.pdf"}}),
        ("/v1/messages", "messages", {"type": "tool_result", "content": [{"type": "search_result", "id": "a"}]}),
    ],
)
def test_a_part_that_stands_for_more_than_it_has_is_no_little_text(path: str, field: str, part: dict[str, Any]) -> None:
    """The id of a file, an address, a type that is not known: it is taken for a medium, and may be the most of one."""
    for content in ([part], ["text", part]):
        call = read(path, {field: user(content), "max_tokens": 5, "max_output_tokens": 5})
        assert 500 <= call.prompt_tokens < 600
        assert call.prompt_tokens_max >= CONFIG.media_tokens_max
    call = read("/v1/responses", {"input": [{"type": "item_reference", "id": "a"}], "max_output_tokens": 5})
    assert call.prompt_tokens_max >= CONFIG.media_tokens_max


def test_calls_of_tools_and_their_results_are_text() -> None:
    """They count by their bytes, as text does."""
    parts = [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "1", "input": {}}, {"type": "tool_result"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    for fields in ({"messages": user(parts)}, {"messages": user("a"), "tools": tools}):
        call = read("/v1/messages", {**fields, "max_tokens": 5})
        assert call.prompt_tokens_max <= len(json.dumps(fields))


def test_text_that_looks_like_an_image_is_text() -> None:
    """A text part with a data URL in it counts by its bytes: a server reads it as text."""
    for part in ({"type": "text", "text": IMAGE}, {"type": "file", "file": {"file_data": IMAGE}}):
        assert read(CHAT, {"messages": user([part]), "max_tokens": 5}).prompt_tokens > len(IMAGE) // 4


def test_a_call_that_names_no_most_is_not_declared_and_its_server_is_told_what_was_reserved() -> None:
    """The endpoint's own field carries it, a part for each answer; a declared one passes as it came."""
    fields = {"messages": user("a"), "input": "a"}
    for path, name in ((CHAT, "max_tokens"), ("/v1/responses", "max_output_tokens"), ("/v1/messages", "max_tokens")):
        call = read(path, fields)
        assert not call.declared
        assert json.loads(call.body_with_most(3000)) == {**fields, name: 3000}
        declared = read(path, {**fields, name: 7})
        assert declared.body_with_most(7) is declared.body
    assert json.loads(read("/v1/completions", {"prompt": "a"}).body)["max_tokens"] == 16
    assert json.loads(read(CHAT, {**fields, "n": 4}).body_with_most(4000))["max_tokens"] == 1000
    assert json.loads(read(CHAT, {**fields, "max_tokens": None}).body_with_most(9))["max_tokens"] == 9


@pytest.mark.parametrize(
    ("options", "hides"),
    [({}, True), ({"stream_options": None}, True), ({"stream_options": {"include_usage": False, "x": 1}}, True)]
    + [({"stream_options": {"include_usage": True}}, False)],
)
def test_every_stream_is_asked_for_usage_and_no_other_byte_changes(options: dict[str, Any], hides: bool) -> None:
    """Numbers keep their writing; a caller that asked gets its body forwarded as it is."""
    raw = b'{ "prompt":"a", "seed": 1.50e3,"max_tokens" :5,"stream":true' + json.dumps(options).encode()[1:-1].join(
        (b"," if options else b"", b"}")
    )
    call = openai.read_call(raw, CONFIG, openai.BY_PATH["/v1/completions"])
    asked = json.loads(call.body)
    assert asked["stream_options"]["include_usage"] is True
    assert b"1.50e3" in call.body
    assert call.hides_usage == hides
    assert (call.body == raw) == (not hides)
    assert {**asked, "stream_options": None} == {**json.loads(raw), "stream_options": None}
    for path in ("/v1/responses", "/v1/messages"):
        fields = {"messages": user("a"), "input": "a", "stream": True}
        assert json.loads(read(path, fields).body) == fields
        assert read(path, fields).streams
        assert not read(path, {**fields, "stream": False}).streams


NONSENSE = [
    b"",
    b"{",
    b"[1]",
    b"{}",
    b"null",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b'{"prompt": "\xff"}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "a", "x": NaN}',
    b'{"prompt": "a", "x": Infinity}',
    b'{"prompt": "a", "max_tokens": 1, "max_tokens": 4000}',
    b'{"prompt": "a", "max_tokens": 1, "max\\u005ftokens": 4000}',
    b'{"prompt": "a", "x": ' + b"[" * 4000 + b"]" * 4000 + b"}",
    b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"prompt": "a"} {}',
    b'{"prompt": "a\x00"}',
    b'{"prompt": "a", "n": 0}',
    b'{"prompt": "a", "n": true}',
    b'{"prompt": "a", "n": 1.0}',
    b'{"prompt": "a", "n": "1"}',
    b'{"prompt": "a", "max_tokens": -2}',
    b'{"prompt": "a", "max_tokens": 5.5}',
    b'{"prompt": "a", "max_tokens": "many"}',
    b'{"prompt": "a", "max_tokens": {}}',
    b'{"prompt": "a", "x": "\xff"}',
    b'{"prompt": "a", "max_tokens": 99999999999999999999999}',
    b'{"prompt": "a", "max_tokens": 4000000000, "n": 4000000000}',
    b'{"prompt": "a", "stream": "true"}',
    b'{"prompt": "a", "stream": 1}',
    b'{"prompt": "a", "stream": true, "stream_options": [1]}',
]


@pytest.mark.parametrize("raw", NONSENSE, ids=range(len(NONSENSE)))
def test_what_is_no_call_is_one_clear_400(raw: bytes) -> None:
    """Bad JSON, bad text, numbers that are none, fields that come twice: a sentence of one line, and no traceback."""
    with pytest.raises(CallError) as caught:
        openai.read_call(raw, CONFIG, openai.BY_PATH["/v1/completions"])
    assert caught.value.status == 400
    assert 10 < len(caught.value.message) < 200
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(("most", "output"), [("0", 1), ("-1", 4096), ("5.0", 5), ('"5"', 5), ("null", 4096), ("5", 5)])
def test_a_limit_is_read_as_servers_read_it(most: str, output: int) -> None:
    """None for -1 and null, text of a number, and 0, which holds a place for one token; it goes on as it came."""
    raw = f'{{"messages":[{{"role":"user","content":"a"}}],"max_tokens":{most}}}'.encode()
    call = openai.read_call(raw, CONFIG, openai.BY_PATH[CHAT])
    assert (call.max_output_tokens, call.declared, call.body) == (output, output != 4096, raw)


JUNK = b"{" + b",".join(b'"%d":1' % i for i in range(400_000)) + b"}"


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        (CHAT, b'{"stream":1,"x":' + JUNK + b"}"),
        (CHAT, b'{"x":' + JUNK + b',"messages":[{"role":"user","content":"a"}]}'),
        (CHAT, b'{"messages":[{"role":"user","content":' + JUNK + b"}]}"),
        (CHAT, b'{"messages":[' + b"{}," * 1_300_000 + b"{}]}"),
        (CHAT, b'{"n":' + JUNK + b"}"),
        ("/v1/completions", b'{"prompt":[' + b"[]," * 1_300_000 + b"[1]]}"),
        ("/v1/completions", b'{"prompt":[' + b'"",' * 1_300_000 + b'""]}'),
        (CHAT, JUNK),
    ],
    ids=range(8),
)
def test_no_body_is_costly_to_read(path: str, raw: bytes) -> None:
    """Whatever it is made of, reading it makes no objects, and takes a tenth of what decoding it does."""
    begun = time.process_time()
    msgspec.json.decode(raw)
    decoded = time.process_time()
    with suppress(CallError):
        openai.read_call(raw, CONFIG, openai.BY_PATH[path])
    assert time.process_time() - decoded < max((decoded - begun) / 2, 0.1)


def test_brackets_in_a_text_are_text() -> None:
    """However many there are."""
    text = "[[1,2],[3,4]]" * 50_000
    assert read(CHAT, {"messages": user(text), "max_tokens": 1}).prompt_tokens >= len(text) // 4
    assert read("/v1/completions", {"prompt": text}).prompt_tokens == len(text) // 4


def test_escapes_count_as_what_they_stand_for_at_most() -> None:
    """A mark that is written in ASCII is three bytes of UTF-8 at most; a backslash before a `u` is no escape."""
    for text in ("é漢😀" * 100, "\\u" * 300):
        plain, escaped = (
            openai.read_call(json.dumps({"messages": user(text)}, ensure_ascii=each).encode(), CONFIG)
            for each in (False, True)
        )
        assert plain.prompt_tokens <= escaped.prompt_tokens <= 1.5 * plain.prompt_tokens + 1


def test_of_more_parts_than_are_searched_all_count_by_their_bytes() -> None:
    """How many are searched for media has a limit."""
    image = {"type": "image_url", "image_url": {"url": "data:," + "x" * 70}}
    for count, searched in ((8_000, True), (30_000, False)):
        raw = json.dumps({"messages": user([image] * count)}, separators=(",", ":")).encode()
        call = openai.read_call(raw, replace(CONFIG, media_tokens=9), openai.BY_PATH[CHAT])
        assert (call.prompt_tokens < 9 * count + 11 * count) == searched
        assert call.body == raw


def test_work_that_would_outlive_its_call_is_refused() -> None:
    """A response in the background, or one that goes on from what a server keeps."""
    for name in ("background", "previous_response_id"):
        with pytest.raises(CallError, match=name):
            read("/v1/responses", {"input": "a", name: True})
        assert read("/v1/responses", {"input": "a", name: None}).prompt_tokens == 1


VALUES = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3)
FIELDS = st.dictionaries(st.sampled_from(["a", "max_tokens", "stream_options"]), VALUES)


@given(FIELDS.filter(bool), FIELDS)
def test_fields_are_set_and_others_stay(fields: dict[str, Any], more: dict[str, Any]) -> None:
    """The object has both, the later ones where both name one, and each name once."""
    raw = msgspec.json.encode(fields)
    for body in (raw, json.dumps(fields, indent=1).encode() + b" \n"):
        if not more:
            continue
        made = openai.with_fields(body, more)
        assert json.loads(made) == {**fields, **more}
        assert len(json.loads(made, object_pairs_hook=list)) == len({**fields, **more})


# --- streams --------------------------------------------------------------------------------------------------------


def event(document: Any, name: str | None = None) -> bytes:
    """An event of a stream."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def chat(delta: dict[str, Any], why: str | None = None, **more: Any) -> bytes:
    """An event of a chat, as vLLM writes it."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": why}
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice], **more})


ROLE = chat({"role": "assistant", "content": ""})
END = chat({}, "stop")
USAGE = event({"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 200}})
DONE = b"data: [DONE]\n\n"


def test_an_event_without_text_is_a_token_and_role_and_end_are_none() -> None:
    """A server that waits for a stop sequence sends empty texts, which were computed; the role and the reason were not;
    an end with text is a token."""
    for tokens, events in (
        (0, [ROLE, END, USAGE, DONE]),
        (3, [ROLE, chat({"content": ""}), chat({}), chat({"content": "a"}), END, DONE]),
        (2, [chat({"role": "assistant", "content": "a"}), chat({"content": "b"}, "length")]),
        (2, [chat({"reasoning_content": "a"}), chat({"tool_calls": [{"index": 0}]})]),
        (2, [event({"choices": [{"text": "", "finish_reason": None}]}), event({"choices": [{"text": ""}]})]),
        (1, [event({"choices": [{"text": "a"}]}), event({"choices": [{"text": "", "finish_reason": "stop"}]})]),
        (0, [event({"error": {"message": "no"}}), b": ping\n\n", event({"choices": []})]),
        (1, [b"data: {broken\n\n"]),
    ):
        assert StreamReader().read(b"".join(events)) == tokens


def test_usage_is_the_truth_of_a_stop_sequence_that_withholds_the_text() -> None:
    """Two hundred tokens of which the caller sees one event are two hundred."""
    reader = StreamReader(hides_usage=True)
    assert reader.read(ROLE + chat({"content": "z" * 200}, "stop") + USAGE + DONE) == 1
    assert reader.usage == Usage(9, 200)


def test_usage_is_left_out_only_where_it_stands_alone() -> None:
    """The caller that did not ask sees the other events, those with `usage` of null or beside a choice too, as they
    are; a caller that asked sees all."""
    nothing, beside = chat({"content": "a"}, usage=None), chat({"content": "a"}, "stop", usage={"completion_tokens": 5})
    for end in (b"\n", b"\r\n"):
        events = [each.replace(b"\n", end) for each in (ROLE, nothing, USAGE, beside, DONE)]
        hidden, plain = StreamReader(hides_usage=True), StreamReader()
        _, seen = hidden.pass_on(b"".join(events))
        assert seen == b"".join(each for each in events if not each.startswith(USAGE[:-2]))
        assert plain.pass_on(b"".join(events))[1] == b"".join(events)
        assert hidden.usage == plain.usage == Usage(9, 5)


def test_usage_beside_a_choice_that_says_nothing_is_the_whole() -> None:
    """As LiteLLM ends a stream: no token, the truth, and left out where the caller did not ask."""
    last = b'data: {"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":7,"completion_tokens":40}}\n\n'
    reader = StreamReader(hides_usage=True)
    assert reader.pass_on(last) == (0, b"")
    assert (reader.usage.output_tokens, reader.usage.computed_tokens) == (40, 7)


def test_progress_of_one_answer_is_not_the_usage_of_all() -> None:
    """With `continuous_usage_stats` each event says how far its own choice is; the whole is at the end."""
    reader = StreamReader()
    reader.read(chat({"content": "a"}, usage={"prompt_tokens": 9, "completion_tokens": 1}))
    assert reader.usage == Usage(9, None)
    reader.read(USAGE)
    assert reader.usage == Usage(9, 200)


@pytest.mark.parametrize("more", [1, 2])
def test_usage_at_the_end_of_one_answer_is_not_that_of_all(more: int) -> None:
    """Another goes on, and its caller may leave."""
    reader = StreamReader()
    reader.read(chat({"content": "a"}) + chat({}, "stop", usage={"prompt_tokens": 9, "completion_tokens": 1}))
    assert reader.usage == Usage(9, 1)
    for text in "bc"[:more]:
        reader.read(chat({"content": text}))
    assert reader.usage == Usage(9, None)


RESPONSES = [
    event({"type": "response.created", "response": {"status": "in_progress", "usage": None}}, "response.created"),
    event({"type": "response.output_text.delta", "delta": "a", "sequence_number": 1}, "response.output_text.delta"),
    event(
        {"type": "response.reasoning_text.delta", "delta": "", "sequence_number": 2}, "response.reasoning_text.delta"
    ),
    event({"type": "response.output_text.done", "text": "ends in .delta"}, "response.output_text.done"),
    event(
        {
            "type": "response.completed",
            "response": {
                "usage": {"input_tokens": 20, "output_tokens": 30, "input_tokens_details": {"cached_tokens": 8}},
                "output": [{"usage": {"output_tokens": 7}}],
            },
        },
        "response.completed",
    ),
]
MESSAGES = [
    event(
        {"type": "message_start", "message": {"usage": {"input_tokens": 12, "output_tokens": 1}, "content": []}},
        "message_start",
    ),
    event({"type": "content_block_start", "index": 0}, "content_block_start"),
    event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}, "content_block_delta"),
    event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "b"}}, "content_block_delta"),
    event(
        {"type": "message_delta", "usage": {"input_tokens": 4, "cache_creation_input_tokens": 6, "output_tokens": 30}},
        "message_delta",
    ),
    event({"type": "message_stop"}, "message_stop"),
]


def test_streams_of_responses_and_messages() -> None:
    """Deltas are tokens; usage stands in `response.completed`, or at a message's start and end, where prompt tokens
    that were read from a cache are not computed and those that were written to one are."""
    reader = StreamReader("responses", hides_usage=True)
    assert reader.pass_on(b"".join(RESPONSES)) == (2, b"".join(RESPONSES))
    assert reader.usage == Usage(12, 30, 8)
    reader = StreamReader("messages", hides_usage=True)
    assert reader.read(b"".join(MESSAGES[:4])) == 2
    assert reader.usage == Usage(12, None)
    assert reader.pass_on(b"".join(MESSAGES[4:])) == (0, b"".join(MESSAGES[4:]))
    assert reader.usage == Usage(10, 30)


def test_what_a_whole_answer_says() -> None:
    """Usage of all kinds; a server that says none is charged by bytes, one that generates nothing has no outputs."""
    said = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    assert usage_of(json.dumps({"usage": said}).encode(), 100, 4) == Usage(5, 3, 4)
    assert usage_of(json.dumps({"usage": {"input_tokens": 9, "output_tokens": 3}}).encode(), 100, 4) == Usage(9, 3)
    assert usage_of(b"x" * 40, 100, 4) == usage_of(b'{"usage": []}' + b" " * 27, 100, 4) == Usage(None, 10)
    assert usage_of(json.dumps({"data": [], "usage": {"prompt_tokens": 9}}).encode(), 0, 4) == Usage(9, 0)


@pytest.mark.parametrize("before", [0, 300_000])
@pytest.mark.parametrize("behind", [0, 70_000, 300_000])
def test_what_a_caller_wrote_is_not_what_its_server_used(before: int, behind: int) -> None:
    """A server may repeat metadata or tools of a call, before what it says or behind."""
    said = {"prompt_tokens": 9_000, "completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": 4_000}}
    told = {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    answer = {"tools": [told], "a": "x" * before, "usage": said, "b": "x" * behind, "metadata": told}
    reader, body = openai.WholeReader(100, 4), json.dumps(answer).encode()
    for start in range(0, len(body), 5_000):
        reader.pass_on(body[start : start + 5_000])
    assert reader.usage == Usage(5_000, 30, 4_000)


TEXTS = st.text(st.sampled_from('ab"\\\n\u00e9\U0001f600{}:,'), max_size=6)
CHOICES = st.fixed_dictionaries(
    {
        "delta": st.dictionaries(
            st.sampled_from(["content", "role", "reasoning_content"]), TEXTS | st.none(), max_size=2
        )
    },
    optional={"finish_reason": st.sampled_from([None, "stop"]), "text": TEXTS, "logprobs": st.none()},
)
NUMBERS = st.integers(0, 9) | st.none() | st.text(max_size=1) | st.just(-1)
USAGES = st.none() | st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens"]), NUMBERS)
DOCUMENTS = st.fixed_dictionaries(
    {}, optional={"choices": st.lists(CHOICES, max_size=2), "usage": USAGES, "id": TEXTS, "error": TEXTS}
)
LINES = st.one_of(
    DOCUMENTS.map(lambda each: b"data: " + json.dumps(each, separators=(",", ":")).encode()),
    DOCUMENTS.map(lambda each: b"data:" + json.dumps(each, ensure_ascii=False).encode()),
    st.sampled_from([b"", b"", b"", b"\r", b"data: [DONE]", b"event: x", b": ping", b"data: {", b"data: 7", b"id: 1"]),
)
STREAMS = st.lists(LINES, max_size=12).map(b"\n".join)


SENT = st.builds(
    gateway_fuzz.mutated,
    st.sampled_from(gateway_fuzz.STREAMS),
    st.randoms(use_true_random=False),
    st.just(gateway_fuzz.STREAMS),
)


@example(USAGE + USAGE + DONE, [3, len(USAGE), len(USAGE) + 1], True)
@example(chat({"content": "a"}) + chat({"content": ""}, "stop") + b"data: " + b"x" * 70, [5, 300], True)
@example(gateway_fuzz.mutated(gateway_fuzz.STREAMS[0], Random(0), gateway_fuzz.STREAMS), [0, 0, 7], True)
@given(STREAMS | SENT, st.lists(st.integers(0, 900), max_size=8), st.booleans())
def test_however_a_stream_is_cut_it_says_the_same(data: bytes, cuts: list[int], hides: bool) -> None:
    """Tokens, usage and the bytes that a caller sees do not depend on where the bytes were cut, whatever a server
    sends."""
    gateway_fuzz.check_stream(data, [min(cut, len(data)) for cut in cuts], hides=hides)


def dispatched(data: bytes) -> list[bytes]:
    """The data of the events of a stream, as clients read it: an event ends with an empty line."""
    events, lines = [], []
    for line in data.replace(b"\r\n", b"\n").split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[5:].strip())
        elif not line and lines:
            events.append(b"\n".join(lines))
            lines = []
    return events


@given(st.integers(0, 600), st.integers(1, 40), st.booleans(), st.sampled_from([b"\n", b"\r\n"]))
def test_an_error_is_an_event_of_its_own_wherever_a_stream_breaks_off(
    size: int, step: int, hides: bool, end: bytes
) -> None:
    """After whole events, in the middle of a line, or between a line and the empty one behind it."""
    whole = (ROLE + chat({"content": "a"}) * 3 + USAGE).replace(b"\n", end)
    data = whole[:size]
    reader = StreamReader(hides_usage=hides)
    seen = b"".join(reader.pass_on(data[start : start + step])[1] for start in range(0, len(data), step))
    said = dispatched(seen + reader.break_off("gone"))
    assert json.loads(said[-1])["error"]["message"] == "gone"
    before = dispatched(whole)
    assert all(each in before or before[i].startswith(each) for i, each in enumerate(said[:-1]))


def slow(data: bytes) -> int:
    """The tokens of a stream, by decoding each event."""
    tokens = 0
    for line in data.split(b"\n"):
        reader = StreamReader()
        tokens += reader.read(line + b"\n")
    return tokens


@given(st.lists(CHOICES, max_size=8), st.booleans())
def test_an_event_that_is_recognized_by_its_bytes_counts_as_if_it_were_decoded(choices: list[Any], cut: bool) -> None:
    """A reader that remembers the event before counts as one that has seen none."""
    events = [event({"id": "a", "choices": [each]}) for each in choices]
    reader = StreamReader()
    tokens = sum(reader.read(each) for each in events) if cut else reader.read(b"".join(events))
    assert tokens == slow(b"".join(events))


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1, 3 << 20])
def test_a_line_without_an_end_is_passed_on_and_not_kept(size: int) -> None:
    """It counts once, passes whole, and what comes after it is read."""
    data = b"data: " + b"x" * size + b"\n\n" + USAGE + DONE
    for step in (len(data), 70_001):
        reader = StreamReader(hides_usage=True)
        passed = [reader.pass_on(data[start : start + step]) for start in range(0, len(data), step)]
        assert sum(count for count, _ in passed) == 1
        assert b"".join(seen for _, seen in passed) + reader.rest() == data.replace(USAGE, b"")
        assert reader.usage == Usage(9, 200)


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "invalid_request_error", None),
        (401, "invalid_request_error", "invalid_api_key"),
        (404, "invalid_request_error", "unknown_url"),
        (408, "invalid_request_error", None),
        (429, "rate_limit_error", "rate_limit_exceeded"),
        (502, "server_error", None),
        (503, "server_error", "server_overloaded"),
    ],
)
def test_errors_have_the_type_and_code_of_the_protocol(status: int, kind: str, code: str | None) -> None:
    """OpenAI's everywhere but at Anthropic's endpoint, whose clients read another form."""
    expected = {"error": {"message": "no", "type": kind, "param": None, "code": code}}
    assert openai.error_document(status, "no") == openai.error_document(status, "no", "responses") == expected
    document = openai.error_document(status, "no", "messages")
    assert document["type"] == "error"
    assert set(document["error"]) == {"type", "message"}  # type: ignore[call-overload]


def test_an_error_quotes_what_is_no_text() -> None:
    """Half a surrogate pair, which a header or a path may hold, does not keep the refusal from its caller."""
    for form in ("choices", "messages"):
        assert "?" in msgspec.json.encode(openai.error_document(404, "there is no /\udce9 here", form)).decode()


def test_a_stream_that_breaks_off_ends_in_an_event_of_its_form() -> None:
    """Each form's clients find the message where they look for it."""
    for endpoint in GATED:
        said = openai.error_event("broke\noff", endpoint.form)
        *head, data, _, _ = said.split(b"\n")
        document = json.loads(data.removeprefix(b"data: "))
        assert (document.get("message") or document["error"]["message"]) == "broke\noff"
        assert head == ([b"event: error"] if endpoint.form in ("responses", "messages") else [])


@pytest.mark.parametrize(
    ("body", "there"),
    [
        *((each, True) for each in (b'{"prompt":"x"}', b'{"messages":[{}],"prompt":""}', b'{"prompt":[[1]]}')),
        *((each, False) for each in (b"", b"[]", b"nonsense", b'{"prompt":""}', b'{"messages":[]}', b'{"input":"x"}')),
        *((each, False) for each in (b'{"prompt":"\xff"}', b'{"prompt":"x"', b"[" * 100_000)),
    ],
)
def test_a_body_has_a_prompt_or_none(body: bytes, there: bool) -> None:
    """An object with messages or a prompt that hold something; what is no JSON has none."""
    assert openai.has_prompt(body) is there
