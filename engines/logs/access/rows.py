"""The files of a log (names, patterns for several, and `-` for standard input) and their rows as mappings.

Rows are JSON objects (one a line, over several lines, in lists), CSV of any separator, and lines that a pattern takes
apart.  A row that is none is a `TraceError` in its place, so that such rows can be left out.  Blank lines are passed
over.
"""

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from glob import glob
from itertools import chain, islice
from pathlib import Path

import attrs
import msgspec

from fairsched.engines.logs.access.columns import Columns
from fairsched.engines.workloads import STDIN, Lines, Source, TraceError

__all__ = ["Lines", "Source", "expanded", "title"]


def expanded(names: Sequence[str | Path]) -> tuple[Path, ...]:
    """Return the files that the names and patterns stand for.  Raises `ValueError` for a pattern that matches none."""
    found: list[Path] = []
    for name in map(str, names):
        if name == STDIN or not any(sign in name for sign in "*?[") or os.path.lexists(name):
            found.append(Path(name))
            continue
        matches = sorted(each for each in glob(name, recursive=True) if not os.path.isdir(each))
        if not matches:
            raise ValueError(f"{name}: no file matches")
        found += map(Path, matches)
    if not found:
        raise ValueError("no log is named")
    for path in found:
        if found.count(path) > 1:
            raise ValueError(f"{path}: named twice, and its requests would count twice")
    return tuple(found)


def title(files: Sequence[Path]) -> Path:
    """Return what a log in these files is called: the first and how many more, or what pipes are."""
    first = str(files[0])
    name = "standard input" if first == STDIN else "pipe" if first.startswith(("/dev/fd/", "/proc/")) else first
    return Path(name if len(files) == 1 else f"{name} and {len(files) - 1} more")


Row = tuple[int, dict[str, object] | TraceError | None]
"""A row with the number of its (last) line; None stands for one that is no request."""
Rows = Iterator[Row]

HEAD_LINES = 50
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_FIELD_CHARS_MAX = 1 << 30
_LIST = re.compile(r"\[\s*\{")
_NAME = re.compile(r"[^\W\d][^\"]{0,99}$|[@#$]\w")
_document = json.JSONDecoder().raw_decode
_decode = msgspec.json.Decoder(dict[str, object]).decode


@attrs.frozen
class LogKind:
    """A kind of log: how its lines become rows, and which of their columns say what.

    `rows` makes rows of a file's lines; the file's name is for messages.  `columns` are those that are known; a row
    need not have them, and what they leave open is guessed.  Files of one `name` and `header` are read alike.  `notes`
    are what must be known of every such log, and `advice` is what makes its program say more.
    """

    name: str
    rows: Callable[[Path, Lines], Rows]
    columns: Columns | None = None
    header: str = ""
    notes: tuple[str, ...] = ()
    advice: str = ""


Recognise = Callable[[Sequence[str]], LogKind | None]
"""Returns the kind of a log by its first lines; None for one that it does not know."""


def rows_of(path: Path, lines: Lines, recognise: Recognise) -> tuple[LogKind, Rows] | None:
    """Return the kind of a log and its rows, None for a log without a line."""
    filled = (line for line in lines if not isinstance(line[1], str) or line[1].strip())
    head = list(islice(filled, HEAD_LINES))
    text = [line for _, line in head if isinstance(line, str)]
    for _, line in head if not text else ():
        if isinstance(line, TraceError):
            raise line
    if not text:
        return None
    kind = recognise(text) or _plain(path, text)
    return kind, kind.rows(path, chain(head, filled))


def _plain(path: Path, text: Sequence[str]) -> LogKind:
    first = text[0].strip()
    if first.startswith('{"fairsched_log"'):
        raise TraceError(path, 1, None, "an access log", "an event log, which is read from a file of its own")
    if first.startswith("{") or _spread(text):
        return LogKind("JSON", json_rows)
    separator = separator_of(text)
    if separator is None:
        *most, last = SEPARATORS.values()
        expected = "a log of a known server, a JSON object a line, or columns between"
        raise TraceError(path, 1, None, f"{expected} {', '.join(most)} or {last} below a header", text[0])
    return LogKind("CSV", lambda path, lines: csv_rows(path, lines, separator), header=text[0])


# --- JSON -------------------------------------------------------------------------------------------------------------


