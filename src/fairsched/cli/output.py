"""What commands show and write: progress on standard error, tables, JSON documents, and files that must be writable."""

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from fairsched.cli.run import UNEXPLAINED, in_force
from fairsched.engines.analysis import open_console, output_width, print_lines, print_small, print_table, safe_text
from fairsched.engines.capacity import Sheet
from fairsched.engines.files import Unwritable, check_file, make_folder, write_whole
from fairsched.engines.simulation import Progress
from fairsched.model.machine import LatencyModel

if TYPE_CHECKING:
    from rich.console import Console

_BAR_WIDTH = 40
"""Columns of a bar with its numbers, beside the words."""
LINE_EVERY_S = 10
"""Seconds between lines that stand for a bar where there is no terminal."""
STDOUT = Path("-")
"""In place of a file of `--json`: standard output."""


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show a bar on standard error where that is a terminal, and otherwise a line from time to time; a total of 0 is
    not known."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.table import Column as TableColumn

    console = Console(stderr=True, width=output_width(sys.stderr))
    room = min(40, max(console.width - _BAR_WIDTH, 8))
    # A description is no markup: it may hold the name of a file.
    text = TextColumn(f"{{task.description:<{room}}}", markup=False, table_column=TableColumn(no_wrap=True))
    # What is printed meanwhile goes above the bar, but not into it where output is a file.
    above = sys.stdout.isatty()
    with Bar(
        *(text, BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn()),
        console=console,
        expand=console.width < 2 * _BAR_WIDTH,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=above,
    ) as bar:
        task, said = bar.add_task("", total=None), monotonic()

        def step(what: str, done: int, total: int) -> None:
            nonlocal said
            words = safe_text(what, room)
            bar.update(task, description=words, completed=done, total=total or None)
            if not console.is_terminal and monotonic() >= said + LINE_EVERY_S:
                said = monotonic()
                print(f"{done} of {total}: {words}" if total else words, file=sys.stderr, flush=True)

        yield step


@contextmanager
def shown(document: Path | None = None) -> "Iterator[Console]":
    """Give the place where results are printed: standard error where the document of `--json` goes to standard output.

    Files are written before.  A reader that has seen enough closes the pipe: the rest is not shown, nothing else is
    lost, and the exit status is that of the run.
    """
    console = open_console(sys.stderr if document == STDOUT else None)
    try:
        yield console
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still in buffers must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def command_line() -> str:
    """Return the command that is being run."""
    return shlex.join(["fairsched", *in_force])


def as_json(document: object) -> str:
    """Return a document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def write_figures(path: Path | None, document: object) -> None:
    """Write the document of `--json`, if it was asked for; `-` is standard output."""
    if path == STDOUT:
        with shown():
            print(as_json(document))
    elif path is not None:
        write_whole(path, as_json(document))


def unexplained(runs: Iterable[str]) -> int:
    """Say which of these runs broke a bound for no reason that a theorem knows; returns the exit status."""
    told = list(runs)
    for run in told:
        print(f"{run}: the gap is over its bound, and no assumption is broken: an error in fairsched", file=sys.stderr)
    return UNEXPLAINED if told else 0


def print_files(console: "Console", **written: Path | None) -> None:
    """Print where files were written, by what they are."""
    print_lines(console, [f"{what}: {path}" for what, path in written.items() if path not in (None, STDOUT)])


def _quoted(word: str) -> str:
    """Return a word as shells read it; what would move the cursor is written as an escape."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(each if each.isprintable() and each not in "'\\" else _bytes(each) for each in word) + "'"


def _bytes(letter: str) -> str:
    """Return the bytes of a letter as escapes, which do not depend on the shell's locale."""
    return "".join(f"\\x{byte:02x}" for byte in letter.encode(errors="surrogateescape"))


def print_commands(console: "Console", *commands: Sequence[str]) -> None:
    """Print commands that can be copied: one that does not fit goes on in the next line, as shells read it."""
    from rich.text import Text

    for words in commands:
        lines = [""]
        for word in map(_quoted, words):
            # Two columns stay for the backslash.
            if not console.soft_wrap and len(f"  {lines[-1]} {word}") > console.width - 2 and lines[-1].strip():
                lines.append("   ")
            lines[-1] += f" {word}" if lines[-1] else word
        for i, line in enumerate(lines):
            # A word that is longer than a line is the terminal's to break: one that is broken here is another word.
            console.print(Text(f"  {line}" + (" \\" if i + 1 < len(lines) else "")), soft_wrap=True)


def percent(value: float | None, *, sign: bool = False) -> str:
    """Return a share as text."""
    if value is None:
        return "-"
    return f"{100 * value:+.1f} %" if sign else f"{100 * value:.1f} %"


def _named(option: str) -> str:
    """Return an argument's name as it is in the help: an option's, or in capitals that of a place."""
    return option if option.isupper() else f"--{option}"


def writable(**targets: Path | None) -> None:
    """Raise `ValueError` for a file, by its option's name, that cannot be written.  Long work comes after this."""
    for option, file in targets.items():
        if file is not None and file != STDOUT:
            try:
                check_file(file)
            except Unwritable as error:
                raise ValueError(f"{_named(option)}: {error}") from None


def apart(sources: Iterable[str | Path], **targets: Path | None) -> None:
    """Raise `ValueError` for a file that would be written over what is read; by its option's name."""
    for option, file in targets.items():
        for source in sources:
            if file is not None and file.exists() and os.path.exists(source) and file.samefile(source):
                raise ValueError(f"{_named(option)}: {file} is what is read, and would be lost")


def folders(**targets: Path | None) -> None:
    """Make the folders, by their options' names.  Raises `ValueError` for one that cannot be made or written to."""
    for option, folder in targets.items():
        if folder is not None:
            try:
                make_folder(folder)
            except Unwritable as error:
                raise ValueError(f"{_named(option)}: {error}") from None


def machines(latencies: Iterable[LatencyModel]) -> str:
    """Return the line that says what is simulated: each machine once."""
    return f"Simulated: {'; '.join(dict.fromkeys(latency.described for latency in latencies))}."


def show(
    sheet: Sheet, report: Path | None, document: Path | None, of: Iterable[LatencyModel], most: int | None = None
) -> None:
    """Write the report, then print: the machines that it is about, and of a table at most so many rows."""
    page, lines = None, [machines(of), *sheet.lines]
    if report is not None:
        from fairsched.engines.analysis.report import Page, Part, Table, plot_part

        page = Page(
            title=sheet.title,
            verdict=lines,
            parts=[
                *map(plot_part, sheet.draw()),
                *(Part(title, [Table(columns, rows)]) for title, columns, rows in sheet.tables),
            ],
            command=command_line(),
            small=sheet.small,
        ).write(report)
    with shown(document) as console:
        print_lines(console, lines)
        console.print()
        for title, columns, rows in sheet.tables:
            print_table(console, columns, rows[:most], title=title if sheet.tables[1:] else "")
            if most is not None and len(rows) > most:
                print_lines(console, [f"{len(rows) - most} more rows are in --json and --report."])
        print_small(console, sheet.small)
        print_files(console, Figures=document, Report=page)
