"""Calls that are made elsewhere: each in its turn in a thread that does not keep the process, its answer a future."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def settle(future: "Future[T]", call: Callable[[], T]) -> None:
    """Give a future that was not cancelled what a call returns or raises."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)


class CallThread:
    """A thread that makes calls one after the other."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def later(self, call: Callable[[], T]) -> "Future[T]":
        """Have a call made after those before it."""
        future: Future[T] = Future()
        self._calls.put(lambda: settle(future, call))
        return future

    def stop(self, grace_s: float = 0.0) -> None:
        """Let the thread end after these calls, and wait for it no longer than `grace_s` seconds."""
        self._calls.put(None)
        self._thread.join(grace_s)
