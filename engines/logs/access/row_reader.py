"""One row of a log, understood: times in order, tokens, names, and how the request ended."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import NoReturn

from fairsched.engines.logs.access import values as vals
from fairsched.engines.logs.access.columns import COUNTS, DURATIONS, MOMENTS, Columns, LogColumn
from fairsched.engines.logs.access.identity import Names
from fairsched.engines.workloads import TraceError

ALL_CLIENTS = "(all)"
"""The client of all requests, where the log names none."""
NO_NAME = "(none)"
"""The client or worker of a row that names none."""
ROW = (
    *("client", "worker", "model", "status"),
    *("arrival_ns", "served_ns", "first_ns", "end_ns", "prompt", "cached", "output", "most"),
    *("streamed", "outcome", "measured", "request"),
)
"""What is made of a row: the client at each level, three names, and numbers; `request` is a hash of the request."""
Understood = tuple[Names, str, str | None, str, int, int, int, int, int, int, int, int, int, int, int, int]
_NUMBERS = (*MOMENTS, *DURATIONS, *COUNTS)
_LENGTH_OF = {"arrival": "latency", "end": "latency", "first_token": "ttft"}
"""The length of time that makes up for a moment."""
_ROUNDING_NS = 10**6


class RowReader:
    """Reads rows by columns that are known, and counts what is odd.

    `utc_offset_s` is what the log's clock is ahead of UTC (None: it counts from something else), and `guessed` are the
    lengths of time whose unit is not said.
    """

    def __init__(self, path: Path, columns: Columns, sample: Sequence[Mapping[str, object]]) -> None:
        self.path = path
        self.columns = columns
        self.utc_offset_s: int | None = None
        self.guessed: list[str] = []
        self._units: dict[str, str] = {}
        self._zoneless: list[str] = []
        self._yearless: list[str] = []
        self._unfinished = 0
        self._outcomes: dict[str, vals.Ending] = {}
        self._paths = {field: (_key(column), column.path) for field, column in columns.of.items()}
        self._levels = [(_key(column), column.path) for column in columns.levels.values()]
        self._numbers: list[tuple[int, str | None, tuple[str, ...], vals.Read]] = []
        for at, field in enumerate(_NUMBERS):
            column = columns.of.get(field)
            if column is not None:
                values = [value for row in sample if not vals.is_null(value := vals.value_at(row, column.path))]
                read = self._read(field, column, values)
                self._numbers.append((at, _key(column), column.path, read))

    def _read(self, field: str, column: LogColumn, values: Sequence[object]) -> vals.Read:
        """Return how a field is read that is no name."""
        if field in COUNTS:
            return vals.tokens
        if field in DURATIONS:
            if column.unit is None and not any(map(vals.names_unit, values)):
                self.guessed.append(field)
            unit = self._units[field] = column.unit or "s"
            return vals.length_reader(unit)
        unit = self._units[field] = column.unit or vals.unit_of_moment(values[0] if values else None)
        read = vals.moment_reader(unit)
        dates = [date for value in values if (date := vals.date_of(value)) is not None] if unit == "iso" else []
        if any(date.tzinfo is None for date in dates):
            self._zoneless.append(column.name)
        if any(date.year == vals.YEAR for date in dates):
            self._yearless.append(column.name)
        if values and self.utc_offset_s is None:
            offset = next((offset for date in dates if (offset := date.utcoffset()) is not None), timedelta())
            with suppress(vals.ValueFault):
                since_1970 = read(values[0]) >= vals.SINCE_1970_S_MIN * vals.NS["s"]
                self.utc_offset_s = int(offset.total_seconds()) if since_1970 else None
        return read

    def row(self, number: int, row: Mapping[str, object]) -> Understood:
        """Return the row as `ROW` says; raises `TraceError`."""
        found = self._found(number, row)
        arrival, first, end, queue, ttft, latency, prompt, cached, output, most = found
        status = self._text(row, "status", "")
        outcome = self._outcomes.get(status)
        if outcome is None:
            outcome = self._outcomes[status] = vals.outcome_of(status, self.columns.ok)
        finished = outcome == vals.Ending.FINISHED
        if latency != vals.UNKNOWN:
            if arrival == vals.UNKNOWN and end != vals.UNKNOWN:
                arrival = end - latency
            elif end == vals.UNKNOWN and arrival != vals.UNKNOWN:
                end = arrival + latency
        if arrival == vals.UNKNOWN or (end == vals.UNKNOWN and (finished or output > 0)):
            self._missing(number, found)
        if first == vals.UNKNOWN and ttft != vals.UNKNOWN:
            first = arrival + ttft
        if finished or output > 0 or (outcome == vals.Ending.CANCELLED and arrival <= first < end):
            served, first, end = self._times(number, arrival, first, end, queue)
            if outcome == vals.Ending.REJECTED:
                outcome = vals.Ending.ERROR  # what has an output was not refused
        else:
            end = arrival if end == vals.UNKNOWN else self._after(number, "end", end, arrival, "the arrival")
            served = first = vals.UNKNOWN
        self._unfinished += not finished and output < 1
        if cached > max(prompt, 0):
            self._refuse(number, "cached_tokens", f"at most the prompt's {max(prompt, 0)} tokens", cached)
        return (
            tuple([vals.name(row.get(key) if key else vals.value_at(row, path)) for key, path in self._levels]),
            (self._text(row, "worker", "") or NO_NAME) if "worker" in self._paths else "",
            self._text(row, "model", "") or None,
            status,
            arrival,
            served,
            first,
            end,
            max(prompt, 0),
            max(cached, 0),
            max(output, 0),
            most,
            vals.streamed_of(self._text(row, "streamed", "")) if "streamed" in self._paths else vals.UNKNOWN,
            outcome,
            int(not finished or vals.UNKNOWN not in (prompt, output)),
            _hash(self._text(row, "request_id", "")) if "request_id" in self._paths else vals.UNKNOWN,
        )

    def _found(self, number: int, row: Mapping[str, object]) -> list[int]:
        """Return the values of `_NUMBERS`."""
        found = [vals.UNKNOWN] * len(_NUMBERS)
        for at, key, path, read in self._numbers:
            value = row.get(key) if key is not None else vals.value_at(row, path)
            if value is None or (type(value) is str and value in vals.NULLS):
                continue
            try:
                found[at] = read(value)
            except vals.ValueFault as fault:
                if not vals.is_null(value):
                    self._refuse(number, _NUMBERS[at], str(fault), value)
        return found

    def _text(self, row: Mapping[str, object], field: str, missing: str) -> str:
        """Return a name as text, empty where the row has none; `missing` where the log has no such column."""
        if field not in self._paths:
            return missing
        key, path = self._paths[field]
        return vals.name(row.get(key) if key is not None else vals.value_at(row, path))

    def _times(self, number: int, arrival: int, first: int, end: int, queue: int) -> tuple[int, int, int]:
        """Return when the wait was over, the first token and the end; in order, or the row is refused."""
        if end < arrival:
            end = self._after(number, "end", end, arrival, "the arrival")
        served = first
        if first != vals.UNKNOWN and not arrival <= first <= end:
            first = self._after(number, "first_token", first, arrival, "the arrival")
            end = self._after(number, "first_token", end, first, "the first token")
            served = first
        if queue != vals.UNKNOWN:
            served = arrival + queue
            end = self._after(number, "queue", end, served, "the end of its time in the queue")
            if first != vals.UNKNOWN:
                first = self._after(number, "queue", first, served, "the end of its time in the queue")
        return served, first, end

    def _after(self, number: int, field: str, later: int, earlier: int, what: str) -> int:
        if later >= earlier:
            return later
        if earlier - later > _ROUNDING_NS:
            self._refuse(
                number,
                field if field in self._paths else _LENGTH_OF[field],
                f"times in order, each at or after {what}",
                f"{earlier - later} ns before it",
            )
        return earlier

    def _missing(self, number: int, found: Sequence[int]) -> NoReturn:
        """Refuse the row, with all the times that it does not say."""
        there, values = self._paths, dict(zip(_NUMBERS, found, strict=True))
        fields = [*(["arrival"] if "arrival" in there else ["end", "latency"]), "end" if "end" in there else "latency"]
        names = [self.columns.of[field].name for field in dict.fromkeys(fields) if values[field] == vals.UNKNOWN]
        raise TraceError(self.path, number, ", ".join(names), "a value" if len(names) == 1 else "values", "nothing")

    def _refuse(self, number: int, field: str, expected: str, found: object) -> NoReturn:
        column = self.columns.of.get(field)
        raise TraceError(self.path, number, column.name if column else field, expected, found)

    def reading(self) -> list[str]:
        """Return which column is what."""
        said = []
        for field, column in self.columns.of.items():
            if field == "client":
                continue
            unit = self._units.get(field)
            since = " since 1970" if field in MOMENTS and self.utc_offset_s is not None else ""
            text = "" if unit is None else " (date and time)" if unit == "iso" else f" ({unit}{since})"
            said.append(f"{field} = {column.name}{text}")
        return said

    def notes(self) -> list[str]:
        """Return what is odd about the rows."""
        said = []
        if self._unfinished:
            said.append(f"Requests that failed without any output: {self._unfinished:,}.")
        if not self.columns.levels:
            said.append("The log names no clients: all requests are one client's, and there is nothing to compare.")
        arrival = self.columns.of.get("arrival")
        if arrival is not None and arrival.path[-1].lower().strip("@") in ("timestamp", "ts", "time", "datetime"):
            said.append(
                f"{arrival.name} is taken for the time of arrival; if it is the time at which the answer was complete, "
                "name it as end in a map."
            )
        if self._zoneless:
            said.append(
                f"Times without a zone ({', '.join(self._zoneless)}) are read as UTC; if they are local ones, those of "
                "before and after a change of clocks are an hour off."
            )
        if self._yearless:
            said.append(f"Times without a year ({', '.join(self._yearless)}) are taken to be of {vals.YEAR}.")
        for field in self.guessed:
            said.append(f"{self.columns.of[field].name} has no unit in its name and is read as seconds.")
        return said


def _key(column: LogColumn) -> str | None:
    """Return the key of a column that does not lead inside."""
    return column.path[0] if len(column.path) == 1 else None


def _hash(request: str) -> int:
    """Return a request's id in 63 bits; UNKNOWN without one."""
    return int.from_bytes(blake2b(request.encode(), digest_size=8).digest()) >> 1 if request else vals.UNKNOWN
