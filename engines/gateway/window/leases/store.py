"""Where several gateways keep what they share: values that each changes as if it were alone.

A change is a pure function of a value.  A store reads the value, lets the function make the next one, and writes that
if no other has written meanwhile; otherwise the function is asked again.  So what the function does is atomic, and it
is the Python that was proved, whatever keeps the value.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from fairsched.engines.files import write_whole

T = TypeVar("T")

Change = Callable[[bytes | None, int], tuple[bytes, T]]
"""Makes of a value (None: there is none) and the store's time in nanoseconds the next value, and an answer.
Where it returns the very value that it was given, that stays, and is not written."""


class StoreError(Exception):
    """The store is away, or does not take what it is told; the message says why."""


class Store(Protocol):
    """Values by key, for all gateways that share them."""

    async def change(self, key: str, change: Change[T]) -> T:
        """Change a value, and return the function's answer.

        Raises `StoreError`, after which the change may have happened or not, and what the function raises, after which
        it has not.
        """

    async def close(self) -> None:
        """End connections."""


class MemoryStore:
    """Values of one process; `clock` gives nanoseconds since 1970."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self.values: dict[str, bytes] = {}
        self._clock = clock

    async def change(self, key: str, change: Change[T]) -> T:
        self.values[key], answer = change(self.values.get(key), self._clock())
        return answer

    async def close(self) -> None:
        """Do nothing."""


class FileStore:
    """A value for each file of a folder, for the processes of one machine.  Each change is on the disk's way when it
    returns: a kill loses nothing, a power loss the last moments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def change(self, key: str, change: Change[T]) -> T:
        return await asyncio.to_thread(self._changed, key, change)

    def _changed(self, key: str, change: Change[T]) -> T:
        path = self._folder / key
        try:
            with self._locked(path):
                before = path.read_bytes() if path.exists() else None
                after, answer = change(before, time.time_ns())
                if after is not before:
                    write_whole(path, after)
                return answer
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror or error}") from None

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        import fcntl  # Windows has none.

        self._folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.with_name(f"{path.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    async def close(self) -> None:
        """Do nothing."""
