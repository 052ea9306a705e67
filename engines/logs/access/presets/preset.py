"""What a kind of log is: how it is recognised, how its lines become rows, and which of their columns say what.

And what is none: a trace of what was asked has no times of answers, and is refused with what can be done with it.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import attrs
import msgspec

from fairsched.engines.logs.access.columns import Columns, LogColumn
from fairsched.engines.logs.access.rows import Lines, LogKind, Rows, json_rows, whole
from fairsched.engines.logs.access.values import Unit
from fairsched.engines.workloads import FORMATS, TraceError

Dict = dict[str, object]

_KEY = re.compile(r'\s*[\[{]?\s*"([^"]+)"\s*:')


@attrs.frozen
class Preset:
    """A kind of log.

    `knows` tells it by its first lines and `rows` makes rows of all; `columns` are those that it is known to have, and
    what they leave open is guessed by name.  `known_by` says in words what `knows` looks at; `asks` is what must be
    turned on in the program, so that nothing is missing; `sample` is what made the sample in our tests.
    """

    name: str
    knows: Callable[[Sequence[str]], bool]
    rows: Callable[[Path, Lines], Rows]
    columns: Columns
    known_by: str
    asks: str
    sample: str
    notes: tuple[str, ...] = ()

    def kind(self) -> LogKind:
        """Return it as the reader wants it."""
        return LogKind(self.name, self.rows, self.columns, notes=self.notes, advice=self.asks)


def columns(**of: str | tuple[str, Unit]) -> Columns:
    """Return columns by field: a name (with dots: keys that lead to it), or a name and its unit."""
    return Columns(
        {field: LogColumn((c,)) if isinstance(c, str) else LogColumn((c[0],), c[1]) for field, c in of.items()}
    )


# --- recognition ------------------------------------------------------------------------------------------------------


def keys(head: Sequence[str]) -> frozenset[str]:
    """Return the keys of the first JSON object of a log, as far as its first lines show them; none if it is no JSON."""
    first = head[0].lstrip()
    if not first.startswith(("{", "[")):
        return frozenset()
    try:
        return frozenset(msgspec.json.decode(first, type=dict[str, msgspec.Raw]))
    except msgspec.DecodeError:
        with suppress(ValueError):  # an endless rate is written as Infinity, which is no JSON
            return frozenset(found) if isinstance(found := json.loads(first), dict) else frozenset()
        return frozenset(found[1] for line in head if (found := _KEY.match(line)))


def has_keys(*wanted: str, any_of: Iterable[str] = ()) -> Callable[[Sequence[str]], bool]:
    """Return whether the first object has all these keys, and one of `any_of`."""
    some = frozenset(any_of)

    def knows(head: Sequence[str]) -> bool:
        there = keys(head)
        return there.issuperset(wanted) and (not some or bool(there & some))

    return knows


# --- rows -------------------------------------------------------------------------------------------------------------


def each_line(made: Callable[[Dict], Iterable[Dict | None]]) -> Callable[[Path, Lines], Rows]:
    """Yield rows of JSON objects: what is made of each; None stands for something that is no request."""

    def rows(path: Path, lines: Lines) -> Rows:
        for number, found in json_rows(path, lines):
            if isinstance(found, dict):
                for row in made(found):
                    yield number, row
            else:
                yield number, found

    return rows


def whole_file(made: Callable[[Path, object], Iterable[Dict | None]]) -> Callable[[Path, Lines], Rows]:
    """Yield rows of JSON documents, which are held in memory; they are numbered from 1."""

    def rows(path: Path, lines: Lines) -> Rows:
        documents = whole(path, lines, "a JSON document, or several")
        yield from enumerate((row for found in documents for row in made(path, found)), 1)

    return rows


def inside(found: object, *path: str) -> object:
    """Return what the keys lead to; None if there is nothing."""
    for key in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def items(found: object) -> list[object]:
    """Return a list; an empty one for anything else."""
    return found if isinstance(found, list) else []


def dicts(found: object) -> Iterator[Dict]:
    """Yield the objects of a list; none if it is no list."""
    yield from (each for each in items(found) if isinstance(each, dict))


# --- what is no log ----------------------------------------------------------------------------------------

_NEEDED = {
    "azure": {"TIMESTAMP", "ContextTokens", "GeneratedTokens"},
    "arena": {"req_id", "arrival_s", "input_tokens"},
    "burstgpt": {"Timestamp", "Request tokens", "Response tokens"},
    "mooncake": {"timestamp", "input_length", "output_length"},
    "bailian": {"chat_id", "input_length", "output_length"},
    "agentx": {"block_size", "requests"},
    "vidur": {"arrived_at", "num_prefill_tokens", "num_decode_tokens"},
    "splitwise": {"arrival_timestamp", "prompt_size", "token_size"},
}
"""The columns that make a trace one, by its format; it has none that its format does not know."""
_ANSWERS = {"Elapsed time"}
"""Columns that say when answers were complete."""


_NO_REQUESTS = (
    (
        {"load_summary"},
        "`per_request_lifecycle_metrics.json`, which inference-perf writes beside it if report.request_lifecycle."
        "per_request is true",
        "a summary of all requests",
    ),
)
"""Keys of files that do not say what is needed of each request; what is expected instead, and what such a file is."""


def refused(head: Sequence[str]) -> LogKind | None:
    """Return a kind that refuses its log, if it is a trace without answers or tells no requests; None if it is not."""
    names = keys(head) or {name.strip().strip('"') for name in head[0].split(",")}
    for needed, expected, found in _NO_REQUESTS:
        if needed <= names:
            return LogKind(found, partial(_refuse, expected, found))
    for name, needed in () if names & _ANSWERS else _NEEDED.items():
        if needed <= names <= set(FORMATS[name].fields):
            return LogKind(f"{name} trace", _refuse_trace)
    return None


def _refuse_trace(path: Path, lines: Lines) -> NoReturn:
    expected = f"times of answers (policies are compared on a trace with `fairsched compare {path}`)"
    _refuse(expected, "a trace of what was asked, of which nothing has waited yet", path, lines)


def _refuse(expected: str, found: str, path: Path, lines: Lines) -> NoReturn:
    raise TraceError(path, None, None, expected, found)
