"""Tables fit the terminal, in a real one: lines are no longer than it, figures are whole, names are told apart.

Files are whole before anything is printed, and a pipe that is closed loses nothing else.
"""

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from fairsched.cli import main
from fairsched.cli.output import print_commands
from fairsched.engines.analysis import Column, safe_text
from fairsched.engines.analysis.table import fitted_table, name_lines, open_console, print_lines, print_table
from fairsched.engines.files import Unwritable, check_file, whole_file, write_whole

WIDTHS = (60, 80, 100, 160)
NAMES = (
    "gold",
    "team-platform/production-api-key-7f3a",
    "team-platform/production-api-key-9c1b",
    "日本語のお客様の部署",
    "שלום",
    "evil\x1b[2J\x1b]0;t\x07\u202e\nb",
    "z" + "\u0301" * 40,
    "7",
    "[red]:smile:[/nothing]",
)
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
FIGURE = re.compile(r"(?<!\S)\d[\d.,]*(?:[%k]| (?:ms|s|min|h|us)\b)?(?!\S)")


class Terminal:
    """A terminal in place of standard output or error, and what was written to it."""

    def __init__(self, width: int, stream: str = "stdout") -> None:
        self.width = width
        self.written = ""
        self._stream = stream

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Stand in for the stream."""
        reading, writing = pty.openpty()
        fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 50, self.width, 0, 0))
        pieces: list[bytes] = []

        def read() -> None:
            # Linux says EIO where the other end is closed.
            try:
                while piece := os.read(reading, 1 << 16):
                    pieces.append(piece)
            except OSError:
                pass

        thread = Thread(target=read)
        thread.start()
        before = getattr(sys, self._stream)
        setattr(sys, self._stream, os.fdopen(writing, "w", encoding="utf-8"))
        try:
            yield
        finally:
            getattr(sys, self._stream).close()
            setattr(sys, self._stream, before)
            thread.join()
            os.close(reading)
            self.written = b"".join(pieces).decode()

    def run(self, *command: str) -> list[str]:
        """Run a command in it and return its lines without styles."""
        with self.opened():
            assert main(command) == 0
        return ESCAPE.sub("", self.written).replace("\r\n", "\n").split("\n")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An access log in the current folder whose clients have names of all kinds."""
    monkeypatch.chdir(tmp_path)
    path = Path("[bold]log.jsonl")
    rows = []
    for i in range(90):
        wait = 25.0 if i == 0 else 0.31 * (i % 7)
        rows.append(
            {"client": NAMES[i % len(NAMES)], "arrival": i / 3, "first_token": i / 3 + wait, "end": i / 3 + wait + 2}
            | {"prompt_tokens": 37 * i, "output_tokens": 11 * (i % 13)}
        )
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def tables(lines: Sequence[str]) -> Iterator[list[list[str]]]:
    """The lines below each rule, as their figures."""
    rows: list[list[str]] | None = None
    for line in lines:
        if line.startswith("──"):
            rows = []
        elif rows is not None and (not line.strip() or line.startswith("Left out")):
            yield rows
            rows = None
        elif rows is not None:
            rows.append(FIGURE.findall(line))


def is_part(cells: Sequence[str], whole: Sequence[str]) -> bool:
    """Whether the cells are among the others, in their order."""
    rest = iter(whole)
    return all(cell in rest for cell in cells)


