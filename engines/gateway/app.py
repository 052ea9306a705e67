"""The gateway as an ASGI application: routes, bodies and their limit, callers that leave, errors as OpenAI's are."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fairsched.engines.gateway.gateway import Gateway, StalledError
from fairsched.engines.gateway.openai import GATED, CallError
from fairsched.engines.gateway.upstream import BrokenError, FailedError, UnsendableError, open_answer

class LeftError(Exception):
    """The caller left."""


def application(gateway: Gateway, stopped: Callable[[], Awaitable[None]] | None = None) -> Starlette:
    """Return the application; `stopped` is called when it has drained."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with gateway.http:
            yield
        if stopped is not None:
            await stopped()

    async def health(_: HttpRequest) -> Response:
        up = len(gateway.account.upstreams())
        return JSONResponse({"servers_up": up}, 200 if up else 503)

    async def told(_: HttpRequest) -> Response:
        return JSONResponse(await gateway.account.status())

    gated = _Gated(gateway)
    routes = [Route(each.path, gated, methods=["POST"]) for each in GATED]
    routes += [Route("/v1/models", partial(_models, gateway)), Route("/health", health)]
    if gateway.config.status:
        routes.append(Route("/gateway/status", told))
    if gateway.config.metrics:

        async def scraped(_: HttpRequest) -> Response:
            return Response(await gateway.account.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

        routes.append(Route("/metrics", scraped))
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={CallError: _refused})


async def _models(gateway: Gateway, request: HttpRequest) -> Response:
    """Return the models of the first server that answers."""
    gateway.names.of(request.headers)
    last = "no server takes requests"
    for server in gateway.account.upstreams():
        call = ("GET", "/v1/models", request.headers.items(), b"")
        try:
            async with open_answer(gateway.http, server, call, gateway.config.limits.read_seconds) as answer:
                body = b"".join([chunk async for chunk in answer.chunks])
                response = Response(body, answer.status)
                response.raw_headers = [*answer.headers, (b"content-length", str(len(body)).encode())]
                return response
        except UnsendableError as error:
            raise CallError(400, str(error)) from None
        except (FailedError, BrokenError) as error:
            last = str(error)
    raise CallError(502, f"no server answered: {last}")


def _refused(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, CallError)
    return refusal(error)


def refusal(error: CallError) -> Response:
    """Return the answer to a call that is refused."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    document = {"error": {"message": error.message, "type": kind, "code": error.status}}
    retry = error.retry_after_seconds
    return JSONResponse(document, error.status, None if retry is None else {"Retry-After": str(retry)})


class _Gated:
    """The endpoint of what passes the gate, as ASGI, so that bytes go through as they come."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = Headers(scope=scope)
            body = await _body(self._gateway, receive, headers)
            path = scope["path"]
            if scope["query_string"]:
                path += "?" + scope["query_string"].decode("latin-1")
            await _unless_left(receive, self._gateway.serve(path, headers, body, send))
        except CallError as error:
            await refusal(error)(scope, receive, send)
        except (LeftError, StalledError):
            # The answer stays incomplete, and the connection is closed.
            return


async def _body(gateway: Gateway, receive: Receive, headers: Headers) -> bytes:
    """Return the whole body; a call without one ends here and is counted.

    Raises `CallError` (413) for one that is too long, `LeftError` for a caller that left.
    """
    most = gateway.config.limits.body_bytes
    declared = headers.get("content-length", "0")
    body = bytearray()
    more = not declared.isdecimal() or int(declared) <= most
    too_long = not more
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            gateway.account.count("left")
            raise LeftError
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > most:
            too_long, more = True, False
    if too_long:
        gateway.account.count("too large")
        raise CallError(413, f"the body is longer than {most} bytes")
    return bytes(body)


async def _unless_left(receive: Receive, serving: Coroutine[None, None, None]) -> None:
    """Serve until it is done or the caller leaves, which cancels it.  Raises `LeftError`, or what serving raises."""

    async def leaves() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    work, left = asyncio.ensure_future(serving), asyncio.ensure_future(leaves())
    try:
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise LeftError
        work.result()
    finally:
        for task in (work, left):
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
