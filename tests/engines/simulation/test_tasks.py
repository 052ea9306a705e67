"""Independent tasks give the same results wherever they run, each once, and an error comes back as it is."""

import pytest

from fairsched.engines.simulation import run_tasks


def negated(value: int) -> int:
    """Minus a value."""
    return -value


def inverse(value: int) -> float:
    """One over a value."""
    return 1 / value


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_task_has_its_own_result(jobs: int) -> None:
    """Places are those of the tasks, in whatever order they end."""
    assert dict(run_tasks(negated, [5, 0, 5, 7], jobs=jobs)) == {0: -5, 1: 0, 2: -5, 3: -7}
    assert list(run_tasks(negated, [], jobs=jobs)) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_a_task_is_raised_as_it_is(jobs: int) -> None:
    """Also from another process."""
    with pytest.raises(ZeroDivisionError):
        list(run_tasks(inverse, [1, 0, 2], jobs=jobs))


def test_there_is_at_least_one_process() -> None:
    """None is refused before anything runs."""
    with pytest.raises(ValueError, match="at least 1 process runs at a time, not 0"):
        run_tasks(negated, [1], jobs=0)


def test_ray_gives_what_one_process_gives(ray_started: None) -> None:
    """On a cluster's cores, with the error of a task wrapped so that its kind is still known."""
    assert dict(run_tasks(negated, [5, 0], ray="auto")) == {0: -5, 1: 0}
    with pytest.raises(ZeroDivisionError):
        list(run_tasks(inverse, [0], ray="auto"))
    with pytest.raises(OSError, match="refused"):
        list(run_tasks(negated, [1], ray="127.0.0.1:1"))
