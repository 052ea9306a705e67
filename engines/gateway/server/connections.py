"""Connections of callers: how many there are, and how long one may be open without a call.

Each takes a descriptor, and a process that has none left serves nobody.  So the limit of the process is raised as far
as it may be, connections stay below it, and the one that has been idle for longest makes room for a new one.
"""

import asyncio
import errno
import logging
import math
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import Any, NoReturn

from aiohttp import HttpVersion10, web

from fairsched.engines.gateway.app import ROOM, refusal
from fairsched.engines.gateway.config import LimitConfig
from fairsched.engines.gateway.openai import CallError

_log = logging.getLogger("fairsched.gateway")

LOOK_SECONDS = 1.0
SPARE_DESCRIPTORS = 128
"""Descriptors for files, pipes, sockets that listen, and names that are looked up."""
ACCEPTED_AT_ONCE, ACCEPTED_OF_MANY = 64, 8
"""Connections that are accepted before others are looked after, alone and where other processes accept, too: the one
that is less busy then has more of them."""
OLDEST = 64
"""Among so many one is closed for a new one."""
EXHAUSTED_SECONDS = 0.1
"""Where no connection can be accepted, the next attempt is so much later."""
TELL_SECONDS = 10.0
"""A log has no more than a line in so many seconds about connections that are refused."""
LINGER_SECONDS = 2.0
"""What comes of a body that was refused is read for so long, so that the caller sees the refusal."""
READ_BYTES = 64 << 10
"""Of a body that is not taken yet, twice as much is read ahead at most."""
BACKLOG = 4096
FOREVER, NOW = 1e9, 0.01
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def sockets_at(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen at an address, one for each family.  Raises `OSError`, `UnicodeError` for a name."""
    found: list[socket.socket] = []
    try:
        places = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, place in dict.fromkeys(places):
            # All families share one port, that of the first where any will do.
            at = (place[0], found[0].getsockname()[1] if found else place[1])
            found.append(socket.create_server(at, family=family))
    except (OSError, UnicodeError):
        for each in found:
            each.close()
        raise
    return found


def descriptors() -> int:
    """Raise the limit of open files as far as it may be, and return it."""
    if sys.platform == "win32":
        return 4096
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            _log.warning("the limit of open files stays at %d", soft)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


class Connection(web.RequestHandler):
    """A caller's connection.  It is idle until the first byte of a call is here, and then the head may be late."""

    def __init__(self, connections: "Connections", manager: web.Server, **options: Any) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **options)
        self.connections = connections
        self.address: object = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it.  Its first call is awaited like a head that has begun."""
        super().connection_made(transport)
        place = transport.get_extra_info("peername")
        self.address = place[0] if isinstance(place, tuple) else None
        self.connections.awaits_head(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.connections.lost(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self in self.connections.idle:
            self.connections.awaits_head(self)
        super().data_received(data)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP like any other refusal, and close: it is no failure of ours, and fills no log.  Nor
        does a caller that left."""
        if isinstance(exc, ConnectionError):
            raise exc
        if isinstance(exc, UnicodeEncodeError) and "Expect" in request.headers:
            # aiohttp quotes the header's value in its refusal, before any code of ours is asked.
            status, message = 417, "Expect is no text"
        if status >= 500 or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        # Behind the first lines is what came.
        why = " ".join(line.strip() for line in (message or "").split("\n")[:2]).strip(" :")
        response = refusal(CallError(status, f"this is no HTTP request: {why}"))
        response.force_close()
        return response


def _cut_off(request: web.Request) -> NoReturn:
    """Close a connection with what its caller has not taken by now, and end its handler without a word."""
    if request.transport is not None:
        request.transport.abort()
    raise asyncio.CancelledError


