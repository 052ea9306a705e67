"""The life of a call: it is read, has a place in the account, goes to a server, and its answer is passed on.

Each call ends once.  A caller that leaves is noticed while it waits and while it is served, and the server's work is
cancelled.  A call is tried at another server only while no byte of an answer was passed on, and it passes the gate
anew.  What was sent and came to nothing is charged by estimate: the server may have computed it.  A stream that breaks
off later ends with an error event.
"""

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp
import attrs
from aiohttp import web
from aiohttp.http import StreamWriter

from fairsched.engines.gateway import openai, servers
from fairsched.engines.gateway.account import Account, Failed, Placed, PlaceRequest
from fairsched.engines.gateway.config import GatewayConfig
from fairsched.engines.gateway.identity import CallerNames, told_name
from fairsched.engines.gateway.operations import CallRecord, current
from fairsched.engines.gateway.tls import server_context

if TYPE_CHECKING:
    from fairsched.engines.gateway.operations import Tracing

_log = logging.getLogger("fairsched.gateway")

WRITE_BYTES = 16 << 10
"""A caller is waited for when so much is on its way to it: what a slow one holds is bounded."""
_SAID: dict[servers.Why, str] = {
    "refused": "it takes no connection",
    "busy": "it is busy",
    "full": "it has no room for this gateway",
    "limited": "it limits this caller",
    "failed": "its answer is none",
    "lost": "the connection was lost",
    "error": "it failed",
    "late": "it took too long",
    "ours": "the gateway has no connection left",
}
"""What a caller hears of a server that failed: no address, and no bytes of it."""


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let work run that runs for ever; in the end wait until it has ended, since it may have something to give back.

    What fails is logged at once.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_tell_failure)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _tell_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a part of the gateway failed", exc_info=error)


def _tracing() -> "Tracing":
    # Only here, since it needs the extra `traces`.
    from fairsched.engines.gateway.operations import Tracing

    return Tracing()


