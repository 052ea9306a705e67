"""The life of a call: it is read, has a place in the account, goes to a server, and its answer is passed on.

Each call ends once.  A caller that leaves is noticed while it waits and while it is served, and the server's work is
cancelled.  A call whose server fails is tried at another one only while no byte of an answer was passed on; it passes
the gate anew, and what it was charged is given back.  A stream that breaks off later ends with an error event.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import httpx

from fairsched.engines.gateway.account import Account, Placed
from fairsched.engines.gateway.config import GatewayConfig
from fairsched.engines.gateway.identity import CallerNames
from fairsched.engines.gateway.openai import (
    BY_PATH,
    Call,
    CallError,
    Tokenizer,
    Usage,
    error_event,
    read_call,
    usage_of,
)
from fairsched.engines.gateway.priority import with_priority
from fairsched.engines.gateway.upstream import Answer, BrokenError, FailedError, UnsendableError, open_answer

Send = Callable[[Any], Awaitable[None]]

_log = logging.getLogger("fairsched.gateway")


class StalledError(Exception):
    """The caller took no byte for too long."""


class Gateway:
    """What stands behind the HTTP application (`engines.gateway.app`).  It belongs to one event loop.

    Calls are placed and charged by `account`; `http` are the connections to servers.  In `shadow` calls are forwarded
    as they came.
    """

    def __init__(
        self,
        config: GatewayConfig,
        account: Account,
        http: httpx.AsyncClient,
        *,
        shadow: bool = False,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.config = config
        self.account = account
        self.http = http
        self.shadow = shadow
        self.names = CallerNames(config)
        self._tokenizer = tokenizer

    def configure(self, config: GatewayConfig) -> None:
        """Take clients, weights and limits from this configuration from now on.

        Raises `ConfigError` for one that the account cannot take; then nothing changes.
        """
        self.account.configure(config)
        self.config = config
        self.names.configure(config)

    async def serve(self, path: str, headers: Mapping[str, str], raw: bytes, send: Send) -> None:
        """Answer a call.  Raises `CallError` before anything was sent; cancelling it is the caller leaving."""
        try:
            name = self.names.of(headers)
            call = read_call(raw, self.config, self._tokenizer, BY_PATH.get(path.partition("?")[0]))
        except CallError:
            self.account.count("refused")
            raise
        if self.shadow:
            call = attrs.evolve(call, body=raw, declared=True, hides_usage=False)
        limits = self.config.limits
        deadline = time.monotonic() + limits.wait_seconds
        for left in range(limits.tries - 1, -1, -1):
            placed = await self.account.place(
                name,
                call.prompt_tokens,
                call.max_output_tokens,
                declared=call.declared,
                wait_seconds=deadline - time.monotonic(),
            )
            try:
                return await self._once(placed, call, path, headers, send)
            except FailedError as error:
                if not left:
                    self.account.count("failed")
                    busy = error.why == "busy"
                    retry = limits.retry_after_seconds if busy else None
                    raise CallError(503 if busy else 502, f"no server answered: {error}", retry) from None

    async def _once(self, placed: Placed, call: Call, path: str, headers: Mapping[str, str], send: Send) -> None:
        """One try: forward, pass the answer on.  However it ends, the account is told once."""
        account, request_id, server = self.account, placed.request_id, placed.upstream.server
        body = call.body_with_most(call.max_output_tokens)
        if placed.priority is not None:
            body = with_priority(body, placed.priority)
        try:
            async with open_answer(
                self.http, placed.upstream, ("POST", path, list(headers.items()), body), self.config.limits.read_seconds
            ) as answer:
                usage, rest = await self._pass_on(request_id, call, answer, send)
        except FailedError as error:
            account.give_back(request_id, f"tried again ({error.why})")
            account.failed(server, error.why, str(error))
            raise
        except UnsendableError as error:
            account.give_back(request_id, "refused")
            raise CallError(400, str(error)) from None
        except BrokenError as error:
            account.cancel(request_id, "broken")
            account.failed(server, "failed", str(error))
            _log.warning("request %d broke off: %s", request_id, error)
            rest = error_event(f"the server's answer broke off: {error}", call.endpoint.form)
        except StalledError:
            account.cancel(request_id, "stalled")
            raise
        except BaseException:
            account.cancel(request_id, "left")
            raise
        else:
            account.worked(server)
            if usage is None:
                account.give_back(request_id, "refused by server")
            else:
                account.finish(request_id, usage.computed_tokens, usage.output_tokens)
        # The window is free before the last bytes are gone: a caller that has them may seem to leave at once.
        await self._send(send, rest, last=True)

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
            most = call.max_output_tokens if call.endpoint.generates else 0
            usage = usage_of(body, most, self.config.bytes_per_token)
            return None if refused else usage, body
        reader = call.reader()
        async for chunk in answer.chunks:
            tokens, seen = reader.pass_on(chunk)
            if tokens:
                self.account.produced(request_id, tokens)
            if seen:
                await self._send(send, seen)
        return reader.usage, reader.rest()

    async def _send(self, send: Send, body: bytes, last: bool = False) -> None:
        await self._deliver(send, {"type": "http.response.body", "body": body, "more_body": not last})

    async def _deliver(self, send: Send, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self.config.limits.stall_seconds):
                await send(message)
        except TimeoutError:
            raise StalledError from None
