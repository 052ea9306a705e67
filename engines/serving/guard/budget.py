"""Calls of code that may never return, each within a time budget.

Such a call is made in another thread, and its caller waits no longer than the budget.  A call that is late is
interrupted: an exception is raised in its thread, which is never used again, so that the exception cannot reach any
other code.  What cannot be interrupted (a call of C, code that swallows every exception) keeps its thread, which does
not keep the process; only C code that never releases the interpreter's lock holds up the caller, too.

Threads that are free serve all callers.  A thread ends only after the exception was raised in it, so that its number is
its own then.
"""

import ctypes
import os
import time
from _thread import allocate_lock
from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar, cast

T = TypeVar("T")

TEXT_MAX = 300
"""The most characters of a text that such code makes."""


class Interruption(SystemExit):
    """Raised in the thread of a late call: no `Exception`, and one with which a thread may end silently."""


class OverdueError(Exception):
    """No answer within the budget.  `call` is the late one, if it may not have returned yet."""

    def __init__(self, why: str, call: "LateCall | None" = None) -> None:
        super().__init__(why)
        self.call = call


def _late(budget_ns: int, call: "LateCall | None" = None) -> OverdueError:
    return OverdueError(f"no decision within {budget_ns / 1e6:g} ms", call)


class LeftError(Exception):
    """The call asked for the end of its thread or of the program."""


class LateCall:
    """A thread that makes calls, each when `ask` says so; once its call is late, it makes no other."""

    def __init__(self) -> None:
        self._go, self._answered, self._raised = allocate_lock(), allocate_lock(), allocate_lock()
        for lock in (self._go, self._answered, self._raised):
            lock.acquire()
        self._act: Callable[[], Any] | None = None
        self._answer: tuple[Any, BaseException | None] = None, None
        self._retired = False
        self.over = False
        """Whether the late call has returned."""
        self._thread = Thread(target=self._work, name="fairsched-policy", daemon=True)
        self._thread.start()

    def ask(self, act: Callable[[], Any], budget_ns: int) -> tuple[Any, BaseException | None]:
        """Return what the call returned, and what it raised.  Raises `OverdueError`."""
        self._act = act
        self._go.release()
        try:
            there = self._answered.acquire(timeout=budget_ns / 1e9)
        except BaseException:  # The caller is interrupted itself.
            self._retire()
            raise
        if not there:
            self._retire()
            raise _late(budget_ns, self)
        answer, self._answer = self._answer, (None, None)
        return answer

    def _retire(self) -> None:
        """Interrupt the call, and let the thread end."""
        self._retired = True
        number, what = ctypes.c_ulong(cast(int, self._thread.ident)), ctypes.py_object(Interruption)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(number, what)
        self._raised.release()
        if self._go.locked():  # Otherwise the call has not begun, and does not begin any more.
            self._go.release()

    def _work(self) -> None:
        try:
            while True:
                self._go.acquire()
                if self._retired:
                    self._raised.acquire()
                    break
                act, self._act = cast(Callable[[], Any], self._act), None
                try:
                    self._answer = act(), None
                except BaseException as error:
                    self._answer = None, error
                del act
                self._answered.release()
        except Interruption:  # It came when the call was over.
            pass
        self.over = True


_free: list[LateCall] = []
os.register_at_fork(after_in_child=_free.clear)


def within(budget_ns: int | None, act: Callable[[], T], *, in_place: bool = False) -> T:
    """Return what `act` returns, or raise what it raises.  Raises `OverdueError`.

    `in_place` it is called in this thread, and its CPU time is looked at afterwards.  Without a budget (None) it has
    all the time.
    """
    if budget_ns is None:
        return act()
    if in_place:
        # Of this thread's work: on a busy machine a decision waits for its core, which is not the policy's fault.
        start = time.thread_time_ns()
        returned = act()
        if time.thread_time_ns() - start > budget_ns:
            raise _late(budget_ns)
        return returned
    try:
        thread = _free.pop()
    except IndexError:
        thread = LateCall()
    value, error = thread.ask(act, budget_ns)
    _free.append(thread)
    if error is None:
        return cast(T, value)
    if isinstance(error, Exception):
        raise error
    raise LeftError(f"it raised {type(error).__name__}")


def text_of(what: object) -> str:
    """Return a text about an exception or a value, whatever it is, of bounded length.  Runs its code."""
    try:
        text = f"{type(what).__name__}: {what}" if isinstance(what, BaseException) else repr(what)
    except Exception:
        text = f"{type(what).__name__} without a text"
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "..."
