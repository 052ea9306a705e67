"""Independent tasks give the same results wherever they run, each once, and an error comes back as it is."""

import logging
import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from fairsched.engines.simulation import raised_at, run_tasks, tell
from fairsched.engines.simulation.tasks import TaskDiedError


def negated(value: int) -> int:
    """Minus a value."""
    return -value


def inverse(value: int) -> float:
    """One over a value."""
    return 1 / value


def stumbles(folder: Path, value: int) -> int:
    """Die at the first time that the value is 3."""
    if value == 3 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return -value


def dies(value: int) -> int:
    """Die whenever the value is 3."""
    if value == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return -value


def waits(folder: Path, value: int) -> int:
    """Say that it is under way, and end when that was heard; 0 never ends."""
    tell(10 + value)
    while not (folder / "heard").exists() or value == 0:
        signal.pause() if value == 0 else None
    return value


class AwkwardError(Exception):
    """An error that cannot be made again from its arguments."""

    def __init__(self, value: int, more: int) -> None:
        super().__init__(f"{value} and {more}")


def awkward(value: int) -> int:
    """Raise what cannot be sent."""
    raise AwkwardError(value, 1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_task_has_its_own_result(jobs: int) -> None:
    """Places are those of the tasks, in whatever order they end."""
    assert dict(run_tasks(negated, [5, 0, 5, 7], jobs=jobs)) == {0: -5, 1: 0, 2: -5, 3: -7}
    assert list(run_tasks(negated, [], jobs=jobs)) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_a_task_is_raised_as_it_is(jobs: int) -> None:
    """Also from another process."""
    with pytest.raises(ZeroDivisionError) as error:
        list(run_tasks(inverse, [1, 0, 2], jobs=jobs))
    assert re.fullmatch(r"test_tasks.py, line \d+, in inverse", raised_at(error.value))


def test_an_error_that_cannot_be_sent_is_named() -> None:
    """Its kind and its text come back."""
    with pytest.raises(RuntimeError, match="AwkwardError: 3 and 1"):
        list(run_tasks(awkward, [3, 3], jobs=2))


def test_there_is_at_least_one_process() -> None:
    """None is refused before anything runs."""
    with pytest.raises(ValueError, match="at least 1 process runs at a time, not 0"):
        run_tasks(negated, [1], jobs=0)


def test_a_task_whose_process_dies_is_named_and_asked_for_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other tasks keep what they found; a task that dies again ends all, by name."""
    tasks = [1, 3, 2, 4]
    with caplog.at_level(logging.WARNING, "fairsched"):
        found = dict(run_tasks(partial(stumbles, tmp_path), tasks, jobs=2, title="task {}".format))
    assert found == {place: -value for place, value in enumerate(tasks)}
    assert caplog.messages == ["task 3: its process died; it is asked for again"]
    with pytest.raises(TaskDiedError, match=r"^task 3: its process died 2 times$"):
        dict(run_tasks(dies, tasks, jobs=2, title="task {}".format))


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_a_task_says_of_itself_is_heard(jobs: int, tmp_path: Path) -> None:
    """While the task runs, with its place."""
    told: dict[int, int] = {}

    def heard(place: int, done: int) -> None:
        if done:
            told[place] = done
        if jobs == 1 or len(told) == 2:
            (tmp_path / "heard").touch()

    found = dict(run_tasks(partial(waits, tmp_path), [1, 2], jobs=jobs, heard=heard))
    assert (found, told) == ({0: 1, 1: 2}, {0: 11, 1: 12})


def test_a_reader_that_stops_ends_the_tasks_that_run(tmp_path: Path) -> None:
    """One of them would run for ever."""
    (tmp_path / "heard").touch()
    found = run_tasks(partial(waits, tmp_path), [0, 1], jobs=2)
    assert next(found) == (1, 1)
    found.close()  # type: ignore[attr-defined]


def test_a_task_that_cannot_be_sent_says_so() -> None:
    """A function of a function belongs to this process alone."""
    with pytest.raises(ValueError, match=r"<lambda>.* cannot be sent to another process .*jobs=1"):
        list(run_tasks(id, [lambda: 1, lambda: 2], jobs=2))


def test_ray_gives_what_one_process_gives(ray_started: None) -> None:
    """On a cluster's cores, with the error of a task wrapped so that its kind is still known."""
    assert dict(run_tasks(negated, [5, 0], ray="auto")) == {0: -5, 1: 0}
    with pytest.raises(ZeroDivisionError):
        list(run_tasks(inverse, [0], ray="auto"))
    with pytest.raises(TaskDiedError, match=r"^task 3: its process died 2 times$"):
        list(run_tasks(dies, [3], ray="auto", title="task {}".format))
    with pytest.raises(OSError, match="refused"):
        list(run_tasks(negated, [1], ray="127.0.0.1:1"))
