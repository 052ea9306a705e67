"""The client that the gateway names to vLLM's server, whatever the caller says."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.adapters.vllm.middleware import GatewayClient
from fairsched.engines.gateway.identity import told_name

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.dictionaries(st.text(), JSON, max_size=3)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


def passed(
    body: bytes, headers: list[tuple[bytes, bytes]], pieces: int = 1, **scope: Any
) -> tuple[dict[str, Any], bytes]:
    """What the server behind the middleware is given: its scope and the body."""
    size = max(-(-len(body) // pieces), 1)
    cut = [body[i : i + size] for i in range(0, len(body), size)] or [b""]
    given: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        text, more = b"", True
        while more:
            message = await receive()
            text, more = text + message["body"], message["more_body"]
        given.append((scope, text))

    async def receive() -> dict[str, Any]:
        piece = cut.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(cut)}

    async def send(_: Any) -> None:
        raise AssertionError("nothing is sent")

    whole = {"type": "http", "method": "POST", "headers": [*headers, (b"Content-Length", b"%d" % len(body))]} | scope
    asyncio.run(GatewayClient(app)(whole, receive, send))
    ((scope_there, text),) = given
    return scope_there, text


def header(name: str) -> list[tuple[bytes, bytes]]:
    """The gateway's header for a client."""
    key, value = told_name(name)
    return [(key.encode(), value.encode())]


@given(
    CALLS,
    NAMES,
    st.none() | st.dictionaries(st.sampled_from(["client", "k"]), st.text() | st.integers()),
    st.integers(1, 4),
)
def test_the_scheduler_is_told_the_name_in_the_header_and_no_other(
    call: dict[str, Any], name: str, arguments: dict[str, Any] | None, pieces: int
) -> None:
    """All else of the call is what it was, and its length is said truly; without a header there is no client."""
    if arguments is not None:
        call["vllm_xargs"] = arguments
    for headers, client in ((header(name), {"client": name} if name else {}), ([], {})):
        scope, text = passed(json.dumps(call).encode(), headers, pieces)
        there = json.loads(text)
        kept = {key: value for key, value in (arguments or {}).items() if key != "client"}
        assert there.pop("vllm_xargs", {}) == kept | client
        assert there == {key: value for key, value in call.items() if key != "vllm_xargs"}
        lengths = [value for key, value in scope["headers"] if key.lower() == b"content-length"]
        assert lengths == [b"%d" % len(text)]


@pytest.mark.parametrize("body", [b"", b"not json", b"[1]", b'"x"', b'{"vllm_xargs": 3}', b'{"a": ' + b"[" * 100_000])
def test_what_is_no_call_passes_as_it_is(body: bytes) -> None:
    """vLLM refuses it."""
    assert passed(body, header("gold"))[1] == body


@pytest.mark.parametrize(
    "body", [b'{"n": NaN, "vllm_xargs": {"client": "a"}}', '{"vllm_xargs": {"client": "a"}}'.encode("utf-16")]
)
def test_what_only_some_readers_take_brings_no_name(body: bytes) -> None:
    """vLLM's server reads `NaN` and UTF-16."""
    assert json.loads(passed(body, [])[1])["vllm_xargs"] == {}


def test_a_name_that_is_said_twice_is_the_gateways() -> None:
    """Of two members of one name the second counts, for vLLM and for us; what is passed on has one."""
    body = b'{"vllm_xargs": {"client": "a"}, "vllm_xargs": {"client": "b", "client": "c"}}'
    assert json.loads(passed(body, header("gold"))[1]) == {"vllm_xargs": {"client": "gold"}}
    assert passed(body, header("gold"))[1].count(b"client") == 1


def test_a_caller_that_left_and_other_calls_are_passed_on() -> None:
    """A websocket, a GET, and the message that a caller is gone."""
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["type"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def main() -> None:
        for scope in ({"type": "websocket"}, {"type": "http", "method": "GET"}, {"type": "http", "method": "POST"}):
            await GatewayClient(app)(scope | {"headers": []}, receive, receive)  # type: ignore[arg-type]

    asyncio.run(main())
    assert seen == ["http.disconnect"] * 3