def json_rows(path: Path, lines: Lines) -> Rows:
    """Yield JSON objects: one a line, or printed over several lines or in lists, whose text is held in memory and whose
    rows are numbered from 1."""
    head = list(islice(lines, 2))
    lines = chain(head, lines)
    if _spread([line for _, line in head if isinstance(line, str)]):
        documents = whole(path, lines, "one JSON list, or a JSON object a line")
        items = (item for found in documents for item in (found if isinstance(found, list) else [found]))
        for number, item in enumerate(items, 1):
            yield number, item if isinstance(item, dict) else TraceError(path, number, None, "a JSON object", str(item))
        return
    for number, line in lines:
        yield number, line if isinstance(line, TraceError) else json_object(path, number, line)


def _spread(text: Sequence[str]) -> bool:
    """Return whether a list or an object begins on the first line, and ends on no line before the next begins."""
    first, second = (line.strip() for line in (*text, "", "")[:2])
    opened = first.startswith("{") and second != "" and not first.endswith("}") and not second.startswith("{")
    return first == "[" or _LIST.match(first) is not None or opened


def whole(path: Path, lines: Lines, expected: str) -> list[object]:
    """Return the JSON documents that all lines are together, one after the other.  Raises `TraceError`."""
    text = {}
    for number, line in lines:
        if isinstance(line, TraceError):
            raise line
        text[number] = line
    joined = "\n".join(text.values()).strip()
    with suppress(msgspec.DecodeError):
        return [msgspec.json.decode(joined)]
    found: list[object] = []
    at = 0
    try:
        while at < len(joined):
            document, end = _document(joined, at)
            found.append(document)
            at = len(joined) - len(joined[end:].lstrip())
    except json.JSONDecodeError as error:
        said = f"{error.msg.lower()} at column {error.colno}"
        raise TraceError(path, [*text][min(error.lineno, len(text)) - 1], None, expected, said) from None
    return found


def json_object(path: Path, number: int, text: str | msgspec.Raw) -> dict[str, object] | TraceError:
    """Return a row in JSON; `NaN`, which is none, is let pass, since many programs write it."""
    try:
        return _decode(text)
    except msgspec.DecodeError:
        plain = text if isinstance(text, str) else bytes(text).decode()
        try:
            found = json.loads(plain)
        except ValueError:
            found = None
        return found if isinstance(found, dict) else TraceError(path, number, None, "a JSON object", plain)


# --- CSV --------------------------------------------------------------------------------------------------------------


def separator_of(text: Sequence[str]) -> str | None:
    """Return the separator of these lines, the first of which is a header; None if they have none.

    It is the one by which most lines have as many values as the header, and of equals the one with the most columns.
    """
    best: tuple[int, int, str] | None = None
    for separator in SEPARATORS:
        rows = []
        reader = _csv_reader((f"{line}\n" for line in text), separator)
        with suppress(csv.Error):
            for values in reader:
                rows.append(values)
        if rows and len(rows[0]) > 1 and _header(rows[0]):
            score = (sum(len(values) == len(rows[0]) for values in rows), len(rows[0]), separator)
            best = score if best is None or score[:2] > best[:2] else best
    return None if best is None else best[2]


def _header(values: Sequence[str]) -> bool:
    """Return whether these may be names of columns; one may have none, as the first that pandas writes."""
    names = [value.strip() for value in values]
    return names.count("") < 2 and all(_NAME.match(name) for name in names if name)


def csv_rows(path: Path, lines: Lines, separator: str = ",") -> Rows:
    """Yield the rows below a header, by the header's names; the header may come again, as in files that were joined."""
    csv.field_size_limit(_FIELD_CHARS_MAX)  # prompts may be in there
    text = _Text(lines)
    reader = _csv_reader(text, separator)
    header = [name.strip() for name in next(reader, [])]
    if len(set(header)) < len(header):
        raise TraceError(path, text.number, None, "each column once", separator.join(header))
    while True:
        begin = text.number + 1
        try:
            values = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            yield text.number, TraceError(path, begin, None, f"values between {SEPARATORS[separator]}", str(error))
            continue
        if len(values) == len(header):
            if values != header:
                yield text.number, dict(zip(header, values, strict=True))
        elif values:
            expected = f"{len(header)} values ({separator.join(header)})"
            yield text.number, TraceError(path, text.number, None, expected, f"{len(values)} values")
    yield from text.faults


class _Text:
    """The text of lines, each with its end; `number` is that of the last line, `faults` are those that are no text."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self.number = 0
        self.faults: list[Row] = []

    def __iter__(self) -> Iterator[str]:
        for number, line in self._lines:
            self.number = number
            if isinstance(line, TraceError):
                self.faults.append((number, line))
            else:
                yield f"{line}\n"


def _csv_reader(text: Iterable[str], separator: str) -> Iterator[list[str]]:
    return csv.reader(text, delimiter=separator, skipinitialspace=True, strict=True)
