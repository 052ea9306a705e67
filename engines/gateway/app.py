"""The gateway as an aiohttp application: routes, who may see what, bodies and their limits, errors as OpenAI's are.

A caller is known before its body is read.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from fairsched.engines.gateway import openai
from fairsched.engines.gateway.gateway import Gateway
from fairsched.engines.gateway.identity import Peer
from fairsched.engines.gateway.operations import CALLS, REQUEST_ID, begun, current, over

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_CALLED = frozenset(each.path for each in openai.GATED) | frozenset(each.path for each in openai.PASSED)
"""Paths of calls, as opposed to those of the gateway itself."""
WEIGHTS_BYTES = 1 << 16
_WEIGHTS = msgspec.json.Decoder(dict[str, int])
_log = logging.getLogger("fairsched.gateway")


def application(gateway: Gateway) -> web.Application:
    """Return the application."""
    return _Application(gateway).app


class Bodies:
    """The bytes of all bodies that are held, by client."""

    def __init__(self) -> None:
        self.held = 0
        self._of: Counter[str] = Counter()

    def take(self, name: str, size: int, most: int) -> None:
        """Count bytes of a client.  It has at most as many as are left for others then.  Raises `CallError` (503)."""
        if self._of[name] + size > most - self.held - size:
            raise openai.CallError(503, "the bodies of too many calls are here", 1)
        self.held += size
        self._of[name] += size

    def give_back(self, name: str, size: int) -> None:
        """Count bytes that are held no more."""
        self.held -= size
        self._of[name] -= size
        if not self._of[name]:
            del self._of[name]


class _Application:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._bodies = Bodies()
        self.app = app = web.Application(middlewares=[self._recorded, _shaped])
        app.cleanup_ctx.append(self._running)
        app.on_response_prepare.append(self._prepared)
        for gated in openai.GATED:
            self._add("POST", gated.path, self._gated)
        for passed in openai.PASSED:
            self._add(passed.method, passed.path, self._passed)
        app.router.add_get("/health", self._health)
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/readyz", self._ready)
        if gateway.config.status:
            app.router.add_get("/gateway/status", self._status)
            app.router.add_get("/gateway/usage", self._usage)
        if gateway.config.admin:
            app.router.add_post("/gateway/weights", self._weigh)
            app.router.add_post("/gateway/drain", self._drain)
        if gateway.config.metrics:
            app.router.add_get("/metrics", self._metrics)

    def _add(self, method: str, path: str, handler: Handler) -> None:
        self.app.router.add_route(method, path, handler)
        self.app.router.add_route("OPTIONS", path, self._preflight)

    async def _running(self, _: web.Application) -> AsyncIterator[None]:
        await self._gateway.start()
        yield
        await self._gateway.stop()

    @web.middleware
    async def _recorded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keep the record of a call, and tell of it when it has ended."""
        if request.path not in _CALLED:
            over()
            return await handler(request)
        call, tracing = begun(request.method, request.path, request.headers), self._gateway.tracing
        span = None if tracing is None else tracing.begin(call, request.headers)
        try:
            response = await handler(request)
            call.status = response.status
            return response
        finally:
            if tracing is not None and span is not None:
                tracing.end(span, call)
            if CALLS.isEnabledFor(logging.INFO):
                CALLS.info("%s %s %d", call.method, call.path, call.status, extra={"call": call})

    # --- calls ------------------------------------------------------------------------------------------------------

    async def _gated(self, request: web.Request) -> web.StreamResponse:
        async with self._read(request) as (name, body):
            return await self._gateway.serve(request, name, openai.BY_PATH[request.path], body)

    async def _passed(self, request: web.Request) -> web.StreamResponse:
        async with self._read(request) as (name, body):
            return await self._gateway.ask(request, name, body)

    @asynccontextmanager
    async def _read(self, request: web.Request) -> AsyncIterator[tuple[str, bytes]]:
        """Yield the client and the whole body of a call, which counts as held within.

        Raises `CallError`: 401 for an unknown caller, 415 for a body that is packed, 413 for one that is too long, 408
        for one that takes too long, 503 where too many are here.  A call that ends here is counted.
        """
        gateway, limits, taken, body = self._gateway, self._gateway.config.limits, 0, bytearray()
        try:
            name = await gateway.names.named(request.headers, _peer(request))
            if (packed := request.headers.get("Content-Encoding", "identity").lower()) != "identity":
                raise openai.CallError(415, f"a body that is packed ({packed[:20]}) is not read: send it as it is")
        except openai.CallError:
            gateway.account.count("refused")
            raise
        try:
            try:
                if (request.content_length or 0) > limits.body_bytes:
                    raise openai.CallError(413, f"the body is longer than {limits.body_bytes} bytes")
                async with asyncio.timeout(limits.body_seconds):
                    while chunk := await request.content.readany():
                        self._bodies.take(name, len(chunk), limits.bodies_bytes)
                        taken += len(chunk)
                        body += chunk
                        if taken > limits.body_bytes:
                            raise openai.CallError(413, f"the body is longer than {limits.body_bytes} bytes")
            except TimeoutError:
                gateway.account.count("refused")
                raise openai.CallError(408, f"the body took longer than {limits.body_seconds} s") from None
            except openai.CallError as error:
                gateway.account.count("too large" if error.status == 413 else "limited")
                raise
            except (ConnectionError, asyncio.CancelledError):
                gateway.account.count("left")
                raise
            except web.RequestPayloadError as error:
                gateway.account.count("refused")
                raise openai.CallError(400, f"the body cannot be read: {error}") from None
            yield name, bytes(body)
        finally:
            self._bodies.give_back(name, taken)

    # --- others -----------------------------------------------------------------------------------------------------

    async def _health(self, _: web.Request) -> web.Response:
        up = len(self._gateway.account.upstreams())
        return _json({"servers_up": up}, 200 if up else 503)

    async def _alive(self, _: web.Request) -> web.Response:
        return _json({"alive": True})

    async def _ready(self, _: web.Request) -> web.Response:
        why = self._gateway.unready()
        return _json({"ready": not why, "why": why}, 503 if why else 200)

    async def _status(self, request: web.Request) -> web.Response:
        self._gateway.names.check_admin(request.headers)
        return _json(await self._gateway.status())

    async def _usage(self, request: web.Request) -> web.Response:
        self._gateway.names.check_admin(request.headers)
        return _json(await self._gateway.account.usage())

    async def _metrics(self, request: web.Request) -> web.Response:
        self._gateway.names.check_admin(request.headers)
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=await self._gateway.metrics(), headers=headers)

    async def _weigh(self, request: web.Request) -> web.Response:
        self._gateway.names.check_admin(request.headers)
        try:
            weights = _WEIGHTS.decode(await request.content.read(WEIGHTS_BYTES))
            self._gateway.config.with_weights(weights)
        except msgspec.MsgspecError:
            raise openai.CallError(400, 'the body is {"CLIENT": WEIGHT, ...}') from None
        except ValueError as error:
            raise openai.CallError(400, str(error)) from None
        await self._gateway.weigh(weights)
        _log.warning("an administrator set weights: %s", weights)
        return _json(weights)

    async def _drain(self, request: web.Request) -> web.Response:
        self._gateway.names.check_admin(request.headers)
        _log.warning("an administrator lets the gateway drain")
        self._gateway.drain()
        return _json({"draining": True}, 202)

    async def _preflight(self, request: web.Request) -> web.Response:
        asked, method = (request.headers.get(f"Access-Control-Request-{each}") for each in ("Headers", "Method"))
        origins = self._gateway.config.cors_origins
        headers = openai.preflight_headers(origins, request.headers.get("Origin"), asked, method or "POST")
        return web.Response(status=204, headers=headers)

    async def _prepared(self, request: web.Request, response: web.StreamResponse) -> None:
        if request.path in _CALLED and (call := current()) is not None:
            response.headers[REQUEST_ID] = call.request_id
        if self._gateway.draining or request.method == "CONNECT":
            # Its caller connects again, and to another gateway; what follows a tunnel that is refused is no call.
            response.headers["Connection"] = "close"
            response.force_close()
        origins = self._gateway.config.cors_origins
        if origins:
            response.headers.update(openai.cors_headers(origins, request.headers.get("Origin")))


