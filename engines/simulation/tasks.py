"""Independent tasks on the cores of this machine, or of a Ray cluster; read `run_tasks`."""

import logging
import os
import pickle
import signal
import socket
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import attrs

Task = TypeVar("Task")
Result = TypeVar("Result")

CONNECT_S = 10.0
"""A Ray cluster that does not answer in so many seconds is not there."""
TRIES = 2
"""So often a task is asked for whose process dies."""
_HEARD_EVERY_S = 0.2
_log = logging.getLogger("fairsched")


class TaskDiedError(ChildProcessError):
    """A task's process died each time that it ran; the message names the task."""


def cpus() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_tasks(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    jobs: int = 1,
    ray: str | None = None,
    title: Callable[[Task], str] = str,
    heard: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[int, Result]]:
    """Run a function on each task and yield the task's place and what came out, in the order in which they end.

    `jobs` processes run at a time; with `ray`, the address of a Ray cluster on which fairsched is installed, its cores
    run them ("auto": the cluster that this machine belongs to).  Function and tasks are pickled where that is not this
    process; what the function raises, this raises.  A task whose process dies is named by its `title` in the log, and
    asked for once more.  `heard` is given the place of a task under way and what it says of itself by `tell` (not from
    Ray).  Where the reader stops, tasks that have not begun are dropped, and those under way are ended.

    Raises `ImportError` where Ray is asked for and not installed, `OSError` where the cluster does not answer,
    `TaskDiedError` for a task whose process dies again, and `ValueError` for less than one process, or a task that
    cannot be sent to another.

    >>> list(run_tasks(abs, [-3, 4]))
    [(0, 3), (1, 4)]
    """
    if jobs < 1:
        raise ValueError(f"at least 1 process runs at a time, not {jobs}")
    if ray:
        return _on_ray(function, tasks, ray, title)
    if jobs > 1 and len(tasks) > 1:
        return _on_processes(function, tasks, min(jobs, len(tasks)), title, heard or _ignored)
    return _here(function, tasks, heard or _ignored)


def tell(done: int) -> None:
    """Say from inside of a task how much of it is done."""
    _told.get()(done)


def _ignored(*_: int) -> None:
    pass


_told: ContextVar[Callable[[int], None]] = ContextVar("_told", default=_ignored)


def _here(
    function: Callable[[Task], Result], tasks: Sequence[Task], heard: Callable[[int, int], None]
) -> Iterator[tuple[int, Result]]:
    for place, task in enumerate(tasks):

        def told(done: int, place: int = place) -> None:
            heard(place, done)

        before = _told.set(told)
        try:
            result = function(task)
        finally:
            _told.reset(before)
        yield place, result


# --- processes --------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Worker:
    """A process that runs one task at a time, and the place of that."""

    process: Any
    connection: Connection
    place: int = -1

    @classmethod
    def started(cls, counts: Any) -> "_Worker":
        # Started afresh: threads of this process, such as a progress bar's, are not copied.
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, counts), daemon=True)
        process.start()
        # The other end is the process's alone: then its death is heard at ours.
        theirs.close()
        return cls(process, ours)

    def stop(self) -> None:
        self.process.terminate()
        self.process.join()
        self.connection.close()


def _serve(connection: Connection, counts: Any) -> None:
    """Run what comes, in a process of its own, until nothing more can come."""
    # Of an interrupt the process that asks decides what is kept.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError):
        while True:
            asked = connection.recv_bytes()
            try:
                function, place, task = pickle.loads(asked)

                def told(done: int, place: int = place) -> None:
                    counts[place] = done

                _told.set(told)
                answer = pickle.dumps((True, function(task)))
            except Exception as error:
                answer = _failed(error)
            connection.send_bytes(answer)


def _failed(error: Exception) -> bytes:
    # Where it was raised is not sent with it.
    error.add_note("".join(traceback.format_exception(error)))
    error.raised_at = raised_at(error)  # type: ignore[attr-defined]
    try:
        answer = pickle.dumps((False, error))
        pickle.loads(answer)
    except Exception:  # Some errors cannot be made again from what they hold.
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
    return answer


def raised_at(error: Exception) -> str:
    """Return the file, line and function in which an error was raised, here or in another process."""
    if (there := getattr(error, "raised_at", None)) is not None:
        return str(there)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(place.filename)}, line {place.lineno}, in {place.name}"


def _on_processes(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    jobs: int,
    title: Callable[[Task], str],
    heard: Callable[[int, int], None],
) -> Iterator[tuple[int, Result]]:
    counts = get_context("spawn").Array("q", len(tasks), lock=False)
    left = deque(range(len(tasks)))
    tries = [0] * len(tasks)
    idle = [_Worker.started(counts) for _ in range(jobs)]
    busy: dict[Connection, _Worker] = {}
    try:
        while left or busy:
            while left and idle:
                worker = idle.pop()
                worker.place = left.popleft()
                tries[worker.place] += 1
                busy[worker.connection] = worker
                with suppress(BrokenPipeError):  # Its death is heard below.
                    _send(worker.connection, (function, worker.place, tasks[worker.place]), title)
            for connection in wait(list(busy), _HEARD_EVERY_S):
                assert isinstance(connection, Connection)
                worker = busy.pop(connection)
                place = worker.place
                try:
                    done, result = connection.recv()
                except (EOFError, ConnectionError):
                    worker.stop()
                    name = title(tasks[place])
                    if tries[place] == TRIES:
                        raise TaskDiedError(f"{name}: its process died {TRIES} times") from None
                    _log.warning("%s: its process died; it is asked for again", name)
                    left.appendleft(place)
                    idle.append(_Worker.started(counts))
                    continue
                idle.append(worker)
                if not done:
                    raise result
                yield place, result
            for worker in busy.values():
                heard(worker.place, counts[worker.place])
    finally:
        for worker in (*idle, *busy.values()):
            worker.stop()


def _send(connection: Connection, asked: tuple[object, int, Task], title: Callable[[Task], str]) -> None:
    try:
        connection.send(asked)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{title(asked[2])} cannot be sent to another process ({error}): run it in this one, with jobs=1"
        ) from None


# --- Ray --------------------------------------------------------------------------------------------------------------


def _on_ray(
    function: Callable[[Task], Result], tasks: Sequence[Task], address: str, title: Callable[[Task], str]
) -> Iterator[tuple[int, Result]]:
    import ray

    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if separator:
        # Ray itself would try for minutes.
        socket.create_connection((host, int(port)), CONNECT_S).close()
    ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    remote = ray.remote(max_retries=TRIES - 1)(function)
    started = {remote.remote(task): place for place, task in enumerate(tasks)}
    pending = list(started)
    try:
        while pending:
            (done, *_), pending = ray.wait(pending)
            try:
                result = ray.get(done)
            except ray.exceptions.WorkerCrashedError:
                name = title(tasks[started[done]])
                raise TaskDiedError(f"{name}: its process died {TRIES} times") from None
            yield started[done], result
    finally:
        for reference in pending:
            ray.cancel(reference)
