"""What commands show and write: progress on standard error, tables, JSON documents, and files that must be writable."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fairsched.cli.command_line import in_force
from fairsched.engines.simulation import Progress

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 120
"""Columns of the output where it is no terminal, which has a width of its own."""


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show a bar on standard error where that is a terminal; a total of 0 is not known."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    # What is printed meanwhile goes above the bar, but not into it where output is a file.
    above = sys.stdout.isatty()
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal, redirect_stdout=above) as bar:
        task = bar.add_task("", total=None)

        def step(what: str, done: int, total: int) -> None:
            bar.update(task, description=what[:40], completed=done, total=total or None)

        yield step


def terminal() -> "Console":
    """Return where tables are printed."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH)


def command_line() -> str:
    """Return the command that is being run, with what `fairsched.toml` adds."""
    return shlex.join(["fairsched", *in_force])


def as_json(document: object) -> str:
    """Return a document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def write_figures(path: Path | None, document: object) -> None:
    """Write the document of `--json`, if it was asked for."""
    if path is not None:
        path.write_text(as_json(document), encoding="utf-8")
        print(f"Figures: {path}")


def percent(value: float | None, *, sign: bool = False) -> str:
    """Return a share as text."""
    if value is None:
        return "-"
    return f"{100 * value:+.1f} %" if sign else f"{100 * value:.1f} %"


def writable(**targets: Path | None) -> None:
    """Raise `ValueError` for a file, by its option's name, that cannot be written since its folder is not there.

    Long work comes after this.
    """
    for option, file in targets.items():
        if file is not None and not file.parent.is_dir():
            raise ValueError(f"--{option}: there is no folder {file.parent}")


def apart(source: Path, **targets: Path | None) -> None:
    """Raise `ValueError` for a file that would be written over what is read; by its option's name."""
    for option, file in targets.items():
        if file is not None and file.exists() and file.samefile(source):
            raise ValueError(f"{option}: {file} is what is read, and would be lost")


def folders(**targets: Path | None) -> None:
    """Make the folders, by their options' names.  Raises `ValueError` for one that cannot be made."""
    for option, folder in targets.items():
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(f"--{option}: {folder} cannot be made: {error.strerror}") from None
