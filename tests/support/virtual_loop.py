"""An event loop whose time passes only while everything waits, and then at once."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


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


def in_virtual_time(work: Coroutine[Any, Any, None]) -> None:
    """Run it in a loop of its own."""
    loop = VirtualLoop()

    async def run() -> None:
        try:
            await work
        finally:
            for end in loop.ends:
                end()
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())
