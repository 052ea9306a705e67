"""The gateway as an aiohttp application: routes, who may see what, bodies and their limits, errors as OpenAI's are.

A caller is known before its body is read.
"""

import asyncio
import re
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import msgspec
from aiohttp import HttpVersion11, web

from fairsched.engines.gateway import openai
from fairsched.engines.gateway.gateway import CALL_ID, REQUEST_ID, Gateway
from fairsched.engines.gateway.identity import Peer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_MODELS = (openai.MODELS, "/models")
_CALLED = openai.BY_PATH.keys() | set(_MODELS)
"""Paths of calls, as opposed to those of the gateway itself."""
LARGE_BYTES = 64 << 10
"""Reading a shorter body takes no time that others would notice."""
READ_BYTES_PER_SECOND = 16 << 20
"""So much is read of a client's long bodies; reading takes a fifth of that time at most."""
REFUSED_COST = 8
"""Bytes that come to no call cost so many times as much."""
CLIENTS_KEPT = 1 << 12
_PLAIN = re.compile(r"[!-~]{1,128}")
ROOM: web.AppKey[Any] = web.AppKey("room", object)
"""Makes room for a connection where all have calls."""


def application(gateway: Gateway) -> web.Application:
    """Return the application."""
    return _Application(gateway).app


class Bodies:
    """Bodies of calls, by client: the bytes that are held, those that still come, and the time that reading takes."""

    def __init__(self) -> None:
        self.held = 0
        self._of: Counter[str] = Counter()
        self._coming: defaultdict[str, dict[web.RequestHandler, None]] = defaultdict(dict)
        self._free_at: dict[str, float] = {}

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

    @contextmanager
    def coming(self, name: str, request: web.Request) -> Iterator[None]:
        """Count a body that comes, or waits until it may be read, while it does."""
        self._coming[name][request.protocol] = None
        try:
            yield
        finally:
            del self._coming[name][request.protocol]
            if not self._coming[name]:
                del self._coming[name]

    def make_room(self) -> bool:
        """Cut off the oldest body of the client that sends most at a time; returns whether one sends several."""
        most = max(self._coming.values(), key=len, default={})
        if len(most) < 2:
            return False
        transport = next(iter(most)).transport
        if transport is not None:
            transport.abort()
        return True

    async def turn(self, name: str, size: int) -> None:
        """Wait until a body of the client may be read: reading long ones holds up all others."""
        if size > LARGE_BYTES:
            await asyncio.sleep(self._spend(name, size))

    def refused(self, name: str, size: int) -> None:
        """Charge bytes that came to no call: the client's next long body waits for them."""
        self._spend(name, REFUSED_COST * size)

    def _spend(self, name: str, size: int) -> float:
        """Return how long the client's reading waits for what it read before."""
        now = time.monotonic()
        begins = max(self._free_at.get(name, now), now)
        self._free_at[name] = begins + size / READ_BYTES_PER_SECOND
        if len(self._free_at) > CLIENTS_KEPT:
            self._free_at = {each: at for each, at in self._free_at.items() if at > now}
        return begins - now