class Connections:
    """The connections of callers of one event loop, which serve one application.

    `alone`: no other process accepts at the same sockets.  `idle` and `heads` are those without a call, and those of
    which a call's head is awaited: since when by `clock`, oldest first.  `most` is how many there may be.

    `clock` counts looks, in seconds: while the loop is behind, heads that came are not yet read, and no look is taken.
    """

    def __init__(self, limits: LimitConfig, tls: ssl.SSLContext | None = None, *, alone: bool = True) -> None:
        self.tls = tls
        self._at_once = ACCEPTED_AT_ONCE if alone else ACCEPTED_OF_MANY
        self.clock = LOOK_SECONDS
        self.idle: dict[Connection, float] = {}
        self.heads: dict[Connection, float] = {}
        self._open: set[Connection] = set()
        self._of: Counter[object] = Counter()
        self._serving: set[Connection] = set()
        self._runner: web.AppRunner | None = None
        self._accepting: list[asyncio.Task[None]] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._options: dict[str, Any] = {}
        self._told = -math.inf
        self._room: Callable[[], bool] = lambda: False
        self._descriptors = descriptors()
        self.configure(limits)

    def configure(self, limits: LimitConfig) -> None:
        self._limits = limits
        # A call takes a second descriptor at its server.
        self.most = limits.connections or max((self._descriptors - SPARE_DESCRIPTORS) // 2, 16)

    @property
    def count(self) -> int:
        return len(self._open) + len(self._opening)

    # --- what a connection tells ------------------------------------------------------------------------------------

    def awaits_head(self, connection: Connection) -> None:
        """Await the head of a call."""
        if connection not in self._open:
            self._open.add(connection)
            self._of[connection.address] += 1
        self.idle.pop(connection, None)
        self.heads[connection] = self.clock

    def lost(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self._of[connection.address] -= 1
            if not self._of[connection.address]:
                del self._of[connection.address]
        self.idle.pop(connection, None)
        self.heads.pop(connection, None)
        self._serving.discard(connection)

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Serve a call of a connection, which is neither idle nor late meanwhile."""
        if request.version < HttpVersion10:
            # HTTP/0.9 has no head, so there is nothing that could be answered.
            _cut_off(request)
        connection = request.protocol
        assert isinstance(connection, Connection)
        self.idle.pop(connection, None)
        self.heads.pop(connection, None)
        self._serving.add(connection)
        try:
            return await handler(request)
        except ConnectionError:
            _cut_off(request)
        finally:
            if connection in self._serving:
                self._serving.discard(connection)
                self.idle[connection] = self.clock

    # --- serving ----------------------------------------------------------------------------------------------------

    async def start(self, app: web.Application, sockets: Sequence[socket.socket]) -> None:
        """Serve the application at these sockets."""
        app.middlewares.insert(0, self.middleware)
        self._room = app.get(ROOM, lambda: False)
        self._options = {
            "access_log": None,
            "lingering_time": LINGER_SECONDS,
            "max_line_size": self._limits.header_bytes,
            "max_field_size": self._limits.header_bytes,
            "read_bufsize": READ_BYTES,
            # A body that is small only while it is packed is counted as it came, and is no JSON.
            "auto_decompress": False,
            "keepalive_timeout": FOREVER,
        }
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        for each in sockets:
            each.setblocking(False)
            each.listen(BACKLOG)
            self._accepting.append(asyncio.ensure_future(self._accept(each)))
        self._accepting.append(asyncio.ensure_future(self._look()))

    async def stop(self, drain_seconds: float) -> None:
        """Take no more connections, finish the calls that are there within so many seconds, and end."""
        assert self._runner is not None
        for task in (*self._accepting, *self._opening):
            task.cancel()
        await asyncio.gather(*self._accepting, *self._opening, return_exceptions=True)
        server = self._runner.server
        assert server is not None
        server.pre_shutdown()
        late = asyncio.get_running_loop().time() + drain_seconds
        while self._serving and asyncio.get_running_loop().time() < late:
            await asyncio.sleep(0.02)
        await server.shutdown(NOW if self._serving else LINGER_SECONDS)
        await self._runner.cleanup()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
                self._take(accepted)
                with suppress(BlockingIOError):
                    for _ in range(self._at_once - 1):
                        accepted, _ = listener.accept()
                        self._take(accepted)
                    await asyncio.sleep(0)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._tell(f"no connection is taken: {error}")
                    self._make_room()
                    await asyncio.sleep(EXHAUSTED_SECONDS)

    def _take(self, accepted: socket.socket) -> None:
        """Begin to serve a connection, if there may be one more."""
        if self.count >= self.most and not self._make_room():
            self._tell(f"a connection is closed at once: there are {self.count}, and none of them is idle")
            accepted.close()
            return
        task = asyncio.ensure_future(self._connect(accepted))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        assert self._runner is not None
        server = self._runner.server
        assert server is not None
        accepted.setblocking(False)
        seconds = None if self.tls is None else self._limits.header_seconds
        with suppress(OSError):  # TLS that fails is one, too.
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(self, server, **self._options),
                accepted,
                ssl=self.tls,
                ssl_handshake_timeout=seconds,
            )

    # --- room -------------------------------------------------------------------------------------------------------

    def _make_room(self) -> bool:
        """Close one of the connections that have been without a call for longest, of the address that has most, or cut
        a body off.  Returns whether there was one."""
        for found in (self.idle, self.heads):
            if found:
                self._close(max(islice(found, OLDEST), key=lambda each: self._of[each.address]))
                return True
        return self._room()

    def _close(self, connection: Connection) -> None:
        self.idle.pop(connection, None)
        self.heads.pop(connection, None)
        connection.force_close()

    async def _look(self) -> None:
        """Close connections that are idle for too long, and those whose head is late."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.clock += LOOK_SECONDS
            self._close_older(self.idle, self._limits.idle_seconds)
            self._close_older(self.heads, self._limits.header_seconds)

    def _close_older(self, found: dict[Connection, float], seconds: float) -> None:
        oldest = self.clock - LOOK_SECONDS - seconds
        for connection in [*takewhile(lambda each: found[each] <= oldest, found)]:
            self._close(connection)

    def _tell(self, text: str) -> None:
        """Log it, once in a while."""
        now = time.monotonic()
        if now >= self._told + TELL_SECONDS:
            self._told = now
            _log.warning("%s", text)
