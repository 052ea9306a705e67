"""The server as an aiohttp application: OpenAI's endpoints before a backend, health, status and metrics.

A request of a caller that leaves, or stops reading for good, is cancelled: aiohttp cancels its handler.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TypeVar
from urllib.parse import unquote

import attrs
from aiohttp import web

from fairsched.engines import serving
from fairsched.engines.gateway import CLIENT_HEADER
from fairsched.engines.gateway.openai import CallError, error_document, error_event
from fairsched.engines.server.backend import Backend
from fairsched.engines.server.calls import AnswerWriter, CallReader, CompletionCall, OutputChoice, encode
from fairsched.engines.server.text import OutputText

BODY_BYTES_MAX = 4 << 20
BODY_SECONDS = 60.0
"""A body that is not whole after so long is refused."""
OPEN_MAX = 4096
"""Outputs that are open at a time; calls beyond are refused with 429."""
CLIENTS_MAX = 1024
"""Unknown clients beyond so many share the name `others`."""
RETRY_AFTER_S = 1
T = TypeVar("T")
_log = logging.getLogger("fairsched.server")


@attrs.frozen
class Access:
    """How callers are known: the header that names a client, the weights of known clients, and the key of all (None:
    any caller is served)."""

    client_header: str = CLIENT_HEADER
    weights: dict[str, int] = attrs.field(factory=dict)
    api_key: str | None = attrs.field(default=None, repr=False)


class ApiServer:
    """Answers calls: reads them with `reader`, and has `backend` compute.  `seed` is that of outputs without one."""

    def __init__(self, backend: Backend, reader: CallReader, access: Access, *, seed: int = 0) -> None:
        self.backend = backend
        self.reader = reader
        self.access = access
        self.open = 0
        self._seed = seed
        self._names = serving.ClientRegistry(access.weights, unknown_max=CLIENTS_MAX)

    def application(self, *, metrics: bool = False) -> web.Application:
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._errors])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/status", self._status)
        if metrics:
            app.router.add_get("/metrics", self._scraped())
        return app

    # --- around a call ----------------------------------------------------------------------------------------------

    @web.middleware
    async def _errors(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer errors as OpenAI's API does, and callers without the key with 401."""
        try:
            if request.path != "/health":
                self._check_key(request)
            return await handler(request)
        except CallError as error:
            return _refusal(error)
        except web.HTTPException as error:
            return _refusal(CallError(error.status, error.reason))
        except ConnectionError:
            raise  # The caller has left.
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            return _refusal(CallError(500, "this server failed"))

    def _check_key(self, request: web.Request) -> None:
        key = self.access.api_key
        if key is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), key.encode()):
            raise CallError(401, "the key of this server is needed: authorization: Bearer KEY")

    def _client(self, request: web.Request) -> str:
        # As the gateway writes names; a plain name is itself.
        name = serving.client_name(unquote(request.headers.get(self.access.client_header, "")).strip())
        return self._names.resolve(name or serving.OTHERS)[0].name

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({}, status=200 if self.backend.serves else 503)

    async def _models(self, request: web.Request) -> web.Response:
        model: serving.Document = {
            "id": self.reader.model,
            "object": "model",
            "created": 0,
            "owned_by": "fairsched",
            "max_model_len": self.reader.context_tokens,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response({"model": self.reader.model, **await self.told(self.backend.document)})

    def _scraped(self) -> Callable[[web.Request], Awaitable[web.Response]]:
        # Only here, since it needs the extra `metrics`.
        from prometheus_client import CollectorRegistry, generate_latest

        from fairsched.engines.serving import Samples

        registry = CollectorRegistry()
        samples = Samples(registry)
        for worker in self.backend.statuses:
            samples.add(str(worker), partial(self.backend.samples, worker, serving.ClientLabels()))

        async def scraped(_: web.Request) -> web.Response:
            text = await self.told(lambda: generate_latest(registry))
            return web.Response(body=text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

        return scraped

    async def told(self, read: Callable[[], T]) -> T:
        """Return what the backend says.  Raises `CallError` (503) where it has ended."""
        try:
            return await self.backend.ask(read)
        except serving.EngineStoppedError as error:
            raise CallError(503, str(error)) from None

    # --- a call -----------------------------------------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=True)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=False)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        client = self._client(request)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.read()
        except TimeoutError:
            raise CallError(408, f"the body is not whole after {BODY_SECONDS:g} s") from None
        call = self.reader.read(body, chat=chat)
        if self.open + call.choices > OPEN_MAX:
            raise CallError(
                429, f"{self.open} outputs are open; at most {OPEN_MAX} may be", retry_after_seconds=RETRY_AFTER_S
            )
        self.open += call.choices
        outputs: list[_Output] = []
        try:
            writer, failures = AnswerWriter(call, self.reader.model), self.backend.failures
            for i, choice in enumerate(writer.choices):
                outputs.append(await self._submit(client, call, i, choice, failures))
            if call.stream:
                return await self._stream(request, writer, outputs)
            await _all([output.read() for output in outputs])
            return web.Response(body=writer.whole(), content_type="application/json")
        finally:
            self.open -= call.choices
            for output in outputs:
                output.leave()

    async def _submit(
        self, client: str, call: CompletionCall, i: int, choice: OutputChoice, failures: int
    ) -> "_Output":
        prompt, most = call.prompts[i // call.n], call.max_tokens[i // call.n]
        try:
            stream = await self.backend.front.ask_async(client, prompt, most, sampling=call.sampling(i, self._seed))
        except serving.EngineStoppedError as error:
            raise CallError(503, str(error)) from None
        except ValueError as error:
            raise CallError(400, str(error)) from None
        text = OutputText(self.reader.tokenizer, call.stops)
        return _Output(
            stream,
            choice,
            text,
            call.stop_tokens,
            most,
            lambda: self.backend.serves and self.backend.failures == failures,
        )

    async def _stream(self, request: web.Request, writer: AnswerWriter, outputs: "list[_Output]") -> web.StreamResponse:
        # An answer that fails before its first token has a status that says so.
        first = await outputs[0].several()
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        )
        await response.prepare(request)
        if begun := writer.begin():
            await response.write(begun)

        async def follow(i: int, output: _Output, pieces: list[str] | None) -> None:
            while True:
                if pieces is None:
                    pieces = await output.several()
                *before, last = pieces
                ended = output.choice.finish_reason
                events = [*(writer.token(i, text) for text in before), writer.token(i, last, ended)]
                await response.write(b"".join(events))
                if ended is not None:
                    return
                pieces = None

        try:
            await _all([follow(i, output, None if i else first) for i, output in enumerate(outputs)])
        except CallError as error:
            await response.write(error_event(error.message, "choices"))
            return response
        await response.write(writer.end())
        await response.write_eof()
        return response


async def _all(works: list[Coroutine[None, None, None]]) -> None:
    """Do all at once; the first that fails ends the others."""
    if len(works) == 1:
        await works[0]
        return
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _refusal(error: CallError) -> web.Response:
    headers = {} if error.retry_after_seconds is None else {"retry-after": str(error.retry_after_seconds)}
    body = encode(error_document(error.status, error.message, code=error.code))
    return web.Response(body=body, status=error.status, headers=headers, content_type="application/json")


class _Output:
    """One output of a call while the engine produces it.

    `sound` says whether no executor failed since the call came: a rejection is the call's fault then.
    """

    def __init__(
        self,
        stream: serving.AsyncStream,
        choice: OutputChoice,
        text: OutputText,
        stop_tokens: frozenset[int],
        max_tokens: int,
        sound: Callable[[], bool],
    ) -> None:
        self.choice = choice
        self._stream = stream
        self._text = text
        self._stop_tokens = stop_tokens
        self._max_tokens = max_tokens
        self._sound = sound
        self._stopped = False

    async def several(self) -> list[str]:
        """Return the texts of the next tokens, one each, and wait for them; with the last of them `choice` says why it
        was the last.

        Raises `CallError` where the engine gave the request up.
        """
        pieces: list[str] = []
        while True:
            try:
                tokens = await self._stream.several()
            except serving.EngineStoppedError as error:
                raise CallError(503, str(error)) from None
            pieces += self._texts(tokens)
            if not tokens:
                return self._ended(pieces)
            if not self._stopped and self.choice.tokens < self._max_tokens:
                return pieces

    def _texts(self, tokens: list[int]) -> list[str]:
        pieces = []
        for token in tokens:
            if self._stopped:
                # The engine went on until it heard of the stop text; its last tokens belong to no answer.
                break
            self.choice.tokens += 1
            last = token in self._stop_tokens
            pieces.append("" if last else self._text.push(token))
            if self._text.stopped:
                self._cancel()
            self._stopped = last or self._text.stopped
        return pieces

    def _ended(self, pieces: list[str]) -> list[str]:
        answer = self._stream.answer
        assert answer is not None
        if answer.outcome == "rejected":
            raise CallError(400 if self._sound() else 500, answer.reason)
        if answer.outcome == "cancelled" and not self._stopped:
            raise CallError(503, "the server is going down")
        self.choice.cached_tokens = answer.cached_tokens or 0
        self.choice.finish_reason = "stop" if self._stopped else "length"
        *before, last = pieces or [""]
        return [*before, last + self._text.rest()]

    async def read(self) -> None:
        texts = []
        while self.choice.finish_reason is None:
            texts += await self.several()
        self.choice.text = "".join(texts)

    def leave(self) -> None:
        """Cancel the request unless it has ended."""
        if self._stream.answer is None:
            self._cancel()

    def _cancel(self) -> None:
        with suppress(serving.EngineStoppedError):
            self._stream.cancel()