def _peer(request: web.Request) -> Peer:
    """Return the other end of the connection of a call."""
    transport = request.transport
    if transport is None:
        return Peer()
    place = transport.get_extra_info("peername")
    return Peer(place[0] if isinstance(place, tuple) else None, transport.get_extra_info("peercert"))


@web.middleware
async def _shaped(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer what is refused as OpenAI's servers do.  A target is a path, or an address of http (RFC 9112, 3.2): what
    it says of scheme and host is no more than a `Host` header says."""
    try:
        if not request.raw_path.lower().startswith(("/", "*", "http://", "https://")):
            raise openai.CallError(400, "a call names a path, or an address of http or https")
        return await handler(request)
    except openai.CallError as error:
        return refusal(error, request.path)
    except web.HTTPError as error:
        allow, why = error.headers.get("Allow"), error.reason
        if error.status == 404:
            why = f"there is no {request.path[:100]} here"
        elif allow is not None:
            why = f"{request.path[:100]} takes {allow}, not {request.method[:20]}"
        return refusal(openai.CallError(error.status, why), request.path, allow)


def _json(document: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    body = msgspec.json.encode(document)
    return web.Response(body=body, status=status, headers={"Content-Type": "application/json", **(headers or {})})


def refusal(error: openai.CallError, path: str = "", allow: str | None = None) -> web.Response:
    """Return the answer to a call that is refused, in the form of its endpoint."""
    endpoint = openai.BY_PATH.get(path)
    form = "choices" if endpoint is None else endpoint.form
    headers = error.headers if allow is None else {"Allow": allow}
    if error.retry_after_seconds is not None:
        headers = {**headers, "Retry-After": str(error.retry_after_seconds)}
    return _json(openai.error_document(error.status, error.message, form, error.code), error.status, headers)
