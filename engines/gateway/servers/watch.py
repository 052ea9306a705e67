"""Time-outs of all calls, by one clock that stands still while the event loop does.

A deadline of its own for each chunk of each stream costs more than the chunk.  And where the loop is busy for seconds,
deadlines pass although servers answered long ago: a gateway that is overloaded would take its servers out.  So time is
counted in sweeps: each looks at all calls, the next one is a quarter of a second later or when the loop gets to it.
A call notes the sweep at which something last happened, and is late some sweeps after that.

Only the longest time of a call at a server is measured by the clock on the wall, since it is paid for by that.
"""

import asyncio
import time
from types import TracebackType
from typing import Literal

from fairsched.engines.gateway.config import GatewayConfig

SWEEP_SECONDS = 0.25
CONNECT_SECONDS = 5.0

Phase = Literal["connect", "first byte", "read", "stalled"]
"""What a call waits for: a connection, the first byte of an answer, its next bytes, or its caller to take some."""
Late = Literal["connect", "first byte", "read", "stalled", "call", "hung"]
"""What took too long; "call": all of it; "hung": the server does not answer others, either."""


class ServerLateError(Exception):
    """Something took too long."""

    def __init__(self, what: Late) -> None:
        super().__init__(what)
        self.what: Late = what


class Watch:
    """The time of one call at a server, as an asynchronous context that raises `ServerLateError`.

    Set `phase` and `since`, the sweep at which it began; `begin` does.
    """

    __slots__ = ("_timer", "_watches", "begun", "late", "passed", "phase", "server", "since", "streams")

    def __init__(self, watches: "Watches", server: int, *, streams: bool) -> None:
        self.server = server
        self.streams = streams
        self.phase: Phase = "connect"
        self.since = watches.sweep
        self.passed = False
        """A byte of an answer is here."""
        self.begun = time.monotonic()
        self.late: Late | None = None
        self._watches = watches
        self._timer = asyncio.timeout(None)

    def begin(self, phase: Phase) -> None:
        """Wait for something else from now on."""
        self.phase = phase
        self.since = self._watches.sweep

    @property
    def waited_seconds(self) -> float:
        """How long it waits for the same, as far as the event loop was there."""
        return (self._watches.sweep - self.since) * SWEEP_SECONDS

    def sent(self) -> None:
        """Wait for the first byte: of an answer that is no stream it comes with the last one."""
        self.begin("first byte" if self.streams else "read")

    def expire(self, late: Late) -> None:
        if self.late is None:
            self.late = late
            self._timer.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> "Watch":
        await self._timer.__aenter__()
        self._watches.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watches.remove(self)
        try:
            await self._timer.__aexit__(kind, error, trace)
        except TimeoutError:
            assert self.late is not None
            raise ServerLateError(self.late) from None


class Watches:
    """All calls at servers, of one event loop."""

    def __init__(self, config: GatewayConfig) -> None:
        self.sweep = 0
        """How many sweeps there were."""
        self._open: set[Watch] = set()
        self._running: asyncio.TimerHandle | None = None
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        limits = config.limits
        seconds: dict[Phase, float] = {
            "connect": CONNECT_SECONDS,
            "first byte": limits.first_byte_seconds,
            "read": limits.read_seconds,
            "stalled": limits.stall_seconds,
        }
        self._most = {phase: int(each / SWEEP_SECONDS) + 1 for phase, each in seconds.items()}
        self._call_seconds = config.call_seconds

    def add(self, watch: Watch) -> None:
        self._open.add(watch)
        if self._running is None:
            self._running = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._look)

    def remove(self, watch: Watch) -> None:
        self._open.discard(watch)

    def hung(self, server: int) -> None:
        """Tell that a server does not answer: its calls that have no byte of an answer go elsewhere."""
        for watch in self._open:
            if watch.server == server and not watch.passed:
                watch.expire("hung")

    def _look(self) -> None:
        self.sweep += 1
        sweep, most = self.sweep, self._most
        oldest = time.monotonic() - self._call_seconds
        for watch in self._open:
            if sweep - watch.since > most[watch.phase]:
                watch.expire(watch.phase)
            elif watch.begun < oldest:
                watch.expire("call")
        self._running = None
        if self._open:
            self._running = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._look)
