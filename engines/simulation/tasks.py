"""Independent tasks on the cores of this machine, or of a Ray cluster; read `run_tasks`."""

import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

CONNECT_S = 10.0
"""A Ray cluster that does not answer in so many seconds is not there."""


def run_tasks(
    function: Callable[[Task], Result], tasks: Sequence[Task], *, jobs: int = 1, ray: str | None = None
) -> Iterator[tuple[int, Result]]:
    """Run a function on each task and yield the task's place and what came out, in the order in which they end.

    `jobs` processes run at a time; with `ray`, the address of a Ray cluster on which fairsched is installed, its cores
    run them ("auto": the cluster that this machine belongs to).  Function and tasks are pickled where that is not this
    process; what the function raises, this raises.  Tasks that have not begun are dropped where the reader stops.
    Raises `ImportError` where Ray is asked for and not installed, `OSError` where the cluster does not answer, and
    `ValueError` for less than one process.

    >>> list(run_tasks(abs, [-3, 4]))
    [(0, 3), (1, 4)]
    """
    if jobs < 1:
        raise ValueError(f"at least 1 process runs at a time, not {jobs}")
    if ray:
        return _on_ray(function, tasks, ray)
    if jobs > 1 and len(tasks) > 1:
        return _on_processes(function, tasks, jobs)
    return ((place, function(task)) for place, task in enumerate(tasks))


def _on_processes(function: Callable[[Task], Result], tasks: Sequence[Task], jobs: int) -> Iterator[tuple[int, Result]]:
    # Started afresh: threads of this process, such as a progress bar's, are not copied.
    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=get_context("spawn")) as pool:
        started = {pool.submit(function, task): place for place, task in enumerate(tasks)}
        try:
            for future in as_completed(started):
                yield started[future], future.result()
        finally:
            for future in started:
                future.cancel()


def _on_ray(function: Callable[[Task], Result], tasks: Sequence[Task], address: str) -> Iterator[tuple[int, Result]]:
    import ray

    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if separator:
        # Ray itself would try for minutes.
        socket.create_connection((host, int(port)), CONNECT_S).close()
    ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    remote = ray.remote(function)
    started = {remote.remote(task): place for place, task in enumerate(tasks)}
    pending = list(started)
    try:
        while pending:
            (done, *_), pending = ray.wait(pending)
            yield started[done], ray.get(done)
    finally:
        for reference in pending:
            ray.cancel(reference)
