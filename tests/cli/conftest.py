"""Commands in this process: one that writes its figures, and one that is refused and says why."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairsched.cli import main

Figures = Callable[..., Any]
"""Runs a command with `--json`, which must end with `status` (0): returns the document."""
Refused = Callable[..., str]
"""Runs a command that must be refused: returns its one line on standard error; the exit status is 2."""


@pytest.fixture
def figures(tmp_path: Path) -> Figures:
    """A command's document, plain values."""

    def run(*arguments: str, status: int = 0) -> Any:
        target = tmp_path / "figures.json"
        assert main([*arguments, "--json", str(target)]) == status
        return json.loads(target.read_bytes())

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """A command with bad input ends with status 2 and one line on standard error, never a traceback; one that could not
    write what it makes with 3."""

    def run(*arguments: str, status: int = 2) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        error = capsys.readouterr().err
        assert (ended.value.code, error.count("\n")) == (status, 1), error
        return error

    return run
