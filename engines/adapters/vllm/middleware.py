"""The client that a gateway names to vLLM's server: `--middleware fairsched.integrations.vllm.GatewayClient`.

vLLM's headers do not reach its scheduler, `vllm_xargs` of a body do.  So the name in the gateway's header becomes
`vllm_xargs.client`, and what the caller said there is dropped, also where there is no header.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from fairsched.engines.gateway import CLIENT_HEADER

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Application = Callable[[Message, Receive, Callable[[Message], Awaitable[None]]], Awaitable[None]]

_CLIENT = "client"
"""As in the setting `client_key`."""
_ARGUMENTS = "vllm_xargs"


class GatewayClient:
    """An ASGI middleware.  A server with it is to be reached by the gateway only: whoever reaches it names clients."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Callable[[Message], Awaitable[None]]) -> None:
        """Pass a call on, with its client."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body, last = await _whole(receive)
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        name = unquote(headers.get(CLIENT_HEADER.encode(), ""))
        body = named(body, name)
        said = [
            (key, value)
            for key, value in scope["headers"]
            if key.lower() not in (b"content-length", b"transfer-encoding")
        ]
        said.append((b"content-length", str(len(body)).encode()))
        messages: list[Message] = (
            [{"type": "http.request", "body": body, "more_body": False}] if last is None else [last]
        )

        async def received() -> Message:
            return messages.pop() if messages else await receive()

        await self._app({**scope, "headers": said}, received, send)


async def _whole(receive: Receive) -> tuple[bytes, Message | None]:
    """Return a call's body; or the message that its caller has left."""
    pieces = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"", message
        pieces += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(pieces), None


def named(body: bytes, name: str) -> bytes:
    """Return a JSON document with this client, or without one; what is no such document stays as it is.

    It is read as vLLM's server reads it (other readers refuse `NaN`, or UTF-16), so that no name passes by.

    >>> named(b'{"n": 1.0, "vllm_xargs": {"client": "forged", "k": 2}}', "gold")
    b'{"n": 1.0, "vllm_xargs": {"k": 2, "client": "gold"}}'
    >>> named(b'{"vllm_xargs": {"client": "forged"}}', "")
    b'{"vllm_xargs": {}}'
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return body
    arguments = (document.get(_ARGUMENTS) or {}) if isinstance(document, dict) else None
    if not isinstance(arguments, dict):
        return body
    arguments.pop(_CLIENT, None)
    if name:
        document[_ARGUMENTS] = arguments | {_CLIENT: name}
    return json.dumps(document).encode()
