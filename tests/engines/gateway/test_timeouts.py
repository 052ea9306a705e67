"""What takes too long: servers without a byte, calls without an end, and a gateway that is slow itself."""

import asyncio
import json
from collections.abc import AsyncIterator

from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.gateway.config import LimitConfig
from fairsched.engines.gateway.openai import WholeReader, usage_of
from tests.support.adapters.gateway_scenarios import Fake, events, faked, world
from tests.support.adapters.http import served, streamed
from tests.support.adapters.loops import in_loop, until

PROMPT_TOKENS = 35
"""A token a byte: no server says what it was."""
"""What the prompt of `World.ask` is taken for."""


class Slow:
    """A server whose answers begin with some events, and then wait until `goes_on`."""

    def __init__(self, first: list[bytes], *, head: bool = True) -> None:
        self.first = first
        self.head = head
        self.asked = 0
        self.left = 0
        self.goes_on = asyncio.Event()
        self.app = web.Application()
        self.app.router.add_post("/v1/chat/completions", self._answer)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if not self.head:
            await self._wait()
        return await streamed(request, self._chunks())

    async def _chunks(self) -> AsyncIterator[bytes]:
        for event in self.first:
            yield event
        await self._wait()
        for event in events(1):
            yield event

    async def _wait(self) -> None:
        try:
            await self.goes_on.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise


@in_loop
async def test_a_stream_that_waits_has_comments_and_then_its_answer() -> None:
    """While it is in the queue and while its server is silent; how many wait before it is in its head.  What comes to
    nothing by then is an event: time is over, no server answers, or the answer is an error.  Without a heartbeat, and
    for a call that is no stream, nothing comes before the answer."""
    limits = LimitConfig(heartbeat_seconds=0.05, wait_seconds=3.0, tries=1, down_seconds=0.02)
    async with faked(Fake(tokens=2, held=True), window_requests=1, limits=limits) as (fake, here):
        first = [asyncio.ensure_future(here.ask()) for _ in range(2)]
        await until(lambda: here.account.window.waiting == 1)
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "stream": True}
        async with here.http.stream("POST", "/v1/chat/completions", json=body, headers={"x-client": "a"}) as answer:
            assert (answer.status, answer.headers["x-fairsched-ahead"]) == (200, "1")
            assert await answer.content.readline() == b": waiting\n"
            fake.answers.set()
            rest = await answer.content.read()
        assert rest.replace(b": waiting\n\n", b"").lstrip() == b"".join(events(2))
        await asyncio.gather(*first)
        fake.answers.clear()
        for status in (400, 502):
            held = asyncio.ensure_future(here.ask())
            await until(lambda: fake.running)
            late = asyncio.ensure_future(here.ask(stream=True))
            await asyncio.sleep(0.2)
            fake.status = status
            fake.answers.set()
            said = (await late).content.rpartition(b"data: ")[2]
            assert json.loads(said)["error"]["type"] == ("server_error" if status > 500 else "invalid_request_error")
            await held
            fake.status = 200
            fake.answers.clear()
        held = asyncio.ensure_future(here.ask())
        await until(lambda: fake.running)
        assert b"no server had room" in (await here.ask(stream=True)).content
        assert (await here.ask(max_tokens=900)).status == 503
        fake.answers.set()
        await held


@in_loop
async def test_a_stream_without_a_byte_goes_elsewhere_and_is_charged() -> None:
    """A server that takes the call and says nothing, with a head or without, is given up; the other one answers, and
    the work that may have been done is charged: all that was declared, while no answer says how fast servers are."""
    fake = Fake(tokens=2)
    for head in (False, True):
        slow = Slow([], head=head)
        async with (
            served(slow.app) as one,
            served(fake.app) as two,
            world(one, two, limits=LimitConfig(first_byte_seconds=0.3)) as here,
        ):
            answer = await here.ask(stream=True)
            assert answer.content == b"".join(events(2))
            await until(lambda slow=slow: slow.left == 1)  # type: ignore[misc]
            await here.emptied()
            (client,) = here.status["clients"].values()
            assert (client["prompt_tokens"], client["output_tokens"]) == (PROMPT_TOKENS + 7, 10 + 2)


@in_loop
async def test_a_whole_answer_that_does_not_come_is_504_at_once_and_charged() -> None:
    """No other server is asked, which would compute it again; the server is told to stop; the prompt is charged."""
    slow, fake = Slow([], head=False), Fake()
    async with (
        served(slow.app) as one,
        served(fake.app) as two,
        world(one, two, limits=LimitConfig(read_seconds=0.3)) as here,
    ):
        answer = await here.ask()
        assert (answer.status, fake.asked, slow.asked) == (504, [], 1)
        await until(lambda: slow.left == 1)
        await here.emptied()
        (client,) = here.status["clients"].values()
        assert client["prompt_tokens"] == PROMPT_TOKENS
        assert here.status["outcomes"] == {"timed out": 1}


@in_loop
async def test_a_stream_that_stops_ends_with_an_error() -> None:
    """Its caller has what came, and an error event; what came is charged."""
    slow = Slow(events(3)[:4])
    async with served(slow.app) as url, world(url, limits=LimitConfig(read_seconds=0.3)) as here:
        answer = await here.ask(stream=True)
        *kept, error = answer.content.removesuffix(b"\n\n").split(b"\n\n")
        assert [each + b"\n\n" for each in kept] == slow.first
        assert "too long" in json.loads(error.removeprefix(b"data: "))["error"]["message"]
        await until(lambda: slow.left == 1)
        await here.emptied()
        (client,) = here.status["clients"].values()
        assert client["output_tokens"] >= 3
        assert here.status["outcomes"] == {"timed out": 1}


@in_loop
async def test_a_call_that_is_too_long_is_cut_off_though_it_goes_on() -> None:
    """After `call_seconds` at a server a stream that brings tokens all the time ends with an error event."""
    fake = Fake(tokens=100_000, pause=0.01)
    async with served(fake.app) as url, world(url, call_seconds=1) as here:
        answer = await here.ask(stream=True)
        error = answer.content.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
        assert "cut off" in json.loads(error.removeprefix(b"data: "))["error"]["message"]
        await until(lambda: fake.left == 1)
        await here.emptied()
        assert here.status["outcomes"] == {"cut off": 1}


@given(
    st.integers(0, 3_000_000),
    st.sampled_from((0, 70_000, 131_000, 1_000_000)),
    st.sampled_from(("", '"usage": 3, ', '\\"usage\\": {\\"completion_tokens\\": 999}', "é")),
    st.integers(1, 1 << 20),
)
def test_a_long_answer_says_what_it_says_whole(size: int, behind: int, within: str, cut: int) -> None:
    """What is read of an answer in pieces, of which a bounded part is kept, is what its whole body says, wherever it
    says it."""
    usage = '"usage": {"prompt_tokens": 30, "completion_tokens": 20}, "prompt_logprobs": "' + "y" * behind + '"'
    text = within if within.startswith("\\") else within.replace('"', '\\"')
    body = f'{{"choices": [{{"text": "{"x" * size}{text}"}}], {usage}}}'.encode()
    reader = WholeReader(50, 4)
    for start in range(0, len(body), cut):
        assert reader.pass_on(body[start : start + cut])[1] == body[start : start + cut]
    assert reader.usage == usage_of(body, 50, 4)
    assert reader.usage.output_tokens == 20