class _Application:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._bodies = Bodies()
        self.app = app = web.Application(middlewares=[_shaped])
        app.cleanup_ctx.append(self._running)
        app.on_response_prepare.append(self._prepared)
        app[ROOM] = lambda: self._bodies.make_room() or gateway.account.make_room()
        for path, gated in openai.BY_PATH.items():
            self._add("POST", path, partial(self._gated, gated))
        for path in _MODELS:
            self._add("GET", path, self._models)
            app.router.add_get(f"{path}/{{model:.+}}", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/readyz", self._ready)
        if gateway.config.status:
            self._admin("/gateway/status", gateway.status)
            self._admin("/gateway/usage", gateway.account.usage)
        if gateway.config.metrics:
            self._admin("/metrics", gateway.metrics)

    def _add(self, method: str, path: str, handler: Handler) -> None:
        for each in (path, f"{path}/"):
            add = self.app.router.add_get if method == "GET" else self.app.router.add_post
            add(each, handler, expect_handler=_expected)

    async def _running(self, _: web.Application) -> AsyncIterator[None]:
        await self._gateway.start()
        yield
        await self._gateway.stop()

    # --- calls ------------------------------------------------------------------------------------------------------

    async def _gated(self, endpoint: openai.Endpoint, request: web.Request) -> web.StreamResponse:
        async with self._read(request) as (name, body):
            with self._bodies.coming(name, request):
                await self._bodies.turn(name, len(body))
            return await self._gateway.serve(request, name, self._gateway.read(body, endpoint))

    async def _models(self, request: web.Request) -> web.Response:
        await self._named(request)
        wanted = request.match_info.get("model")
        listed = await self._gateway.models.listed(request.headers.get("Authorization"))
        if wanted is None:
            return _json({"object": "list", "data": listed})
        for model in listed:
            if model["id"] == wanted:
                return _json(model)
        raise openai.CallError(404, f"there is no model {wanted[:100]}", code="model_not_found")

    async def _named(self, request: web.Request) -> str:
        """Return the client of a call.  Raises `CallError` (401) for an unknown caller."""
        try:
            return await self._gateway.names.named(request.headers, _peer(request))
        except openai.CallError:
            self._gateway.account.count("refused")
            raise

    @asynccontextmanager
    async def _read(self, request: web.Request) -> AsyncIterator[tuple[str, bytes]]:
        """Yield the client and the whole body of a call, which counts as held within.

        Raises `CallError`: 401 for an unknown caller, 415 for a body that is packed, 413 for one that is too long, 408
        for one that takes too long, 503 where too many are here.  A call that ends here is counted.
        """
        gateway, limits, taken, body = self._gateway, self._gateway.config.limits, 0, bytearray()
        name = await self._named(request)
        if (packed := request.headers.get("Content-Encoding", "identity").lower()) != "identity":
            gateway.account.count("refused")
            raise openai.CallError(415, f"a body that is packed ({packed[:20]}) is not read: send it as it is")
        try:
            try:
                if (request.content_length or 0) > limits.body_bytes:
                    raise openai.CallError(413, f"the body is longer than {limits.body_bytes} bytes")
                with self._bodies.coming(name, request):
                    if request.version == HttpVersion11 and "Expect" in request.headers:
                        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                        request.writer.output_size = 0
                    async with asyncio.timeout(None if request.content.is_eof() else limits.body_seconds):
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
        except openai.CallError:
            self._bodies.refused(name, taken)
            raise
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

    def _admin(self, path: str, told: Callable[[], Awaitable[object]]) -> None:
        """Serve what is told to callers with an admin key."""

        async def tell(request: web.Request) -> web.Response:
            self._gateway.names.check_admin(request.headers)
            found = await told()
            headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
            return web.Response(body=found, headers=headers) if isinstance(found, bytes) else _json(found)

        self.app.router.add_get(path, tell)

    async def _prepared(self, request: web.Request, response: web.StreamResponse) -> None:
        if _path(request) in _CALLED:
            response.headers[REQUEST_ID] = CALL_ID.get()
        if self._gateway.draining or request.method == "CONNECT":
            # Its caller connects again, and to another gateway; what follows a tunnel that is refused is no call.
            response.headers["Connection"] = "close"
            response.force_close()


async def _expected(request: web.Request) -> None:
    """Invite no body before its caller is known and it may be read.  Raises `HTTPExpectationFailed`."""
    if request.version == HttpVersion11 and request.headers["Expect"].lower() != "100-continue":
        raise web.HTTPExpectationFailed


def _path(request: web.Request) -> str:
    """Return the path of a call, without a slash at its end or the name of a model."""
    path = request.path.rstrip("/")
    return openai.MODELS if path.startswith(tuple(f"{each}/" for each in _MODELS)) else path


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
    it says of scheme and host is no more than a `Host` header says.  The id of a call is its caller's, if that is a
    plain word, or a new one."""
    given = request.headers.get(REQUEST_ID, "")
    CALL_ID.set(given if _PLAIN.fullmatch(given) else secrets.token_hex(16))
    try:
        if not request.raw_path.lower().startswith(("/", "*", "http://", "https://")):
            raise openai.CallError(400, "a call names a path, or an address of http or https")
        return await handler(request)
    except openai.CallError as error:
        return refusal(error, _path(request))
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
