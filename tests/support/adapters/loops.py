"""Tests that are coroutines, and an event loop whose time passes only while everything waits, and then at once."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

P = ParamSpec("P")
SECONDS = 900
"""A test that takes longer hangs."""


def in_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run the test in an event loop of its own."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(SECONDS):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


async def until(over: Callable[[], object], seconds: float = SECONDS / 3, pause: float = 0.005) -> None:
    """Wait until something is so, and look every `pause` seconds."""
    async with asyncio.timeout(seconds):
        while not over():
            await asyncio.sleep(pause)


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Sockets of one machine deliver before a write returns; so what is not there now does not come by waiting.
        events = super().select(0)
        if not events:
            if timeout is None:
                raise RuntimeError("everything waits, and nothing will come")
            self.now += max(timeout, 0.0)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """Begins at 0 s."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        self.ends: list[Callable[[], object]] = []
        """What is called in the end."""
        super().__init__(self._virtual)

    def time(self) -> float:
        """Return the time that has passed."""
        return self._virtual.now

    def now_ns(self) -> int:
        """Return the same in whole nanoseconds."""
        return round(self._virtual.now * 1e9)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run the test in a virtual loop of its own."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = VirtualLoop()

        async def to_its_end() -> None:
            try:
                await test(*args, **kwargs)
            finally:
                for end in loop.ends:
                    end()
                await asyncio.sleep(0)

        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(to_its_end())

    return run
