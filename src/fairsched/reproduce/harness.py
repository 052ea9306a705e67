"""All rows and panels, from a file for each paper, and how rows are run.

Each seed of each row is a task of its own, on the cores of this machine or of a Ray cluster.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import attrs

from fairsched.engines.simulation import run_tasks
from fairsched.reproduce import papers
from fairsched.reproduce.row import PAPERS, Figures, Interval, Judged, Panel, PanelRow, Verdict, verdict

_FILES = {
    "dlpm": papers.dlpm,
    "preble": papers.preble,
    "larry": papers.larry,
    "aladdin": papers.aladdin,
    "batchllm": papers.batchllm,
    "distserve": papers.distserve,
    "splitwise": papers.splitwise,
    "tetriinfer": papers.tetriinfer,
    "vidur": papers.vidur,
    "field": papers.field,
    "energy": papers.energy,
    "queueing": papers.queueing,
    "fairsched": papers.ours,
}


def _place(row: PanelRow) -> tuple[int, int, str]:
    """Order by paper as on the page, then by number: ids are numbers, some with letters."""
    number, letter = re.fullmatch(r"(\d+)([a-z]*)", row.id).groups()  # type: ignore[union-attr]
    return list(PAPERS).index(row.paper), int(number), letter


_FOUND = (each for file in _FILES.values() for each in vars(file).values() if isinstance(each, PanelRow))
ROWS: dict[str, PanelRow] = {row.id: row for row in sorted(_FOUND, key=_place)}
"""By id, paper by paper."""
PANELS: dict[str, tuple[Panel, ...]] = {name: file.PANELS for name, file in _FILES.items()}
"""All figures and tables of each paper's evaluation, by the paper's key."""

Progress = Callable[[PanelRow, int, int], None]
"""Called with a row of which a seed has just ended, how many tasks have ended, and how many there are."""
Task = tuple[str, int]
"""The id of a row, and a seed."""


@attrs.frozen
class Result:
    """A row with its figures, one set for each seed, and the verdict on each claim."""

    row: PanelRow
    seeds: tuple[int, ...]
    found: tuple[Figures, ...]
    judged: tuple[Judged, ...]

    @property
    def verdict(self) -> Verdict:
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
    rows: Sequence[PanelRow],
    *,
    jobs: int = 1,
    ray: str | None = None,
    seeds: int | None = None,
    first_seed: int = 0,
    progress: Progress | None = None,
) -> Iterator[Result]:
    """Run rows and yield each as soon as all of its seeds have ended.

    `jobs` processes run at a time; with `ray`, the address of a Ray cluster on which fairsched is installed, its cores
    run them ("auto": the cluster that this machine belongs to).  A row runs so many `seeds` from `first_seed` on (None:
    its own number of them); a row that says one seed runs one.  Raises `RuntimeError` if a row
    fails, `ImportError` where Ray is asked for and not installed, `OSError` where the cluster does not answer, and
    `ValueError` for jobs and seeds below one and a first seed below zero.
    """
    if jobs < 1 or (seeds is not None and seeds < 1) or first_seed < 0:
        raise ValueError("jobs and seeds are at least 1, and the first seed is at least 0")
    by_id = {row.id: row for row in rows}
    numbers = {row.id: _numbers(row, seeds or row.seeds, first_seed) for row in rows}
    tasks = [(row.id, seed) for row in rows for seed in numbers[row.id]]
    found: dict[str, dict[int, Figures]] = {row.id: {} for row in rows}
    # Another process knows the rows by their ids only.
    run = run_task if ray or jobs > 1 else partial(_task_of, by_id)
    for count, (place, figures) in enumerate(run_tasks(run, tasks, jobs=jobs, ray=ray), 1):
        name, seed = tasks[place]
        found[name][seed] = figures
        if progress is not None:
            progress(by_id[name], count, len(tasks))
        if len(found[name]) == len(numbers[name]):
            one_each = tuple(found[name][seed] for seed in numbers[name])
            yield Result(by_id[name], numbers[name], one_each, by_id[name].judge(one_each))


def _numbers(row: PanelRow, seeds: int, first_seed: int) -> tuple[int, ...]:
    """Return the seeds that a row runs: a row of one seed has no chance in it, and more would repeat it."""
    return tuple(range(first_seed, first_seed + (1 if row.seeds == 1 else seeds)))


def _seed(row: PanelRow, seed: int) -> Figures:
    """Run one seed of a row; raises `RuntimeError`, which names them, if that fails."""
    try:
        return row.run(seed)
    except Exception as error:
        raise RuntimeError(f"row {row.id}, seed {seed}: {type(error).__name__}: {error}") from error


def _task_of(rows: Mapping[str, PanelRow], task: Task) -> Figures:
    return _seed(rows[task[0]], task[1])


def run_task(task: Task) -> Figures:
    """Run a task in a process that knows the rows only by their ids."""
    return _task_of(ROWS, task)
