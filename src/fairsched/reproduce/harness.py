"""Run rows: each seed of each row is a task of its own, on the cores of this machine or of a Ray cluster."""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import attrs

from fairsched.reproduce.row import Figures, Interval, Judged, Row, Verdict, verdict
from fairsched.reproduce.rows import ROWS

Progress = Callable[[Row, int, int], None]
"""Called with a row of which a seed has just ended, how many tasks have ended, and how many there are."""
CONNECT_S = 10.0
"""A Ray cluster that does not answer in so many seconds is not there."""
Task = tuple[str, int]
"""The id of a row, and a seed."""
Ended = Iterator[tuple[Task, Figures]]
"""Tasks with their figures, in the order in which they end."""


class RowError(RuntimeError):
    """A row could not be measured; says which, with which seed, and why."""


@attrs.frozen
class Result:
    """A row with its figures, one set for each seed, and the verdict on each claim."""

    row: Row
    seeds: tuple[int, ...]
    found: tuple[Figures, ...]
    judged: tuple[Judged, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of the claims'."""
        return verdict(self.judged)

    def to_json(self) -> dict[str, object]:
        """Return the row's entry of `fairsched reproduce --json`."""
        row = self.row
        return {
            "id": row.id,
            "about": row.about,
            "paper": row.paper,
            "panel": row.panel,
            "platform": row.platform.text,
            "setting": row.setting,
            "note": row.note,
            "axes": row.axes,
            "seeds": list(self.seeds),
            "verdict": str(self.verdict),
            "claims": [_claim_json(each) for each in self.judged],
            "figures": [dict(each) for each in self.found],
        }


def _claim_json(judged: Judged) -> dict[str, object]:
    claim, control = judged.claim, judged.claim.control
    return {
        "figure": claim.figure,
        "about": claim.about,
        "printed": claim.printed,
        "range": claim.range_json,
        "exact": claim.decimals is not None,
        "neutral": claim.neutral,
        **_interval_json(judged.ours),
        "verdict": str(judged.verdict),
        "control": None
        if control is None or judged.without is None
        else {"cause": control.cause, **_interval_json(judged.without), "left": judged.left},
    }


def _interval_json(found: Interval) -> dict[str, float]:
    return {"mean": found.mean, "low": found.low, "high": found.high}


def reproduce(
    rows: Sequence[Row],
    *,
    jobs: int = 1,
    ray: str | None = None,
    seeds: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Result]:
    """Run rows and yield each as soon as all of its seeds have ended.

    `jobs` processes run at a time; with `ray`, the address of a Ray cluster on which fairsched is installed, its cores
    run them ("auto": the cluster that this machine belongs to).  `seeds` are the most that a row runs.  Raises
    `RowError` if a row fails, `ImportError` where Ray is asked for and not installed, `OSError` where the cluster does
    not answer, and `ValueError` for numbers below one.
    """
    if jobs < 1 or (seeds is not None and seeds < 1):
        raise ValueError("jobs and seeds are at least 1")
    by_id = {row.id: row for row in rows}
    numbers = {row.id: tuple(range(min(seeds or row.seeds, row.seeds))) for row in rows}
    tasks = [(row.id, seed) for row in rows for seed in numbers[row.id]]
    found: dict[str, dict[int, Figures]] = {row.id: {} for row in rows}
    ended = _on_ray(tasks, ray) if ray else _on_processes(tasks, jobs) if jobs > 1 else _here(tasks, by_id)
    for count, ((name, seed), figures) in enumerate(ended, 1):
        found[name][seed] = figures
        if progress is not None:
            progress(by_id[name], count, len(tasks))
        if len(found[name]) == len(numbers[name]):
            one_each = tuple(found[name][seed] for seed in numbers[name])
            yield Result(by_id[name], numbers[name], one_each, by_id[name].judge(one_each))


def _seed(row: Row, seed: int) -> Figures:
    """Run one seed of a row; raises `RowError`, which names them, if that fails."""
    try:
        return row.run(seed)
    except Exception as error:
        raise RowError(f"row {row.id}, seed {seed}: {type(error).__name__}: {error}") from error


def run_task(task: Task) -> Figures:
    """Run a task in a process that knows the rows only by their ids."""
    name, seed = task
    return _seed(ROWS[name], seed)


def _here(tasks: Sequence[Task], rows: Mapping[str, Row]) -> Ended:
    for task in tasks:
        yield task, _seed(rows[task[0]], task[1])


def _on_processes(tasks: Sequence[Task], jobs: int) -> Ended:
    # Started afresh: threads of this process, such as a progress bar's, are not copied.
    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=get_context("spawn")) as pool:
        started = {pool.submit(run_task, task): task for task in tasks}
        try:
            for future in as_completed(started):
                yield started[future], future.result()
        finally:
            for future in started:
                future.cancel()


def _on_ray(tasks: Sequence[Task], address: str) -> Ended:
    import ray

    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if separator:
        # Ray itself would try for minutes.
        socket.create_connection((host, int(port)), CONNECT_S).close()
    ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    remote = ray.remote(run_task)
    started = {remote.remote(task): task for task in tasks}
    pending = list(started)
    try:
        while pending:
            (done, *_), pending = ray.wait(pending)
            yield started[done], ray.get(done)
    finally:
        for reference in pending:
            ray.cancel(reference)
