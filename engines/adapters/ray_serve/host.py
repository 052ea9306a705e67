"""The coordinator in an event loop: handles exchange messages with it, and wait at it for news.

One `exchange` at a time and one `hear` at a time come from each handle.  `hear` returns when there is news for the
handle, when the handle must say `Hello`, and at every heartbeat; so nothing is held up by calls that wait, however many
they are.  Whatever a handle was told with a session that is over, the next `Hello` tells again.
"""

import asyncio
import logging
import time

from fairsched.engines.adapters.ray_serve.coordinator import Coordinator
from fairsched.engines.adapters.ray_serve.messages import Accounts, CoordinatorAnswer, encode, hello_of, messages_of
from fairsched.engines.adapters.ray_serve.settings import RouterSettings
from fairsched.engines.serving import Document

_log = logging.getLogger("fairsched.ray_serve")


class CoordinatorHost:
    """Belongs to one event loop.  `again`: it was there before, and gathers what handles kept before it goes on."""

    def __init__(self, settings: RouterSettings, *, again: bool = False) -> None:
        self._begun_ns = time.monotonic_ns()
        self.settings = settings
        self.coordinator = Coordinator(settings, again=again)
        self._sessions: dict[str, int] = {}
        self._news: dict[str, asyncio.Event] = {}
        self._told: dict[str, Accounts] = {}
        self._kept: Accounts | None = None

    def now_ns(self) -> int:
        """Time since the start."""
        return time.monotonic_ns() - self._begun_ns

    async def run(self) -> None:
        """Let time pass until no handle was there for `idle_seconds`."""
        heard_ns = self.now_ns()
        while self.now_ns() - heard_ns <= self.settings.idle_seconds * 1e9:
            await asyncio.sleep(self.settings.heartbeat_seconds)
            gathers = self.coordinator.gathers
            try:
                self.coordinator.tick(self.now_ns())
                self._kept = self.coordinator.accounts(self.now_ns())
            except Exception:
                _log.exception("a tick failed; the next one is tried")
            if self.coordinator.handles:
                heard_ns = self.now_ns()
            self._wake(everyone=gathers and not self.coordinator.gathers)

    async def hello(self, handle: str, session: int, raw: bytes) -> bytes:
        """Take all that is open at a handle; what it was told in other sessions is void."""
        self._sessions[handle] = session
        self._told.pop(handle, None)
        if handle in self._news:
            self._news.pop(handle).set()
        self._news[handle] = asyncio.Event()
        self.coordinator.hello(handle, hello_of(raw), self.now_ns())
        return self._answer(handle)

    async def exchange(self, handle: str, session: int, raw: bytes) -> bytes:
        """Take what a handle says, and return what it must learn by then."""
        if not self._is_of(handle, session):
            return encode(CoordinatorAnswer(known=False))
        self.coordinator.tell(handle, messages_of(raw), self.now_ns())
        return self._answer(handle)

    async def hear(self, handle: str, session: int) -> bytes:
        """Return the next news for a handle, or nothing at the next heartbeat."""
        if self._is_of(handle, session) and not self.coordinator.has_news(handle):
            self.coordinator.heard(handle, self.now_ns())
            news = self._news[handle]
            news.clear()
            try:
                async with asyncio.timeout(self.settings.heartbeat_seconds):
                    await news.wait()
            except TimeoutError:
                pass
        if not self._is_of(handle, session):
            return encode(CoordinatorAnswer(known=self._sessions.get(handle) not in (None, session)))
        return self._answer(handle, accounts=True)

    async def used(self, name: str, output_tokens: int, computed_tokens: int | None) -> bool:
        return self.coordinator.used(name, output_tokens, computed_tokens)

    async def status(self) -> Document:
        return self.coordinator.status()

    async def configure(self, weights: dict[str, int]) -> None:
        self.coordinator.configure(weights, self.now_ns())
        self._wake()

    def _is_of(self, handle: str, session: int) -> bool:
        return self._sessions.get(handle) == session and self.coordinator.knows(handle)

    def _answer(self, handle: str, *, accounts: bool = False) -> bytes:
        """Return what the handle must learn; the others are woken if there is news for them."""
        placed = self.coordinator.take(handle)
        self._wake()
        kept = self._kept if accounts and self._told.get(handle) is not self._kept else None
        if kept is not None:
            self._told[handle] = kept
        return encode(CoordinatorAnswer(placed, kept))

    def _wake(self, *, everyone: bool = False) -> None:
        for handle in list(self._news):
            if not self.coordinator.knows(handle):
                self._news[handle].set()
                if not self.coordinator.has(handle):
                    del self._news[handle]
                    self._sessions.pop(handle, None)
                    self._told.pop(handle, None)
            elif everyone or self.coordinator.has_news(handle):
                self._news[handle].set()