class Gateway:
    """What stands behind the HTTP application (`engines.gateway.app`).  It belongs to one event loop.

    Calls are placed and charged by `account`.  In `shadow` calls are forwarded as they came.  It serves between `start`
    and `stop`.
    """

    def __init__(
        self,
        config: GatewayConfig,
        account: Account,
        *,
        shadow: bool = False,
        tokenizer: openai.Tokenizer | None = None,
    ) -> None:
        self.config = config
        self.account = account
        self.shadow = shadow
        self.draining = False
        """It goes on to serve, and wants no new callers."""
        self.status, self.metrics = account.status, account.metrics
        """Tell of all processes."""
        self.weigh: Callable[[Mapping[str, int]], Awaitable[None]] = self._weigh
        """Gives clients other weights, in all processes."""
        self.drain: Callable[[], None] = partial(os.kill, os.getpid(), signal.SIGTERM)
        """Begins what SIGTERM does, in all processes."""
        self.names = CallerNames(config)
        self.watches = servers.Watches(config)
        self._tokenizer = tokenizer
        self._retries = servers.RetryBudget(config.limits.retry_percent)
        self.tracing = _tracing() if config.traces else None
        self._started = AsyncExitStack()
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Begin what runs for as long as calls are served: each part once, in this order."""
        self.account.hung = self.watches.hung
        async with AsyncExitStack() as started:
            if self.tracing is not None:
                started.push_async_callback(asyncio.to_thread, self.tracing.close)
            self._http = await started.enter_async_context(servers.new_session())
            await started.enter_async_context(beside(self.account.run()))
            await started.enter_async_context(beside(self.names.run()))
            self._started = started.pop_all()

    async def stop(self) -> None:
        """End all that was begun, what was last first."""
        await self._started.aclose()

    async def _weigh(self, weights: Mapping[str, int]) -> None:
        self.configure(self.config.with_weights(weights))

    def unready(self) -> str:
        """Return why no calls should come here, empty if they may."""
        if self.draining:
            return "the gateway is draining"
        return "" if self.account.upstreams() else "no server takes calls"

    def configure(self, config: GatewayConfig) -> None:
        """Take clients, weights and limits from this configuration from now on.

        Raises `ConfigError` for one that the account cannot take; then nothing changes.
        """
        self.account.configure(config)
        self.config = config
        self.names.configure(config)
        server_context.cache_clear()
        self.watches.configure(config)
        self._retries.percent = config.limits.retry_percent

    async def serve(self, request: web.Request, name: str, endpoint: openai.Endpoint, raw: bytes) -> web.StreamResponse:
        """Answer a call of a client.  Raises `CallError` before anything was sent, and `ConnectionError` where the
        answer cannot be passed on; cancelling it is the caller leaving."""
        try:
            call = openai.read_call(raw, self.config, self._tokenizer, endpoint)
        except openai.CallError:
            self.account.count("refused")
            raise
        if self.shadow:
            call = attrs.evolve(call, body=raw, declared=True, hides_usage=False)
        limits = self.config.limits
        deadline = time.monotonic() + limits.wait_seconds
        tried: set[int] = set()
        last: servers.ServerFailedError | None = None
        self._retries.called(name)
        program = self.names.program_of(request.headers)
        record = current() or CallRecord("")
        record.client = name
        for left in range(limits.tries - 1, -1, -1):
            begun = time.monotonic()
            try:
                wanted = PlaceRequest(
                    name,
                    call.prompt_tokens,
                    call.max_output_tokens,
                    call.declared,
                    deadline - time.monotonic(),
                    frozenset(tried),
                    program,
                    call.quota_tokens,
                )
                placed = await self.account.place(wanted)
            except openai.CallError:
                if last is None:
                    raise
                raise self._unanswered(last) from None
            record.placed(placed.upstream.url, time.monotonic() - begun)
            call = attrs.evolve(call, max_output_tokens=placed.max_output_tokens or call.max_output_tokens)
            try:
                return await _Try(self, request, name, call, placed).run()
            except servers.ServerFailedError as error:
                tried.add(placed.upstream.server)
                last = error
                if not left or not self._retries.allows(name):
                    raise self._unanswered(error) from None
        raise AssertionError

    def _unanswered(self, error: servers.ServerFailedError) -> openai.CallError:
        """Return what the caller of a call is told that no server answered."""
        self.account.count("failed")
        status = {"limited": 429, "busy": 503, "full": 503, "ours": 503}.get(error.why, 502)
        seconds = error.retry_after_seconds
        retry = self.config.limits.retry_after_seconds if seconds is None else math.ceil(seconds)
        return openai.CallError(status, f"no server answered: {_SAID[error.why]}", None if status == 502 else retry)

    async def ask(self, request: web.Request, name: str, raw: bytes) -> web.StreamResponse:
        """Answer a call that is not charged, by the first server that does."""
        last = "no server takes requests"
        if (record := current()) is not None:
            record.client = name
        headers = self.names.forwarded(request.headers)
        for upstream in self.account.upstreams():
            if record is not None:
                record.placed(upstream.url, 0.0)
            try:
                sent = servers.sent_headers(headers, told_name(name), upstream.api_key)
                async with (
                    servers.Watch(self.watches, upstream.server, streams=False) as watch,
                    servers.open_answer(
                        self.http, upstream, watch, request.method, request.path, _query(request), sent, raw
                    ) as answer,
                ):
                    return await _relayed(request, watch, answer)
            except servers.UnsendableError as error:
                raise openai.CallError(400, str(error)) from None
            except servers.ServerFailedError as error:
                last = _SAID[error.why]
            except servers.ServerLateError as error:
                if error.what in ("stalled", "call") or watch.passed:
                    raise ConnectionResetError(f"{error.what} took too long") from None
                last = f"{error.what} took too long"
            except servers.BrokenError as error:
                raise ConnectionResetError(str(error)) from None
        raise openai.CallError(502, f"no server answered: {last}")

    @property
    def http(self) -> aiohttp.ClientSession:
        """The connections to servers."""
        assert self._http is not None, "the gateway was not started"
        return self._http


class _Try:
    """A call at one server.  However it ends, the account is told once."""

    def __init__(
        self, gateway: Gateway, request: web.Request, name: str, call: openai.ForwardedCall, placed: Placed
    ) -> None:
        self._gateway = gateway
        self._request = request
        self._name = name
        self._call = call
        self._placed = placed
        self._response: web.StreamResponse | None = None
        self._reader: openai.StreamReader | openai.WholeReader | None = None
        self._streams = False

    async def run(self) -> web.StreamResponse:
        """Forward the call and pass the answer on.  Raises `ServerFailedError` where another server may be tried."""
        gateway, placed, call, request = self._gateway, self._placed, self._call, self._request
        account, request_id, server = gateway.account, placed.request_id, placed.upstream.server
        body = call.body_with_most(call.max_output_tokens)
        try:
            headers = servers.sent_headers(
                gateway.names.forwarded(request.headers), told_name(self._name), placed.upstream.api_key
            )
            async with (
                servers.Watch(gateway.watches, server, streams=call.streams) as watch,
                servers.open_answer(
                    *(gateway.http, placed.upstream, watch),
                    *("POST", call.endpoint.path, _query(request), headers, body),
                ) as answer,
            ):
                self._streams = answer.streams
                self._reader = call.reader(streams=answer.streams, bytes_per_token=gateway.config.bytes_per_token)
                await self._pass_on(watch, answer)
        except servers.ServerFailedError as error:
            self._failed(error)
            raise
        except servers.UnsendableError as error:
            account.give_back(request_id, "refused")
            raise openai.CallError(400, str(error)) from None
        except servers.ServerLateError as error:
            return await self._late(error, watch)
        except servers.BrokenError as error:
            account.cancel(request_id, "broken")
            account.failed(Failed(server, self._name, "failed", str(error)))
            _log.warning("request %d broke off: %s", request_id, error)
            return await self._break_off("the server's answer broke off")
        except BaseException:
            self._left()
            raise
        if answer.status < 500:
            account.worked(server, self._name)
        else:
            account.failed(Failed(server, self._name, "error", f"HTTP {answer.status}"))
        usage = self._reader.usage
        if (record := current()) is not None:
            record.used(usage.computed_tokens, usage.output_tokens)
        if answer.status < 400:
            account.finish(request_id, usage.computed_tokens, usage.output_tokens, usage.cached_tokens)
        elif answer.status < 500:
            account.give_back(request_id, "refused by server")
        else:
            # It may have failed at the last token.
            account.cancel(request_id, "failed at server")
        # The account is told before the last bytes are gone: a caller that has them may seem to leave at once.
        return await self._end(self._reader.rest())

    async def _pass_on(self, watch: servers.Watch, answer: servers.ServerAnswer) -> None:
        reader, watches = self._reader, self._gateway.watches
        assert reader is not None
        produced, request_id = self._gateway.account.produced, self._placed.request_id
        response, writer = await _begin(self._request, answer, self._placed.headers)
        self._response = response
        protocol = self._request.protocol
        chunk = answer.first
        while chunk:
            tokens, seen = reader.pass_on(chunk)
            if tokens:
                produced(request_id, tokens)
            if seen:
                await writer.write(seen, drain=False)
                if protocol.writing_paused:
                    watch.begin("stalled")
                    await writer.drain()
                    watch.begin("read")
            watch.since = watches.sweep
            chunk = await answer.read()

    # --- ends -------------------------------------------------------------------------------------------------------

    def _failed(self, error: servers.ServerFailedError) -> None:
        account, request_id = self._gateway.account, self._placed.request_id
        end = account.cancel if error.sent else account.give_back
        end(request_id, f"tried again ({error.why})")
        server, seconds = self._placed.upstream.server, error.retry_after_seconds
        account.failed(Failed(server, self._name, error.why, str(error), seconds, error.waited_seconds))

    def _left(self) -> None:
        """Note that the caller left: with all that it asked for, if the server said what that was."""
        account, request_id = self._gateway.account, self._placed.request_id
        usage = None if self._reader is None or not self._streams else self._reader.usage
        if usage is not None and usage.output_tokens is not None and usage.computed_tokens is not None:
            account.finish(request_id, usage.computed_tokens, usage.output_tokens, usage.cached_tokens)
        else:
            account.cancel(request_id, "left")

    async def _late(self, error: servers.ServerLateError, watch: servers.Watch) -> web.StreamResponse:
        account, placed, what = self._gateway.account, self._placed, error.what
        if what in ("connect", "first byte", "hung"):
            sent, waited = watch.phase != "connect", watch.waited_seconds
            failed = servers.ServerFailedError("late", f"{what} took too long", sent=sent, waited_seconds=waited)
            self._failed(failed)
            raise failed from None
        if what == "stalled":
            account.cancel(placed.request_id, "stalled")
            raise ConnectionResetError("the caller takes no bytes")
        account.cancel(placed.request_id, "timed out" if what == "read" else "cut off")
        if what == "read":
            seconds, why = watch.waited_seconds, "no byte of an answer in time"
            account.failed(Failed(placed.upstream.server, self._name, "late", why, waited_seconds=seconds))
        message = "the server took too long" if what == "read" else "the call took too long, and was cut off"
        if self._response is None:
            raise openai.CallError(504, message)
        return await self._break_off(message)

    async def _break_off(self, message: str) -> web.StreamResponse:
        """End an answer of which something was passed on."""
        if not isinstance(self._reader, openai.StreamReader):
            raise ConnectionResetError(message)
        return await self._end(self._reader.break_off(message))

    async def _end(self, rest: bytes) -> web.StreamResponse:
        response = self._response
        assert response is not None
        try:
            async with asyncio.timeout(self._gateway.config.limits.stall_seconds):
                await response.write_eof(rest)
        except TimeoutError:
            raise ConnectionResetError("the caller takes no bytes") from None
        return response


def _query(request: web.Request) -> str:
    """Return the query of a call.  Of its target nothing else goes on: the path is one of ours, so that no caller
    chooses where a server's key is sent."""
    return request.rel_url.raw_query_string


async def _begin(
    request: web.Request, answer: servers.ServerAnswer, headers: Mapping[str, str] | None = None
) -> tuple[web.StreamResponse, StreamWriter]:
    """Send the head of an answer, with these headers of ours."""
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    response.headers.update(headers or {})
    if answer.streams:
        # What the caller does not see may be left out.
        response.headers.popall("Content-Length", None)
    if request.transport is not None:
        request.transport.set_write_buffer_limits(high=WRITE_BYTES)
    writer = await response.prepare(request)
    assert isinstance(writer, StreamWriter)
    return response, writer


async def _relayed(request: web.Request, watch: servers.Watch, answer: servers.ServerAnswer) -> web.StreamResponse:
    """Pass on an answer that is not charged."""
    response, writer = await _begin(request, answer)
    chunk = answer.first
    while chunk:
        watch.begin("stalled")
        await writer.write(chunk, drain=False)
        await writer.drain()
        watch.begin("read")
        chunk = await answer.read()
    watch.begin("stalled")
    await response.write_eof()
    return response
