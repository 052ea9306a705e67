"""A request to LiteLLM's proxy as its server sees it: bytes that come and go, a caller that may leave, an end.

LiteLLM has a hook before a call, which may wait, and others when it has answered, failed, or streamed, none of which
comes for every end: a caller that leaves is known to the server alone.  So the queue asks for a place in the hook, and
an ASGI application around LiteLLM's own reads the answer as its bytes pass, and ends the place with the request, once,
however that ends.  Retries and fallbacks of LiteLLM happen within one place.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

from fairsched.engines.adapters.endpoint_picker import PickedCall, Picker
from fairsched.engines.gateway import CallError
from fairsched.engines.gateway.openai import Endpoint, sized

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_CURRENT: ContextVar["QueuedRequest | None"] = ContextVar("request", default=None)
CALLER_LEFT = 499
"""LiteLLM's status of a call whose caller is gone; it reaches no caller."""


class QueuedRequest:
    """One HTTP request."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._call: PickedCall | None = None
        self._asked = self._over = False

    async def place(self, picker: Picker, client: str, body: bytes, endpoint: Endpoint) -> None:
        """Wait until the call in a body may go; a second call of the same request goes along with the first.

        Raises `CallError`, with `CALLER_LEFT` when the caller leaves first.  Cancelling it takes the call out of the
        queue.
        """
        if self._asked:
            return
        config = picker.config
        try:
            size = sized(body, config.bytes_per_token, config.default_output_tokens, endpoint)
        except ValueError as error:
            raise CallError(400, str(error)) from None

        most = size.max_output_tokens
        if not size.declared:
            most = min(most, max(picker.window.largest - size.prompt_tokens, 1))

        async def pick() -> None:
            picked = await picker.pick(client, size.prompt_tokens, most, None, size.prompt_tokens_max)
            self._call = PickedCall(picker, picked, most, endpoint.form)
            if self._over:
                self.end()

        self._asked = True
        picking, leaving = asyncio.ensure_future(pick()), asyncio.ensure_future(self._left())
        try:
            await asyncio.wait((picking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not picking.done():
                raise CallError(CALLER_LEFT, "the caller left")
            picking.result()
        except BaseException:
            self._asked = False
            raise
        finally:
            picking.cancel()
            leaving.cancel()

    async def _left(self) -> None:
        """Return when the caller is gone.  The body has been read: no other message comes."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def send(self, message: Message) -> None:
        """Pass a message to the caller, and read what of the answer is in it."""
        if self._call is not None:
            if message["type"] == "http.response.start":
                headers = {
                    name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
                }
                self._call.begin(message["status"], headers)
            elif message["type"] == "http.response.body":
                self._call.read(message.get("body", b""))
                if not message.get("more_body", False):
                    self._call.finish()
        await self._send(message)

    def end(self) -> None:
        """End the call, unless its answer was whole."""
        self._over = True
        if self._call is not None:
            self._call.close()


class QueuedRequests:
    """An ASGI application around another one."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = QueuedRequest(receive, send)
        _CURRENT.set(request)
        try:
            await self._app(scope, receive, request.send)
        finally:
            request.end()


def current() -> QueuedRequest | None:
    """Return the request that this task works on, or None."""
    return _CURRENT.get()
