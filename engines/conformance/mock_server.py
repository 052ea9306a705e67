"""A made-up OpenAI server that spends time as a stock engine does: slots, prefill, steps with a token each.

A step takes a fixed time, and one that was late is not made up for: a busy machine makes the engine slower, and changes
none of the counts.  It behaves as vLLM does where a gateway can be attacked through it.  A stream tells `usage` only
where the caller asked, `stop` withholds as many characters as its longest text has, calls that are left are cancelled,
and a step's tokens for one call are one event (`interval` of them).  What a prompt makes the model do stands in the
prompt:

- `[tokens 100]`: the answer ends by itself after so many tokens (else at `max_tokens`);
- `[prompt 4000]`: the prompt has so many tokens, however long its text is;
- `[call 7]`: the journal names the call so;
- `[pauses 3]`: after so many tokens the engine stands still, until it is released;
- `[breaks 4]`: after so many tokens the connection is gone;
- `[fails late]`: 500 after all of the work;
- `[answers 70000000 bytes]`: an answer that is no stream is so long.

`POST /behave` changes the server: `{"fails": "fast"}` answers 500 at once, `{"fails": "hangs"}` nothing any more, and
`{"quota": {"KEY": 5}}` answers 429 for that key with `Retry-After: 5`.  `GET /ledger` says what was spent for each key:
tokens, slot time, calls by end.
"""

import asyncio
import json
import re
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
from aiohttp import web

WORDS = re.compile(r"\[(tokens|prompt|call|pauses|breaks|fails|answers) (\w+)")
DEFAULT_TOKENS = 16
"""Of a call that names no most and whose prompt does not say when it ends."""
TOKEN = "xxxx"
"""The text of a token."""
BACKLOG = 4096
MODEL = "made-up"

Tell = Callable[[str, int], None]
"""Is told what happens to a call, by its number: arrived, begun, token, answered, left, broke."""


