"""Tests that are coroutines."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec

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
