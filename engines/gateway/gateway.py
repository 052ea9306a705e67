"""The life of a call: it is read, has a place in the account, goes to a server, and its answer is passed on.

Each call ends once.  A caller that leaves is noticed while it waits and while it is served, and the server's work is
cancelled.  A call is tried at another server only while no byte of an answer was passed on, and it passes the gate
anew.  No quota pays for a server that fails before a token came.  A stream that breaks off later ends with an error
event.
"""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any

import aiohttp
import attrs
from aiohttp import web
from aiohttp.http import StreamWriter
from multidict import CIMultiDict

from fairsched.engines.gateway import openai, servers
from fairsched.engines.gateway.account import Account, Placed, PlaceRequest
from fairsched.engines.gateway.config import GatewayConfig, LimitConfig
from fairsched.engines.gateway.identity import CallerNames, told_name
from fairsched.engines.gateway.tls import server_context

_log = logging.getLogger("fairsched.gateway")

WRITE_BYTES = 16 << 10
"""A caller is waited for when so much is on its way to it: what a slow one holds is bounded."""
AT_ONCE_SECONDS = 0.2
"""A server that fails sooner computed nothing."""
REQUEST_ID = "x-request-id"
CALL_ID: ContextVar[str] = ContextVar("call id", default="")
"""The id of the call that this task works on."""
AHEAD = "x-fairsched-ahead"
"""The header that says how many calls waited when a call came."""
ERROR_BYTES_MAX = 64 << 10
"""Of an answer that is an error so much is read to find what it says."""


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


