"""What those who run a gateway see and do: a page on which the status is read, weights that change, and the drain.

The page is the same for all and has nothing to hide; what it shows it asks for with the key that is typed into it.
"""

import base64
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Protocol

import msgspec
from aiohttp import web

from fairsched.engines.gateway.config import GatewayConfig
from fairsched.engines.gateway.openai import CallError

_log = logging.getLogger("fairsched.gateway")

BODY_BYTES_MAX = 1 << 16
_WEIGHTS = msgspec.json.Decoder(dict[str, int])


class Names(Protocol):
    """Who is who."""

    def check_admin(self, headers: Mapping[str, str]) -> None:
        """Raise `CallError` for a caller without an admin key."""


class Administered(Protocol):
    """A gateway, as far as it is administered."""

    config: GatewayConfig
    weigh: Callable[[Mapping[str, int]], Awaitable[None]]
    drain: Callable[[], None]

    @property
    def names(self) -> Names:
        """Who may administer it."""


def add_routes(app: web.Application, gateway: Administered) -> None:
    """Serve the page beside the status, and with `admin` what changes something."""
    admin = _Admin(gateway)
    if gateway.config.status:
        app.router.add_get("/gateway", admin.page)
    if gateway.config.admin:
        app.router.add_post("/gateway/weights", admin.weigh)
        app.router.add_post("/gateway/drain", admin.drain)


class _Admin:
    def __init__(self, gateway: Administered) -> None:
        self._gateway = gateway
        self._page = files("fairsched.engines.gateway.operations").joinpath("page.html").read_bytes()
        script = self._page.partition(b"<script>")[2].partition(b"</script>")[0]
        digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
        self._headers = {
            "Content-Type": "text/html; charset=utf-8",
            # Names on it are callers' words: whatever they were, no other script runs.
            "Content-Security-Policy": f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
            "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }

    async def page(self, _: web.Request) -> web.Response:
        return web.Response(body=self._page, headers=self._headers)

    async def weigh(self, request: web.Request) -> web.Response:
        gateway = self._gateway
        gateway.names.check_admin(request.headers)
        body = await request.content.read(BODY_BYTES_MAX)
        try:
            weights = _WEIGHTS.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise CallError(400, 'the body is {"CLIENT": WEIGHT, ...}') from None
        try:
            gateway.config.with_weights(weights)
        except ValueError as error:
            raise CallError(400, str(error)) from None
        await gateway.weigh(weights)
        _log.warning("an administrator set weights: %s", weights)
        return web.json_response(weights)

    async def drain(self, request: web.Request) -> web.Response:
        self._gateway.names.check_admin(request.headers)
        _log.warning("an administrator lets the gateway drain")
        self._gateway.drain()
        return web.json_response({"draining": True}, status=202)