@attrs.define
class MockUsage:
    """What was spent for one key."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    slot_seconds: float = 0.0
    answered: int = 0
    left: int = 0
    failed: int = 0


@attrs.define(eq=False)
class Sequence:
    """A call in the engine: tokens come into `steps`, None at the end."""

    spent: MockUsage
    prompt_tokens: int
    output_tokens: int
    call: int = 0
    pauses_at: int = 0
    produced: int = 0
    gone: bool = False
    steps: asyncio.Queue[int | None] = attrs.field(factory=asyncio.Queue)


def _nothing(_: str, __: int) -> None:
    pass


class MockEngine:
    """A batch of `slots` sequences, first come first served; a step takes its time and brings each of them a token."""

    def __init__(self, slots: int, step_seconds: float, prefill_seconds: float, tell: Tell = _nothing) -> None:
        self.slots = slots
        self.step_seconds = step_seconds
        self.prefill_seconds = prefill_seconds
        self.tell = tell
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.work = asyncio.Event()
        self.hangs = False
        self.released = asyncio.Event()
        """While it is not set, the engine stands still between two steps."""
        self.released.set()

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)
        self.work.set()

    @property
    def live(self) -> int:
        return sum(not each.gone for each in (*self.running, *self.waiting))

    async def run(self) -> None:
        """Step for ever.  A step that was late is not made up for: a busy machine makes the engine slower."""
        while True:
            if not self.waiting and not self.running:
                self.work.clear()
                await self.work.wait()
            await self.released.wait()
            prompts = 0
            self.running = [each for each in self.running if not each.gone]
            while self.waiting and len(self.running) < self.slots:
                sequence = self.waiting.popleft()
                if not sequence.gone:
                    prompts += sequence.prompt_tokens
                    sequence.spent.prompt_tokens += sequence.prompt_tokens
                    self.running.append(sequence)
                    self.tell("begun", sequence.call)
            seconds = self.step_seconds + prompts * self.prefill_seconds
            await asyncio.sleep(seconds)
            await self.released.wait()
            if self.hangs:
                await asyncio.Event().wait()
            for sequence in self.running:
                self._step(sequence, seconds)

    def _step(self, sequence: Sequence, seconds: float) -> None:
        sequence.spent.slot_seconds += seconds
        sequence.spent.output_tokens += 1
        sequence.produced += 1
        sequence.steps.put_nowait(1)
        self.tell("token", sequence.call)
        if sequence.produced == sequence.pauses_at:
            self.released.clear()
        if sequence.produced == sequence.output_tokens:
            sequence.gone = True
            sequence.steps.put_nowait(None)


class MockServer:
    """The HTTP side of it.  `interval`: tokens in an event."""

    def __init__(self, engine: MockEngine, interval: int = 1) -> None:
        self.engine = engine
        self.interval = interval
        self.ledger: dict[str, MockUsage] = {}
        self.fails: str | None = None
        self.quota: dict[str, float] = {}
        self.refused = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 28)
        for path in ("/v1/chat/completions", "/v1/completions"):
            app.router.add_post(path, self.answer)
        app.router.add_post("/behave", self.behave)
        app.router.add_get("/ledger", self.told)
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)

        async def engine(_: web.Application) -> AsyncIterator[None]:
            task = asyncio.ensure_future(self.engine.run())
            yield
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        app.cleanup_ctx.append(engine)
        return app

    async def behave(self, request: web.Request) -> web.Response:
        document = await request.json()
        self.fails = document.get("fails")
        self.engine.hangs = self.fails == "hangs"
        self.quota = document.get("quota", {})
        return web.Response()

    async def told(self, _: web.Request) -> web.Response:
        spent = {name: attrs.asdict(each) for name, each in self.ledger.items()}
        running = sum(not each.gone for each in self.engine.running)
        waiting = sum(not each.gone for each in self.engine.waiting)
        return web.json_response({"spent": spent, "refused": self.refused, "running": running, "waiting": waiting})

    async def health(self, _: web.Request) -> web.Response:
        await self._hung()
        return web.Response(status=500 if self.fails else 200)

    async def _hung(self) -> None:
        if self.fails == "hangs":
            await asyncio.Event().wait()

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        await self._hung()
        key = request.headers.get("authorization", "").partition(" ")[2]
        if self.fails == "fast":
            return web.json_response({"error": {"message": "the engine is dead"}}, status=500)
        if key in self.quota:
            self.refused += 1
            headers = {"Retry-After": f"{self.quota[key]:g}"}
            return web.json_response({"error": {"message": "over quota"}}, status=429, headers=headers)
        prompt = json.dumps(body.get("messages") or body.get("prompt"))
        told = dict(WORDS.findall(prompt))
        most = body.get("max_completion_tokens") or body.get("max_tokens")
        natural = int(told["tokens"]) if "tokens" in told else most or DEFAULT_TOKENS
        tokens: int = min(natural, most) if most else natural
        spent = self.ledger.setdefault(key, MockUsage())
        call, pauses_at = int(told.get("call", "0")), int(told.get("pauses", "0"))
        length = int(told.get("prompt", "0")) or max(len(prompt) // 4, 1)
        sequence = Sequence(spent, length, tokens, call, pauses_at)
        self.engine.tell("arrived", call)
        self.engine.add(sequence)
        try:
            if body.get("stream"):
                return await self._stream(request, body, sequence, int(told.get("breaks", "0")))
            while await sequence.steps.get():
                pass
        finally:
            sequence.gone = True
            if sequence.produced < tokens:
                spent.left += 1
                self.engine.tell("left", call)
        if "fails" in told:
            spent.failed += 1
            return web.json_response({"error": {"message": "out of range float values"}}, status=500)
        spent.answered += 1
        self.engine.tell("answered", call)
        size = int(told.get("answers", "0")) or len(TOKEN) * tokens
        usage = _usage(sequence)
        message = {"role": "assistant", "content": TOKEN[0] * size}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        document = {"id": "1", "object": "chat.completion", "created": 0, "model": MODEL}
        return web.json_response(document | {"choices": [choice], "usage": usage})

    async def _stream(
        self, request: web.Request, body: dict[str, Any], sequence: Sequence, breaks_at: int
    ) -> web.StreamResponse:
        """Send tokens as they come; text that a stop text may begin in is withheld."""
        stops = body.get("stop") or []
        withheld = max((len(each) for each in ([stops] if isinstance(stops, str) else stops)), default=1) - 1
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        with suppress(ConnectionResetError):
            await response.prepare(request)
            await response.write(_event({"role": "assistant", "content": ""}))
            length = sent = tokens = seen = 0
            while (step := await sequence.steps.get()) is not None:
                length, tokens, seen = length + len(TOKEN) * step, tokens + step, seen + step
                if tokens < self.interval and sequence.produced < sequence.output_tokens:
                    continue
                tokens = 0
                text = max(length - withheld - sent, 0)
                sent += text
                await response.write(_event({"content": TOKEN[0] * text}))
                if seen == breaks_at and request.transport is not None:
                    self.engine.tell("broke", sequence.call)
                    request.transport.close()
                    return response
            await response.write(_event({"content": TOKEN[0] * (length - sent)}, "length"))
            if (body.get("stream_options") or {}).get("include_usage"):
                await response.write(_data({"choices": [], "usage": _usage(sequence)}))
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
            sequence.spent.answered += 1
            self.engine.tell("answered", sequence.call)
        return response


def _usage(sequence: Sequence) -> dict[str, int]:
    prompt, output = sequence.prompt_tokens, sequence.produced
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _event(delta: dict[str, str], reason: str | None = None) -> bytes:
    return _data({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})


def _data(fields: dict[str, object]) -> bytes:
    document = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
    return f"data: {json.dumps(document | fields)}\n\n".encode()


@asynccontextmanager
async def serving(server: MockServer, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve in the running loop, whose time may be virtual; gives the address.  Raises `OSError` for a taken port."""
    with socket.create_server((host, port), backlog=BACKLOG) as listener:
        # A call that is left is cancelled in the engine, as vLLM does; aiohttp does so only where it is told.
        runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
        await runner.setup()
        await web.SockSite(runner, listener, backlog=BACKLOG).start()
        try:
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            await runner.cleanup()
