"""Commands in this process: one that is refused, and how it says why."""

from collections.abc import Callable

import pytest

from fairsched.cli import main

Refused = Callable[..., str]
"""Runs a command that must be refused: returns its one line on standard error; the exit status is 2."""


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """A command with bad input ends with status 2 and one line on standard error, never a traceback."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        error = capsys.readouterr().err
        assert (ended.value.code, error.count("\n")) == (2, 1), error
        return error

    return run
