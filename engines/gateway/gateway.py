"""A gateway before OpenAI-compatible servers: calls wait here, and a policy says which is forwarded next.

Each call ends once.  A caller that leaves is noticed while it waits and while it is served, and the server's work is
cancelled.  A call whose server fails is tried at another one only while no byte of an answer was passed on; it passes
the gate anew, and what it was charged is given back.  A stream that breaks off later ends with an error event.

In shadow everything is forwarded at once as it came, and the window decides beside it what it would have done.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs
import httpx
import msgspec

from fairsched.engines.gateway.config import ConfigError, GatewayConfig
from fairsched.engines.gateway.identity import CallerNames
from fairsched.engines.gateway.openai import (
    Call,
    CallError,
    StreamReader,
    Tokenizer,
    Usage,
    read_call,
    usage_of,
)
from fairsched.engines.gateway.priority import Tags, with_priority
from fairsched.engines.gateway.upstream import Answer, BrokenError, FailedError, UnsendableError, open_answer
from fairsched.engines.gateway.window import Shadow, Window
from fairsched.engines.serving import ClientLabels, ClientRegistry, Document, Sample, promise_samples
from fairsched.model.request import Client

Send = Callable[[Any], Awaitable[None]]

_log = logging.getLogger("fairsched.gateway")


LOST_SECONDS = 0.25
"""A server whose connection was lost is left alone for so long: a call that is tried again goes elsewhere."""


class StalledError(Exception):
    """The caller took no byte for too long."""


class WindowLog(Protocol):
    """A log of the window, which must know a client before events name it."""

    def client(self, client: Client) -> None:
        """The next client."""

    def drain(self, window: Window) -> None:
        """Write what remains to be written: no call is left."""


class Gateway:
    """What stands behind the HTTP application (`engines.gateway.app`).  It belongs to one event loop.

    `window` has a server for each of the configuration's, in order; `http` are the connections to them; `clients` those
    of a gateway before this one, whose debts the window goes on from.  `logs` must know a client before events name it.
    `tags` are given to servers as priorities (`engines.gateway.priority`).  `decided` is told how long a decision took.
    """

    def __init__(
        self,
        config: GatewayConfig,
        window: Window,
        http: httpx.AsyncClient,
        *,
        shadow: bool = False,
        tokenizer: Tokenizer | None = None,
        clients: Sequence[Client] = (),
        logs: Sequence[WindowLog] = (),
        tags: Tags | None = None,
    ) -> None:
        self.config = config
        self.logs = logs
        self.tags = tags
        self.decided: Callable[[float], object] = lambda seconds: None
        self.window = window
        self.http = http
        self.tokenizer = tokenizer
        self.names = CallerNames(config)
        self.outcomes: Counter[str] = Counter()
        self.retries = 0
        self.shadow = Shadow(window, len(config.servers)) if shadow else None
        self._begun_ns = time.monotonic_ns()
        self._next_id = 0
        self._places: dict[int, asyncio.Future[int]] = {}
        self.clients = ClientRegistry(known=clients)
        for client in clients:
            for log in logs:
                log.client(client)
        self.configure(config)

    def close(self) -> None:
        """Write what remains to be written: the gateway has drained."""
        for log in self.logs:
            log.drain(self.window)

    def now_ns(self) -> int:
        """Time since the start."""
        return time.monotonic_ns() - self._begun_ns

    def configure(self, config: GatewayConfig) -> None:
        """Take clients, weights and limits from this configuration from now on.

        Raises `ConfigError` where that moves a client that was here before to another organisation; then nothing
        changes.
        """
        for client in self.clients.all:
            _check_place(client, config)
        self.config = config
        self.names.configure(config)
        before = tuple(self.clients.all)
        self.clients.unknown_max = max(config.limits.clients - len(config.clients), 0)
        self.clients.configure({name: client.weight for name, client in config.clients.items()})
        for client in tuple(self.clients.all):
            self._place_in_groups(client, before[client.id] if client.id < len(before) else None)

    def _place_in_groups(self, client: Client, before: Client | None) -> None:
        """Put a client into its groups; the logs hear of a new one, and the window of all that is not plain."""
        configured = client.name in self.config.clients
        groups = self.config.groups(client.name) if configured else self.config.weighed(client.place)
        client = Client(client.id, client.name, client.weight, groups)
        self.clients.put(client)
        if before is None:
            for log in self.logs:
                log.client(client)
        if client != (before or Client(client.id, client.name)):
            self.window.configure(client, self.now_ns())

    def _client(self, name: str) -> int:
        client, new = self.clients.resolve(name)
        if new:
            self._place_in_groups(client, None)
        return client.id

    def status(self) -> Document:
        """Return plain JSON values: service by client, the gap against its bound, servers, ends, and the shadow's."""
        document: Document = {
            **self.window.status(self.clients.all),
            "servers": {
                server.url: {"up": up, "window_tokens": server.window_tokens}
                for server, up in zip(self.config.servers, self.window.up, strict=True)
            },
            "outcomes": dict(sorted(self.outcomes.items())),
            "retries": self.retries,
        }
        if self.shadow is not None:
            document["shadow"] = dict(sorted(self.shadow.counts.items()))
        return document

    def samples(self, labels: ClientLabels) -> Iterator[Sample]:
        """Yield the samples for Prometheus; prompts are counted as they are charged."""
        window, usage = self.window, self.window.usage
        tokens = {
            (client, phase): count
            for phase, counts in (("prefill", usage.prompt_tokens), ("decode", usage.output_tokens))
            for client, count in counts.items()
        }
        yield from labels.samples(tokens, lambda client: self.clients.all[client].name)
        if usage.monitor is not None:
            yield from promise_samples(usage.monitor, usage.monitor.report())
        for outcome, count in sorted(self.outcomes.items()):
            yield "requests_total", {"outcome": outcome}, count
        yield "retries_total", {}, self.retries
        yield "overrun_tokens_total", {}, window.overrun_tokens
        yield "waiting_requests", {}, window.waiting
        yield "running_requests", {}, window.in_flight
        yield "window_free_tokens", {}, window.tokens - window.in_flight_tokens
        yield "policy_set_aside", {}, window.guard.set_aside is not None
        for server, up in zip(self.config.servers, window.up, strict=True):
            yield "server_up", {"server": server.url}, up

    # --- a call -----------------------------------------------------------------------------------------------------

    async def serve(self, path: str, headers: Mapping[str, str], raw: bytes, send: Send) -> None:
        """Answer a call.  Raises `CallError` before anything was sent; cancelling it is the caller leaving."""
        try:
            client = self._client(self.names.of(headers))
            call = read_call(raw, self.config, self.tokenizer)
        except CallError:
            self.outcomes["refused"] += 1
            raise
        refusal = self.window.refuses(call.prompt_tokens, call.max_output_tokens)
        if self.shadow is not None:
            call = attrs.evolve(call, body=raw)
        elif refusal is not None:
            self.outcomes["too large"] += 1
            raise CallError(413, refusal)
        tries = self.config.limits.tries
        deadline = time.monotonic() + self.config.limits.wait_seconds
        for left in range(tries - 1, -1, -1):
            self._check_limits(client)
            try:
                return await self._once(client, call, path, headers, send, deadline)
            except FailedError as error:
                if not left:
                    self.outcomes["failed"] += 1
                    busy = error.why == "busy"
                    retry = self.config.limits.retry_after_seconds if busy else None
                    raise CallError(503 if busy else 502, f"no server answered: {error}", retry) from None
                self.retries += 1

    def _check_limits(self, client: int) -> None:
        limits = self.config.limits
        for waiting, most in (
            (self.window.waiting_of(client), limits.waiting_per_client),
            (self.window.waiting, limits.waiting),
        ):
            if waiting >= most and self.shadow is not None:
                self.shadow.counts["limited"] += 1
                return
            if waiting >= most:
                self.outcomes["limited"] += 1
                raise CallError(429, f"{waiting} requests wait, and {most} may", limits.retry_after_seconds)

    async def _once(
        self, client: int, call: Call, path: str, headers: Mapping[str, str], send: Send, deadline: float
    ) -> None:
        """One try: wait for a place, forward, pass the answer on.  However it ends, the window is told once."""
        request_id = self._next_id
        self._next_id += 1
        window = self.window
        ended = False
        try:
            server = await self._place(request_id, client, call, deadline)
            body = call.body if self.tags is None else with_priority(call.body, self.tags.of(request_id))
            try:
                async with open_answer(
                    self.http,
                    self.config.servers[server],
                    ("POST", path, list(headers.items()), body),
                    self.config.limits.read_seconds,
                ) as answer:
                    usage, rest = await self._pass_on(request_id, call, answer, send)
            except FailedError as error:
                ended = True
                self._failed(request_id, server, error)
                raise
            except UnsendableError as error:
                ended = True
                self._end(request_id, window.give_back, "refused")
                raise CallError(400, str(error)) from None
            except BrokenError as error:
                self._rest(server, str(error), self.config.limits.down_seconds)
                raise
            ended = True
            if usage is None:
                self._end(request_id, window.give_back, "refused by server")
            else:
                computed, output = usage.computed_tokens, usage.output_tokens
                self._end(request_id, lambda i, now: window.finish(i, computed, output, now), "finished")
        except BrokenError as error:
            self.outcomes["broken"] += 1
            _log.warning("request %d broke off: %s", request_id, error)
            # What OpenAI-compatible servers send where a stream fails.
            document = {"error": {"message": f"the server's answer broke off: {error}", "type": "server_error"}}
            rest = b"data: " + msgspec.json.encode(document) + b"\n\n"
        except asyncio.CancelledError:
            self.outcomes["left"] += 1
            raise
        except StalledError:
            self.outcomes["stalled"] += 1
            raise
        finally:
            self._places.pop(request_id, None)
            if not ended:
                window.cancel(request_id, self.now_ns())
                self._leave_shadow(request_id)
            self.pump()
        # The window is free before the last bytes are gone: a caller that has them may seem to leave at once.
        await self._send(send, rest, last=True)

    async def _place(self, request_id: int, client: int, call: Call, deadline: float) -> int:
        """Return the server for a request, once it may go."""
        prompt, output, shadow = call.prompt_tokens, call.max_output_tokens, self.shadow
        known = shadow is None or self.window.refuses(prompt, output) is None
        if known:
            self.window.arrive(request_id, client, prompt, output, self.now_ns())
        if shadow is not None:
            server = shadow.forward(request_id, known)
            self.pump()
            shadow.arriving = None
            return server
        place: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._places[request_id] = place
        self.pump()
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await place
        except BaseException as error:
            # It may have been let in just now; nothing was sent.
            self.window.withdraw(request_id, self.now_ns())
            if not isinstance(error, TimeoutError):
                raise
            self.outcomes["waited too long"] += 1
            retry = self.config.limits.retry_after_seconds
            raise CallError(503, "no server had room in time", retry) from None

    def pump(self) -> None:
        """Let in all that may be forwarded now."""
        begun = time.perf_counter()
        placements = self.window.admit(self.now_ns())
        if placements:
            self.decided(time.perf_counter() - begun)
        for placement in placements:
            if self.shadow is not None:
                self.shadow.let_in(placement.request_id)
                continue
            place = self._places[placement.request_id]
            if not place.done():
                place.set_result(placement.server)

    def _end(self, request_id: int, end: Callable[[int, int], object], outcome: str) -> None:
        """The window is told of an end; in shadow the request may still wait there, and then it leaves."""
        self.outcomes[outcome] += 1
        if self.shadow is not None and not self.shadow.is_let_in(request_id):
            self.window.cancel(request_id, self.now_ns())
        else:
            end(request_id, self.now_ns())
        self._leave_shadow(request_id)

    def _leave_shadow(self, request_id: int) -> None:
        if self.shadow is not None:
            self.shadow.leave(request_id)

    # --- servers ----------------------------------------------------------------------------------------------------

    def _failed(self, request_id: int, server: int, error: FailedError) -> None:
        self._end(request_id, self.window.give_back, f"tried again ({error.why})")
        seconds = self.config.limits.down_seconds
        self._rest(server, str(error), min(seconds, LOST_SECONDS) if error.why == "lost" else seconds)

    def _rest(self, server: int, why: str, seconds: float) -> None:
        """A server that failed, or takes no more, is left alone for a while."""
        if not self.window.up[server]:
            return
        _log.warning("server %s is left alone: %s", self.config.servers[server].url, why)
        self.window.set_up(server, False)
        asyncio.get_running_loop().call_later(seconds, self._again, server)

    def _again(self, server: int) -> None:
        self.window.set_up(server, True)
        self.pump()

    # --- answers ----------------------------------------------------------------------------------------------------

    async def _pass_on(self, request_id: int, call: Call, answer: Answer, send: Send) -> tuple[Usage | None, bytes]:
        """Pass the answer on as it comes: what the server says of it (None: it computed nothing), and the bytes that
        are still to be sent."""
        body = b""
        if not answer.streams:
            body = b"".join([chunk async for chunk in answer.chunks])
            answer.headers.append((b"content-length", str(len(body)).encode()))
        await self._deliver(send, {"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        if not answer.streams:
            refused = answer.status >= 400
            usage = usage_of(body, call.max_output_tokens, self.config.bytes_per_token)
            return None if refused else usage, body
        reader = StreamReader()
        async for chunk in answer.chunks:
            tokens = reader.read(chunk)
            if tokens and (self.shadow is None or self.shadow.is_let_in(request_id)):
                self.window.produced(request_id, tokens, self.now_ns())
            await self._send(send, chunk)
        return reader.usage, b""

    async def _send(self, send: Send, body: bytes, last: bool = False) -> None:
        await self._deliver(send, {"type": "http.response.body", "body": body, "more_body": not last})

    async def _deliver(self, send: Send, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self.config.limits.stall_seconds):
                await send(message)
        except TimeoutError:
            raise StalledError from None


def _check_place(client: Client, config: GatewayConfig) -> None:
    """Raises `ConfigError` where the configuration puts a client elsewhere than it was.  One that is not in the
    configuration any more stays where it was, with what it owes."""
    if client.name not in config.clients:
        return
    here, there = ("/".join(name for name, _ in place) for place in (config.groups(client.name), client.place))
    if here != there:
        raise ConfigError(
            f"client.{client.name} is in {here or 'no organisation'}, and was in {there or 'none'}, which is charged "
            "with what it owes: give it another name there"
        )