COMMANDS = {
    "audit": ["audit", "{log}"],
    "compare": ["compare", "--limit", "16", "--policies", "fcfs,dlpm,vtc,lpm+deficit", "--set", "dlpm.quantum=64,512"],
    "info": ["trace", "--limit", "30"],
    "plan": ["plan", "--slo", "ttft=2s,tpot=50ms", "--limit", "8"],
    "tune": ["tune", "--max-wait", "2s", "--limit", "8", "--quanta", "64-256"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_tables_fit_terminals(command: list[str], log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At each width no line is longer than the terminal, every figure is one that a pipe gets, whole and in its place,
    and what is left out is named."""
    command = [str(log) if word == "{log}" else word for word in command]
    assert main(command) == 0
    wholes = list(tables(capsys.readouterr().out.split("\n")))
    assert wholes
    for width in WIDTHS:
        lines = Terminal(width).run(*command)
        assert [line for line in lines if cell_len(line) > width] == []
        fitted = list(tables(lines))
        assert len(fitted) == len(wholes)
        for rows, whole in zip(fitted, wholes, strict=True):
            assert all(any(is_part(row, full) for full in whole) for row in rows), (rows, whole)
        if any(sum(map(len, rows)) < sum(map(len, whole)) for rows, whole in zip(fitted, wholes, strict=True)):
            assert any(line.startswith(f"Left out at {width} columns: ") for line in lines)


@pytest.mark.parametrize("command", [["policies"], ["reproduce", "--list", "rows"]], ids=" ".join)
def test_text_fits_terminals(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Lines are broken between words: they have the words that a pipe gets, and are no longer than the terminal."""
    assert main(command) == 0
    words = capsys.readouterr().out.split()
    for width in WIDTHS:
        lines = Terminal(width).run(*command)
        assert max(map(cell_len, lines)) <= width
        assert " ".join(lines).split() == words


def test_names_of_an_audit_are_safe_in_every_line(log: Path) -> None:
    """Whatever the clients are called, nothing but the styles of the table moves the terminal, and all are shown."""
    terminal = Terminal(200)
    shown = "\n".join(terminal.run("audit", str(log)))
    assert set(re.findall(r"\x1b\[[0-9;]*m|\x1b\S*", terminal.written)) <= {"\x1b[0m", "\x1b[1m", "\x1b[2m"}
    assert "\u202e" not in shown
    for name in NAMES:
        assert safe_text(f"client {name}" if name.isdigit() else name) in shown


CELLS = st.text("0123456789.,%k ", min_size=1, max_size=12).map(str.strip).filter(bool)
TITLES = st.text(st.sampled_from("abc日é\u0301\n-"), max_size=30).map(safe_text)
COLUMNS = st.lists(
    st.builds(Column, st.text("abcd", min_size=1, max_size=9), st.integers(0, 5)),
    min_size=1,
    max_size=12,
    unique_by=lambda column: column.head,
)


@given(columns=COLUMNS, width=st.integers(30, 200), data=st.data())
def test_a_table_has_the_width_that_it_is_given(columns: list[Column], width: int, data: st.DataObject) -> None:
    """Of any names and figures: lines fit, no figure is cut, the columns that stay are never less important than one
    that goes, and of each name all is there."""
    rows = data.draw(st.lists(st.tuples(TITLES, *(CELLS for _ in columns)), min_size=1, max_size=6))
    named = [Column("name", kind="name"), *columns]
    shown = io.StringIO()
    console = open_console(shown, width)
    _, left_out = fitted_table(console, named, rows)
    print_table(console, named, rows)
    assert all(cell_len(line) <= width for line in shown.getvalue().split("\n"))
    kept = [i for i, column in enumerate(columns) if column.label not in left_out]
    spares = sorted(column.spare for column in columns)
    assert sorted(columns[i].spare for i in kept) <= spares[: len(kept)]
    below = shown.getvalue().partition("──")[2].partition("\n")[2].partition("Left out")[0]
    assert sorted("".join(below.split())) == sorted(
        "".join("".join([row[0], *(row[1 + i] for i in kept)]) for row in rows).replace(" ", "")
    )


@given(st.lists(st.tuples(st.sampled_from(["dlpm", "max_batched_tokens", "e2", "llama-3b"]), st.integers(0, 10**9))))
def test_names_are_broken_in_no_number(params: list[tuple[str, int]]) -> None:
    """Lines of a run's name fit, have every sign of it, and break no number that fits into a line."""
    label = " ".join(f"{name}={value}" for name, value in params)
    for width in (12, 16, 20):
        lines = name_lines(label, width)
        assert all(cell_len(line) <= width for line in lines)
        assert "".join(lines).replace(" ", "") == label.replace(" ", "")
        numbers = re.findall(r"(?<=[=])[0-9]+", " ".join(lines).replace("= ", "="))
        assert numbers == [str(value) for _, value in params]


@given(st.text("ab日 1.5s%…\u0301", max_size=80), st.integers(12, 60), st.sampled_from(["", "  ", "      "]))
def test_broken_lines_have_every_word(text: str, width: int, indent: str) -> None:
    """Lines of text fit, and together have its letters in their order."""
    shown = io.StringIO()
    print_lines(open_console(shown, max(width, 20)), [text], indent=indent)
    assert all(cell_len(line) <= max(width, 20) for line in shown.getvalue().split("\n"))
    assert "".join(shown.getvalue().split()) == "".join(text.split())


def test_columns_in_the_environment_come_first(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    """`COLUMNS` is obeyed in a terminal and in a pipe."""
    monkeypatch.setenv("COLUMNS", "70")
    lines = Terminal(200).run("audit", str(log))
    assert 60 < max(map(cell_len, lines)) <= 70


def test_a_bar_stays_in_its_line(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Progress fits a narrow terminal, and nothing of it is in an output that goes elsewhere."""
    terminal = Terminal(40, "stderr")
    with terminal.opened():
        assert main(["audit", str(log)]) == 0
    frames = re.split(r"[\r\n]|\x1b\[[0-9]*[A-Zhl]", terminal.written)
    assert max(cell_len(ESCAPE.sub("", frame)) for frame in frames) <= 40
    assert any("━" in frame for frame in frames)
    out = capsys.readouterr().out
    assert "━" not in out
    assert "\x1b" not in out


@pytest.mark.parametrize("command", ["audit", "compare"])
def test_a_closed_pipe_loses_nothing_but_what_is_shown(
    command: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has gone before the first line: the document is there, the status is that of the run, and nothing is
    said on standard error."""
    reading, writing = os.pipe()
    os.close(reading)
    target = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "stdout", os.fdopen(writing, "w"))
    arguments = [str(log)] if command == "audit" else ["--limit", "5", "--policies", "fcfs"]
    assert main([command, *arguments, "--json", str(target)]) == 0
    sys.stdout.close()
    assert json.loads(target.read_bytes())
    assert capsys.readouterr().err == ""


def test_a_document_may_go_to_standard_output(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With `--json -` standard output is the document and nothing else; the tables are on standard error."""
    assert main(["audit", str(log), "--json", "-"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["clients"]
    assert "──" in shown.err


def test_a_file_that_cannot_be_written_has_a_status_of_its_own(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A disk that is full ends the command with 3 and one line, before anything is printed."""
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(log), "--json", "/dev/full"])
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (3, "")
    assert shown.err == "fairsched audit: /dev/full cannot be written: No space left on device\n"


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    """What fails in the middle leaves the older file and nothing beside it; what succeeds keeps link and mode."""
    file, link = tmp_path / "file", tmp_path / "link"
    write_whole(file, "older")
    file.chmod(0o640)
    link.symlink_to(file)
    with suppress(KeyError), whole_file(link) as opened:
        opened.write(b"half")
        raise KeyError
    assert (file.read_text(), sorted(each.name for each in tmp_path.iterdir())) == ("older", ["file", "link"])
    write_whole(link, b"newer")
    assert (file.read_text(), link.is_symlink(), file.stat().st_mode & 0o777) == ("newer", True, 0o640)
    assert len(list(tmp_path.iterdir())) == 2


def test_what_cannot_be_written_is_refused_before(tmp_path: Path) -> None:
    """A folder in place of a file, and a folder that is not there, are named."""
    with pytest.raises(Unwritable, match="is a folder"):
        check_file(tmp_path)
    with pytest.raises(Unwritable, match="there is no folder"):
        check_file(tmp_path / "gone" / "file")
    check_file(tmp_path / "file")


def test_a_command_that_is_shown_can_be_copied() -> None:
    """Broken over lines, and of files with any names, a shell reads the same words."""
    words = ["fairsched", "trace", "--out", "a b's.jsonl", "a\x1b[2J\u202eb'\\.jsonl", "x" * 70, "--map", "日本.toml"]
    shown = io.StringIO()
    print_commands(open_console(shown, 40), words)
    assert "\x1b" not in shown.getvalue()
    assert shown.getvalue().count("\\\n") > 3
    script = "printf '%s\\0' " + shown.getvalue()
    read = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert read.decode().split("\0")[:-1] == words
