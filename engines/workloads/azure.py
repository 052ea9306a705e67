"""Azure's LLM inference trace: a CSV of wall-clock times and lengths, with neither clients nor prefixes.

Format and data: Azure public dataset, LLM inference trace 2023 (CC-BY 4.0).  Times are counted from the first row.
A row without a generated token is refused: the published 2023 conversation trace holds none (its smallest is 7).
"""

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from fairsched.engines.workloads.errors import TraceError
from fairsched.engines.workloads.rows import NS_PER_S, TraceRow, count, csv_rows
from fairsched.model.request import Prompt

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?", re.ASCII
)


def read(path: Path) -> Iterator[TraceRow]:
    """Rows of an Azure trace; ids count from 0.  Raises `TraceError`."""
    start_ns: int | None = None
    days: dict[str, int] = {}
    for row, (timestamp, context, generated) in csv_rows(path, COLUMNS):
        time_ns = _time_ns(path, row, timestamp, days)
        if start_ns is None:
            start_ns = time_ns
        elif time_ns < start_ns:
            raise TraceError(path, row, COLUMNS[0], "a time not before the first row's", timestamp)
        yield TraceRow(
            row=row,
            id=row - 2,
            arrival_ns=time_ns - start_ns,
            prompt=Prompt(tokens=count(path, row, COLUMNS[1], context)),
            output_tokens=count(path, row, COLUMNS[2], generated),
        )


def _time_ns(path: Path, row: int, text: str, days: dict[str, int]) -> int:
    """Nanoseconds since year 1; `days` remembers the dates already seen, since parsing one costs more than the rest."""
    match = _TIMESTAMP.fullmatch(text)
    if match:
        day, hours, minutes, seconds, fraction = match.groups()
        try:
            ordinal = days.get(day) or days.setdefault(day, date.fromisoformat(day).toordinal())
        except ValueError:
            ordinal = 0
        if ordinal:
            whole = ((ordinal * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
            return whole * NS_PER_S + int(((fraction or "") + "000000000")[:9])
    raise TraceError(path, row, COLUMNS[0], "a UTC time as in 2023-11-16 18:15:46.680590", repr(text))