class Gateway:
    """What stands behind the HTTP application (`engines.gateway.app`).  It belongs to one event loop.

    Calls are placed and charged by `account`.  It serves between `start` and `stop`.
    """

    def __init__(self, config: GatewayConfig, account: Account) -> None:
        self.config = config
        self.account = account
        self.draining = False
        """It goes on to serve, and wants no new callers."""
        self.status, self.metrics = account.status, account.metrics
        """Tell of all processes."""
        self.names = CallerNames(config)
        self.watches = servers.Watches(config)
        self.models = servers.Models(account.upstreams)
        self._started = AsyncExitStack()
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Begin what runs for as long as calls are served: each part once, in this order."""
        self.account.fleet.hung = self.watches.hung
        async with AsyncExitStack() as started:
            self._http = await started.enter_async_context(servers.new_session())
            await started.enter_async_context(beside(self.account.run()))
            await started.enter_async_context(beside(self.names.run()))
            await started.enter_async_context(beside(self.models.run(self._http)))
            self._started = started.pop_all()

    async def stop(self) -> None:
        """End all that was begun, what was last first."""
        await self._started.aclose()

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

    def read(self, raw: bytes, endpoint: openai.Endpoint) -> openai.ForwardedCall:
        """Return the call in a body.  Raises `CallError` (400)."""
        try:
            return openai.read_call(raw, self.config, endpoint)
        except openai.CallError:
            self.account.count("refused")
            raise

    async def serve(self, request: web.Request, name: str, call: openai.ForwardedCall) -> web.StreamResponse:
        """Answer a call of a client.  Raises `CallError` before anything was sent, and `ConnectionError` where the
        answer cannot be passed on; cancelling it is the caller leaving."""
        reply = _Reply(request, call, self.config.limits, self.account.window.waiting)
        try:
            return await self._tried(reply, name, call)
        except openai.CallError as error:
            if reply.response is None:
                raise
            return await reply.end(openai.error_event(error.message, call.endpoint.form, error.status))
        finally:
            reply.stop()

    async def _tried(self, reply: "_Reply", name: str, call: openai.ForwardedCall) -> web.StreamResponse:
        limits = self.config.limits
        deadline = time.monotonic() + limits.wait_seconds
        tried: set[int] = set()
        last: servers.ServerFailedError | None = None
        call = self.models.fitted(call)
        for left in range(limits.tries - 1, -1, -1):
            try:
                wanted = PlaceRequest(
                    name,
                    call.prompt_tokens,
                    call.max_output_tokens,
                    call.declared,
                    deadline - time.monotonic(),
                    self.models.avoided(call.model, self.account.upstreams(), tried),
                    call.quota_tokens,
                    call.prompt_tokens_max,
                )
                placed = await self.account.place(wanted)
            except openai.CallError:
                if last is None:
                    raise
                raise self._unanswered(last) from None
            call = attrs.evolve(call, max_output_tokens=placed.max_output_tokens)
            try:
                return await _Try(self, reply, name, call, placed).run()
            except servers.ServerFailedError as error:
                tried.add(placed.upstream.server)
                last = error
                if not left or not self.account.may_retry(name):
                    raise self._unanswered(error) from None
        raise AssertionError

    def _unanswered(self, error: servers.ServerFailedError) -> openai.CallError:
        """Return what the caller of a call is told that no server answered."""
        self.account.count("failed")
        why, seconds = error.failure.why, error.failure.retry_after_seconds
        status = {"limited": 429, "busy": 503, "full": 503, "ours": 503}.get(why, 502)
        retry = self.config.limits.retry_after_seconds if seconds is None else math.ceil(seconds)
        return openai.CallError(status, f"no server answered ({why})", None if status == 502 else retry)

    @property
    def http(self) -> aiohttp.ClientSession:
        assert self._http is not None, "the gateway was not started"
        return self._http


class _Response(web.StreamResponse):
    """An answer whose head goes out with its first bytes: each write costs as much as passing a token on."""

    _send_headers_immediately = False


class _Reply:
    """What a caller has of its answer.  Until that begins, a stream has a comment of SSE every `heartbeat_seconds`:
    what stands between the two cuts connections off on which nothing comes."""

    def __init__(self, request: web.Request, call: openai.ForwardedCall, limits: LimitConfig, ahead: int) -> None:
        self.request = request
        self.response: web.StreamResponse | None = None
        self._limits = limits
        self._ahead = ahead
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        if call.streams and call.endpoint.form != "no stream" and limits.heartbeat_seconds:
            self._timer = asyncio.get_running_loop().call_later(limits.heartbeat_seconds, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _beat(self) -> None:
        self._task = asyncio.ensure_future(self._beats())

    async def _beats(self) -> None:
        with suppress(ConnectionError):
            writer = await self.begin(200, [("Content-Type", "text/event-stream"), ("Cache-Control", "no-cache")])
            while True:
                await writer.write(b": waiting\n\n")
                await asyncio.sleep(self._limits.heartbeat_seconds)

    async def begin(
        self, status: int, headers: Iterable[tuple[str, str]], ours: Mapping[str, str] | None = None
    ) -> StreamWriter:
        """Send the head of the answer with these headers and those of ours, if none was sent."""
        response = self.response
        if response is None:
            response = self.response = _Response(status=status, headers=CIMultiDict(headers))
            response.headers.update(ours or {})
            if self._ahead:
                response.headers[AHEAD] = str(self._ahead)
            if self.request.transport is not None:
                self.request.transport.set_write_buffer_limits(high=WRITE_BYTES)
        writer = await response.prepare(self.request)
        assert isinstance(writer, StreamWriter)
        return writer

    async def end(self, rest: bytes) -> web.StreamResponse:
        """Send the last bytes.  Raises `ConnectionResetError` for a caller that does not take them."""
        response = self.response
        assert response is not None
        try:
            async with asyncio.timeout(self._limits.stall_seconds):
                await response.write_eof(rest)
        except TimeoutError:
            raise ConnectionResetError("the caller takes no bytes") from None
        return response


class _Try:
    """A call at one server.  However it ends, the account is told once."""

    def __init__(self, gateway: Gateway, reply: _Reply, name: str, call: openai.ForwardedCall, placed: Placed) -> None:
        self._gateway = gateway
        self._reply = reply
        self._name = name
        self._call = call
        self._placed = placed
        self._reader: openai.StreamReader | openai.WholeReader | openai.UnreadableReader | None = None
        self._streams = self._strips = self._packed = False
        self._unpack: Callable[[bytes], bytes] | None = None
        self._begun = time.monotonic()

    async def run(self) -> web.StreamResponse:
        """Forward the call and pass the answer on.  Raises `ServerFailedError` where another server may be tried."""
        gateway, placed, call, request = self._gateway, self._placed, self._call, self._reply.request
        account, number, server = gateway.account, placed.request_id, placed.upstream.server
        try:
            headers = servers.sent_headers(
                request.headers.items(),
                told_name(self._name),
                placed.upstream.config.api_key,
                # Some servers fail where an id comes twice: each try has its own.
                (REQUEST_ID, f"{CALL_ID.get()}-{secrets.token_hex(4)}"),
            )
            async with (
                servers.Watch(gateway.watches, server, streams=call.streams) as watch,
                servers.open_answer(
                    gateway.http, placed.upstream, watch, call.endpoint.path, _query(request), headers, self._body()
                ) as answer,
            ):
                self._streams = answer.streams
                self._unpack = openai.unpacked(CIMultiDict(answer.headers).get("Content-Encoding", ""))
                self._reader = call.reader(
                    streams=answer.streams,
                    bytes_per_token=gateway.config.bytes_per_token,
                    strips_usage=self._strips,
                )
                self._reply.stop()
                if self._reply.response is None or (answer.streams and answer.status < 400):
                    await self._pass_on(watch, answer)
                else:
                    await self._read(answer)
        except servers.ServerFailedError as error:
            self._failed(error)
            raise
        except servers.UnsendableError as error:
            account.give_back(number, "refused")
            raise openai.CallError(400, str(error)) from None
        except servers.ServerLateError as error:
            return await self._late(error, watch)
        except servers.BrokenError as error:
            self._cancel("broken")
            account.failed(server, self._name, servers.Failure("failed", str(error)))
            _log.warning("request %d broke off: %s", number, error)
            return await self._break_off("the server's answer broke off")
        except BaseException:
            self._left()
            raise
        if answer.status < 500:
            account.worked(server, self._name)
        else:
            account.failed(server, self._name, servers.Failure("error", f"HTTP {answer.status}"))
        usage = self._reader.usage
        if answer.status < 400:
            account.finish(number, usage.computed_tokens, usage.output_tokens, usage.cached_tokens)
        elif answer.status < 500:
            self._unbilled("refused by server")
        else:
            self._unbilled("failed at server")
        # The account is told before the last bytes are gone: a caller that has them may seem to leave at once.
        rest = self._reader.rest()
        return await self._reply.end(b"" if self._packed else rest)

    def _body(self) -> bytes:
        """Return what the server is sent: the caller's bytes, a limit of outputs where quotas must hold and the caller
        names none, and that a stream says its usage with each event where it can: its caller may leave at the first."""
        gateway, call = self._gateway, self._call
        body = call.body if gateway.config.quota is None else call.body_with_most(gateway.models.limit(call))
        self._strips = call.stream_options is not None and gateway.models.says_usage(self._placed.upstream.url)
        return openai.with_fields(body, {"stream_options": call.stream_options}) if self._strips else body

    async def _pass_on(self, watch: servers.Watch, answer: servers.ServerAnswer) -> None:
        watches, produced, request_id = self._gateway.watches, self._gateway.account.produced, self._placed.request_id
        # What the caller of a stream does not see may be left out.
        headers = [each for each in answer.headers if not (answer.streams and each[0].lower() == "content-length")]
        self._packed = self._unpack is not None and self._reply.response is None
        writer = await self._reply.begin(answer.status, headers, self._placed.headers)
        protocol = self._reply.request.protocol
        chunk = answer.first
        while chunk:
            tokens, seen = self._taken(chunk)
            if self._packed:
                seen = chunk
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

    def _taken(self, chunk: bytes) -> tuple[int, bytes]:
        """Return how many tokens the next bytes of an answer bring, and what of them its caller sees.  An answer in a
        coding that cannot be read may be all that was asked for."""
        assert self._reader is not None
        try:
            return self._reader.pass_on(chunk if self._unpack is None else self._unpack(chunk))
        except ValueError as error:
            self._reader = openai.UnreadableReader(self._call.max_output_tokens * self._call.endpoint.generates)
            if not self._packed:
                raise servers.BrokenError(f"its bytes are of no use here: {error}") from None
            self._unpack = None
            return 0, chunk

    async def _read(self, answer: servers.ServerAnswer) -> None:
        """Read what cannot be passed on, since the caller has the head of a stream already: an event says so."""
        kept, chunk = b"", answer.first
        while chunk:
            kept = (kept + self._taken(chunk)[1])[:ERROR_BYTES_MAX]
            chunk = await answer.read()
        reader = self._reader
        assert reader is not None
        said = openai.said_error(kept) if answer.status < 500 else ""
        why = f"HTTP {answer.status}{': ' * bool(said)}{said}" if answer.status >= 400 else "it is no stream"
        self._reader = openai.StreamReader(self._call.endpoint.form)
        self._reader.usage = reader.usage
        writer = await self._reply.begin(200, ())
        await writer.write(openai.error_event(f"the server's answer: {why}", self._call.endpoint.form, answer.status))

    # --- ends -------------------------------------------------------------------------------------------------------

    def _failed(self, error: servers.ServerFailedError) -> None:
        outcome = f"tried again ({error.failure.why})"
        if error.sent:
            self._unbilled(outcome, answered=False)
        else:
            self._gateway.account.give_back(self._placed.request_id, outcome)
        self._gateway.account.failed(self._placed.upstream.server, self._name, error.failure)

    def _unbilled(self, outcome: str, *, answered: bool = True) -> None:
        """End a call whose server failed before a token came, or refused it.  No quota pays for that, and its client's
        share is charged by estimate: calls that are sent to be refused hold places of others.  What ends at once
        computed no prompt, and where there was no answer nothing; later it may have come to the last token."""
        account, request_id = self._gateway.account, self._placed.request_id
        if time.monotonic() - self._begun < AT_ONCE_SECONDS:
            account.give_back(request_id, outcome, sent=answered)
        else:
            account.cancel(request_id, outcome, billed=False)

    def _left(self) -> None:
        """Note that the caller left: with all that it asked for, if the server said what that was."""
        account, request_id = self._gateway.account, self._placed.request_id
        usage = None if self._reader is None or not self._streams else self._reader.usage
        if usage is not None and usage.output_tokens is not None and usage.computed_tokens is not None:
            account.finish(request_id, usage.computed_tokens, usage.output_tokens, usage.cached_tokens)
        else:
            self._cancel("left")

    def _cancel(self, outcome: str) -> None:
        """End a call of which the server has said no more than how many tokens its prompt has, if that."""
        usage = openai.Usage() if self._reader is None else self._reader.usage
        self._gateway.account.cancel(
            *(self._placed.request_id, outcome),
            computed_tokens=usage.computed_tokens,
            cached_tokens=usage.cached_tokens,
        )

    async def _late(self, error: servers.ServerLateError, watch: servers.Watch) -> web.StreamResponse:
        account, placed, what = self._gateway.account, self._placed, error.what
        if what in ("connect", "first byte", "hung"):
            failure = servers.Failure("late", f"{what} took too long", None, watch.waited_seconds)
            failed = servers.ServerFailedError(failure, sent=watch.phase != "connect")
            self._failed(failed)
            raise failed from None
        if what == "stalled":
            self._cancel("stalled")
            raise ConnectionResetError("the caller takes no bytes")
        if what == "read" and not isinstance(self._reader, openai.StreamReader):
            account.cancel(placed.request_id, "timed out", billed=False)
        else:
            self._cancel("timed out" if what == "read" else "cut off")
        if what == "read":
            failure = servers.Failure("late", "no byte of an answer in time", None, watch.waited_seconds)
            account.failed(placed.upstream.server, self._name, failure)
        message = "the server took too long" if what == "read" else "the call took too long, and was cut off"
        if self._reader is None:
            raise openai.CallError(504, message)
        return await self._break_off(message)

    async def _break_off(self, message: str) -> web.StreamResponse:
        """End an answer of which something was passed on."""
        if not isinstance(self._reader, openai.StreamReader):
            raise ConnectionResetError(message)
        return await self._reply.end(self._reader.break_off(message))


def _query(request: web.Request) -> str:
    """Return the query of a call.  Of its target nothing else goes on: the path is one of ours, so that no caller
    chooses where a server's key is sent."""
    return request.rel_url.raw_query_string
